"""A job of one library whose workers are struck: what all have in common.

The job is its own supervisor, so that each library has the same: a worker that
was struck is started again when whoever struck it says so, one that ended by
itself at once.
"""

import os
import signal
import socket
import subprocess
import tempfile
import time

from failures.steps import StepLog, all_train

FOLDER = os.path.dirname(os.path.abspath(__file__))
POLL_S = 0.02
# Without a commit for so long a slot does not train. The longest step that is
# asked for takes a tenth of a second, and the machine may do other things too.
SILENCE_NS = 1_000_000_000


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Slot:
    """A place of a worker, and what has been written there."""

    def __init__(self, path):
        self.log = StepLog()
        self.process = None  # what the job has started for it
        self._path = path
        self._at = 0

    def read(self):
        if os.path.exists(self._path):
            with open(self._path, "rb") as file:
                file.seek(self._at)
                found = file.read()
            self._at += len(found)
            self.log.feed(found.decode())

    def worker(self):
        """Returns the process id of its worker, or None before the first."""
        started = self.log.last("start")
        return int(started.text) if started else None


class Job:
    """A context manager. Subclasses have NAME, and start and kill processes.

    settings: a dictionary of the subclass's own.
    unexpected: what has ended without being struck, in words.
    """

    NAME = ""
    # The kinds of failures before and after which the job begins anew.
    ANEW_AFTER = ()
    # In nanoseconds, as in what workers write.
    clock = staticmethod(time.monotonic_ns)
    # Whether a slot that was struck comes back without start_slot.
    RESTARTS_ITSELF = False

    def __init__(self, ranks, settings, tools, step_ms=10):
        """tools: paths and interpreters, as recovery.py finds them."""
        self.ranks = ranks
        self.settings = settings
        self.tools = tools
        self.step_ms = step_ms
        self.unexpected = []
        self._absent = set()  # slots that are not to run
        self._folder = tempfile.TemporaryDirectory(
            prefix="coxswain-recovery-", ignore_cleanup_errors=True
        )
        self.folder = self._folder.name
        self.log_path = os.path.join(self.folder, "slot{slot}.log")
        self.slots = [
            Slot(self.log_path.format(slot=i)) for i in range(ranks)
        ]
        self._processes = []

    # ---- of the library ----

    def start_coordinator(self):
        """Starts it, also again, where it was, and waits until it listens."""
        raise NotImplementedError

    def kill_coordinator(self):
        raise NotImplementedError

    def spawn_slot(self, i):
        """Returns the process that it has started for a slot."""
        raise NotImplementedError

    # ---- of all ----

    @property
    def least(self):
        """How many workers may train: half of them."""
        return max(1, self.ranks // 2)

    def logs(self, but=()):
        return [s.log for i, s in enumerate(self.slots) if i not in but]

    def start(self):
        self.start_coordinator()
        for i in range(self.ranks):
            self.start_slot(i)

    def start_slot(self, i):
        process = self.slots[i].process
        if process is not None:
            self._end(process)
        self.slots[i].process = self.spawn_slot(i)
        self._absent.discard(i)

    def strike(self, i, signal_number):
        """Sends a signal to the worker of a slot."""
        if signal_number == signal.SIGKILL:
            self._absent.add(i)
        pids = [self.slots[i].worker()]
        if signal_number == signal.SIGKILL:
            # What stands for it, where it was forked (preload.py): what waits
            # for that is to know at once.
            pids += self.stand_ins(i)
        for pid in pids:
            try:
                os.kill(pid, signal_number)
            except ProcessLookupError:
                pass  # It is gone with the other one, or ended before.

    def stand_ins(self, i):
        """Returns processes that end as the worker of a slot does."""
        return []

    def bring_back(self, i):
        """Starts the worker of a slot that was killed again, where the library
        does not."""
        if not self.RESTARTS_ITSELF:
            self.start_slot(i)

    @property
    def has_newcomers(self):
        """Whether a worker that comes back is one that others, which train,
        let in."""
        return not self.RESTARTS_ITSELF

    def newcomers(self, rng):
        """Returns a slot that may leave and come back."""
        return [rng.randrange(self.ranks)]

    def poll(self, seconds=POLL_S):
        """Reads what was written, and starts again what has ended by itself."""
        time.sleep(seconds)
        for i, slot in enumerate(self.slots):
            slot.read()
            if i in self._absent or self.RESTARTS_ITSELF:
                continue
            if slot.process is not None and slot.process.poll() is not None:
                self._note_end(i)
                self.start_slot(i)

    def trains(self):
        """Returns whether all slots train together now."""
        return all_train(self.logs(), time.monotonic_ns(), SILENCE_NS)

    def until_all_train(self, limit_s, span_s=1.0):
        """Waits until all slots have trained together for a while; returns
        since when, or None if they do not within the limit."""
        deadline = time.monotonic() + limit_s
        since = None
        while time.monotonic() < deadline:
            self.poll()
            now = time.monotonic_ns()
            if not self.trains():
                since = None
            elif since is None:
                since = now
            elif now - since >= span_s * 1e9:
                return since
        return None

    def begin(self, command, name, environment=None):
        """Starts a process whose output goes to a file of the folder."""
        with open(os.path.join(self.folder, name + ".out"), "ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=dict(
                    os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo",
                    PYTHONDONTWRITEBYTECODE="1", **(environment or {})
                ),
            )
        self._processes.append(process)
        return process

    def output(self, name):
        """Returns the end of what a process has written."""
        path = os.path.join(self.folder, name + ".out")
        if not os.path.exists(path):
            return ""
        with open(path, errors="replace") as file:
            return file.read()[-2000:]

    def _note_end(self, i):
        log = self.slots[i].log
        raised = log.last("exception", since=log.last("start").t) \
            if log.last("start") else None
        self.unexpected.append(
            "slot %d ended with %d%s" % (
                i, self.slots[i].process.returncode,
                ": " + raised.text[:200] if raised else "",
            )
        )

    def _end(self, process):
        """Ends a process, with those of its session."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        self._processes.remove(process)

    def close(self):
        for process in list(self._processes):
            self._end(process)
        # A worker may be in a session of its own, and may not have written yet
        # that it has started.
        for name in os.listdir("/proc"):
            if name.isdigit():
                self._end_worker(int(name))
        self._folder.cleanup()

    def _end_worker(self, pid):
        """Ends a process, if it is a worker of this job."""
        ours = b"\0--steps-log\0" + self.folder.encode() + b"/"
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                if ours in file.read():
                    os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *unused):
        self.close()


def children(pid):
    """Returns the processes that a process has started."""
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
            return [int(each) for each in file.read().split()]
    except FileNotFoundError:
        return []


def worker(name):
    """Returns the path of a worker's program."""
    return os.path.join(FOLDER, name)
