"""Scenes of elastic_state_test: coxswain.torch.elastic on two ranks."""

import scene_support
import torch
import torch.distributed as dist
from scene_support import check, raised

import coxswain
import coxswain.torch as cx


def parts():
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(t):
    with t.accumulate():
        t.backward(t.ddp(torch.ones(1, 2)).sum())
    t.step_optimizer()


def no_step_beyond_max_steps():
    """Also where a generation begins with all of them, as after a checkpoint;
    and a process trains in one job."""
    steps = []

    def train(t):
        check(t.stopping, "max_steps is not known")
        while t.going:
            step(t)
        steps.append(t.step)

    check(dist.is_initialized() is False)
    ending = cx.elastic(*parts(), train, step=10, plan={"max_steps": 10})
    check(ending is cx.Ending.FINISHED and steps == [10], ending, steps)
    check(not dist.is_initialized())
    error = raised(coxswain.Error, cx.elastic, *parts(), print)
    check("call it once in a process" in str(error), error)


def a_run_that_is_refused_leaves_nothing():
    model, optimizer = parts()
    error = raised(
        coxswain.InvalidArgument, cx.elastic, model, optimizer, print,
        follow={"skip_non_finite": True},
    )
    check("commit_vote" in str(error), error)
    check(not dist.is_initialized())
    # No hook of the wrapper is called.
    model(torch.ones(1, 2)).sum().backward()


def it_makes_the_process_group_itself():
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1
    )
    error = raised(coxswain.Error, cx.elastic, *parts(), print)
    check(error.code == coxswain.Code.FAILED_PRECONDITION, error)
    check("leave init_process_group() out" in str(error), error)


if __name__ == "__main__":
    scene_support.main(globals())
