"""A worker of elastic_test whose optimizer newcomers take while others train:
it trains until the test ends the job.

FOLDER has what the test asks for, as in elastic_worker. CATCH_UP=0 takes no
state while it waits; WRONG=1 computes other bits than the members, then.
"""

import os
import sys
import time

import scene_support
import torch

import coxswain
import coxswain.torch as cx
from coxswain.torch._copies import bytes_of

ROWS = 2  # of a micro-batch
FOLDER = os.environ["FOLDER"]
WORKER = "%s.%s" % (
    os.environ["COXSWAIN_NODE"], os.environ["COXSWAIN_LOCAL_RANK"]
)


def digest(model, optimizer):
    """Of parameters and what the optimizer keeps."""
    found = list(model.parameters())
    for parameter in model.parameters():
        found += [one for _, one in sorted(optimizer.state[parameter].items())]
    wrapped = torch.nn.ParameterList(
        torch.frombuffer(bytearray(bytes_of(one)), dtype=torch.uint8).float()
        for one in found
    )
    return scene_support.digest(wrapped)


def main():
    scene_support.whole_lines()
    torch.set_num_threads(1)
    torch.manual_seed(os.getpid())  # All go on with one rank's.
    # More than a piece.
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 600), torch.nn.BatchNorm1d(600),
        torch.nn.Linear(600, 600), torch.nn.Linear(600, 1),
    )
    model.register_parameter("unused", torch.nn.Parameter(torch.randn(7)))
    optimizer = torch.optim.AdamW(
        [
            {"params": model[0].parameters(), "lr": 0.002},
            {"params": [model.unused, *model[1:].parameters()]},
        ],
        lr=0.001, weight_decay=0.1,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.99 ** (step % 50)
    )
    wrong = None
    if os.environ.get("WRONG"):
        def spoil(*unused):
            with torch.no_grad():
                model[0].weight.add_(1e-3)

        wrong = optimizer.register_step_post_hook(spoil)

    def train(t):
        if wrong is not None:
            wrong.remove()
        recovery = t.recovery
        print(
            "%s is rank %d of %d, pid %d, generation %d, from step %d%s"
            % (
                WORKER, t.rank, t.world_size, os.getpid(),
                recovery.generation, t.step,
                ", caught up" if recovery.caught_up
                else ", copied" if recovery.copied else "",
            )
        )
        for warning in recovery.warnings:
            print("%s WARNS: %s" % (WORKER, warning))
        while t.going:
            if os.path.exists(os.path.join(FOLDER, "end")):
                t.run.request_stop("the test ends")
            time.sleep(0.05)  # Others load torch meanwhile.
            with t.accumulate():
                first = t.counter["rows"] + t.rank * ROWS
                rows = torch.arange(first, first + ROWS)[:, None]
                x = torch.sin(rows * torch.arange(1.0, 5))
                t.backward(t.ddp(x).square().mean())
            t.counter["rows"] += t.world_size * ROWS
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            t.step_optimizer()
            scheduler.step()
            if t.step % 2 == 0:
                print("%s at step %d" % (WORKER, t.step))
        if t.stopping:
            found = scheduler.last_epoch - t.step
            print(
                "%s ends at step %d, %d rows, %s, digest %s"
                % (
                    WORKER, t.step, t.counter["rows"],
                    "WRONG by %d" % found if found else "exact",
                    digest(model, optimizer),
                )
            )

    try:
        ending = cx.elastic(
            model, optimizer, train,
            also={"scheduler": scheduler},
            ddp={"find_unused_parameters": True},
            catch_up=os.environ.get("CATCH_UP") != "0",
        )
    except coxswain.Error as error:
        print("%s FAILED: %s" % (WORKER, error))
        sys.exit(3)
    print("%s: %s" % (WORKER, ending.value))


if __name__ == "__main__":
    main()
