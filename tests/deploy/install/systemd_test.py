#!/usr/bin/env python3
"""The systemd units are valid, hardened, and start their programs."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import unittest

COXSWAIN = os.path.abspath("cli/coxswain")
UNITS = os.path.abspath("deploy/systemd")
TIMEOUT_S = 60
# Of systemd-analyze security, in tenths: 0 is closed, 100 open.
EXPOSURE = {"coxswain-coordinator.service": 15, "coxswain-worker@.service": 40}


def run(*command):
    return subprocess.run(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S)


def values(unit, key):
    with open(os.path.join(UNITS, unit), encoding="utf-8") as file:
        return re.findall("^%s=(.*)$" % key, file.read(), re.MULTILINE)


def read_variables(name):
    """What an EnvironmentFile sets."""
    with open(os.path.join(UNITS, name), encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    return dict(
        line.split("=", 1) for line in lines
        if line and not line.startswith("#"))


class SystemdTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder)

    def copies(self):
        """The units, with the program where it is here."""
        if not shutil.which("systemd-analyze"):
            print("SKIPPED: no systemd-analyze here (Debian package systemd),"
                  " so the units were not verified", flush=True)
            self.skipTest("no systemd-analyze")
        for unit in EXPOSURE:
            with open(os.path.join(UNITS, unit), encoding="utf-8") as file:
                text = file.read()
            copy = os.path.join(self.folder, unit)
            with open(copy, "w", encoding="utf-8") as file:
                file.write(text.replace("/usr/bin/coxswain", COXSWAIN))
            yield unit, copy

    def test_units_are_valid(self):
        for unit, copy in self.copies():
            with self.subTest(unit):
                output = run("systemd-analyze", "verify", "--man=no", copy)
                self.assertEqual((output.returncode, output.stdout), (0, ""))

    def test_a_mistake_would_be_noticed(self):
        for _, copy in self.copies():
            with open(copy, "a", encoding="utf-8") as file:
                file.write("[Service]\nProtectSistem=strict\n")
            output = run("systemd-analyze", "verify", "--man=no", copy)
            self.assertIn("ProtectSistem", output.stdout)

    def test_certificates_come_by_a_drop_in(self):
        for unit, copy in self.copies():
            name = "tls.conf" if "coordinator" in unit else "worker-tls.conf"
            os.mkdir(copy + ".d")
            drop_in = os.path.join(copy + ".d", name)
            shutil.copyfile(os.path.join(UNITS, name), drop_in)
            output = run("systemd-analyze", "verify", "--man=no", copy)
            self.assertEqual((output.returncode, output.stdout), (0, ""))
            with open(drop_in, "a", encoding="utf-8") as file:
                file.write("LoadCredentiol=x:y\n")  # it is read at all
            output = run("systemd-analyze", "verify", "--man=no", copy)
            self.assertIn("LoadCredentiol", output.stdout)

    def test_units_are_hardened(self):
        for unit, copy in self.copies():
            with self.subTest(unit):
                output = run(
                    "systemd-analyze", "security", "--no-pager",
                    "--offline=true", "--threshold=%d" % EXPOSURE[unit], copy)
                self.assertEqual(output.returncode, 0, output.stdout)

    def words(self, unit, variables):
        (line,) = values(unit, "ExecStart")
        words = []
        for word in shlex.split(line):
            if word.startswith("$"):
                words += variables[word[1:]].split()
            else:
                words.append(word.replace("/usr/bin/coxswain", COXSWAIN))
        return words

    def environment(self, unit, name):
        """That of the unit, and of its example settings."""
        variables = dict(line.split("=", 1)
                         for line in values(unit, "Environment"))
        variables.update(read_variables(name))
        self.assertTrue(variables)
        return variables

    def test_the_coordinator_serves_and_stops_in_good_order(self):
        unit = "coxswain-coordinator.service"
        variables = self.environment(unit, "coordinator.env")
        self.assertTrue(variables["COXSWAIN_STATE_DIR"].endswith(
            values(unit, "StateDirectory")[0]))
        variables["COXSWAIN_STATE_DIR"] = os.path.join(self.folder, "state")
        variables["COXSWAIN_LISTEN"] = "127.0.0.1:0"  # others run tests too
        server = subprocess.Popen(
            self.words(unit, variables), env=variables, text=True,
            stdout=subprocess.PIPE)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.kill)
        listening = server.stdout.readline().split()
        self.assertEqual(listening[:3], ["coxswain:", "listening", "on"])
        output = run(COXSWAIN, "status", "--coordinator", listening[3])
        self.assertEqual(output.returncode, 0, output.stdout)
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(TIMEOUT_S), 0)

    def test_jobs_do_not_share_a_user(self):
        user = values("coxswain-worker@.service", "User")
        self.assertEqual(user, ["cw-%i"])

    def test_the_launcher_starts_the_program_of_its_settings(self):
        unit = "coxswain-worker@.service"
        variables = self.environment(unit, "worker-example.env")
        self.assertEqual(variables["COXSWAIN_JOB"], "%i")
        variables["COXSWAIN_JOB"] = "example"
        # Without one there is a private coordinator.
        self.assertIn("COXSWAIN_COORDINATOR", variables)
        del variables["COXSWAIN_COORDINATOR"]
        variables["PROGRAM"] = "/bin/sh -c echo${IFS}job=$COXSWAIN_JOB"
        output = subprocess.run(
            self.words(unit, variables), env=variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S)
        self.assertEqual(output.returncode, 0, output.stdout)
        self.assertEqual(output.stdout.count("job=example"), 2, output.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
