#!/usr/bin/env python3
"""coxswain.torch.elastic: real processes, which are killed, stopped and drained
while they train, and a coordinator that is killed."""

import collections
import os
import re
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

from beside import BesideTest  # noqa: E402
from program import TIMEOUT_S, Program  # noqa: E402
from torch_ranks import CLI, SCENES, Serve, environment  # noqa: E402
from torch_ranks import python, torchrun_command  # noqa: E402

WORKER = os.path.join(SCENES, "elastic_worker.py")
CATCH_UP_WORKER = os.path.join(SCENES, "catch_up_worker.py")

# Reports, of every second step, after which only exchanges wait for others.
STEPS = 2

# What a worker has reported of the generation that it trains in.
Life = collections.namedtuple(
    "Life", "world pid generation step copied caught_up"
)


class Job:
    """A job of several launchers, and what their workers have printed."""

    def __init__(self, serve, worker=WORKER, **more):
        self._serve = serve
        self._worker = worker
        self._more = more
        self._folder = tempfile.TemporaryDirectory()
        self._ended = ""
        self.launchers = {}

    @property
    def folder(self):
        return self._folder.name

    @property
    def output(self):
        return self._ended + "".join(
            launcher.output for launcher in self.launchers.values()
        )

    def start(self, node, workers, *options, **more):
        self.launchers[node] = Program(
            [CLI, "run", "--no-prefix", "--log-level", "warning",
             "--coordinator", self._serve.address, "--job", "elastic",
             "--node", node, "--nproc", str(workers), *options, "--",
             *python(self._worker)],
            environment(FOLDER=self.folder, **self._more, **more),
        )

    def drain(self, node):
        """Returns the exit status of a launcher that was asked to stop."""
        launcher = self.launchers[node]
        os.kill(launcher._process.pid, signal.SIGTERM)
        status = launcher.end()
        self._ended += launcher.output
        launcher.__exit__()
        del self.launchers[node]
        return status

    def ask(self, *names):
        """Asks workers for something: "forward.a.0", or "end"."""
        for name in names:
            with open(os.path.join(self.folder, name), "w"):
                pass

    def until(self, what, condition):
        """Waits until something is true of what has been printed."""
        deadline = time.monotonic() + TIMEOUT_S
        first = next(iter(self.launchers.values()))
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError("not within time: %s:\n%s"
                                     % (what, self.output))
            first.line("")  # It trains all the time.

    def does(self, *names):
        """Asks workers for something, and waits until each has begun it."""
        self.ask(*names)
        for name in names:
            path = os.path.join(self.folder, name)
            self.until(name, lambda: not os.path.exists(path))

    def lives(self):
        """Returns the last report of each worker."""
        return {worker: life for worker, life in self.reports()}

    def first_after(self, name, generation):
        return next(
            life for worker, life in self.reports()
            if worker == name and life.generation > generation
        )

    def goes_on(self, worker, generation):
        """Waits until a worker trains in a later generation."""
        self.until(
            worker + " goes on",
            lambda: self.lives()[worker].generation > generation,
        )

    def reports(self):
        """Returns pairs of a worker and what it has reported, in their
        order."""
        found = []
        for match in re.finditer(
            r"^(\S+) is rank \d of (\d+), pid (\d+), generation (\d+), "
            r"from step (\d+)(, copied|, caught up)?$",
            self.output, re.MULTILINE,
        ):
            life = Life(
                *map(int, match.groups()[1:5]),
                match[6] == ", copied", match[6] == ", caught up",
            )
            found.append((match[1], life))
        return found

    def steps_in(self, worker, generation):
        """Returns how many steps a worker has reported in a generation."""
        mine = re.escape(worker)
        begun = re.search(
            r"^%s is rank .* generation %d, " % (mine, generation),
            self.output, re.MULTILINE,
        )
        if not begun:
            return 0
        taken = re.compile(r"^%s at step" % mine, re.MULTILINE)
        return len(taken.findall(self.output, begun.end()))

    def trains(self, *workers, after=0):
        """Waits until these workers, and no others, train in a generation after
        another one, and have taken steps; returns their reports. torch divides
        the buckets anew in the second step, by Gloo, which waits for a rank that
        is stopped then."""
        def all_do():
            lives = self.lives()
            if any(worker not in lives for worker in workers):
                return False
            mine = {lives[worker] for worker in workers}
            newest = {(one.world, one.generation) for one in mine}
            if len(newest) != 1:
                return False
            world, generation = newest.pop()
            if world != len(workers) or generation <= after:
                return False
            return all(
                self.steps_in(one, generation) >= STEPS for one in workers
            )

        self.until("%s train" % ", ".join(workers), all_do)
        lives = self.lives()
        return [lives[worker] for worker in workers]

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for launcher in self.launchers.values():
            launcher.__exit__()
        self._folder.cleanup()


class ElasticTest(BesideTest):
    """Several stories in one job each, because each takes a while to form."""

    def assert_exact(self, output, workers):
        """All have ended with the same, and no step was lost or counted
        twice."""
        ends = re.findall(
            r"ends at step (\d+), (\d+) rows, (.+), digest (\w+)", output
        )
        self.assertEqual(len(ends), workers, output)
        self.assertEqual(len(set(ends)), 1, output)
        self.assertEqual(ends[0][2], "exact", output)
        self.assertEqual(output.count(": finished"), workers, output)
        self.assertNotIn("FAILED", output)
        return int(ends[0][0])

    def end(self, job, workers):
        job.ask("end")
        for launcher in job.launchers.values():
            self.assertEqual(launcher.end(), 0, job.output)
        return self.assert_exact(job.output, workers)

    def test_the_others_go_on_whenever_a_worker_is_killed(self):
        with Serve() as serve, Job(serve) as job:
            job.start("a", 4, "--min-workers", "1", "--max-restarts", "9")
            workers = "a.0", "a.1", "a.2", "a.3"
            now = job.trains(*workers)
            # One has taken a step, and not yet that of its scheduler.
            job.does("apart.a.1")
            os.kill(now[3].pid, signal.SIGKILL)
            job.goes_on("a.0", now[0].generation)
            for name in ("backward.a.2", "optimizer.a.1"):
                generation = job.lives()["a.0"].generation
                job.does(name)
                job.goes_on("a.0", generation)
            now = self.assert_survived(job, workers, now, "a.0")
            # Killed while a generation begins: first after the loss of another
            # worker, and then when new ones come.
            job.does("forward.a.3", "group.a.2")
            job.does("copy.a.1")
            job.does("recovery.a.2")
            now = self.assert_survived(job, workers, now, "a.0")
            # One has no decision on a step that the others take.
            job.does("behind.a.1")
            job.until("a.1 is behind", lambda: "a.1 is behind" in job.output)
            os.kill(now[2].pid, signal.SIGKILL)
            job.goes_on("a.1", now[0].generation)
            job.goes_on("a.0", now[0].generation)
            first = job.first_after("a.1", now[0].generation)
            self.assertTrue(first.copied, job.output)
            first = job.first_after("a.0", now[0].generation)
            self.assertFalse(first.copied, job.output)
            # Two at once; and then the last one that has trained, when new ones
            # have just copied its state.
            for one in now[:2]:
                os.kill(one.pid, signal.SIGKILL)
            job.until("a.3 is alone", lambda: job.lives()["a.3"].world == 1)
            job.does("recovery.a.3")
            after = job.trains(*workers, after=now[0].generation)
            self.assertGreater(after[0].step, now[0].step, job.output)
            self.end(job, 4)
            self.assertIn("in `also` of rank 1 were not", job.output)

    def assert_survived(self, job, workers, before, survivor):
        """Waits until all workers train again, and returns their reports."""
        now = job.trains(*workers, after=before[0].generation)
        i = workers.index(survivor)
        self.assertEqual(now[i].pid, before[i].pid, job.output)
        self.assertFalse(now[i].copied, job.output)
        self.assertGreater(now[i].step, before[i].step, job.output)
        return now

    def test_workers_come_and_go_and_so_does_the_coordinator(self):
        with Serve("--lease", "4s") as serve, Job(serve) as job:
            job.start("a", 1, "--nnodes", "1:2")
            alone = job.trains("a.0")[0]
            job.start("b", 1, "--nnodes", "1:2", "--max-restarts", "1")
            a, b = job.trains("a.0", "b.0")
            self.assertEqual(a.pid, alone.pid)
            self.assertTrue(b.copied and b.step > 0, b)
            # A worker is stopped for longer than its lease, and comes back.
            os.kill(b.pid, signal.SIGSTOP)
            a = job.trains("a.0", after=a.generation)[0]
            os.kill(b.pid, signal.SIGCONT)
            a, again = job.trains("a.0", "b.0", after=a.generation)
            self.assertEqual(again.pid, b.pid)
            self.assertTrue(again.copied and not a.copied)
            # A worker is killed while there is no coordinator.
            serve.kill()
            os.kill(b.pid, signal.SIGKILL)
            serve.start()
            a, b = job.trains("a.0", "b.0", after=a.generation)
            self.assertEqual(a.pid, alone.pid)
            self.assertNotEqual(b.pid, again.pid)
            # A node is drained.
            self.assertEqual(job.drain("b"), 0, job.output)
            self.assertIn("b.0: drained", job.output)
            job.trains("a.0", after=a.generation)
            step = self.end(job, 1)
            self.goes_on_with_other_workers(job.folder, serve, step)

    def test_what_a_hook_remembers_goes_along(self):
        with Serve() as serve, Job(
            serve, HOOK="powersgd(rank=1,start_step=2)"
        ) as job:
            job.start("a", 3, "--min-workers", "2", "--max-restarts", "1")
            workers = "a.0", "a.1", "a.2"
            now = job.trains(*workers)
            job.does("backward.a.2")
            now = self.assert_survived(job, workers, now, "a.0")
            for worker, scales in (
                ("a.0", ["1.000", "0.667", "1.500"]),
                ("a.1", ["1.000", "0.667", "1.500"]),
                ("a.2", ["1.000", "0.000"]),
            ):
                found = re.findall(
                    r"^%s has errors times (\S+)$" % worker, job.output,
                    re.MULTILINE,
                )
                self.assertEqual(found, scales, job.output)
            # As `timeout` does, to a process and to its group.
            for _ in range(2):
                os.kill(now[1].pid, signal.SIGTERM)
            job.trains("a.0", "a.2", after=now[0].generation)
            self.assertIn("a.1: drained", job.output)
            self.end(job, 2)

    def test_newcomers_take_the_state_while_the_others_train(self):
        with Serve() as serve, Job(serve, CATCH_UP_WORKER) as job:
            options = "--nnodes", "1:5", "--min-workers", "2"
            job.start("a", 1, *options)
            job.start("b", 1, *options)
            workers = ["a.0", "b.0"]
            before = job.trains(*workers)
            # What differs in the end is copied, and so is what is not taken.
            for added in (
                {"c": {}}, {"d": {"WRONG": "1"}, "e": {"CATCH_UP": "0"}},
            ):
                for node, more in added.items():
                    job.start(node, 1, *options, **more)
                    workers.append(node + ".0")
                now = job.trains(*workers, after=before[0].generation)
                for node, more in added.items():
                    life = job.first_after(node + ".0", 0)
                    self.assertEqual(life.caught_up, not more, job.output)
                    self.assertEqual(life.copied, bool(more), job.output)
                    self.assertGreater(life.step, 0, job.output)
                for one, earlier in zip(now, before):
                    self.assertEqual(one.pid, earlier.pid, job.output)
                    self.assertFalse(one.copied, job.output)
                before = now
            self.end(job, 5)
            self.assertNotIn("WARNS", job.output)
            taken = r"this worker has taken, of step \d+, is not what the members"
            self.assertRegex(job.output, taken)

    def goes_on_with_other_workers(self, folder, serve, step):
        """From the file that the job before has left."""
        run = [CLI, "run", "--no-prefix", "--nproc", "1", "--"]
        torchrun = torchrun_command("again")
        for workers, command, more in (
            (2, torchrun, {"COXSWAIN_COORDINATOR": serve.address}),
            (1, run, {}),
        ):
            variables = environment(
                FOLDER=folder, GLOO_SOCKET_IFNAME="lo", **more
            )
            with Program(command + python(WORKER), variables) as program:
                self.assertEqual(program.end(), 0, program.output)
                self.assertIn("from step %d" % step, program.output)
                ended = self.assert_exact(program.output, workers)
                self.assertGreater(ended, step)
                step = ended


if __name__ == "__main__":
    unittest.main()
