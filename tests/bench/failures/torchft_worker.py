"""A replica group of torchft, of one process, that trains for ever.

The gradient is averaged by Manager.allreduce: DistributedDataParallel over
ProcessGroupGloo ends every survivor when a peer is killed (torchft 0.2.0, torch
2.15: an assertion in ddp.py about a future that is not there). --sync ddp shows
it.
"""

import os
from datetime import timedelta

import small_model

parser = small_model.arguments()
parser.add_argument("--slot", type=int, required=True)
parser.add_argument("--lighthouse", required=True)
parser.add_argument("--min-replicas", type=int, required=True)
# Those of torchft's example train_ddp.py and of its classes.
parser.add_argument("--heartbeat-ms", type=int, default=100)
parser.add_argument("--group-timeout-ms", type=int, default=5000)
parser.add_argument("--timeout-ms", type=int, default=60000)
parser.add_argument("--quorum-timeout-ms", type=int, default=60000)
parser.add_argument("--connect-timeout-ms", type=int, default=60000)
parser.add_argument("--quorum-retries", type=int, default=0)
parser.add_argument("--sync", choices=["manual", "ddp"], default="manual")
options = parser.parse_args()
log = small_model.Log(options.steps_log.format(slot=options.slot))
log.event("start", os.getpid())

import torch  # noqa: E402
from torch.distributed import TCPStore  # noqa: E402
from torchft import DistributedDataParallel, Manager  # noqa: E402
from torchft import Optimizer, ProcessGroupGloo  # noqa: E402


def milliseconds(count):
    return timedelta(milliseconds=count)


def average(manager, model):
    """Averages the gradients, as one tensor."""
    gradients = [one.grad for one in model.parameters()]
    flat = torch.cat([one.reshape(-1) for one in gradients])
    manager.allreduce(flat).wait()
    at = 0
    for one in gradients:
        one.copy_(flat[at:at + one.numel()].view_as(one))
        at += one.numel()


def main():
    model, optimizer = small_model.make(options)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def save():
        return {"model": model.state_dict(), "optimizer": managed.state_dict()}

    def load(state):
        model.load_state_dict(state["model"])
        managed.load_state_dict(state["optimizer"])

    log.event("asks")
    manager = Manager(
        pg=ProcessGroupGloo(timeout=milliseconds(options.group_timeout_ms)),
        load_state_dict=load,
        state_dict=save,
        min_replica_size=options.min_replicas,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=options.lighthouse,
        replica_id="slot_%d" % options.slot,
        hostname="localhost",
        heartbeat_interval=milliseconds(options.heartbeat_ms),
        timeout=milliseconds(options.timeout_ms),
        quorum_timeout=milliseconds(options.quorum_timeout_ms),
        connect_timeout=milliseconds(options.connect_timeout_ms),
        quorum_retries=options.quorum_retries,
    )
    wrapped = model
    if options.sync == "ddp":
        wrapped = DistributedDataParallel(manager, model)
    managed = Optimizer(manager, optimizer)
    while True:
        before = manager.current_step()
        managed.zero_grad()
        batches.loss(wrapped).backward()
        if options.sync == "manual":
            average(manager, model)
        managed.step()
        # Otherwise the step was not committed.
        if manager.current_step() > before:
            log.commit(
                manager.current_step(), manager.num_participants(),
                manager._quorum_id,
            )


batches = small_model.Batches(options, options.slot)
small_model.run(log, main)
