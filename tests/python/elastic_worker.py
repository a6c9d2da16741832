"""A worker of elastic_test: it trains until the test ends the job.

What it trains shows whether a step was lost or counted twice: the weight is the
sum of the numbers of all rows that were used, and the buffer counts
micro-batches.

FOLDER has what the test asks for: a file with the name of a moment, and of a
worker, has that worker kill itself there.
"""

import os
import signal
import sys
import time

import scene_support
import torch

import coxswain
import coxswain.torch as cx
from coxswain.torch import _group, _recovery

ROWS = 2  # of a micro-batch
FOLDER = os.environ["FOLDER"]
# Of Coxswain's, which exchanges then.
HOOK = os.environ.get("HOOK", "")
WORKER = "%s.%s" % (
    os.environ.get("COXSWAIN_NODE", "torchrun"),
    os.environ.get("COXSWAIN_LOCAL_RANK") or os.environ["LOCAL_RANK"],
)
# Where a job that ends leaves its state, and one that starts finds it.
CHECKPOINT = os.path.join(FOLDER, "checkpoint")


def asked(moment):
    """Returns whether the test asks this worker for something now, once."""
    try:
        os.unlink(os.path.join(FOLDER, "%s.%s" % (moment, WORKER)))
    except FileNotFoundError:
        return False
    print("%s does %s" % (WORKER, moment))
    return True


def die(moment):
    if asked(moment):
        os.kill(os.getpid(), signal.SIGKILL)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(os.getpid())  # All go on with one rank's.
        self.sum = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.network = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8),
            torch.nn.Linear(8, 1),
        ).double()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, rows):
        self.seen += 1
        die("forward")
        x = torch.sin(rows[:, None] * torch.arange(1.0, 5).double())
        hidden = self.network(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: die("backward"))
        # The sum's gradient is minus the sum of the rows, and not their mean.
        return hidden.square().mean() - (self.sum * rows).sum()


class Optimizer(torch.optim.SGD):
    """Its rate for the sum is 1: that is exact."""

    def __init__(self, model):
        super().__init__(
            [
                {"params": [model.sum], "lr": 1.0, "momentum": 0.0},
                {"params": model.network.parameters()},
            ],
            lr=0.01, momentum=0.9,
        )

    def step(self, closure=None):
        super().step(closure)
        die("optimizer")


def before(module, name, moment):
    """Has a function of the package be a moment of its own."""
    function = getattr(module, name)

    def wrapper(*arguments, **named):
        die(moment)
        return function(*arguments, **named)

    setattr(module, name, wrapper)


def fall_behind(session, step):
    """Goes on once the generation has ended, as if that had come in place of
    the decision, which worker a.0 has followed by then."""
    await_true(lambda: steps_of("a.0") > step)
    print("%s is behind" % WORKER)
    await_true(lambda: session.ended is not None)
    raise session.ended


def await_true(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def note_step(step):
    path = os.path.join(FOLDER, "steps." + WORKER)
    with open(path + ".new", "w") as file:
        file.write(str(step))
    os.replace(path + ".new", path)


def steps_of(worker):
    with open(os.path.join(FOLDER, "steps." + worker)) as file:
        return int(file.read())


def read(parts):
    if not os.path.exists(CHECKPOINT):
        return 0, {}
    found = torch.load(CHECKPOINT)
    for name, part in parts.items():
        part.load_state_dict(found[name])
    return found["step"], found["counter"]


def write(parts, t):
    state = {name: part.state_dict() for name, part in parts.items()}
    state.update(step=t.step, counter=dict(t.counter))
    torch.save(state, CHECKPOINT)


def main():
    scene_support.whole_lines()
    torch.set_num_threads(1)
    model = Model()
    optimizer = Optimizer(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, [lambda step: 1.0, lambda step: 0.999 ** step]
    )
    before(_group, "begin", "group")
    before(_recovery, "_copy", "copy")
    before(_recovery, "_copy_loose", "recovery")
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    step, counter = read(parts)
    last = []

    def decided(decision):
        if asked("behind"):
            fall_behind(last[-1].session, last[-1].step)

    def train(t):
        last[:] = [t]
        print(
            "%s is rank %d of %d, pid %d, generation %d, from step %d%s"
            % (
                WORKER, t.rank, t.world_size, os.getpid(),
                t.recovery.generation, t.step,
                ", copied" if t.recovery.copied else "",
            )
        )
        print("%s has errors times %.3f" % (WORKER, t.error_scale))
        while t.going:
            if os.path.exists(os.path.join(FOLDER, "end")):
                t.run.request_stop("the test ends")
            time.sleep(0.05)  # Others load torch meanwhile.
            with t.accumulate():
                first = t.counter["rows"] + t.rank * ROWS
                rows = torch.arange(first, first + ROWS).double()
                # The mean over ranks and micro-batches makes a sum of it.
                scale = t.world_size * t.run.plan.accumulation
                t.backward(t.ddp(rows) * scale)
            t.counter["rows"] += t.world_size * ROWS
            t.counter["batches"] += 1
            if t.sync:
                t.step_optimizer()
                if asked("apart"):
                    await_true(lambda: t.session.ended is not None)
                    raise t.session.ended
                scheduler.step()
                note_step(t.step)
                if t.step % 2 == 0:
                    print("%s at step %d" % (WORKER, t.step))
        if t.stopping:
            rows = t.counter["rows"]
            found = (
                model.sum.item() - rows * (rows - 1) / 2,
                model.seen.item() - 2 * t.step,
                t.counter["batches"] - 2 * t.step,
                scheduler.last_epoch - t.step,
                t.run.schedule.step - t.step,
            )
            print(
                "%s ends at step %d, %d rows, %s, digest %s"
                % (
                    WORKER, t.step, rows,
                    "WRONG by %s" % (found,) if any(found) else "exact",
                    scene_support.digest(model),
                )
            )
            if t.rank == 0:
                write(parts, t)

    try:
        ending = cx.elastic(
            model, optimizer, train,
            plan={"accumulation": 2, **({"hook": HOOK} if HOOK else {})},
            also={"scheduler": scheduler},
            step=step,
            counter=counter,
            follow={
                "on_decision": decided,
                "exchange": "coxswain" if HOOK else "torch",
            },
            ddp={"bucket_cap_mb": 0.0001},
        )
    except coxswain.Error as error:
        print("%s FAILED: %s" % (WORKER, error))
        sys.exit(3)
    print("%s: %s" % (WORKER, ending.value))


if __name__ == "__main__":
    main()
