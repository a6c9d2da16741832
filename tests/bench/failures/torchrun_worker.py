"""A worker of torchrun that trains for ever, and begins from the newest
checkpoint: torchrun ends all workers when one fails, and starts all anew."""

import datetime
import os
import time

import small_model

options = small_model.arguments()
options.add_argument("--group-timeout-ms", type=int, default=0,
                     help="of Gloo; 0: torch's own, 30 minutes")
options.add_argument("--checkpoint", required=True)
options.add_argument("--checkpoint-every", type=int, default=10)
options = options.parse_args()
# Where several nodes are on this machine, the first has the first slots.
slot = int(os.environ.get("FIRST_SLOT", "0")) + int(os.environ["LOCAL_RANK"])
log = small_model.Log(options.steps_log.format(slot=slot))
log.event("start", os.getpid())

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def read(model, optimizer):
    """Returns the step of the newest checkpoint."""
    if not os.path.exists(options.checkpoint):
        return 0
    found = torch.load(options.checkpoint)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return found["step"]


def write(model, optimizer, step):
    partial = options.checkpoint + ".partial"
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
         "step": step},
        partial,
    )
    os.replace(partial, options.checkpoint)


def epoch(rank):
    """Returns a number that all ranks have alike, and no set of workers before
    these has had."""
    found = torch.tensor([time.time_ns() // 1_000_000])
    dist.broadcast(found, 0)
    return found.item()


def main():
    model, optimizer = small_model.make(options)
    log.event("asks")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    step = read(model, optimizer)
    number = epoch(rank)
    group = None
    if options.group_timeout_ms:
        # A group of its own: to find each other workers may need longer.
        group = dist.new_group(timeout=datetime.timedelta(
            milliseconds=options.group_timeout_ms
        ))
    wrapped = DistributedDataParallel(model, process_group=group)
    while True:
        optimizer.zero_grad()
        batches.loss(wrapped).backward()
        optimizer.step()
        step += 1
        log.commit(step, world, number)
        if rank == 0 and step % options.checkpoint_every == 0:
            write(model, optimizer, step)


batches = small_model.Batches(options, slot)
small_model.run(log, main)
