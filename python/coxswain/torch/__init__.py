"""torch programs under Coxswain: each step is agreed on by all ranks.

    import coxswain.torch as cx
    cx.init(plan={"accumulation": 4})     # joins, and init_process_group
    model = DistributedDataParallel(model)
    run = cx.follow(model, optimizer)     # announces and decides each exchange

torch exchanges the gradients, by its own process group and hooks, or Coxswain
does, on CPUs and by the plan's hook: follow(model, exchange="coxswain"). The
coordinator compares what the ranks do. If a rank counts differently, stalls or
dies, backward() raises an error that names it. Importing this module imports
torch.
"""

from ._elastic import Training, elastic
from ._follow import Run, follow
from ._generations import Ending
from ._own_calls import hook
from ._own_hook import Bucket, Comm, Hook
from ._recovery import Recovery
from ._session import init, leave, session
from ._store import TorchStore

__all__ = [
    "Bucket",
    "Comm",
    "Ending",
    "Hook",
    "Recovery",
    "Run",
    "TorchStore",
    "Training",
    "elastic",
    "follow",
    "hook",
    "init",
    "leave",
    "session",
]
