"""Scenes of accelerate_hooks_test: Accelerate's words for hooks, and what
exchange="coxswain" makes of them."""

import itertools
import runpy

import accelerate
import accelerate_suite
import scene_support
import torch
from accelerate import DistributedDataParallelKwargs
from accelerate.utils import DDPCommunicationHookType as Kind
from recording import Recording, path_of
from scene_support import check, digest, network, on_all_ranks
from torch.nn.parallel import DistributedDataParallel

import coxswain.accelerate
import coxswain.torch
from coxswain import _accelerator

LOW_RANK = {"power_sgd": "powersgd", "batched_power_sgd": "batched_powersgd"}


def spec_of(hook, wrapper, options):
    """Returns the hook of Coxswain's that has the words of Accelerate."""
    if hook == "no":
        return "allreduce"
    spec = LOW_RANK.get(hook, hook)
    values = [
        "%s=%s" % (ours, options[theirs])
        for theirs, ours in (
            ("matrix_approximation_rank", "rank"),
            ("start_powerSGD_iter", "start_step"),
        )
        if theirs in options
    ]
    if values:
        spec += "(%s)" % ",".join(values)
    return spec if wrapper == "no" else "%s(%s)" % (wrapper, spec)


def their_script():
    """Accelerate's test_ddp_comm_hook, which compares each combination with
    plain averages, by the exchange of Coxswain."""
    session = coxswain.torch.init()
    changes = scene_support.HookChanges(session)
    DistributedDataParallel.__init__ = accelerate_suite.on_cpu
    attached, hooks, words = [], [], []

    class Attached(accelerate.Accelerator):
        """An Accelerator that has the line that its program lacks."""

        def __init__(self, **options):
            super().__init__(cpu=True, **options)
            changes.to(
                _accelerator.hook_of(self, "coxswain", None) or "allreduce"
            )
            hooks.append(session.schedule.plan.hook)
            given = self.ddp_handler
            words.append((
                given.comm_hook.value, given.comm_wrapper.value,
                given.comm_state_option,
            ))
            attached.append(
                coxswain.accelerate.attach(self, exchange="coxswain")
            )

    accelerate.Accelerator = Attached
    runpy.run_module(
        "accelerate.test_utils.scripts.test_ddp_comm_hook",
        run_name="__main__",
    )
    for one, hook, its_words in zip(attached, hooks, words):
        run, = one.runs
        check(run.schedule.step == 1, run.schedule.step)
        expected = coxswain.canonical_hook(spec_of(*its_words))
        check(hook == expected, hook, its_words)
    check(len(hooks) == len(set(hooks)) == 10, hooks)


def combinations():
    """All words with one another, where compression has begun."""
    session = coxswain.torch.init()
    changes = scene_support.HookChanges(session)
    found = [
        (hook, wrapper, {})
        for hook, wrapper in itertools.product(
            ("fp16", "bf16"), ("no", "fp16", "bf16")
        )
    ]
    found += [
        (hook, wrapper, dict(options, start_powerSGD_iter=2))
        for hook, wrapper, options in itertools.product(
            LOW_RANK, ("no", "fp16", "bf16"),
            ({}, {"matrix_approximation_rank": 2}),
        )
    ]
    found.append(("no", "no", {}))
    for number, words in enumerate(found):
        changes.to(spec_of(*words))
        hook, wrapper, options = words
        handler = DistributedDataParallelKwargs(
            comm_hook=Kind(hook), comm_wrapper=Kind(wrapper),
            comm_state_option=options,
        )
        accelerator = accelerate.Accelerator(
            cpu=True, kwargs_handlers=[handler]
        )
        attached = coxswain.accelerate.attach(accelerator, exchange="coxswain")
        train(accelerator, attached, path_of("combinations", number))


def train(accelerator, attached, path):
    inner = network()
    model, optimizer = accelerator.prepare(
        inner, torch.optim.AdamW(inner.parameters(), lr=1e-2)
    )
    run, = attached.runs
    recording = Recording(run)
    for step in range(6):
        torch.manual_seed(10 * step + accelerator.process_index)
        accelerator.backward(model(torch.randn(8, 16)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    check(run.schedule.step == 6, run.schedule.step)
    on_all_ranks(digest(inner))
    recording.save(path)


if __name__ == "__main__":
    scene_support.main(globals())
