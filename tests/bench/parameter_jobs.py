"""Jobs of parameter_server/main.cc, and the coordinator that they have."""

import os
import shutil
import subprocess
import tempfile
import time

import ranks


class Coordinator:
    """A context manager: one that serves, on a port of its own, on this machine
    or on a host of hosts.py."""

    def __init__(self, coxswain, host=None):
        self._folder = tempfile.mkdtemp(prefix="coxswain-parameter-server-")
        port = os.path.join(self._folder, "port")
        address = host.address if host else "127.0.0.1"
        self._process = subprocess.Popen(
            (host.within() if host else [])
            + [coxswain, "serve", "--listen", address + ":0"]
            + (["--insecure"] if host else [])  # in a network of its own
            + ["--log-level", "warning", "--state-dir", self._folder]
            + ["--port-file", port],
            stdout=subprocess.PIPE,
        )
        self._process.stdout.readline()  # its line that it listens
        with open(port) as file:
            self.address = "%s:%s" % (address, file.read().strip())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def job(context, coordinator, size, hook, backend, **where):
    """Ranks of a session; `where` is what Ranks takes."""
    command = [context.parameter_worker, "--coordinator", coordinator.address]
    command += ["--backend", backend, "--hook", hook]
    command += ["--job", "%s-%d-%d" % (backend, size, time.time_ns())]
    return ranks.Ranks(command, size=size, **where)


def steps_per_second(answers):
    return 1 / max(answer["median"] for answer in answers)


def busiest_bytes(answers, coordinator=False):
    """In and out of the busiest process in a step of an exchange: of the
    coordinator, or of a rank. What comes back of what these hooks send is one
    sum of the same size."""
    sent = [answer["sent"] for answer in answers]
    return 2 * (sum(sent) if coordinator else max(sent))
