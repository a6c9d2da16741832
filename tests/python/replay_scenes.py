"""Scenes of elastic_state_test: two ranks of coxswain.torch.elastic, of which
one comes to hold other bits."""

import logging

import scene_support
import torch
from scene_support import check, raised

import coxswain
import coxswain.torch as cx

STEPS = 20
COMPARED_EVERY = 4
# After the last exchange before a comparison: what was wrong has reached no
# other rank.
WRONG_AT = 12


class Lines(logging.Handler):
    """What the package logs of replays."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []
        logging.getLogger("coxswain.torch").addHandler(self)

    def emit(self, record):
        text = record.getMessage()
        if "replay_named" in text:
            self.lines.append(text)


class Training:
    """Flips a bit of a parameter of one rank before the step `at`, `times`
    times; the mask may depend on how often it has done so."""

    def __init__(
        self, wrong=1, times=1, mask=lambda done: 1 << 20, at=WRONG_AT
    ):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8),
            torch.nn.Linear(8, 1),
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(
            self.optimizer, 0.99
        )
        self.wrong, self.times, self.mask, self.at = wrong, times, mask, at
        self.done = 0
        self.generations = []  # (step, copied), and their warnings
        self.warnings = []
        self.log = Lines()

    def run(self, plan="", **named):
        return cx.elastic(
            self.model, self.optimizer, self.train,
            plan=dict(
                {"checksum_every": COMPARED_EVERY, "max_steps": STEPS},
                **(plan or {})
            ),
            also={"scheduler": self.scheduler}, **named
        )

    def train(self, t):
        self.generations.append((t.step, t.recovery.copied))
        self.warnings += t.recovery.warnings
        while t.going:
            if t.step == self.at and t.rank == self.wrong:
                self.flip()
            with t.accumulate():
                rows = torch.arange(4) + t.counter["rows"] + 4 * t.rank
                x = torch.sin(rows[:, None] * torch.arange(1.0, 5))
                t.backward(t.ddp(x).square().mean())
            t.counter["rows"] += 4 * t.world_size
            t.step_optimizer()
            self.scheduler.step()

    def flip(self):
        if self.done < self.times:
            bits = self.model[0].weight.detach().view(torch.int32)
            bits[0, 0] ^= self.mask(self.done)
            self.done += 1

    def lost(self, **named):
        """Returns the text of the error with which the job ends."""
        error = raised(coxswain.Error, self.run, **named)
        check(error.code == coxswain.Code.DATA_LOSS, error)
        return str(error)

    def ended(self):
        check(self.scheduler.last_epoch == STEPS, self.scheduler.last_epoch)
        print("BITS %s" % scene_support.digest(self.model))
        for line in self.log.lines:
            print("LOGS %s" % line)


def _goes_on(wrong, times, plan="", at=WRONG_AT, **named):
    training = Training(wrong, times, at=at)
    ending = training.run(plan, **named)
    check(ending is cx.Ending.FINISHED, ending)
    begun = [(0, False), (8, False)][:1 + times]
    first = training.generations[0][0], False  # One rank's state is copied.
    check([first] + training.generations[1:] == begun, training.generations)
    check(len(training.warnings) == times, training.warnings)
    if times:
        check("all go back to step 8" in training.warnings[0],
              training.warnings)
    training.ended()


def undisturbed():
    _goes_on(0, 0)


def rank_0_is_wrong_once():
    _goes_on(0, 1)


def rank_1_is_wrong_once():
    _goes_on(1, 1)


def wrong_steps_before():
    """What it has computed meanwhile has changed the other one's bits, too."""
    _goes_on(1, 1, at=9)


POWERSGD = {"hook": "powersgd(rank=1,start_step=2)"}


def undisturbed_with_error_feedback():
    _goes_on(0, 0, POWERSGD, follow={"exchange": "coxswain"})


def wrong_once_with_error_feedback():
    _goes_on(1, 1, POWERSGD, follow={"exchange": "coxswain"})


def a_fault_that_comes_again_ends_the_job():
    training = Training(times=1000)
    error = training.lost()
    check("each had the bits again that it had had" in error, error)
    check("the steps from 8 on were replayed" in error, error)
    check(training.log.lines == [], training.log.lines)


def other_bits_each_time():
    training = Training(times=1000, mask=lambda done: 1 << (20 - done))
    error = training.lost()
    check("rank 0 had the same bits again, and rank 1 others" in error, error)


def without_replays_the_job_ends():
    training = Training()
    error = training.lost(replay="never")
    check("start the job again from a checkpoint" in error, error)
    check(len(training.generations) == 1, training.generations)


if __name__ == "__main__":
    scene_support.main(globals())
