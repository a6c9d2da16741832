"""A training that goes on from its last checkpoint, on any number of ranks.

    coxswain serve --listen 127.0.0.1:7077 &
    coxswain run --nproc 2 --coordinator 127.0.0.1:7077 --job example -- \
        python examples/python/resume.py 100
"""

import sys

import torch
from torch.nn.parallel import DistributedDataParallel

import coxswain.torch as cx

steps = int(sys.argv[1])
session = cx.init(plan={"checkpoint_every": 20})
torch.set_num_threads(1)
model = DistributedDataParallel(torch.nn.Linear(64, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = cx.follow(
    model, optimizer, checkpoint={"model": model, "optimizer": optimizer}
)
start = run.resume()  # from the newest checkpoint; 0 where there is none

for step in range(start, steps):
    # Each rank has data of its own, and draws it by the step.
    torch.manual_seed(1000 * step + session.rank)
    x = torch.randn(32, 64)
    with run.accumulate(end_of_data=True):
        loss = (model(x) - x[:, :16]).square().mean()
        (loss * run.loss_scale).backward()
    optimizer.step()
    optimizer.zero_grad()
    if run.stopping:  # such as after SIGTERM
        break
run.save_if_asked()  # what the last step asks for, now and not at exit

if session.rank == 0:
    print("resume: from %d to %d" % (start, run.schedule.step))
