"""The smallest program: coxswain run --nproc 2 -- python minimal.py"""

import torch
from torch.nn.parallel import DistributedDataParallel

import coxswain.torch as cx

session = cx.init()  # joins the job, and makes torch's process group
torch.manual_seed(session.rank)  # each rank has data of its own
model = DistributedDataParallel(torch.nn.Linear(64, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = cx.follow(model, optimizer)

while run.schedule.step < 100 and not run.stopping:
    with run.accumulate():
        x = torch.randn(32, 64)
        loss = (model(x) - x[:, :16]).square().mean()
        (loss * run.loss_scale).backward()  # raises RanksDiffer, PeerLost, ...
    if run.sync:
        optimizer.step()
        optimizer.zero_grad()
        if run.schedule.step % 20 == 0 and session.rank == 0:
            print(run.schedule.step, loss.item())
