#!/usr/bin/env python3
"""Sessions in Python: real processes, started by `coxswain run`."""

import os
import re
import subprocess
import sys
import unittest

TIMEOUT_S = 100


def scene(name, *options, ranks=2):
    """Runs a scene of worker.py."""
    done = subprocess.run(
        ["cli/coxswain", "run", "--nproc", str(ranks), *options, "--",
         sys.executable, "tests/python/worker.py", name],
        env=dict(
            os.environ,
            COXSWAIN_LIBRARY=os.path.abspath("capi/libcoxswain_c.so"),
            PYTHONPATH=os.path.abspath("python"),
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done


class SessionTest(unittest.TestCase):
    def assert_done(self, name, ranks=2):
        done = scene(name, ranks=ranks)
        output = done.stdout + done.stderr
        self.assertEqual(done.stdout.count("DONE"), ranks, output)
        return done, output

    def assert_named(self, name, text):
        """One rank fails, and the other's error names it and the reason."""
        done = scene(name)
        output = done.stdout + done.stderr
        self.assertNotEqual(done.returncode, 0, output)
        named = re.findall(r"NAMED (.*)", done.stdout)
        self.assertEqual(len(named), 1, output)
        self.assertIn("rank 1", named[0])
        self.assertRegex(named[0], text)

    def test_ranks_share_exchange_and_decide(self):
        done, output = self.assert_done("together")
        self.assertEqual(done.returncode, 0, output)

    def test_a_window_of_several_exchanges_is_one_step(self):
        done, output = self.assert_done("windows")
        self.assertEqual(done.returncode, 0, output)

    def test_ranks_save_and_load_checkpoints(self):
        done, output = self.assert_done("saves")
        self.assertEqual(done.returncode, 0, output)

    def test_a_rank_whose_count_slips_is_named_on_all(self):
        self.assert_done("slip")

    def test_ranks_with_other_parameters_are_refused(self):
        self.assert_done("parameters")

    def test_ranks_along_tp_compare_schedules_and_what_each_has(self):
        for name in ("other_pipeline", "other_replicated"):
            done = scene(name, "--mesh", "tp=2")
            output = done.stdout + done.stderr
            self.assertEqual(done.stdout.count("DONE"), 2, output)

    def test_errors_name_the_place_in_the_mesh_of_the_launcher(self):
        done = scene("killed", "--mesh", "dp=*")
        self.assertRegex(done.stdout, r"NAMED rank 1 \(dp 1; .*signal 9")

    def test_ranks_go_on_in_the_next_generation(self):
        done, output = self.assert_done("rejoins")
        self.assertEqual(done.returncode, 0, output)

    def test_a_killed_rank_is_named(self):
        self.assert_named("killed", "killed by signal 9")

    def test_an_exception_is_reported_to_the_others(self):
        self.assert_named("fails", "ValueError: no luck")

    def test_an_exception_that_is_no_utf8_is_reported_to_the_others(self):
        self.assert_named("fails_oddly", r"ValueError: no\? luck")

    def test_a_rank_that_exits_without_leaving_is_named(self):
        self.assert_named("forgets", "exited without cx_leave")

    def test_a_signal_ends_every_wait(self):
        done, output = self.assert_done("interrupted", ranks=1)
        self.assertEqual(done.returncode, 0, output)

    def test_a_forked_process_leaves_the_session_alone(self):
        done, output = self.assert_done("forked")
        self.assertEqual(done.returncode, 0, output)


if __name__ == "__main__":
    unittest.main()
