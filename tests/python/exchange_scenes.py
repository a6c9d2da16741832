"""Scenes of exchange_test: Coxswain exchanges the buckets, on two ranks."""

import gc
import os
import pickle
import weakref

import scene_support
import torch
import torch.distributed as dist
from scene_support import check, digest, on_all_ranks, plan_set, raised
from torch.nn.parallel import DistributedDataParallel
from torch_scenes import (
    Checkpointed,
    Nested,
    Unused,
    batch,
    layers,
    loss,
    pair,
    same,
    train,
    train_followed,
)

import coxswain
import coxswain.torch as cx
from coxswain.torch import _streams, everything


class Missing(Unused):
    """Whose first layer, which has the last bucket, is left out later."""

    whole = True

    def forward(self, x):
        return self.unused(self.used(x) if self.whole else x)


class Empty(torch.nn.Module):
    """With parameters that have no elements, first and last."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(torch.empty(0, 32))
        self.layers = layers(3)
        self.last = torch.nn.Parameter(torch.empty(0, 32))

    def forward(self, x):
        return torch.cat([self.layers(torch.cat([self.first, x])), self.last])


def ours(model, optimizer=None, **named):
    return cx.follow(model, optimizer, exchange="coxswain", **named)


def bit_by_bit():
    """allreduce leaves the bits of torch's own exchange also where layers run
    backward passes of their own, and with parameters without elements."""
    cx.init(plan={"accumulation": 2})
    for module, options in (
        (Checkpointed(True), {}),
        (Nested(), {}),
        (Nested(), {"bucket_cap_mb": 25}),
        (Empty(), {}),
        (Empty(), {"bucket_cap_mb": 25}),
    ):
        plain, theirs, model, optimizer = pair(module, **options)
        run = ours(model, optimizer)
        train(plain, theirs, 2, 8)
        train_followed(run, model, optimizer, 2, 8)
        check(run.schedule.step == 8 and same(plain, model), options)


def joined():
    """torch rearranges the buckets in the second step of one rank, without a
    forward pass of the other."""
    session = cx.init(plan="uneven_data=wait_for_all")
    plain, theirs, model, optimizer = pair(layers())
    ours(model)
    for epoch in range(2):
        for one, its in ((plain, theirs), (model, optimizer)):
            with one.join():
                for step in range(1 + 2 * session.rank):
                    loss(one, batch(step, epoch)).backward()
                    its.step()
                    its.zero_grad()
        check(same(plain, model), epoch)


def recomputed():
    """Steps are voted on, and skipped, where layers run backward passes of
    their own."""
    cx.init(plan={"commit_vote": True, "hook": POWERSGD})
    for module in (Nested(), Empty()):
        _, _, model, optimizer = pair(module)
        run = ours(model, optimizer, skip_non_finite=True)
        train_followed(run, model, optimizer, 1, 4)
        before = digest(model)
        x = batch(4, 0)
        if dist.get_rank() == 1:
            x[0] = float("nan")
        with run.accumulate():
            loss(model, x).backward()
        check(run.skipped and "rank 1" in run.decision.reason, run.decision)
        check(all(p.grad is None for p in model.parameters()))
        train_followed(run, model, optimizer, 1, 1)
        check(run.schedule.step == 6 and digest(model) != before)
        on_all_ranks(digest(model))


POWERSGD = "powersgd(rank=2,start_step=2)"


def stops_and_skips():
    """Votes, skipped steps, changes of the plan and the end."""
    session = cx.init(
        plan={"accumulation": 2, "commit_vote": True, "hook": POWERSGD}
    )
    _, _, model, optimizer = pair(layers())
    run = ours(model, optimizer, hook=POWERSGD, skip_non_finite=True)
    train_followed(run, model, optimizer, 2, 4)
    before = digest(model), pickle.dumps(optimizer.state_dict())
    remembered = run.state_dict()
    for micro in range(2):
        x = batch(2, micro)
        if session.rank == 1 and micro == 1:
            x[0] = float("nan")
        with run.accumulate():
            loss(model, x).backward()
    check(run.skipped and "rank 1" in run.decision.reason, run.decision)
    check(all(p.grad is None for p in model.parameters()))
    optimizer.step()
    check(before == (digest(model), pickle.dumps(optimizer.state_dict())))
    # The hook has forgotten the step, too.
    check(run.state_dict() == remembered)
    train_followed(run, model, optimizer, 2, 1)
    check(digest(model) != before[0] and run.state_dict() != remembered)
    if session.rank == 0:
        plan_set(session, "accumulation=1")
    session.barrier("the plan is set", timeout=60)
    while run.plan.accumulation != 1:
        train_followed(run, model, optimizer, run.plan.accumulation, 1)
    train_followed(run, model, optimizer, 1, 2)
    on_all_ranks(digest(model))
    run.request_stop("enough")
    while not run.stopping:
        train_followed(run, model, optimizer, 1, 1)
    check("enough" in run.stopping)


def remembers():
    """A model goes on from a state, as it would have gone on without."""
    cx.init(plan={"hook": POWERSGD})
    _, _, model, optimizer = pair(layers())
    run = ours(model, optimizer)
    train_followed(run, model, optimizer, 1, 6)
    states = model.state_dict(), optimizer.state_dict(), run.state_dict()
    saved = pickle.dumps(states)
    on_all_ranks(states[2])
    train_followed(run, model, optimizer, 1, 3)
    for with_state in (True, False):
        _, _, again, other = pair(layers())
        restored = ours(again, other)
        # torch divides the buckets as before from the second step on.
        train_followed(restored, again, other, 1, 1)
        states = pickle.loads(saved)
        again.load_state_dict(states[0])
        other.load_state_dict(states[1])
        if with_state:
            restored.load_state_dict(states[2])
        for step in range(3):
            loss(again, batch(step, 0)).backward()
            other.step()
            other.zero_grad()
        on_all_ranks(digest(again))
        # Errors were the ranks' own, and are their mean after that.
        close = all(
            torch.allclose(a, b, atol=2e-3)
            for a, b in zip(model.parameters(), again.parameters())
        )
        check(close == with_state, with_state, [
            (a - b).abs().max().item()
            for a, b in zip(model.parameters(), again.parameters())
        ])
    error = raised(
        coxswain.Error, restored.load_state_dict, {"hook": b"damaged"}
    )
    check(error.code == 15, error)


def many():
    """Models that come and go, in a program that is followed as it is."""
    session = cx.init(plan={"windows": "program"}, process_group=False)
    os.environ["COXSWAIN_FOLLOW_EXCHANGE"] = "coxswain"
    everything.follow_all()
    dist.init_process_group("gloo")
    _streams._MAX_STREAMS = 3
    kept, streams, alive = [], [], []
    for number in range(9):
        model = DistributedDataParallel(layers(), bucket_cap_mb=0.01)
        loss(model, batch(number, 0)).backward()
        digests = [p.grad.sum().item() for p in model.parameters()]
        on_all_ranks(digests)
        streams.append(model._coxswain_run.schedule.stream)
        alive.append(weakref.ref(model))
        # One rank keeps another one than the other.
        if number == 1 - session.rank:
            kept.append(model)
        del model
    check(streams[:3] == ["train", "train.2", "train.3"], streams)
    check(set(streams[3:]) == {"train.3"}, streams)
    gc.collect()
    check([one() for one in alive if one()] == kept, alive)
    model = DistributedDataParallel(layers())
    kept.append(model)
    error = raised(
        coxswain.InvalidArgument, DistributedDataParallel, layers()
    )
    check("number 11" in str(error), error)


def refused():
    session = cx.init(plan={"hook": "bf16"})
    alone = [dist.new_group([rank]) for rank in range(2)][session.rank]
    apart = DistributedDataParallel(layers(), process_group=alone)
    error = raised(coxswain.InvalidArgument, ours, apart)
    check("all 2 ranks" in str(error), error)
    check("has the ranks %d:" % session.rank in str(error), error)
    for kind in (torch.nn.Embedding, torch.nn.EmbeddingBag):
        sparse = DistributedDataParallel(
            torch.nn.Sequential(kind(9, 4, sparse=True), torch.nn.Linear(4, 1))
        )
        error = raised(coxswain.InvalidArgument, ours, sparse)
        check("'0' is an embedding" in str(error), error)
    model = DistributedDataParallel(layers())
    error = raised(
        coxswain.InvalidArgument, ours, model, skip_non_finite=True
    )
    check("commit_vote" in str(error), error)
    error = raised(
        coxswain.InvalidArgument, ours, model, checkpoint={"model": print}
    )
    check("neither a tensor nor" in str(error), error)
    error = raised(
        coxswain.InvalidArgument, ours, model, hook={"comm_hook": "fp16"}
    )
    check("hook=bf16" in str(error) and "fp16" in str(error), error)
    error = raised(coxswain.InvalidArgument, cx.follow, model, hook="bf16")
    check('exchange="coxswain" only' in str(error), error)
    error = raised(coxswain.InvalidArgument, cx.follow, model, exchange="nccl")
    check('"coxswain"' in str(error), error)
    run = ours(
        model, hook={"comm_hook": "bf16", "comm_wrapper": "no"}
    )
    error = raised(
        coxswain.InvalidArgument, run.register_comm_hook, None, print
    )
    check("the plan's (bf16)" in str(error), error)
    halves = torch.nn.Linear(4, 4).to(torch.complex64)
    try:
        complexes = DistributedDataParallel(halves)
    except RuntimeError as error:
        # As torch 2.6 refuses it by itself, over Gloo.
        check("Invalid scalar type" in str(error), error)
    else:
        error = raised(coxswain.InvalidArgument, ours, complexes)
        check("complex64" in str(error), error)
    # Nothing that was refused has taken a stream, or the model.
    check(run.schedule.stream == "train", run.schedule.stream)
    loss(model, batch(0, 0)).backward()
    # A model that trains must not lose its hook to another one.
    _streams._MAX_STREAMS = _streams._followed
    other = DistributedDataParallel(layers())
    error = raised(coxswain.InvalidArgument, ours, other)
    check("number %d" % (_streams._followed + 1) in str(error), error)
    run = ours(other, continues=run)
    loss(other, batch(0, 0)).backward()
    check(run.schedule.step == 2, run.schedule.step)


def missing():
    """A pass that leaves a parameter without a gradient is an error at once."""
    cx.init()
    # Of the only bucket; where nothing is handed over.
    model = DistributedDataParallel(Unused())
    ours(model)
    error = raised(coxswain.Error, loss(model, batch(0, 0)).backward)
    check("such as 'unused.weight'" in str(error), error)
    # A gradient of the inputs alone is no pass over the parameters.
    frozen = layers(2)
    model = DistributedDataParallel(frozen)
    run = ours(model)
    x = batch(0, 0).requires_grad_()
    with run.accumulate():
        torch.autograd.grad(loss(model, x), x)
        loss(model, batch(0, 0)).backward()
    frozen[0].requires_grad_(False)
    error = raised(coxswain.Error, loss(model, batch(0, 0)).backward)
    check("frozen after the model was made" in str(error), error)
    check("2 parameters, such as '0.weight'" in str(error), error)
    model = DistributedDataParallel(Missing(), bucket_cap_mb=0.001)
    ours(model)
    # torch divides the buckets anew in the second step.
    for step in range(2):
        loss(model, batch(step, 0)).backward()
    model.module.whole = False
    error = raised(coxswain.Error, loss(model, batch(0, 0)).backward)
    check("find_unused_parameters" in str(error), error)


if __name__ == "__main__":
    scene_support.main(globals())
