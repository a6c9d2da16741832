#!/usr/bin/env python3
"""The examples in Python train, and the pages show them as they are."""

import os
import re
import signal
import sys
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

import torch_ranks  # noqa: E402
from program import Program  # noqa: E402

EXAMPLES = os.path.abspath("examples/python")
PROGRAMS = (
    "minimal",
    "ddp",
    "own_hook",
    "resume",
    "elastic",
    "accelerate_train",
    "trainer",
    "lightning_train",
    "ray_train",
)
torch_ranks.preload("transformers.trainer", "lightning.pytorch")
PAGES = ("README.md", "docs/first-program.md", "docs/python.md")


# Prints the words that programs of torch and Accelerate have for how gradients
# are exchanged, each after the page that says what they are here.
WORDS = """
import dataclasses, inspect
from accelerate.utils import DDPCommunicationHookType as Kind
from accelerate.utils import DistributedDataParallelKwargs
from accelerate.utils import GradientAccumulationPlugin
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

for kind in Kind:
    print("docs/python.md", 'comm_hook="%s"' % kind.value)
for plugin in DistributedDataParallelKwargs, GradientAccumulationPlugin:
    for field in dataclasses.fields(plugin):
        print("docs/python.md", field.name)
for page, kind in (
    ("docs/python.md", DistributedDataParallel),
    ("docs/hooks.md", powerSGD_hook.PowerSGDState),
):
    for name in list(inspect.signature(kind.__init__).parameters)[1:]:
        print(page, name)
"""


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


class ExamplesTest(unittest.TestCase):
    def assert_trains(self, name):
        command = torch_ranks.run() + torch_ranks.python(
            os.path.join(EXAMPLES, name + ".py"), "--samples", "4000"
        )
        with Program(command, torch_ranks.environment()) as ranks:
            self.assertEqual(ranks.end(), 0, ranks.output)
            found = re.search(
                r": (\d+) steps, accuracy ([\d.]+)%", ranks.output)
            self.assertIsNotNone(found, ranks.output)
            # 63 batches on each of 2 ranks, the last window of which is short.
            self.assertEqual(int(found[1]), 16, ranks.output)
            # By chance it would be 10%.
            self.assertGreater(float(found[2]), 40, ranks.output)

    def assert_learns(self, name, steps, factor):
        command = torch_ranks.run() + torch_ranks.python(
            os.path.join(EXAMPLES, name + ".py")
        )
        with Program(command, torch_ranks.environment()) as ranks:
            self.assertEqual(ranks.end(), 0, ranks.output)
            found = re.findall(
                r"^(\d+) ([\d.]+)$", ranks.output, re.MULTILINE
            )
            self.assertEqual(
                [int(step) for step, _ in found], steps, ranks.output,
            )
            self.assertLess(float(found[-1][1]), factor * float(found[0][1]))

    def test_minimal(self):
        self.assert_learns("minimal", [20, 40, 60, 80, 100], 0.5)

    def test_own_hook(self):
        self.assert_learns("own_hook", [20, 40, 60, 80, 100], 0.7)

    def test_elastic(self):
        command = torch_ranks.run(
            "--min-workers", "1", "--max-restarts", "1"
        ) + torch_ranks.python(
            os.path.join(EXAMPLES, "elastic.py"), "--steps", "3000"
        )
        with Program(command, torch_ranks.environment()) as ranks:
            found = ranks.line(r"rank 1 of 2 pid (\d+)")
            os.kill(int(found[1]), signal.SIGKILL)
            ranks.line(r"rank 0 of 1 pid \d+ goes on from step \d+")
            self.assertEqual(ranks.end(), 0, ranks.output)
            self.assertRegex(ranks.output, r"(?m)^3000 0\.\d+$")
            self.assertIn("finished", ranks.output)

    def test_distributed_data_parallel(self):
        self.assert_trains("ddp")

    def test_resume(self):
        with torch_ranks.Serve() as coordinator:
            for attempt, (ranks, begin, end) in enumerate(
                ((1, 0, 45), (2, 40, 50))
            ):
                command = torch_ranks.run(
                    "--coordinator", coordinator.address, "--job", "example",
                    "--attempt", str(attempt), ranks=ranks,
                ) + torch_ranks.python(
                    os.path.join(EXAMPLES, "resume.py"), str(end)
                )
                with Program(command, torch_ranks.environment()) as program:
                    self.assertEqual(program.end(), 0, program.output)
                    self.assertIn(
                        "resume: from %d to %d\n" % (begin, end),
                        program.output,
                    )

    def test_accelerate(self):
        self.assert_trains("accelerate_train")

    def test_trainer(self):
        self.assert_trains("trainer")

    def test_lightning(self):
        self.assert_trains("lightning_train")

    def test_they_are_short(self):
        for name in PROGRAMS:
            lines = read(EXAMPLES, name + ".py").splitlines()
            self.assertLess(len(lines), 100, name)

    def test_the_pages_show_them_as_they_are(self):
        programs = "\n".join(read(EXAMPLES, one + ".py") for one in PROGRAMS)
        for page in PAGES:
            shown = re.findall(
                r"^```python\n(.*?)^```$", read(page), re.DOTALL | re.MULTILINE
            )
            self.assertTrue(shown, page)
            for block in shown:
                self.assertIn(block, programs, page)


    def test_the_pages_have_all_words_of_torch_and_accelerate(self):
        command = [torch_ranks.torch_python(), "-c", WORDS]
        with Program(command, torch_ranks.environment()) as program:
            self.assertEqual(program.end(), 0, program.output)
        words = [line.split(" ", 1) for line in program.output.splitlines()]
        self.assertGreater(len(words), 30, program.output)
        for page, word in words:
            self.assertIn("`%s`" % word, read(page))


if __name__ == "__main__":
    unittest.main()
