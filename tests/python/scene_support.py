"""What the scenes of the torch tests have in common, on a rank."""

import faulthandler
import functools
import gc
import hashlib
import importlib
import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist

# Whose exchange scenes have that name none.
EXCHANGE = os.environ.get("SCENES_EXCHANGE") or "torch"
# Of one scene of several.
_TIMEOUT_S = 100


def whole_lines():
    """Has lines of several ranks come one after the other, and not the pieces
    that print() writes."""
    sys.stdout.reconfigure(line_buffering=True, write_through=False)


def check(condition, *what):
    if not condition:
        raise AssertionError(what)


def raised(kind, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError("%s did not raise %s" % (function, kind))


def digest(model):
    """Returns a text that is the same for the same parameters, bit by bit."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def on_all_ranks(value):
    """Checks that all ranks have the same."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    check(all(one == values[0] for one in values), values)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )


def samples(count=88):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 16, generator=generator)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def plan_set(session, *changes):
    """Changes the job's plan as an operator does."""
    subprocess.run(
        [os.environ["COXSWAIN_CLI"], "plan", "set", session.job, *changes],
        check=True,
        timeout=60,
        stdout=subprocess.DEVNULL,
    )


class HookChanges:
    """Changes of the plan's hook, which come with the steps of the first model
    that is followed: of one of its own."""

    def __init__(self, session):
        import coxswain.torch

        self._session = session
        self._model = torch.nn.parallel.DistributedDataParallel(network())
        self._run = coxswain.torch.follow(self._model, exchange="coxswain")

    def to(self, hook):
        """Returns once the models that are followed next have this hook, and
        no state of another one. All ranks call it."""
        import coxswain

        wanted = coxswain.canonical_hook(hook)
        if self._run.plan.hook == wanted:
            return
        if self._session.rank == 0:
            plan_set(self._session, "hook=" + wanted, "hook_state=reset")
        self._session.barrier("the plan has " + wanted, timeout=60)
        for _ in range(20):
            if self._run.plan.hook == wanted:
                return
            self._model(torch.ones(2, 16)).sum().backward()
        raise AssertionError("the plan still has " + self._run.plan.hook)


def stall(stand=lambda: os.kill(os.getpid(), signal.SIGSTOP)):
    """Prints the time, and goes no further."""
    print("STANDS %.3f" % time.monotonic(), flush=True)
    stand()


def names_the_other(session, kind, train):
    """Trains until the error that rank 1 causes; prints it, and ends
    that rank."""
    session.store.set("pid/%d" % session.rank, str(os.getpid()))
    other = int(session.store.get("pid/1", timeout=60))
    error = raised(kind, train)
    print("NAMED %.3f" % time.monotonic(), error.ranks, error, flush=True)
    try:
        os.kill(other, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _exchange_by_variable():
    """Has scenes that name no exchange use EXCHANGE."""
    for module, name in (
        ("coxswain.torch", "follow"),
        ("coxswain.accelerate", "attach"),
        ("coxswain.transformers", "attach"),
        ("coxswain.lightning", "Follow"),
    ):
        if EXCHANGE != "torch" and module in sys.modules:
            function = getattr(sys.modules[module], name)
            setattr(
                sys.modules[module], name,
                functools.partial(function, exchange=EXCHANGE),
            )


def main(scenes):
    """Runs the scene that is named, or several, each in a process and a job of
    its own, whose output goes to the folder SCENES_FOLDER."""
    torch.set_num_threads(1)
    whole_lines()
    _exchange_by_variable()
    names = sys.argv[1:]
    if len(names) > 1:
        importlib.import_module("torch._dynamo")  # optimizers do that
        gc.freeze()  # As preloaded.py does.
        name = next(filter(_is_here, names), None)
        if name is None:
            return
        names = [name]
    scenes[names[0]]()
    print("DONE", flush=True)


def _is_here(name):
    """Returns whether this is the process of a scene; if not, it is over."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return False
    # A scene that hangs shows where.
    faulthandler.dump_traceback_later(_TIMEOUT_S, exit=True)
    path = os.path.join(
        os.environ["SCENES_FOLDER"],
        "%s.%s" % (name, os.environ["COXSWAIN_LOCAL_RANK"]),
    )
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ["COXSWAIN_JOB"] = name
    return True
