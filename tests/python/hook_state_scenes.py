"""Scenes of hook_state_test: what hooks of Coxswain's remember goes along."""

import hashlib
import importlib
import os
import struct
import sys

import scene_support
import torch
import torch.distributed as dist
from attempts import attempts
from scene_support import check, digest, network, plan_set, raised
from torch.nn.parallel import DistributedDataParallel

import coxswain
import coxswain.torch as cx

HOOKS = {
    "powersgd": "powersgd(rank=2,start_step=2)",
    "wrapped": "fp16(powersgd(rank=2,start_step=2))",
    "int8": "int8(block=32)",
    "mean": "powersgd(rank=2,start_step=2)",
    "sigterm": "powersgd(rank=2,start_step=2)",
}
STEPS = 4  # of an attempt


def network_of(hook):
    """Returns a model; with int8 one whose buckets do not change after a first
    step, as blocks are cut from them."""
    torch.manual_seed(0)
    return torch.nn.Linear(16, 8, bias=False) if hook == "int8" else network()


def made(hook):
    model = DistributedDataParallel(network_of(hook))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def step(model, optimizer, number):
    """Takes a step with data that each rank has for itself."""
    seed = 100 * number + dist.get_rank()
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
    model(x).sub(x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def on_all_ranks(value):
    """Returns a value, once it is known that all ranks have the same."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    check(all(one == values[0] for one in values), values)
    return value


def remembered(*runs):
    """Returns a text that is the same if the hooks remember the same, and the
    norm of that, for other numbers of ranks: a mean is rounded there."""
    found, squares = hashlib.sha256(), 0.0
    for run in runs:
        state = run.state_dict()["hook"]
        found.update(state)
        for _, _, data in Reader(state).tensors("float32"):
            tensor = torch.frombuffer(bytearray(data), dtype=torch.float32)
            squares += tensor.double().square().sum().item()
    return on_all_ranks("%s %.8e" % (found.hexdigest()[:16], squares**0.5))


class Reader:
    """Reads what a hook remembers: docs/hook-state-format.md."""

    def __init__(self, data):
        self._data, self._at = data, 8
        self.spec = self._text()
        self.step = self._number("<q")

    def tensors(self, of):
        """Returns the kind, the parameter and the bytes of all tensors of a
        type."""
        for _ in range(2 * self._number("<I")):
            self._text()
        found = []
        for _ in range(self._number("<I")):
            kind, name, dtype = self._text(), self._text(), self._text()
            for _ in range(self._number("<I")):
                self._number("<q")
            data = self._bytes(self._number("<q"))
            if dtype == of and data:
                found.append((kind, name, data))
        return found

    def _number(self, form):
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _bytes(self, size):
        self._at += size
        return self._data[self._at - size : self._at]

    def _text(self):
        return self._bytes(self._number("<I")).decode()


def hooked():
    """Trains two models, from where the attempt before has ended. A job whose
    name ends with "whole" has one attempt for the steps of two."""
    job = os.environ["COXSWAIN_JOB"]
    kind, _, whole = job.partition("-")
    session = cx.init(plan={"hook": HOOKS[kind], "checkpoint_every": STEPS})
    models = [made(kind), made(kind)]
    kept = {}
    for name, (model, optimizer) in zip(("model", "critic"), models):
        kept[name], kept[name + "_optimizer"] = model, optimizer
    runs = [
        cx.follow(
            *models[0], exchange="coxswain", checkpoint=kept,
            checkpoint_own_errors=kind != "mean",
        )
    ]
    begin = runs[0].resume()
    # It is followed later, and goes on all the same.
    runs.append(cx.follow(*models[1], exchange="coxswain"))
    check([run.schedule.step for run in runs] == [begin, begin])
    tell("BEGINS", job, begin, remembered(*runs))
    for number in range(begin, begin + STEPS * (2 if whole else 1)):
        for model, optimizer in models:
            step(model, optimizer, number)
        if number + 1 == STEPS:
            check(runs[0].save_if_asked())
    end = runs[0].schedule.step
    digests = [on_all_ranks(digest(model)) for model, _ in models]
    tell("ENDS", job, end, remembered(*runs), *digests)
    saved = runs[0].finish()
    check(saved.step == end and saved.error is None, saved)
    if session.rank == 0:
        found = session.checkpoints.find()
        check(found.hook == coxswain.canonical_hook(HOOKS[kind]), found)


def tell(what, job, *more):
    """Prints a line, on one rank."""
    if dist.get_rank() == 0:
        print(what, job, dist.get_world_size(), *more, flush=True)


def another_hook():
    """A checkpoint of another hook is refused, and changes nothing."""
    cx.init(plan={"hook": "int8"})
    model, optimizer = made("powersgd")
    kept = {"model": model, "model_optimizer": optimizer}
    run = cx.follow(model, optimizer, exchange="coxswain", checkpoint=kept)
    before = digest(model)
    error = raised(coxswain.Error, run.resume)
    check(error.code is coxswain.Code.FAILED_PRECONDITION, error)
    check("of hook 'powersgd" in str(error) and "'int8'" in str(error), error)
    check('resume(objects=["model"])' in str(error), error)
    check(digest(model) == before and run.schedule.step == 0)
    check(run.resume(objects=["model"]) == 3 * STEPS)
    check(digest(model) != before)
    tell("REFUSED", "powersgd")


def changed():
    """The plan gets a hook with a state while it trains and saves."""
    session = cx.init(plan={"hook": "bf16", "checkpoint_every": 1})
    model, optimizer = made("changed")
    kept = {"model": model, "optimizer": optimizer}
    run = cx.follow(model, optimizer, exchange="coxswain", checkpoint=kept)
    begin = run.resume()
    hook = coxswain.canonical_hook(HOOKS["powersgd"])
    check((run.plan.hook == hook) == (begin > 0), run.plan.hook)
    tell("BEGINS", "changed", begin, remembered(run))
    if not begin:
        if session.rank == 0:
            plan_set(session, "hook=" + hook, "hook_state=reset")
        session.barrier("the plan is set", timeout=60)
        while run.plan.hook != hook:
            step(model, optimizer, run.schedule.step)
        # It has not exchanged anything yet.
        saved = run.finish()
        check(saved.step == run.schedule.step and saved.error is None, saved)
    for _ in range(STEPS):
        step(model, optimizer, run.schedule.step)
    tell("ENDS", "changed", run.schedule.step, remembered(run))


class Linear(torch.nn.Module):
    """That of resume_in_cpp.cc: gradients are whole numbers, whatever has been
    trained. So what a hook remembers is the same whichever libtorch trains."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1000, dtype=torch.float64))

    def forward(self, step):
        x = torch.arange(1000) * (step % 5 + 3 + dist.get_rank()) % 17 - 8
        return (x.double() * self.weight).sum()


def in_cpp():
    """A program in C++ goes on with the hook, and this one from there; or, in a
    job whose name ends with "whole", this one takes all steps."""
    cx.init(plan={"hook": "int8", "checkpoint_every": 1})
    job, attempt = os.environ["COXSWAIN_JOB"], os.environ["COXSWAIN_ATTEMPT"]
    model = DistributedDataParallel(Linear())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    kept = {"model": model}
    if attempt == "0":
        kept["optimizer"] = optimizer
    run = cx.follow(model, optimizer, exchange="coxswain", checkpoint=kept)

    def told():
        state = run.state_dict()["hook"]
        reader = Reader(state)
        check(reader.spec == "int8", reader.spec)
        found = sorted(reader.tensors("float64"))
        # Each rank's error, and what it has left of the averages of a slice.
        check([one[0] for one in found] == (
            ["error/0", "error/1", "slice/0/0", "slice/1/512"]
            if reader.step else []
        ), found)
        check(all(any(data) for _, _, data in found), found)
        tensors = hashlib.sha256(repr(found).encode()).hexdigest()
        tell("IN CPP", job, reader.step, on_all_ranks(tensors))

    begin = run.resume()
    told()
    for number in range(begin, 10 if job.endswith("whole") else begin + 3):
        model(number).backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.schedule.step in (3, 7, 10):
            told()


def sigterm():
    """SIGTERM ends it, and it goes on from there."""
    session = cx.init(plan={"hook": HOOKS["sigterm"]})
    model, optimizer = made("sigterm")
    kept = {"model": model, "optimizer": optimizer}
    run = cx.follow(model, optimizer, exchange="coxswain", checkpoint=kept)
    begin = run.resume()
    tell("BEGINS", session.job, begin, remembered(run))
    while not run.stopping and (begin == 0 or run.schedule.step < begin + 2):
        step(model, optimizer, run.schedule.step)
        if run.schedule.step == STEPS:
            print("STANDS", flush=True)
    tell("ENDS", session.job, run.schedule.step, remembered(run), run.stopping)


def together():
    importlib.import_module("torch._dynamo")  # optimizers do that
    cpp = os.environ["SCENE_IN_CPP"]
    plan = []
    for kind in ("powersgd", "wrapped", "int8"):
        plan += [("hooked", kind, 0, 2), ("hooked", kind, 1, 2),
                 ("hooked", kind + "-whole", 0, 2)]
    plan += [("hooked", "powersgd", 2, 3), ("another_hook", "powersgd", 3, 2)]
    plan += [("hooked", "mean", 0, 4), ("hooked", "mean", 1, 2),
             ("hooked", "mean", 2, 3)]
    plan += [("changed", "changed", 0, 2), ("changed", "changed", 1, 2)]
    plan += [("hooked", "wrapped", 2, 4), ("hooked", "wrapped", 3, 3),
             ("hooked", "int8", 2, 3), ("hooked", "int8", 3, 1)]
    attempts(globals(), plan + [
        ("in_cpp", "int8-cpp", 0, 2), (cpp, "int8-cpp", 1, 2),
        ("in_cpp", "int8-cpp", 2, 2), ("in_cpp", "int8-cpp-whole", 0, 2),
    ])


if __name__ == "__main__":
    torch.set_num_threads(1)
    scene_support.whole_lines()
    globals()[sys.argv[1]]()
