#!/usr/bin/env python3
"""The status page of a real coordinator with a real job, in a real browser."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import browser  # noqa: E402

COXSWAIN = "cli/coxswain"
WORKER = "tests/system/toy/elastic_toy"
JOB = "mnist"
STEP = (
    "const at = [...document.querySelectorAll('.now dt')]"
    ".find(e => e.innerText === 'Step');"
    "return at ? parseInt(at.nextSibling.innerText.replaceAll(',', '')) : -1"
)
STOP_TIMEOUT_S = 30  # seconds


def stop(process):
    process.terminate()
    try:
        process.wait(timeout=STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class CoordinatorTest(unittest.TestCase):
    def setUp(self):
        self.window = browser.Browser()
        self.addCleanup(self.window.close)
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.ports = {}

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, name, *arguments):
        with open(self.path(name + ".log"), "ab") as log:
            process = subprocess.Popen(
                arguments,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                # Workers are found by it.
                env=dict(os.environ, PAGE_TEST_FOLDER=self.folder),
            )
        self.addCleanup(stop, process)
        return process

    def start_coordinator(self):
        """On the ports that it had, if it had any."""
        for kind in ("listen", "http"):
            if os.path.exists(self.path(kind)):
                os.remove(self.path(kind))
        address = "127.0.0.1:%d"
        self.coordinator = self.start(
            "serve",
            COXSWAIN,
            "serve",
            "--listen",
            address % self.ports.get("listen", 0),
            "--port-file",
            self.path("listen"),
            "--http",
            address % self.ports.get("http", 0),
            "--http-port-file",
            self.path("http"),
            "--state-dir",
            self.path("state"),
        )
        for kind in ("listen", "http"):
            self.ports[kind] = int(
                self.window.wait(
                    lambda kind=kind: self.read_port(kind), kind + " port"
                )
            )

    def read_port(self, kind):
        if self.coordinator.poll() is not None:
            with open(self.path("serve.log"), encoding="utf-8") as log:
                self.fail("the coordinator has ended:\n" + log.read())
        if not os.path.exists(self.path(kind)):
            return None
        with open(self.path(kind), encoding="ascii") as file:
            return file.read().strip() or None

    def start_job(self):
        self.start(
            "run", COXSWAIN, "run", "--nproc", "3", "--min-workers", "2",
            "--max-restarts", "3", "--coordinator",
            "127.0.0.1:%d" % self.ports["listen"], "--job", JOB, "--",
            WORKER, "--steps", "1000000", "--pace-ms", "20",
            "--report-every", "0",
        )

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.ports["http"]

    def wait_for_text(self, selector, words):
        self.window.wait(
            lambda: words in self.window.text(selector),
            "'%s' in %s" % (words, selector),
        )

    def wait_for_steps(self, many):
        """So many steps more than are shown now."""
        self.window.wait(lambda: self.window.run(STEP) >= 0, "a step")
        wanted = self.window.run(STEP) + many
        self.window.wait(
            lambda: self.window.run(STEP) >= wanted, "step %d" % wanted
        )

    def test_from_the_first_look_to_a_restart(self):
        self.start_coordinator()
        self.window.look()
        self.window.open(self.url)
        self.wait_for_text("main", "There is no job yet")
        self.start_job()
        self.wait_for_text("tbody", "running")
        self.window.run("document.querySelector('tbody a').click()")
        self.wait_for_text("h1", "Job " + JOB)
        self.wait_for_steps(20)
        self.check_the_job()
        self.check_a_restart()
        self.check_a_lost_rank()
        self.window.look(width=360, height=740)
        self.wait_for_steps(5)
        sideways = (
            "return document.documentElement.scrollWidth - innerWidth"
        )
        self.assertLessEqual(self.window.run(sideways), 0)

    def check_the_job(self):
        self.wait_for_text(".now", "3 of 3")
        self.window.wait_for(
            "return document.querySelectorAll('.rows .rank').length === 3",
            "a row for each rank",
        )
        self.window.wait_for(
            "return document.querySelectorAll('.rows .compute')[0]"
            ".getAttribute('d').length > 100",
            "bars in the first row",
        )
        self.assertIn("allreduce", self.window.text(".plan"))
        self.wait_for_text(".traffic", "allreduce")
        self.assertEqual(self.window.complaints(), [])
        policy = urllib.request.urlopen(self.url, timeout=10).headers[
            "Content-Security-Policy"
        ]
        self.assertIn("default-src 'self'", policy)

    def check_a_restart(self):
        self.coordinator.kill()
        self.coordinator.wait()
        self.wait_for_text("#reach", "The coordinator is not reachable since")
        # What was known stays.
        self.assertIn("3 of 3", self.window.text(".now"))
        self.start_coordinator()
        self.wait_for_text("#reach", "Reached again at")
        self.wait_for_text("#coordinator", "term 2")
        self.wait_for_steps(20)

    def check_a_lost_rank(self):
        answer = urllib.request.urlopen(
            "%s/api/v1/jobs/%s" % (self.url, JOB), timeout=10
        )
        generation = json.load(answer)["generation"]
        os.kill(self.worker_pid(), signal.SIGKILL)
        self.window.wait(
            lambda: self.window.run(
                "return [...document.querySelectorAll('.now dd')]"
                ".map(e => e.innerText)"
            )[1:2] > [str(generation)],
            "the next generation",
        )
        self.wait_for_text(".history", "lost")

    def worker_pid(self):
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open("/proc/%s/cmdline" % entry, "rb") as file:
                    words = file.read().split(b"\0")
                with open("/proc/%s/environ" % entry, "rb") as file:
                    mine = self.folder.encode() in file.read()
            except OSError:
                continue
            if words[0].decode().endswith(WORKER) and mine:
                return int(entry)
        return self.fail("there is no worker")


if __name__ == "__main__":
    reason = browser.why_not()
    if reason:
        print("SKIPPED: %s" % reason, file=sys.stderr)
        sys.exit(0)
    unittest.main()
