"""Scenes of exchange_bits_test: the bits that Coxswain's exchange leaves, on two
ranks and on more.

On two ranks allreduce leaves those of torch, because a sum of two has one order.
On more, torch's Gloo adds up each part of a bucket in another order: the bits
are torch's where all sums are exact, and close to them elsewhere.
"""

import scene_support
import torch
import torch.distributed as dist
from recording import Recording, path_of
from scene_support import check, digest, on_all_ranks
from torch.utils.checkpoint import checkpoint
from torch_scenes import (
    Checkpointed,
    Unused,
    layers,
    loss_of,
    pair,
    same,
    seed,
    train,
    train_followed,
)

import coxswain.torch as cx

STEPS = 50


class Whole(torch.nn.Module):
    """Gradients are small whole numbers, multiples of the number of ranks."""

    def __init__(self, checkpointed=False, unused=False):
        super().__init__()
        self.used = layers(3)
        self.unused = layers(1) if unused else None
        self.checkpointed = checkpointed

    def forward(self, x):
        return sum(
            checkpoint(layer, x, use_reentrant=False)
            if self.checkpointed else layer(x)
            for layer in self.used
        )


def whole_loss_of(model, step, micro):
    seed(step, micro)
    x = torch.randint(-4, 5, (8, 32)).float()
    # Twice: a window of two halves it.
    return 2 * dist.get_world_size() * model(x).sum()


def double_loss_of(model, step, micro):
    seed(step, micro)
    return model(torch.randn(8, 32).double()).square().mean()


# For each kind of model: one of which all sums are exact, and a common one.
LAYERS = Whole, layers
UNUSED = lambda: Whole(unused=True), Unused
CHECKPOINTED = (
    lambda: Whole(checkpointed=True), lambda: Checkpointed(False)
)


def compare(kind, options, way):
    """Checks what `way` trains with Coxswain's exchange, and with torch's."""
    whole, common = kind
    if dist.get_world_size() == 2:
        both = [(common(), loss_of, 0)]
    else:
        both = [
            (whole(), whole_loss_of, 0),
            (common().double(), double_loss_of, 1e-12),
        ]
    for module, loss, tolerance in both:
        plain, theirs, model, optimizer = pair(module, **options)
        run = way(plain, theirs, model, optimizer, loss)
        check(run.schedule.step == STEPS, run.schedule.step)
        far = max(
            (a - b).abs().max().item()
            for a, b in zip(plain.parameters(), model.parameters())
        )
        check(far <= tolerance, kind, options, far)
        check(tolerance or same(plain, model), kind, options)
        on_all_ranks(digest(model))


def by_windows(plain, theirs, model, optimizer, loss):
    run = cx.follow(model, optimizer, exchange="coxswain")
    k = run.plan.accumulation
    train(plain, theirs, k, STEPS, loss)
    train_followed(run, model, optimizer, k, STEPS, loss)
    return run


def windows():
    cx.init(plan={"accumulation": 2})
    compare(LAYERS, {}, by_windows)
    compare(LAYERS, {"gradient_as_bucket_view": True}, by_windows)
    compare(UNUSED, {"find_unused_parameters": True}, by_windows)
    compare(CHECKPOINTED, {}, by_windows)


def single():
    cx.init()
    # torch's static_graph does not go with no_sync().
    compare(LAYERS, {"static_graph": True}, by_windows)
    for backend in ("eager", "aot_eager"):
        def by_compiled(plain, theirs, model, optimizer, loss):
            slow = torch.compile(plain, backend=backend)
            fast = torch.compile(model, backend=backend)
            run = cx.follow(fast, optimizer, exchange="coxswain")
            train(slow, theirs, 1, STEPS, loss)
            train(fast, optimizer, 1, STEPS, loss)
            return run

        compare(LAYERS, {"bucket_cap_mb": 25}, by_compiled)


def joined():
    """Ranks with different amounts of data, by DistributedDataParallel's
    join()."""
    cx.init(plan="uneven_data=wait_for_all")
    last = dist.get_world_size() - 1

    def by_join(plain, theirs, model, optimizer, loss):
        run = cx.follow(model, exchange="coxswain")
        for one, steps in ((plain, theirs), (model, optimizer)):
            with one.join():
                for step in range(STEPS - 3 * (last - dist.get_rank())):
                    loss(one, step, 0).backward()
                    steps.step()
                    steps.zero_grad()
        return run

    compare(LAYERS, {}, by_join)


POWERSGD = "powersgd(rank=2,start_step=2)"
HOOKS = (
    "allreduce", "fp16", "bf16", POWERSGD, "fp16(%s)" % POWERSGD,
    "bf16(%s)" % POWERSGD, "batched_powersgd(rank=1,start_step=2)", "int8",
    "acp_sgd(rank=2,start_step=2)", "stats(powersgd(rank=1,start_step=2))",
    "noop",
)


def hooks():
    """Each hook, with buckets that stay and with those that torch divides anew.
    The plan changes the hook between the models.

    Where the reducer repeats it, 16-bit sums of more than two are rounded after
    each addition, and shared memory rounds once: these are not recorded.
    """
    session = cx.init()
    changes = scene_support.HookChanges(session)
    plain, theirs, _, _ = pair(layers())
    train(plain, theirs, 1, 6)
    found = []
    for number, hook in enumerate(HOOKS):
        changes.to(hook)
        for stays in (True, False):
            _, _, model, optimizer = pair(
                layers(), find_unused_parameters=stays
            )
            run = cx.follow(model, optimizer, exchange="coxswain")
            recording = Recording(run)
            train_followed(run, model, optimizer, 1, 6)
            if hook != "noop":  # which leaves each rank its own gradients
                on_all_ranks(digest(model))
            if dist.get_world_size() == 2 or "16" not in hook:
                recording.save(path_of("hooks", 2 * number + (not stays)))
        far = max(
            (a - b).abs().max().item()
            for a, b in zip(plain.parameters(), model.parameters())
        )
        check(far < 0.2 and (far > 0 or hook == "allreduce"), hook, far)
        found.append(digest(model))
    # Each of them is another one.
    check(len(set(found)) == len(HOOKS), found)


if __name__ == "__main__":
    scene_support.main(globals())
