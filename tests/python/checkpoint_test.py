#!/usr/bin/env python3
"""Checkpoints of torch programs: real processes, started by `coxswain run`."""

import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

from program import Program  # noqa: E402
from torch_ranks import CLI, SCENES, Serve  # noqa: E402
from torch_ranks import environment, python, run, torchrun  # noqa: E402

IN_CPP = os.path.join(SCENES, "resume_in_cpp")
SCRIPT = os.path.join(SCENES, "checkpoint_scenes.py")


class CheckpointTest(unittest.TestCase):
    """One after the other, in the same processes."""

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder, Serve() as coordinator:
            with Program(
                run("--coordinator", coordinator.address, "--job", "all",
                    ranks=4)
                + python(SCRIPT, "together"),
                environment(
                    SCENES_FOLDER=folder,
                    SCENE_STATE=coordinator.state,
                    SCENE_IN_CPP=IN_CPP,
                ),
            ) as ranks:
                ranks.end()
                cls.output = ranks.output

    def assert_done(self, job, *ranks):
        for attempt, count in enumerate(ranks):
            self.assertEqual(
                self.output.count("DONE %s %d" % (job, attempt)), count,
                self.output,
            )

    def test_any_number_of_ranks_goes_on_bit_by_bit(self):
        self.assert_done("exact", 4, 2, 3)
        self.assertEqual(self.output.count("ENDED from 4 at 6"), 3)

    def test_adamw_goes_on_bit_by_bit_on_as_many_ranks(self):
        self.assert_done("adamw", 2, 2)

    def test_two_models_go_on_together(self):
        self.assert_done("two", 2, 3)

    def test_goes_on_by_coxswains_own_exchange(self):
        self.assert_done("bf16", 2, 2)
        for begin in (0, 2):
            self.assertEqual(
                self.output.count("BY BF16 from %d" % begin), 2, self.output
            )

    def test_a_missing_damaged_or_other_checkpoint_is_an_error(self):
        self.assert_done("wrong", 1, 1)

    def test_programs_in_cpp_go_on_from_it_and_the_reverse(self):
        self.assert_done("cpp", 1, 0, 1)
        for begin in (0, 3, 7):
            self.assertIn(
                "RESUMED at %d with %d rows" % (begin, 5 * begin), self.output
            )


class RestartTest(unittest.TestCase):
    def assert_saves_at_sigterm(self, ranks, coordinator, job):
        ranks.line("STANDS")
        ranks.terminate()
        stopped = ranks.line(r"STOPS at (\d+): .*SIGTERM")
        ranks.end()
        newest = subprocess.run(
            [CLI, "checkpoint", "show", "newest", "--job", job,
             "--coordinator", coordinator.address],
            env=environment(), check=True, stdout=subprocess.PIPE,
            text=True, timeout=60,
        ).stdout
        self.assertRegex(newest, r"step +%s\n" % stopped.group(1))

    def test_torchrun_passes_sigterm_on(self):
        with Serve() as coordinator, torchrun(
            "checkpoint_scenes.py", "stands", coordinator
        ) as ranks:
            self.assert_saves_at_sigterm(ranks, coordinator, "scene")

    def test_ranks_go_on_after_a_crash_and_save_at_sigterm(self):
        with Serve() as coordinator, Program(
            run("--coordinator", coordinator.address, "--job", "mnist",
                "--max-restarts", "2")
            + python(SCRIPT, "restarts"),
            environment(),
        ) as ranks:
            ranks.line("BEGINS at 0")
            ranks.line("BEGINS at 2")
            self.assert_saves_at_sigterm(ranks, coordinator, "mnist")
            self.assertEqual(ranks.end(), 0, ranks.output)

    def test_a_node_goes_and_another_one_comes(self):
        """With a launcher for each, which starts its worker again."""
        with tempfile.TemporaryDirectory() as folder, Serve(
            "--reattach-grace", "3s"
        ) as coordinator:
            enough = os.path.join(folder, "enough")

            def launcher(node):
                return Program(
                    run("--coordinator", coordinator.address, "--job", "nodes",
                        "--node", node, "--nnodes", "1:2", "--max-restarts",
                        "9", ranks=1)
                    + python(SCRIPT, "nodes"),
                    environment(ENOUGH=enough),
                )

            with launcher("a") as stays, launcher("b") as goes:
                stays.line("TRAINS on 2 from 0")
                goes.kill()
                begin = int(stays.line(r"TRAINS on 1 from (\d+)").group(1))
                self.assertGreater(begin, 0)
                with launcher("c") as comes:
                    for one in (stays, comes):
                        grown = one.line(r"TRAINS on 2 from (\d+)").group(1)
                        self.assertGreater(int(grown), begin)
                    open(enough, "w").close()
                    for one in (stays, comes):
                        self.assertEqual(one.end(), 0, one.output)
                        self.assertIn("STOPS: rank 0: enough", one.output)


if __name__ == "__main__":
    unittest.main()
