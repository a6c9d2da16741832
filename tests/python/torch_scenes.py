"""Scenes of torch_test: what coxswain.torch promises, on two ranks."""

import contextlib
import copy
import datetime
import pickle
import types

import scene_support
import torch
import torch.distributed as dist
from scene_support import EXCHANGE, check, digest, plan_set, raised
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import coxswain
import coxswain.torch as cx
from coxswain.torch import _session


def layers(count=4):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        *[torch.nn.Linear(32, 32) for _ in range(count)]
    )


class Checkpointed(torch.nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.second = layers(2)
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(
            self.first, self.second(x), use_reentrant=self.reentrant
        )


class Nested(torch.nn.Module):
    """All of whose layers are recomputed in backward passes of their own."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers())

    def forward(self, x):
        x = x.detach().requires_grad_()
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True)
        return x


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = layers(2)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


class Unused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = layers(2)

    def forward(self, x):
        return self.used(x)


def seed(step, micro):
    """As torch.manual_seed(), which takes longer than a step of these models:
    it notes for GPUs where it was called from."""
    torch.default_generator.manual_seed(
        1000 * step + 10 * micro + dist.get_rank()
    )


def batch(step, micro):
    seed(step, micro)
    return torch.randn(8, 32)


def loss(model, x):
    return model(x).square().mean()


def loss_of(model, step, micro):
    return loss(model, batch(step, micro))


def same(a, b):
    return all(map(torch.equal, a.parameters(), b.parameters()))


def train(model, optimizer, k, steps, loss_of=loss_of):
    """As plain programs of torch do."""
    for step in range(steps):
        for micro in range(k):
            last = micro == k - 1
            with contextlib.nullcontext() if last else model.no_sync():
                (loss_of(model, step, micro) / k).backward()
        optimizer.step()
        optimizer.zero_grad()


def train_followed(run, model, optimizer, k, steps, loss_of=loss_of):
    for step in range(steps):
        for micro in range(k):
            with run.accumulate():
                (loss_of(model, step, micro) * run.loss_scale).backward()
            check(run.sync == (micro == k - 1), run.sync, micro)
        optimizer.step()
        optimizer.zero_grad()


def pair(module, **options):
    """Returns two models that begin alike, each with its optimizer."""
    made = []
    options.setdefault("bucket_cap_mb", 0.01)
    for copied in (copy.deepcopy(module), module):
        model = DistributedDataParallel(copied, **options)
        made += [model, torch.optim.AdamW(model.parameters(), lr=0.01)]
    return made


def together():
    session = cx.init(plan={"accumulation": 2, "commit_vote": True})
    check(dist.get_rank() == session.rank == cx.session().rank)
    check(dist.get_world_size() == 2)
    error = raised(coxswain.Error, cx.init)
    check("joined job" in str(error) and error.code == 9, error)
    trains_bit_by_bit_as_before()
    exchanges_where_torch_does()
    if EXCHANGE == "torch":
        trains_with_hooks_of_torch()
    skips(session)
    skips_what_is_recomputed()
    leaves_micro_batches_out()
    refuses_what_hides_its_passes()
    votes()
    tells_a_scaler()
    weighs_a_short_window()
    refuses_a_step_within_a_window()
    may_be_pickled_and_copied()
    refuses(session)
    if EXCHANGE == "torch":
        refuses_a_hook_of_the_model()
        keeps(session)
    stops(session)


def trains_bit_by_bit_as_before():
    for module, options in (
        (layers(), {}),
        (layers(), {"gradient_as_bucket_view": True}),
        (Unused(), {"find_unused_parameters": True}),
        (Checkpointed(False), {}),
        (Checkpointed(True), {}),
        (Nested(), {}),
        (Nested(), {"bucket_cap_mb": 25}),
        (Tied(), {}),
    ):
        plain, theirs, model, ours = pair(module, **options)
        run = cx.follow(model, ours)
        train(plain, theirs, 2, 4)
        train_followed(run, model, ours, 2, 3)
        # A program may count by itself.
        check(run.schedule.step == 3 and not same(plain, model))
        for micro in range(2):
            with model.no_sync() if micro == 0 else contextlib.nullcontext():
                (loss(model, batch(3, micro)) / 2).backward()
        ours.step()
        check(run.schedule.step == 4 and same(plain, model), options)
        # Python is called for each bucket only where it has to be.
        by_bucket = run._gradient_hook is None
        has_to = (
            "find_unused_parameters" in options
            or isinstance(module, Nested)
            or EXCHANGE == "coxswain"
        )
        check(by_bucket == has_to, module)


def exchanges_where_torch_does():
    """Not each pass over the parameters is one of the model."""
    _, _, model, _ = pair(layers())
    run = cx.follow(model)

    def steps(*passes):
        before = run.schedule.step
        for one in passes:
            with run.accumulate():
                one()
        return run.schedule.step - before

    def of_model():
        loss(model, batch(0, 0)).backward()

    def alone():
        loss(model.module, batch(0, 0)).backward()

    def twice():
        both = loss(model, batch(0, 0))
        both.backward(retain_graph=True)
        both.backward()

    check(steps(of_model, of_model) == 1)
    alone()
    check(steps(of_model, twice) == 1)
    alone()
    check(steps(of_model, of_model) == 1)


def trains_with_hooks_of_torch():
    for module, state, hook, options in (
        (layers(), lambda: None, default_hooks.fp16_compress_hook, {}),
        (Nested(), lambda: None, default_hooks.fp16_compress_hook, {}),
        (
            layers(),
            lambda: powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=2, start_powerSGD_iter=2
            ),
            powerSGD_hook.powerSGD_hook,
            # Over gloo it exchanges several buckets in no fixed order.
            {"bucket_cap_mb": 25},
        ),
    ):
        plain, theirs, model, ours = pair(module, **options)
        plain.register_comm_hook(state(), hook)
        run = cx.follow(model, ours)
        run.register_comm_hook(state(), hook)
        raised(coxswain.InvalidArgument, run.register_comm_hook, None, hook)
        train(plain, theirs, 2, 5)
        train_followed(run, model, ours, 2, 5)
        check(run.schedule.step == 5 and same(plain, model), hook)


def skips(session):
    _, _, model, optimizer = pair(layers())
    run = cx.follow(model, optimizer)
    train_followed(run, model, optimizer, 2, 1)
    before = digest(model), pickle.dumps(optimizer.state_dict())
    for micro in range(2):
        if session.rank == 1 and micro == 1:
            run.skip("loss is NaN")
        with run.accumulate():
            loss(model, batch(1, micro)).backward()
    check(run.skipped and "rank 1" in run.decision.reason, run.decision)
    check("loss is NaN" in run.decision.reason, run.decision)
    check(all(p.grad is None for p in model.parameters()))
    optimizer.step()
    check(before == (digest(model), pickle.dumps(optimizer.state_dict())))
    train_followed(run, model, optimizer, 2, 1)
    check(not run.skipped and digest(model) != before[0])


def skips_what_is_recomputed():
    """From the first pass on, which torch still exchanges by itself."""
    for options in ({}, {"bucket_cap_mb": 25}):
        _, _, model, _ = pair(Nested(), **options)
        run = cx.follow(model)
        for step in range(3):
            run.skip("all of them")
            for micro in range(2):
                with run.accumulate():
                    loss(model, batch(step, micro)).backward()
            check(run.skipped and run.schedule.step == step + 1)
            check(all(p.grad is None for p in model.parameters()), step)


def refuses_what_hides_its_passes():
    class Hidden(Nested):
        def forward(self, x):
            return types.SimpleNamespace(y=super().forward(x))

    model = DistributedDataParallel(Hidden())
    run = cx.follow(model)
    with run.accumulate():
        model(batch(0, 0)).y.sum().backward()
    with run.accumulate():
        hidden = model(batch(0, 1)).y.sum()
        if EXCHANGE == "torch":
            error = raised(coxswain.InvalidArgument, hidden.backward)
            check("use_reentrant=False" in str(error), error)
        else:
            hidden.backward()
    # Where nothing is recomputed it trains.
    plain = DistributedDataParallel(layers())
    plain.module.register_forward_hook(
        lambda module, inputs, output: types.SimpleNamespace(y=output)
    )
    run = cx.follow(plain)
    for micro in range(2):
        with run.accumulate():
            plain(batch(0, micro)).y.sum().backward()
    check(run.schedule.step == 1, run.schedule.step)


def leaves_micro_batches_out():
    """What was left before its backward pass is none, on any rank."""
    for exchange in ("torch", "coxswain"):
        _, _, model, optimizer = pair(layers())
        run = cx.follow(model, optimizer, exchange=exchange)
        micro = passes = 0
        while run.schedule.step < 3:
            micro += 1
            left = micro % 3 == dist.get_rank()
            with contextlib.suppress(ValueError), run.accumulate():
                if left and micro % 2:
                    raise ValueError("a bad batch")
                value = loss(model, batch(0, micro))
                if left:
                    continue
                value.backward()
                passes += 1
            check(run.sync == (not left and passes % 2 == 0), run.sync, micro)
            if run.sync:
                optimizer.step()
                optimizer.zero_grad()
        check(passes == 6, passes)


def votes():
    _, _, model, optimizer = pair(layers())
    run = cx.follow(model, optimizer, skip_non_finite=True)
    before = digest(model)
    for micro in range(2):
        x = batch(0, micro)
        if dist.get_rank() == 1 and micro == 1:
            x[0] = float("nan")
        with run.accumulate():
            loss(model, x).backward()
    check(run.skipped and "rank 1" in run.decision.reason, run.decision)
    check("not finite" in run.decision.reason, run.decision)
    check("rank 0" not in run.decision.reason, run.decision)
    optimizer.step()
    check(digest(model) == before)
    train_followed(run, model, optimizer, 2, 1)
    check(digest(model) != before)


def tells_a_scaler():
    _, _, model, _ = pair(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    run = cx.follow(model, optimizer, scaler=scaler)
    before = digest(model)
    run.skip("both")
    for micro in range(2):
        with run.accumulate():
            scaler.scale(loss(model, batch(0, micro))).backward()
    scaler.step(optimizer)
    scaler.update()
    check(scaler.get_scale() == 2 and digest(model) == before)


def weighs_a_short_window():
    plain, _, model, optimizer = pair(layers())
    run = cx.follow(model, optimizer)
    with run.accumulate(end_of_data=True):
        (loss(model, batch(0, 0)) * run.loss_scale).backward()
    check(run.sync)
    loss(plain, batch(0, 0)).backward()
    for one, other in zip(model.parameters(), plain.parameters()):
        check(torch.allclose(one.grad, other.grad, rtol=1e-6))
    optimizer.step()
    optimizer.zero_grad()
    train_followed(run, model, optimizer, 2, 1)
    # A micro-batch of two forwards is one.
    for micro in range(2):
        with run.accumulate():
            both = loss(model, batch(1, micro)) + loss(model, batch(2, micro))
            both.backward()
    optimizer.step()


def refuses_a_step_within_a_window():
    _, _, model, optimizer = pair(layers())
    run = cx.follow(model, optimizer)
    with run.accumulate():
        loss(model, batch(0, 0)).backward()
    error = raised(coxswain.Error, optimizer.step)
    check("after 1 of 2 micro-batches" in str(error), error)
    check(run.schedule.stream in str(error), error)
    # An evaluation is none.
    model.eval()
    loss(model, batch(0, 0))
    model.train()
    with torch.no_grad():
        loss(model, batch(0, 0))
    with run.accumulate():
        loss(model, batch(0, 1)).backward()
    optimizer.step()


def may_be_pickled_and_copied():
    model = DistributedDataParallel(layers())
    cx.follow(model)
    copied = pickle.loads(pickle.dumps(model.module))
    check(same(copied, model.module))
    # torch makes its own half of the copy anew.
    state = pickle.dumps(model)
    again = pickle.loads(state)
    check(same(again, model))
    loss(again, batch(0, 0))


def refuses(session):
    error = raised(coxswain.InvalidArgument, cx.follow, layers())
    check("Sequential cannot be followed" in str(error), error)
    check("FSDP" in str(error), error)
    model = DistributedDataParallel(layers())
    error = raised(
        coxswain.InvalidArgument, cx.follow, model, exchange="nccl"
    )
    check('there is "torch"' in str(error), error)
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    error = raised(coxswain.InvalidArgument, cx.follow, model)
    check("takes only one" in str(error), error)
    mixed = DistributedDataParallel(layers())
    mixed.mixed_precision = object()
    error = raised(coxswain.InvalidArgument, cx.follow, mixed)
    check("torch.autocast" in str(error), error)
    with contextlib.ExitStack() as stack:
        mode = torch._dynamo.config.optimize_ddp
        stack.callback(
            setattr, torch._dynamo.config, "optimize_ddp", mode
        )
        torch._dynamo.config.optimize_ddp = "python_reducer"
        compiled = DistributedDataParallel(layers())
        error = raised(coxswain.InvalidArgument, cx.follow, compiled)
        check("python_reducer" in str(error), error)
    check(session.ended is None)


def refuses_a_hook_of_the_model():
    model = DistributedDataParallel(layers())
    cx.follow(model)
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    loss_of_it = loss(model, batch(0, 0))
    error = raised(coxswain.InvalidArgument, loss_of_it.backward)
    check("use that of Run" in str(error), error)


def keeps(session):
    """The semantics of c10d's stores."""
    store = cx.TorchStore(session, "own/")
    rank = session.rank
    if rank == 0:
        store.set("text", "a")
        store.set("bytes", b"\0\xff")
        store.append("text", "bc")
        store.multi_set(["x", "y"], [b"1", b"2"])
    dist.barrier()
    check(store.get("text") == b"abc" and store.get("bytes") == b"\0\xff")
    check(store.multi_get(["x", "y"]) == [b"1", b"2"])
    check(store.check(["x", "y"]) and not store.check(["x", "none"]))
    check(store.add("sum", rank + 1) in (1, 2, 3))
    dist.barrier()
    check(store.add("sum", 0) == 3 and store.get("sum") == b"3")
    dist.barrier()
    if rank == 0:
        check(store.compare_set("none", "a", "b") == b"a")
        check(not store.check(["none"]))
        check(store.compare_set("none", "", "b") == b"b")
        check(store.compare_set("none", "a", "c") == b"b")
        check(store.compare_set("none", "b", "c") == b"c")
        check(store.num_keys() == 6)
        check(store.delete_key("none") and not store.delete_key("none"))
        check(store.num_keys() == 5)
        check(cx.TorchStore(session, "none/").num_keys() == 0)
    dist.barrier()
    short = datetime.timedelta(milliseconds=80)
    error = raised(dist.DistStoreError, store.wait, ["x", "none"], short)
    check("timeout" in str(error) and "none" in str(error), error)
    check("x," not in str(error), error)
    other = store.clone()
    other.set_timeout(short)
    check(other.timeout == short and store.timeout != short)
    error = raised(dist.DistStoreError, other.get, "none")
    check("timeout" in str(error), error)
    # Through torch's own half of it, of which Python keeps nothing.
    prefixed = dist.PrefixStore("p", cx.TorchStore(session, "own/"))
    prefixed.set("k%d" % rank, "v")
    check(prefixed.get("k%d" % rank) == b"v")
    check(store.get("p/k%d" % rank) == b"v")
    dist.barrier()


def stops(session):
    _, _, model, optimizer = pair(layers())
    run = cx.follow(model, optimizer)
    if session.rank == 1:
        run.request_stop("enough")
    steps = 0
    while not run.stopping:
        train_followed(run, model, optimizer, 2, 1)
        steps += 1
    check("enough" in run.stopping and steps <= 2, steps, run.stopping)


def url():
    """A program that knows of Coxswain by an address alone."""
    dist.init_process_group("gloo", init_method="coxswain://")
    session = cx.session()
    check((dist.get_rank(), dist.get_world_size()) == (session.rank, 2))
    tensor = torch.ones(4) * (session.rank + 1)
    dist.all_reduce(tensor)
    check(tensor.tolist() == [3.0] * 4)
    group = dist.new_group([0, 1])
    dist.monitored_barrier(group)
    gathered = [None, None]
    dist.all_gather_object(gathered, session.rank, group=group)
    check(gathered == [0, 1])
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method="coxswain://")
    dist.all_reduce(tensor)
    check(tensor.tolist() == [6.0] * 4)
    cx.leave()
    cx.leave()


def every_batch():
    cx.init(plan="accumulation=3 sync_each_batch=true")
    for options in ({}, {"static_graph": True}):
        plain, theirs, model, ours = pair(layers(), **options)
        run = cx.follow(model, ours)
        train_followed(run, model, ours, 3, 17)
        check(run.schedule.step == 17)
        for step in range(17):
            for micro in range(3):
                (loss(plain, batch(step, micro)) / 3).backward()
            theirs.step()
            theirs.zero_grad()
        check(same(plain, model), options)


def strict():
    """From the first step on, and from one in the middle."""
    session = cx.init(plan={"accumulation": 2})
    plain, theirs, model, ours = pair(layers())
    run = cx.follow(model, ours)
    train(plain, theirs, 2, 1)
    train(plain, theirs, 2, 3)
    train_followed(run, model, ours, 2, 1)
    check((run._gradient_hook is not None) == (EXCHANGE == "torch"))
    if session.rank == 0:
        plan_set(session, "enforcement=strict")
    session.barrier("the plan is set", timeout=60)
    train_followed(run, model, ours, 2, 3)
    check(run.plan.strict and run._gradient_hook is None)
    check(same(plain, model))
    other = cx.follow(DistributedDataParallel(layers()))
    check(other._gradient_hook is None)


def uneven():
    """A rank whose data ends earlier goes on with DistributedDataParallel's
    join(), as the plan allows."""
    session = cx.init(plan="uneven_data=wait_for_all checksum_every=1")
    _, _, model, optimizer = pair(layers())
    run = cx.follow(model)
    with model.join():
        for step in range(2 + 2 * session.rank):
            loss(model, batch(step, 0)).backward()
            optimizer.step()
            optimizer.zero_grad()
    check(run.schedule.step == 4, run.schedule.step)
    digests = [None, None]
    dist.all_gather_object(digests, digest(model))
    check(digests[0] == digests[1], digests)


def uneven_is_refused():
    session = cx.init()
    _, _, model, optimizer = pair(layers())
    cx.follow(model)
    try:
        with model.join():
            for step in range(2 + 2 * session.rank):
                loss(model, batch(step, 0)).backward()
                optimizer.step()
                optimizer.zero_grad()
    except coxswain.RanksDiffer as error:
        check(error.ranks == (0,), error.ranks, error)
        print("NAMED", error, flush=True)
        cx.leave("refused", failed=True)
    else:
        raise AssertionError("no error was raised")


def wrong_plan():
    cx.init(plan={"hook": "bf16"})
    model = DistributedDataParallel(layers())
    error = raised(coxswain.InvalidArgument, cx.follow, model)
    check("it is torch that exchanges" in str(error), error)
    error = raised(coxswain.InvalidArgument, coxswain.canonical_hook, "fp61")
    check("powersgd" in str(error), error)


class Broken:
    """What cannot be saved any more."""

    whole = True

    def state_dict(self):
        if not self.whole:
            raise TypeError("it is broken")
        return {}

    def load_state_dict(self, state):
        pass


def ends_cleanly():
    """Also where a state cannot be saved, or something fails that is done before
    the session is left."""
    session = cx.init(plan={"checkpoint_every": 1})
    model, broken = DistributedDataParallel(layers()), Broken()
    run = cx.follow(
        model, checkpoint={"broken": broken}, checkpoint_own=["broken"]
    )
    broken.whole = False
    for step in range(2):
        with run.accumulate():
            loss(model, batch(step, 0)).backward()
    check(run.decision.checkpoint and run.save_if_asked(), run.decision)

    def fail():
        raise ValueError("not saved")

    if session.rank == 0:
        event = session.next_event(60)
        while event.kind is not coxswain.EventKind.MEMBER_LEFT:
            check(event.kind is not coxswain.EventKind.GENERATION_ENDED, event)
            event = session.next_event(60)
        _session.before_leaving(session, fail)
        error = raised(ValueError, cx.leave)
        check(str(error) == "not saved", error)
        return
    done = []
    for action in (lambda: done.append(1), fail, lambda: done.append(2)):
        _session.before_leaving(session, action)
    _session._process._end()
    check(done == [2, 1], done)


def uncaught():
    session = cx.init()
    model = DistributedDataParallel(layers(), bucket_cap_mb=0.01)
    cx.follow(model)
    # torch rearranges buckets in the forward after the first pass.
    for step in range(2):
        loss(model, batch(step, 0)).backward()
    if session.rank == 1:
        raise ValueError("no luck")
    try:
        loss(model, batch(2, 0)).backward()
    except coxswain.PeerLost as error:
        check(error.ranks == (1,), error.ranks)
        print("NAMED", error, flush=True)
        return
    raise AssertionError("rank 1 was not missed")


if __name__ == "__main__":
    scene_support.main(globals())
