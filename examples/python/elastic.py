"""Training that goes on when a worker is killed, and takes in new ones.

    coxswain run --nproc 3 --min-workers 2 --max-restarts 1 -- \\
        python examples/python/elastic.py
"""

import argparse
import os

import torch

import coxswain.torch as cx

ROWS = 32  # of a batch

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--steps", type=int, default=10000)
steps = options.parse_args().steps

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(64, 16)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def rows(first):
    """Returns the rows from `first` on of the endless data."""
    generator = torch.Generator().manual_seed(first)
    return torch.randn(ROWS, 64, generator=generator)


def train(t):
    """Runs once in each generation, from the step that the job is at."""
    print(
        "rank %d of %d pid %d goes on from step %d"
        % (t.rank, t.world_size, os.getpid(), t.step),
        flush=True,
    )
    while t.step < steps and t.going:
        with t.accumulate():
            x = rows(t.counter["rows"] + t.rank * ROWS)
            loss = (t.ddp(x) - x[:, :16].abs()).square().mean()
            t.backward(loss)
        t.counter["rows"] += t.world_size * ROWS
        if t.sync:
            t.step_optimizer()
            if t.step % 100 == 0 and t.rank == 0:
                print(t.step, loss.item(), flush=True)


ending = cx.elastic(model, optimizer, train)
print(ending.value)
