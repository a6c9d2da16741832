#!/usr/bin/env python3
"""Accelerate under Coxswain: real processes, started by `coxswain run`."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

import torch_ranks  # noqa: E402

SCENES = "accelerate_scenes.py"


def scene(name, *options, **more):
    return torch_ranks.scene(SCENES, name, *options, **more)


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class AccelerateTest(unittest.TestCase):
    def assert_done(self, name, *options):
        with scene(name, *options) as ranks:
            status = ranks.end()
            self.assertEqual(status, 0, ranks.said)
            self.assertEqual(ranks.said.count("DONE"), 2, ranks.said)
            return ranks.said

    def test_programs_train_as_before_skip_stop_and_follow_the_plan(self):
        self.assert_done("together")

    def test_a_count_that_slips_is_named_and_goes_by_unseen_without(self):
        # Plain Accelerate: the exit code is 0, the sums are wrong.
        port = str(unused_port())
        ranks = [
            torch_ranks.Scene(
                [torch_ranks.torch_python(),
                 os.path.join(torch_ranks.SCENES, SCENES), "alone"],
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2",
                LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            )
            for rank in range(2)
        ]
        said = set()
        for rank in ranks:
            with rank:
                self.assertEqual(rank.end(), 0, rank.said)
                self.assertIn("DONE", rank.said)
                said.add(re.search("ALONE.*", rank.said).group())
        self.assertEqual(len(said), 1, said)
        _, steps, right, steps_of_slip, wrong = said.pop().split()
        self.assertEqual(steps, steps_of_slip)
        self.assertNotEqual(right, wrong)

        with scene("slip") as ranks:
            ranks.end()
            self.assertEqual(ranks.said.count("DONE"), 2, ranks.said)
            named = set(re.findall("NAMED.*", ranks.said))
            self.assertEqual(len(named), 1, ranks.said)
            self.assertRegex(
                named.pop(),
                r"^NAMED 3 .*3 on rank 1, 4 on rank 0 \(4 by the plan\)",
            )

    def named_after(self, ranks, what):
        """Returns what rank 0 says, and how many seconds after."""
        began = float(ranks.wait_for(what).split()[1])
        line = ranks.wait_for("NAMED", timeout=60)
        took = float(line.split()[1]) - began
        print("%s was named after %.2f s" % (what, took))
        return line, took

    def test_a_rank_killed_beside_its_data_loader_is_named(self):
        with scene("killed") as ranks:
            line, took = self.named_after(ranks, "KILLED")
            self.assertNotEqual(ranks.end(), 0)
            self.assertIn("(1,) rank 1", line)
            self.assertIn("killed by signal 9", line)
            # Within a second on a machine that is not overloaded.
            self.assertLess(took, 10)

    def test_a_rank_that_stalls_is_named(self):
        with scene("stalled", "--exit-grace", "1s") as ranks:
            line, took = self.named_after(ranks, "STALLED")
            self.assertNotEqual(ranks.end(), 0)
            self.assertRegex(line, r"\(1,\).*rank 1")
            self.assertGreater(took, 1.9)
            self.assertLess(took, 12)

    def test_ctrl_c_ends_a_backward_pass_that_waits(self):
        with scene("interrupted") as ranks:
            ranks.wait_for("WAITS")
            ranks.interrupt()
            ranks.wait_for("INTERRUPTED 0", timeout=30)
            self.assertNotEqual(ranks.end(timeout=60), 0)

    def test_training_outlives_its_coordinator(self):
        with tempfile.TemporaryDirectory() as folder:
            address = "127.0.0.1:%d" % unused_port()
            serve = [
                torch_ranks.CLI, "serve", "--listen", address,
                "--state-dir", os.path.join(folder, "state"),
            ]
            enough = os.path.join(folder, "enough")
            with torch_ranks.Scene(serve) as coordinator, scene(
                "outlived", "--coordinator", address, "--job", "mnist",
                ENOUGH=enough,
            ) as ranks:
                ranks.wait_for("EPOCH 20 4")
                coordinator.kill()
                with torch_ranks.Scene(serve) as another:
                    self.change_plan(address, another)
                    ranks.wait_for(" 2\n", timeout=60)
                    open(enough, "w").close()
                    self.assertEqual(ranks.end(), 0, ranks.said)
                    self.assertEqual(
                        ranks.said.count("DONE"), 2, ranks.said
                    )

    def change_plan(self, address, coordinator):
        """Once the coordinator answers: it waits for its address to be free."""
        coordinator.wait_for("listening", timeout=60)
        done = subprocess.run(
            [torch_ranks.CLI, "plan", "set", "mnist", "accumulation=2",
             "--coordinator", address, "--timeout", "30s"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
