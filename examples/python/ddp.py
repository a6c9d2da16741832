"""Fashion-MNIST by DistributedDataParallel, each step agreed on by all ranks.

    coxswain run --nproc 2 -- python examples/python/ddp.py
"""

import fashion_mnist
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import coxswain.torch as cx

options = fashion_mnist.arguments(__doc__)
session = cx.init(plan={"accumulation": 4})  # and torch's process group
torch.set_num_threads(1)

data = fashion_mnist.load("train", options.data, options.samples)
sampler = DistributedSampler(data)
batches = DataLoader(data, batch_size=32, sampler=sampler)
network = fashion_mnist.Network()
model = DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
run = cx.follow(model, optimizer)

for epoch in range(options.epochs):
    sampler.set_epoch(epoch)
    model.train()
    for i, (images, labels) in enumerate(batches):
        with run.accumulate(end_of_data=i + 1 == len(batches)):
            loss = model(images, labels)["loss"] * run.loss_scale
            loss.backward()  # raises RanksDiffer, PeerLost, ...
        if run.sync:
            optimizer.step()
            optimizer.zero_grad()
        if run.stopping:
            break
    if run.stopping:
        break

if session.rank == 0:
    right = fashion_mnist.accuracy(network, options.data)
    print("ddp: %d steps, accuracy %.1f%%" % (run.schedule.step, 100 * right))
