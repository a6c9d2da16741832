"""Scenes of checkpoint_test: trainings that go on from a checkpoint."""

import ctypes
import importlib
import os
import random
import signal
import sys
import time
import types

import scene_support
import torch
import torch.distributed as dist
from attempts import attempts
from scene_support import check, digest, network, raised
from torch.nn.parallel import DistributedDataParallel

import coxswain
import coxswain.torch as cx
from coxswain import checkpoints
from coxswain.torch import _record, _sigterm, _state

ROWS = 12  # of a global batch
STEPS = 6


class Exact(torch.nn.Module):
    """All that a few steps of it compute is exact in float64, so that the
    number of ranks makes no difference to any bit."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x, y):
        self.seen += ROWS
        return (x @ self.weight - y).square().sum() / 2


def rows(step):
    """Returns the global batch of a step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randint(-1, 2, (ROWS, 4), generator=generator)
    return x.double(), x.sum(1).double() * 2


def exact_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=2**-5, momentum=0.5)


def unbroken(steps):
    """Returns a model that one process has trained, without a break."""
    model = Exact()
    optimizer = exact_optimizer(model)
    for step in range(steps):
        model(*rows(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


class Sampler:
    """State that each rank has for itself."""

    def __init__(self):
        self.drawn = 0
        self.states = None

    def state_dict(self):
        return {"drawn": self.drawn, "of": ("rank", dist.get_rank())}

    def load_state_dict(self, state):
        check(state["of"] == ("rank", dist.get_rank()), state)
        self.drawn = state["drawn"]

    def load_state_dicts(self, states):
        self.states = states
        self.drawn = sum(one["drawn"] for one in states) // dist.get_world_size()


def exact():
    """Trains for some steps more than the checkpoint has."""
    session = cx.init(plan={"checkpoint_every": 2})
    size = session.world_size
    network = Exact()
    model = DistributedDataParallel(network)
    optimizer = exact_optimizer(model)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [100], 0.5)
    sampler = Sampler()
    run = cx.follow(
        model,
        optimizer,
        checkpoint={
            "model": model,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "sampler": sampler,
        },
        checkpoint_own=["sampler"],
    )
    counters = run.counters
    begin = run.resume()
    end = begin + 2
    check(run.counters is counters)
    check((run.resumed is None) == (begin == 0))
    check(run.counters.get("rows", 0) == begin * ROWS, run.counters)
    check(scheduler.last_epoch == begin and run.schedule.step == begin)
    if begin:
        check(sampler.drawn == begin * ROWS // size, sampler.drawn)
        check((sampler.states is None) == (run.resumed.world_size == size))
    while run.schedule.step < end:
        x, y = rows(run.schedule.step)
        with run.accumulate():
            # DistributedDataParallel divides by the number of ranks.
            (model(x[session.rank::size], y[session.rank::size]) * size).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        sampler.drawn += ROWS // size
        run.counters["rows"] += ROWS
    saved = run.finish()
    check(saved.step == end and saved.error is None, saved)
    alone = unbroken(end)
    check(torch.equal(network.weight, alone.weight), network.weight)
    check(network.seen == end * ROWS == alone.seen, network.seen)
    print("ENDED from %d at %d" % (begin, end), flush=True)


def trained(model, optimizer, steps, first=0):
    """Trains as plain programs do."""
    for step in range(first, first + steps):
        x, y = rows(step)
        part = slice(dist.get_rank(), None, dist.get_world_size())
        loss = model(x[part].float().repeat(1, 4)) - y[part, None].float()
        loss.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def adamw():
    """Goes on bit by bit where the number of ranks stays."""
    session = cx.init()
    made = []
    for _ in range(2):
        model = DistributedDataParallel(network())
        made += [model, torch.optim.AdamW(model.parameters(), lr=0.01)]
    plain, theirs, model, ours = made
    # Each reads as it was written.
    extra = torch.full((2, 3), float(session.rank))
    kept = {"model": model.module, "extra": extra}
    run = cx.follow(model, ours, checkpoint=kept)
    kept["optimizer"] = ours
    begin = run.resume()
    trained(plain, theirs, begin)
    check(digest(plain) == digest(model) and begin == run.schedule.step)
    check(extra.eq(0 if begin else session.rank).all(), extra)
    trained(plain, theirs, 2, begin)
    trained(model, ours, 1, begin)
    if session.rank == 1:
        session.request_checkpoint("by hand")
    check(not run.save_if_asked())
    session.barrier("asked", timeout=60)
    trained(model, ours, 1, begin + 1)
    check(digest(plain) == digest(model))
    check(run.decision.checkpoint and run.save_if_asked(), run.decision)
    check(not run.save_if_asked())


def two_models():
    """Both are in the checkpoints, which come with the first one's steps."""
    session = cx.init()
    first, second = Exact(), Exact()
    optimizers = [exact_optimizer(first), exact_optimizer(second)]
    kept = {
        "model": first, "optimizer": optimizers[0],
        "critic": second, "critic_optimizer": optimizers[1],
    }
    models = [DistributedDataParallel(one) for one in (first, second)]
    runs = [cx.follow(models[0], optimizers[0], checkpoint=kept)]
    begin = runs[0].resume()
    runs.append(cx.follow(models[1], optimizers[1]))
    raised(coxswain.Error, runs[1].keep, {})
    raised(coxswain.Error, runs[1].resume)
    # Of the second one each step is two.
    check([run.schedule.step for run in runs] == [begin, 2 * begin])
    size = session.world_size
    for step in range(begin, begin + 2):
        if step == begin + 1 and session.rank == 0:
            session.request_checkpoint("by hand")
        for number in (0, 1, 1):
            at = runs[number].schedule.step
            x, y = rows(at)
            x, y = x[session.rank::size], y[session.rank::size]
            (models[number](x, y) * size).backward()
            optimizers[number].step()
            optimizers[number].zero_grad()
    check(torch.equal(first.weight, unbroken(begin + 2).weight))
    check(torch.equal(second.weight, unbroken(2 * begin + 4).weight))


def own_exchange():
    """Coxswain's own exchange, by a hook without a state."""
    cx.init(plan={"hook": "bf16", "checkpoint_every": 2})
    made = []
    for _ in range(2):
        model = DistributedDataParallel(network())
        made += [model, torch.optim.AdamW(model.parameters(), lr=0.01)]
    plain, theirs, model, ours = made
    kept = {"model": model, "optimizer": ours}
    run = cx.follow(model, ours, exchange="coxswain", checkpoint=kept)
    begin = run.resume()
    cx.follow(plain, theirs, exchange="coxswain")
    trained(plain, theirs, begin + 2)
    trained(model, ours, 2, begin)
    check(digest(plain) == digest(model) and run.schedule.step == begin + 2)
    saved = run.finish()
    check(saved.step == begin + 2 and saved.error is None, saved)
    print("BY BF16 from %d" % begin, flush=True)


def one_step(run, model, optimizer):
    with run.accumulate():
        model(*rows(run.schedule.step)).backward()
    optimizer.step()
    optimizer.zero_grad()


def bytes_of(parts):
    return b"".join(
        ctypes.string_at(part.address, part.size)
        if isinstance(part, checkpoints.Memory) else part
        for part in parts
    )


def damaged():
    """Whatever the bytes are, reading them ends in a value or an error."""
    record = _record.Record(3, {"train": 3}, {"rows": 4}, {"b": b"x"})
    state = {"a": [1, (2.5, None)], 3: {"t": torch.ones(2)}, "b": b"x"}
    readers = [
        (_record.save(record), _record.load),
        (
            bytes_of(_state.save_state("kind", state)),
            lambda data: _state.load_state(data, "kind", "x"),
        ),
        (
            bytes_of(_state.save_module(Exact())),
            lambda data: _state.check_module(data, Exact())(),
        ),
    ]
    check(_record.load(memoryview(readers[0][0])) == record)
    read = _state.load_state(memoryview(readers[1][0]), "kind", "x")
    check(repr(read) == repr(state), read)
    _state.save_state("adafactor", {"param_groups": [{"lr": None}]})
    random.seed(1)
    refusals = 0
    for data, reader in readers:
        for size in range(len(data)):
            raised(coxswain.Error, reader, memoryview(data[:size]))
        for _ in range(2000):
            spoilt = bytearray(data)
            for _ in range(random.randint(1, 3)):
                spoilt[random.randrange(len(data))] = random.randrange(256)
            try:
                reader(memoryview(bytes(spoilt)))
            except coxswain.Error:
                refusals += 1
    check(refusals > 1000, refusals)


def sigterm_asks_once():
    """The first one asks, and a later one does what it did before."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *unused: heard.append(1))
    mine = signal.getsignal(signal.SIGTERM)
    now = [5.0]
    asked = _sigterm.Sigterm(clock=lambda: now[0])
    check(signal.getsignal(signal.SIGTERM) is not mine and not asked.take())
    os.kill(os.getpid(), signal.SIGTERM)
    check(asked.came and asked.take() and not asked.take())
    # As a launcher passes it on.
    os.kill(os.getpid(), signal.SIGTERM)
    check(signal.getsignal(signal.SIGTERM) is not mine and heard == [1], heard)
    now[0] += 60
    os.kill(os.getpid(), signal.SIGTERM)
    check(signal.getsignal(signal.SIGTERM) is mine and heard == [1, 1], heard)
    signal.signal(signal.SIGTERM, before)
    asked.restore()
    check(signal.getsignal(signal.SIGTERM) is before)


def counts_integers(counters):
    check("none" not in counters and counters["none"] == 0)
    counters["rows"] += 2
    for value in (1.5, "x", 2**63):
        error = raised(
            coxswain.InvalidArgument, counters.__setitem__, "rows", value
        )
        check("the counter 'rows' is" in str(error), error)
    raised(coxswain.InvalidArgument, counters.__setitem__, 3, 3)
    check(dict(counters) == {"rows": 2}, counters)
    # As a dict takes it.
    counters.update(rows=2.5)
    record = _record.Record(counters=counters)
    raised(coxswain.InvalidArgument, _record.save, record)
    counters["rows"] = torch.tensor(3)
    check(_record.load(memoryview(_record.save(record))).counters["rows"] == 3)


def wrong():
    """What cannot be gone on from is an error, and changes nothing."""
    cx.init(plan={"checkpoint_every": 1})
    network = Exact()
    model = DistributedDataParallel(network)
    optimizer = exact_optimizer(model)
    run = cx.follow(model, optimizer)
    raised(coxswain.Error, run.resume)
    for objects, what in (
        ({"model": 3}, "neither a tensor"),
        ({".model": model}, "name of a state"),
        ({"x": Odd()}, "has a builtins.object at '/a/1'"),
        ({"model": model, "run": run}, "'run' is a coxswain.torch.Run"),
    ):
        error = raised(coxswain.InvalidArgument, run.keep, objects)
        check(what in str(error), error)
    error = raised(coxswain.InvalidArgument, run.keep, {"model": model}, ["x"])
    check("'x'" in str(error), error)
    if os.environ["COXSWAIN_ATTEMPT"] == "0":
        damaged()
        sigterm_asks_once()
        sulks = Sulks()
        run.keep({"model": model, "optimizer": optimizer, "sulks": sulks})
        check(run.resume() == 0)
        counts_integers(run.counters)
        one_step(run, model, optimizer)
        run.save_if_asked()
        other = DistributedDataParallel(Exact())
        again = cx.follow(other, continues=run)
        check(again.counters is run.counters)
        check(again.finish().step == 1)
        return
    larger = torch.nn.Linear(4, 2)
    others = {
        "model": network,
        "optimizer": torch.optim.Adam(model.parameters()),
        "larger": larger,
        "sulks": Sulks(),
    }
    run.keep(others)
    before = digest(network)
    for which, objects, kind, what in (
        ("newest", None, coxswain.Error, "torch.optim.sgd.SGD, and is torch"),
        ("newest", ["larger"], coxswain.Error, "has no 'larger'"),
        ("newest", ["sulks"], coxswain.Error, "KeyError: 'mine'; these have"),
        ("newest", ["none"], coxswain.InvalidArgument, "'none'"),
        ("step-1", None, coxswain.NotFound, "'step-1'"),
        ("7", None, coxswain.NotFound, "the newest is"),
    ):
        error = raised(kind, run.resume, which, objects)
        check(what in str(error), error)
    others["model"] = larger
    error = raised(coxswain.Error, run.resume, "newest", ["model"])
    check(error.code == coxswain.Code.FAILED_PRECONDITION)
    check("bias (Float [2]) not in the checkpoint" in str(error), error)
    others["model"] = network
    weights = [*model.parameters(), *larger.parameters()]
    others["optimizer"] = torch.optim.SGD(weights, lr=1)
    error = raised(coxswain.Error, run.resume, "newest", ["model", "optimizer"])
    check("with groups of 1 parameters, and has groups of 3" in str(error), error)
    check(error.code == coxswain.Code.FAILED_PRECONDITION, error.code)
    # Of two ranks that saved, one had it.
    part = types.SimpleNamespace(
        checkpoint=types.SimpleNamespace(id="x", world_size=2),
        own={("sulks", 0): memoryview(b"")},
        pieces={},
    )
    error = raised(coxswain.Error, run._kept._load_of, part, "sulks")
    check("has no 'sulks'" in str(error), error)
    # As a disk may do it.
    path = find(os.environ["SCENE_STATE"] + "/checkpoints/wrong", "shard-0")
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) - 20)
        file.write(b"?")
    error = raised(coxswain.Error, run.resume, "newest", ["model"])
    check(error.code == coxswain.Code.DATA_LOSS, error.code, error)
    check(digest(network) == before and run.schedule.step == 0)
    one_step(run, model, optimizer)
    error = raised(coxswain.Error, run.resume)
    check("before the first step" in str(error), error)


class Shared(torch.nn.Module):
    """That of resume_in_cpp.cc."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.bias = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, step):
        x = torch.arange(1, 4).double() + step % 3
        return ((x * self.weight).sum() + self.bias - 7).square()


def in_cpp():
    """A program in C++ goes on with the model and the optimizer, and this one
    with the model of that."""
    cx.init(plan={"checkpoint_every": 1})
    made = []
    for _ in range(2):
        one = Shared()
        made += [one, torch.optim.AdamW(one.parameters(), lr=0.125)]
    plain, theirs, network, optimizer = made
    model = DistributedDataParallel(network)
    kept = {"model": model, "optimizer": optimizer}
    run = cx.follow(model, optimizer, checkpoint=kept)
    if os.environ["COXSWAIN_ATTEMPT"] != "0":
        error = raised(coxswain.Error, run.resume)
        check("saved by a program in C++" in str(error), error)
        check(torch.equal(network.weight, torch.ones(3).double()))
        run.resume(objects=["model"])
    begin = run.schedule.step
    print("RESUMED at %d with %d rows" % (begin, run.counters.get("rows", 0)))
    for step in range(begin + 3):
        plain(step).backward()
        theirs.step()
        theirs.zero_grad()
        if step + 1 == begin:
            check(torch.allclose(plain.weight, network.weight, rtol=1e-12))
            check(torch.allclose(plain.bias, network.bias, rtol=1e-12))
    network.seen += 4
    for step in range(begin, begin + 3):
        model(step).backward()
        optimizer.step()
        optimizer.zero_grad()
        run.counters["rows"] += 5


class Odd:
    def state_dict(self):
        return {"a": [1, object()]}

    def load_state_dict(self, state):
        pass


class Sulks:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        state["mine"]


def find(folder, name):
    for where, _, names in os.walk(folder):
        for one in names:
            if name in one:
                return os.path.join(where, one)
    raise AssertionError("no %s in %s" % (name, folder))


def stands():
    """SIGTERM ends it."""
    restarts(dies=False)


def restarts(dies=True):
    """Rank 1 dies once; SIGTERM ends the rest."""
    session = cx.init(plan={"checkpoint_every": 2})
    network = Exact()
    model = DistributedDataParallel(network)
    optimizer = exact_optimizer(model)
    run = cx.follow(
        model, optimizer, checkpoint={"model": model, "optimizer": optimizer}
    )
    begin = run.resume()
    print("BEGINS at %d" % begin, flush=True)
    while not run.stopping:
        step = run.schedule.step
        if dies and step == 3 and not begin:
            check(session.checkpoints.wait(60).step == 2)
            if session.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        if step == STEPS:
            print("STANDS", flush=True)
        # Their numbers grow, and are not exact any more.
        x, y = rows(step)
        model(x, y * 0 if step >= STEPS else y).backward()
        optimizer.step()
        optimizer.zero_grad()
    print("STOPS at %d: %s" % (run.schedule.step, run.stopping), flush=True)


def nodes():
    """Goes on from the newest checkpoint, on as many ranks as there are, until
    the file of that name is there."""
    session = cx.init(plan={"checkpoint_every": 2})
    network = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(network.weight)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    run = cx.follow(
        model, optimizer, checkpoint={"model": network, "optimizer": optimizer}
    )
    begin = run.resume()
    while not run.stopping:
        if run.schedule.step == begin + 4:
            check(session.checkpoints.wait(60).step > begin)
            print("TRAINS on %d from %d" % (session.world_size, begin))
        if session.rank == 0 and os.path.exists(os.environ["ENOUGH"]):
            run.request_stop("enough")
        time.sleep(0.02)  # What a step would compute.
        # The gradient is the mean of the ranks' numbers, from 1 on.
        model(torch.ones(1, 4) * (session.rank + 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        run.counters["halves"] += session.world_size + 1
    halves = run.counters["halves"]
    check((network.weight * -2).tolist() == [[halves] * 4], halves)
    print("STOPS: %s" % run.stopping)


def together():
    importlib.import_module("torch._dynamo")  # optimizers do that
    attempts(globals(), [
        ("exact", "exact", 0, 4), ("exact", "exact", 1, 2),
        ("exact", "exact", 2, 3), ("adamw", "adamw", 0, 2),
        ("adamw", "adamw", 1, 2), ("two_models", "two", 0, 2),
        ("two_models", "two", 1, 3), ("own_exchange", "bf16", 0, 2),
        ("own_exchange", "bf16", 1, 2), ("wrong", "wrong", 0, 1),
        ("wrong", "wrong", 1, 1), ("in_cpp", "cpp", 0, 1),
        (os.environ["SCENE_IN_CPP"], "cpp", 1, 1), ("in_cpp", "cpp", 2, 1),
    ])


if __name__ == "__main__":
    torch.set_num_threads(1)
    scene_support.whole_lines()
    globals()[sys.argv[1]]()
