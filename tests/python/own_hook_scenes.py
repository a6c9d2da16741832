"""Scenes of own_hook_test: hooks that a program makes, on two ranks."""

import os
import pickle

import scene_support
import torch
import torch.distributed as dist
from exchange_scenes import on_all_ranks, ours
from scene_support import check, digest, plan_set, raised
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel
from torch_scenes import batch, layers, loss, pair, same, train, train_followed

import coxswain
import coxswain.torch as cx

RANK = int(os.environ["COXSWAIN_LOCAL_RANK"])
# What the exchanges of Events have done, and what goes wrong in those of Bad.
events = []
bad = {"what": ""}


@cx.hook
def mean(bucket, comm, factor=1.0, halves=False):
    """An average, in one piece or two."""
    check(not torch.is_grad_enabled())
    pieces = bucket.tensor.chunk(2 if halves else 1)
    for piece in pieces:
        total = yield comm.all_reduce(piece)
        check(total is piece)
        total.mul_(factor / comm.size)


@cx.hook("events")
class Events(cx.Hook):
    def exchange(self, bucket, comm):
        events.append(("begins", bucket.index))
        total = yield comm.all_reduce(bucket.tensor)
        events.append(("reduced", bucket.index))
        total.div_(comm.size)
        yield comm.all_reduce(torch.zeros(1))
        events.append(("ends", bucket.index))


@cx.hook
class Signs(cx.Hook):
    """The sign of each element; the rest is sent later."""

    def __init__(self, scale: float = 1e-3, feedback: bool = True) -> None:
        if scale <= 0:
            raise ValueError("scale must be above 0")
        self.scale = scale
        self.feedback = feedback
        self.sent = 0
        self.sending = 0

    def exchange(self, bucket, comm):
        check(len(bucket.names) == len(bucket.gradients()))
        error = bucket.kept("error")
        wanted = bucket.tensor + error if self.feedback else bucket.tensor
        sign = wanted.sign().to(torch.int8)
        error.copy_(wanted).sub_(sign, alpha=self.scale)
        total = yield comm.all_reduce(sign)
        bucket.tensor.copy_(total).mul_(self.scale / comm.size)
        self.sending += bucket.tensor.numel()

    def commit(self):
        self.sent, self.sending = self.sent + self.sending, 0

    def rollback(self):
        self.sending = 0

    def state_dict(self):
        return {"sent": self.sent, "scale": self.scale}

    def load_state_dict(self, state):
        self.sent = state["sent"]
        check(state["scale"] == self.scale, state)


@cx.hook
class All(cx.Hook):
    """Each collective that there is, and in the end the average."""

    def exchange(self, bucket, comm):
        for kind in (torch.float16, torch.bfloat16, torch.float64, torch.int64):
            ones = yield comm.all_reduce(torch.ones(3, dtype=kind))
            check(ones.tolist() == [comm.size] * 3, ones)
        most = yield comm.all_reduce(torch.tensor(comm.rank), "max")
        check(int(most) == comm.size - 1)
        root = yield comm.broadcast(torch.full((2, 2), comm.rank), 1)
        check(root.tolist() == [[1, 1], [1, 1]], root)
        gathered = yield comm.all_gather(torch.full((2,), comm.rank))
        check(gathered.tolist() == [[0, 0], [1, 1]], gathered)
        part = yield comm.reduce_scatter(torch.arange(4).view(2, 2))
        check(part.tolist() == [[4 * comm.rank, 4 * comm.rank + 2]], part)
        others = yield comm.all_to_all(torch.tensor([10, 11]) + 2 * comm.rank)
        check(others.tolist() == [10 + comm.rank, 12 + comm.rank], others)
        empty = yield comm.all_reduce(torch.empty(0))
        check(empty.numel() == 0)
        yield comm.all_reduce(bucket.tensor)
        bucket.tensor.div_(comm.size)


@cx.hook
class Bad(cx.Hook):
    def exchange(self, bucket, comm):
        what = bad["what"]
        if what == "no generator":
            return [bucket]
        return self._exchange(bucket, comm, what)

    def _exchange(self, bucket, comm, what):
        tensor = bucket.tensor
        if what == "raises":
            raise KeyError("no luck")
        if what == "nonsense":
            yield 3
        if what == "keeps":
            comm.all_reduce(tensor)
            return
        if what == "two":
            comm.all_reduce(tensor)
            yield comm.all_reduce(tensor)
        if what == "gaps":
            yield comm.all_reduce(torch.zeros(4, 4).t())
        if what == "bool":
            yield comm.all_reduce(torch.zeros(4, dtype=torch.bool))
        if what == "parts":
            yield comm.reduce_scatter(torch.zeros(3))
        if what == "shorter" and comm.rank == 1:
            tensor = tensor[1:]
        if what == "more" and comm.rank == 1:
            yield comm.all_reduce(tensor)
        yield comm.all_reduce(tensor)


def means():
    """A hook of one's own leaves the bits of torch's own exchange."""
    cx.init(plan={"hook": "mean"})
    plain, theirs, model, optimizer = pair(layers())
    run = ours(model, optimizer, hook="mean(factor=1)")
    train(plain, theirs, 1, 8)
    train_followed(run, model, optimizer, 1, 8)
    check(same(plain, model))
    check(run.plan.hook == "mean", run.plan.hook)


def wrapped():
    cx.init(plan={"hook": "fp16(stats(mean(halves=true)))"})
    plain, theirs, model, optimizer = pair(layers())
    run = ours(model, optimizer)
    train(plain, theirs, 1, 8)
    train_followed(run, model, optimizer, 1, 8)
    far = max(
        (a - b).abs().max().item()
        for a, b in zip(plain.parameters(), model.parameters())
    )
    check(0 < far < 0.1, far)
    on_all_ranks(digest(model))


def interleaves():
    """Buckets wait for each other as those of the library's hooks do."""
    cx.init(plan={"hook": "events"})
    _, _, model, optimizer = pair(layers(), bucket_cap_mb=0.001)
    run = ours(model, optimizer)
    train_followed(run, model, optimizer, 1, 3)
    events.clear()
    train_followed(run, model, optimizer, 1, 1)
    on_all_ranks(events)
    count = 1 + max(index for _, index in events)
    check(count >= 3 and len(events) == 3 * count, events)
    for index in range(1, count):
        begins = events.index(("begins", index))
        check(
            begins < events.index(("reduced", index - 1))
            < events.index(("ends", index - 1)),
            events,
        )


def collectives():
    cx.init(plan={"hook": "all"})
    plain, theirs, model, optimizer = pair(layers())
    run = ours(model, optimizer)
    train(plain, theirs, 1, 4)
    train_followed(run, model, optimizer, 1, 4)
    check(same(plain, model))


def remembers():
    """What is kept counts with the step, and is a part of the state."""
    session = cx.init(plan={"hook": "signs", "commit_vote": True})
    error = raised(
        coxswain.InvalidArgument, coxswain.canonical_hook, "signs(scale=-1)"
    )
    check("scale must be above 0" in str(error), error)
    _, _, model, optimizer = pair(layers())
    run = ours(model, optimizer, skip_non_finite=True)
    train_followed(run, model, optimizer, 1, 4)
    on_all_ranks(digest(model))
    before = run.state_dict()
    on_all_ranks(before)
    for why in ("nan", "skip"):
        x = batch(4, 0)
        if why == "nan" and session.rank == 1:
            x[0] = float("nan")
        if why == "skip":
            run.skip("both")
        with run.accumulate():
            loss(model, x).backward()
        check(run.skipped and run.state_dict() == before, why)
    states = pickle.dumps(
        (model.state_dict(), optimizer.state_dict(), before)
    )
    train_followed(run, model, optimizer, 1, 3)
    check(run.state_dict() != before)
    for with_state in (True, False):
        _, _, again, other = pair(layers())
        restored = ours(again, other)
        train_followed(restored, again, other, 1, 1)
        saved = pickle.loads(states)
        again.load_state_dict(saved[0])
        other.load_state_dict(saved[1])
        if with_state:
            restored.load_state_dict(saved[2])
            check(restored.state_dict() == saved[2])
        train_followed(restored, again, other, 1, 3)
        on_all_ranks(digest(again))
        on_all_ranks(restored.state_dict())
    # A model that is another one.
    _, _, smaller, _ = pair(layers(3))
    run = ours(smaller)
    error = raised(coxswain.Error, run.load_state_dict, before)
    check(error.code == 9 and "has none such" in str(error), error)


def changes():
    """The plan brings another hook, with the first model's exchanges."""
    session = cx.init(plan={"hook": "signs(scale=0.01)"})
    _, _, model, optimizer = pair(layers())
    run = ours(model, optimizer)
    train_followed(run, model, optimizer, 1, 3)
    if session.rank == 0:
        plan_set(session, "hook=bf16", "hook_state=reset")
    session.barrier("the plan is set", timeout=60)
    while run.plan.hook != "bf16":
        train_followed(run, model, optimizer, 1, 1)
    train_followed(run, model, optimizer, 1, 2)
    on_all_ranks(digest(model))


def fails():
    """What goes wrong in a generator is an error of the pass, on all ranks."""
    cx.init(plan={"hook": "bad", "enforcement": "off"})
    for what, expected in (
        ("raises", "KeyError: 'no luck' (own_hook_scenes.py, line "),
        ("no generator", "has returned a list and is no generator"),
        ("nonsense", "has yielded 3, and not what"),
        ("keeps", "has not yielded its all_reduce"),
        ("two", "write `result = yield comm.all_reduce(...)`"),
        ("gaps", "with gaps"),
        ("bool", "not one of bool on cpu"),
        ("parts", "no 2 equal parts"),
        ("shorter", "rank 1"),
        ("more", "rank 1"),
    ):
        bad["what"] = what
        model = DistributedDataParallel(layers(1))
        ours(model)
        error = raised(coxswain.Error, loss(model, batch(0, 0)).backward)
        check("the hook bad" in str(error) or "rank 1" in expected, error)
        check("bucket 0" in str(error) and expected in str(error), error)
        if what == "raises":
            check(isinstance(error.__cause__, KeyError), error.__cause__)
            check(error.code == coxswain.Code.UNKNOWN, error.code)


def raises():
    """The ranks learn of an exception on one of them."""
    session = cx.init(plan={"hook": "bad"})
    bad["what"] = "" if session.rank == 0 else "raises"
    model = DistributedDataParallel(layers())
    ours(model)
    if session.rank == 1:
        loss(model, batch(0, 0)).backward()  # and with it the process ends
    error = raised(coxswain.PeerLost, loss(model, batch(0, 0)).backward)
    check(error.ranks == (1,), error.ranks)
    print("NAMED", error, flush=True)


def differs():
    """Ranks that have other code join no job."""
    name = os.environ["COXSWAIN_JOB"]

    @cx.hook(name, version=str(RANK))
    def other(bucket, comm):
        yield comm.all_reduce(bucket.tensor)

    error = raised(coxswain.ManifestsDiffer, cx.init, plan={"hook": name})
    check("hook_" + name in str(error), error)


def refused():
    for definition, why in (
        (layers, "neither a class nor a generator function"),
        (dict, "not derived from"),
    ):
        error = raised(coxswain.InvalidArgument, cx.hook, definition)
        check(why in str(error), error)

    def needs(bucket, comm, rank):
        yield comm.all_reduce(bucket.tensor)

    error = raised(coxswain.InvalidArgument, cx.hook, needs)
    check("'rank'" in str(error), error)

    def int8(bucket, comm):
        yield comm.all_reduce(bucket.tensor)

    error = raised(coxswain.Error, cx.hook, int8)
    check(error.code == coxswain.Code.ALREADY_EXISTS, error)
    # As a module that is loaded again does it.
    cx.hook(Signs)
    cx.init()
    int8.__name__ = "late"
    error = raised(coxswain.Error, cx.hook, int8)
    check("before joining" in str(error), error)


def in_words_of_accelerate():
    import accelerate

    import coxswain.accelerate

    for words, spec in (
        ({"comm_hook": "signs(scale=0.01)"}, "signs(scale=0.01)"),
        (
            {
                "comm_hook": "signs",
                "comm_wrapper": "bf16",
                "comm_state_option": {"scale": 0.01, "feedback": False},
            },
            "bf16(signs(scale=0.01,feedback=false))",
        ),
    ):
        check(coxswain.canonical_hook(words) == spec, spec)
    session = cx.init(plan={"hook": spec})
    accelerator = accelerate.Accelerator(
        cpu=True,
        kwargs_handlers=[accelerate.DistributedDataParallelKwargs(**words)],
    )
    coxswain.accelerate.attach(accelerator, exchange="coxswain")
    module = layers()
    model, optimizer = accelerator.prepare(
        module, torch.optim.SGD(module.parameters(), lr=0.1)
    )
    for step in range(3):
        accelerator.backward(loss(model, batch(step, 0)))
        optimizer.step()
        optimizer.zero_grad()
    on_all_ranks(digest(model))
    check(session.schedule.step == 3, session.schedule.step)


def of_torch():
    """Any hook of torch, where torch exchanges: also one that is written by
    hand, and waits for what it has begun."""
    cx.init()

    def by_hand(state, bucket):
        state.append(bucket.index())
        signs = bucket.buffer().sign()
        future = dist.all_reduce(signs, async_op=True).get_future()
        return future.then(lambda done: done.value()[0].mul_(1e-3))

    def powersgd():
        return powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=2
        )

    for make, hook, cap in (
        (list, by_hand, 0.01),
        # Over gloo it exchanges several buckets in no fixed order.
        (powersgd, powerSGD_hook.powerSGD_hook, 25),
        (
            powersgd,
            default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook),
            25,
        ),
    ):
        plain, theirs, model, optimizer = pair(layers(), bucket_cap_mb=cap)
        states = make(), make()
        plain.register_comm_hook(states[0], hook)
        run = cx.follow(model, optimizer)
        run.register_comm_hook(states[1], hook)
        train(plain, theirs, 1, 5)
        train_followed(run, model, optimizer, 1, 5)
        check(same(plain, model), hook)


if __name__ == "__main__":
    scene_support.main(globals())
