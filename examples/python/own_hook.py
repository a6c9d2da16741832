"""A hook of one's own: only the largest sums of gradients travel.

    coxswain run --nproc 2 -- python examples/python/own_hook.py
"""

import torch
from torch.nn.parallel import DistributedDataParallel

import coxswain.torch as cx


@cx.hook
class TopK(cx.Hook):
    """The largest elements of each bucket; the others are sent later."""

    def __init__(self, ratio: float = 0.05) -> None:
        self.ratio = ratio

    def exchange(self, bucket, comm):
        error = bucket.kept("error")  # what was not sent; zeros at first
        error += bucket.tensor
        k = max(1, int(self.ratio * len(error)))
        places = error.abs().topk(k).indices
        values = error[places]
        error[places] = 0
        places = yield comm.all_gather(places)  # of all ranks
        values = yield comm.all_gather(values)
        bucket.tensor.zero_()
        bucket.tensor.index_add_(0, places.flatten(), values.flatten())
        bucket.tensor /= comm.size


session = cx.init(plan={"hook": "topk(ratio=0.1)"})
torch.set_num_threads(1)
torch.manual_seed(session.rank)  # each rank has data of its own
model = DistributedDataParallel(torch.nn.Linear(64, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = cx.follow(model, optimizer, exchange="coxswain")

while run.schedule.step < 100 and not run.stopping:
    with run.accumulate():
        x = torch.randn(32, 64)
        loss = (model(x) - x[:, :16]).square().mean()
        (loss * run.loss_scale).backward()
    if run.sync:
        optimizer.step()
        optimizer.zero_grad()
        if run.schedule.step % 20 == 0 and session.rank == 0:
            print("%d %.4f" % (run.schedule.step, loss.item()))
