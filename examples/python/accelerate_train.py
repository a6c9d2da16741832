"""Fashion-MNIST by Accelerate, each step agreed on by all ranks.

    coxswain run --nproc 2 -- python examples/python/accelerate_train.py
"""

import fashion_mnist
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import coxswain.accelerate
import coxswain.torch

options = fashion_mnist.arguments(__doc__)
session = coxswain.torch.init(plan={"accumulation": 4})
accelerator = Accelerator(cpu=not torch.cuda.is_available())
attached = coxswain.accelerate.attach(accelerator)
torch.set_num_threads(1)

data = fashion_mnist.load("train", options.data, options.samples)
batches = DataLoader(data, batch_size=32, shuffle=True)
network = fashion_mnist.Network()
optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
model, optimizer, batches = accelerator.prepare(network, optimizer, batches)

for epoch in range(options.epochs):
    model.train()
    for images, labels in batches:
        with accelerator.accumulate(model):
            loss = model(images, labels)["loss"]
            accelerator.backward(loss)  # raises RanksDiffer, PeerLost, ...
            optimizer.step()
            optimizer.zero_grad()
        if attached.stopping:
            break
    if attached.stopping:
        break

if accelerator.is_main_process:
    network = accelerator.unwrap_model(model).cpu()
    right = fashion_mnist.accuracy(network, options.data)
    steps = attached.runs[0].schedule.step
    print("accelerate: %d steps, accuracy %.1f%%" % (steps, 100 * right))
