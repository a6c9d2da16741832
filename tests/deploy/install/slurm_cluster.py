"""A real Slurm of two nodes on this machine, for as long as a test needs it.

munged, slurmctld and two slurmd run as the user of the test, on free ports,
with all their files in one folder and without control groups. The nodes are
named by the addresses at which they can be reached.
"""

import ctypes
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

START_S = 60
# Bounds each thing that a job does, on a machine that does much else.
TIMEOUT_S = 120
COMMAND_S = 60
POLL_S = 0.05

NODES = ("127.0.0.1", "127.0.0.2")
DAEMONS = ("munged", "slurmctld", "slurmd")
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED",
         "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}
PR_SET_CHILD_SUBREAPER = 36

# A job that was put back waits for cred_expire + 1 seconds.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
SlurmdParameters=config_overrides
SlurmdTimeout=0
MessageTimeout=60
ReturnToService=2
MailProg=/bin/true
NodeName=127.0.0.[1-2] NodeHostname={host} Port=[{ports[1]}-{ports[2]}] CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def wait_until(what, condition, timeout=TIMEOUT_S, more=lambda: ""):
    """Polls; returns the condition's first true value."""
    end = time.monotonic() + timeout
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(
                "not within %d s: %s\n%s" % (timeout, what, more()))
        time.sleep(POLL_S)


def free_ports(count):
    """Ports in a row, as the configuration has those of the nodes."""
    # Below those of outgoing connections; elsewhere than other tests look.
    for first in range(20000 + count * os.getpid() % 10000, 32000):
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.socket())
                sockets[-1].bind(("", port))
            return list(range(first, first + count))
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise AssertionError("no %d free ports in a row" % count)


def processes(folder):
    """{pid: program} of all that were started with a cluster's slurm.conf."""
    mark = ("SLURM_CONF=%s/slurm.conf" % folder).encode()
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                if mark in file.read().split(b"\0"):
                    found[int(name)] = os.path.basename(
                        os.readlink("/proc/%s/exe" % name))
        except OSError:  # It has ended, or is another user's.
            continue
    return found


def clean_up(folder):
    """Kills all processes of a cluster and its jobs, and removes its files."""
    def none_left():
        left = processes(folder)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return not left
    wait_until("all processes have ended", none_left)
    shutil.rmtree(folder)


class Cluster:
    def __init__(self):
        # Not below TEST_TMPDIR: a socket's path has 107 characters at most.
        self.folder = tempfile.mkdtemp(prefix="slurm-", dir="/tmp")
        # Cleans up when its input ends: as the test does, however it ends.
        # Processes of jobs are in no group or session of the test.
        self.cleaner = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), self.folder],
            stdin=subprocess.PIPE, start_new_session=True)
        self.daemons = []
        self.environment = dict(os.environ, SLURM_CONF=self.path("slurm.conf"))

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def start(self):
        for program in DAEMONS + ("sbatch", "srun", "scontrol", "scancel"):
            if not shutil.which(program):
                raise AssertionError(
                    "there is no %s: tools/install_deps.sh --tests installs "
                    "Slurm and munge" % program)
        # Orphans become children of the test, which reaps them in the end.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.configure()
        # By force: no other user needs to reach the socket.
        self.launch("munged", "--foreground", "--force",
                    *("--%s=%s" % (name, self.path("munge." + name))
                      for name in ("socket", "pid-file", "log-file",
                                   "seed-file")),
                    "--key-file", self.path("munge.key"))
        self.wait_for("munged", lambda: os.path.exists(
            self.path("munge.socket")))
        self.launch("slurmctld", "-D")
        for node in NODES:
            self.launch("slurmd", "-D", "-N", node)
        self.wait_for("the nodes", lambda: self.run(
            "sinfo", "--noheader", "--format=%T %D", check=False
        ).split() == ["idle", str(len(NODES))])

    def configure(self):
        os.mkdir(self.path("state"))
        for node in NODES:
            os.mkdir(self.path("spool." + node))
        with open(self.path("munge.key"), "wb") as file:
            os.fchmod(file.fileno(), 0o400)
            file.write(os.urandom(128))
        with open(self.path("slurm.conf"), "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(
                folder=self.folder, ports=free_ports(1 + len(NODES)),
                host=socket.gethostname().split(".")[0],
                user=pwd.getpwuid(os.getuid()).pw_name))

    def launch(self, *command):
        with open(self.path("daemons.log"), "ab") as log:
            self.daemons.append(subprocess.Popen(
                command, env=self.environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT))

    def wait_for(self, what, condition):
        def ready():
            for daemon in self.daemons:
                if daemon.poll() is not None:
                    raise AssertionError("%s ended with %d:\n%s" % (
                        " ".join(daemon.args), daemon.returncode, self.log()))
            return condition()
        wait_until(what, ready, START_S, self.log)

    def log(self):
        with open(self.path("daemons.log"), encoding="utf-8",
                  errors="replace") as file:
            return file.read()[-6000:]

    def stop(self):
        self.cleaner.stdin.close()
        status = self.cleaner.wait(TIMEOUT_S)
        if status != 0:
            raise AssertionError("cleaning up ended with %d" % status)
        try:
            while True:
                os.wait()
        except ChildProcessError:
            pass

    def run(self, *command, check=True):
        done = subprocess.run(
            command, env=self.environment, text=True, timeout=COMMAND_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if check and done.returncode != 0:
            raise AssertionError("%s ended with %d:\n%s%s" % (
                " ".join(command), done.returncode, done.stdout, self.log()))
        return done.stdout

    def submit(self, folder, *words, **variables):
        """`sbatch` there, with these options, script and arguments."""
        environment = dict(self.environment, **variables)
        done = subprocess.run(
            ["sbatch", "--parsable", *words], cwd=folder, env=environment,
            text=True, timeout=COMMAND_S, check=True, stdout=subprocess.PIPE)
        return Job(self, done.stdout.strip(), folder)

    def cancel_all(self):
        self.run("scancel", "--user=%d" % os.getuid())
        wait_until("the queue is empty", lambda: not self.run(
            "squeue", "--noheader"), more=self.log)
        self.expect_no_processes()

    def processes_of_jobs(self):
        slurms = DAEMONS + ("slurmstepd",)
        return {pid: program
                for pid, program in processes(self.folder).items()
                if not program.startswith(slurms)}

    def expect_no_processes(self):
        """Fails where a job has left some behind."""
        wait_until("no process of a job is left",
                   lambda: not self.processes_of_jobs(),
                   more=lambda: str(self.processes_of_jobs()))


class Job:
    def __init__(self, cluster, number, folder):
        self.cluster = cluster
        self.number = number
        self.output_path = os.path.join(folder, "slurm-%s.out" % number)

    def fields(self):
        """The fields of `scontrol show job`."""
        return dict(re.findall(r"(\w+)=(\S*)", self.cluster.run(
            "scontrol", "--oneliner", "show", "job", self.number)))

    def output(self):
        try:
            with open(self.output_path, encoding="utf-8",
                      errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def wait(self, what, condition):
        """Until the condition is true of the fields; returns these."""
        def found():
            fields = self.fields()
            return fields if condition(fields) else None
        return wait_until(
            what, found, more=lambda: "%s\n%s\n%s" % (
                self.fields(), self.output(), self.cluster.log()))

    def wait_for_end(self):
        return self.wait("the job has ended",
                         lambda fields: fields["JobState"] in ENDED)

    def wait_until_requeued(self, times):
        """Until it has been put back so many times; hold it first."""
        return self.wait(
            "the job is back in the queue after run %d" % times,
            lambda fields: fields["JobState"] in ENDED
            or fields["JobState"] == "PENDING"
            and fields["Restarts"] == str(times))

    def read_until(self, pattern, after=0):
        """The first match in its output from a place on."""
        def found():
            match = re.compile(pattern).search(self.output(), after)
            if not match and self.fields()["JobState"] in ENDED:
                raise AssertionError("it ended without %s:\n%s" % (
                    pattern, self.output()))
            return match
        return wait_until("it prints " + pattern, found, more=self.output)

    def signal(self, name):
        """To the shell that runs the batch script, alone."""
        self.cluster.run(
            "scancel", "--batch", "--signal=" + name, self.number)

    def hold(self):
        """While it runs: keeps it in the queue once it is back there."""
        self.cluster.run("scontrol", "hold", self.number)

    def release(self):
        self.cluster.run("scontrol", "release", self.number)

    def set_nodes(self, count):
        """For its next run, while it waits in the queue."""
        self.cluster.run(
            "scontrol", "update", "JobId=" + self.number,
            "NumNodes=%d" % count, "NumTasks=%d" % count)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    clean_up(sys.argv[1])
