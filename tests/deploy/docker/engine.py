"""A Docker engine of a test's own: it shares nothing with one that is there.

Its data, sockets and processes are in a folder that goes with it. It makes no
bridge and changes no firewall of the machine; networks of compose are made and
removed by it.
"""

import os
import shutil
import subprocess
import tempfile
import threading

START_S = 60
STOP_S = 60


def what_is_missing():
    """Why no engine can be started here, or an empty text."""
    if os.geteuid() != 0:
        return "dockerd and debootstrap need root"
    for command in ("dockerd", "docker", "docker-compose", "debootstrap"):
        if shutil.which(command) is None:
            return "%s is not installed (docs/containers.md)" % command
    return ""


class Engine:
    def __init__(self):
        # Paths of sockets are short.
        self.folder = tempfile.mkdtemp(prefix="engine-", dir="/tmp")
        self.process = None
        self.up = threading.Event()
        self.lines = []
        self.environment = dict(
            os.environ,
            DOCKER_HOST="unix://%s/socket" % self.folder,
            DOCKER_CONFIG=os.path.join(self.folder, "config"),
            DOCKER_BUILD_OPTIONS="--network=host",
            HOME=self.folder,
        )
        self.environment["PATH"] = "%s:%s" % (
            self._compose_plugin(),
            os.environ["PATH"],
        )

    def start(self):
        """Returns whether it came up; `log` has the reason why not."""
        settings = os.path.join(self.folder, "daemon.json")
        with open(settings, "w", encoding="utf-8") as file:
            file.write("{}")
        self.process = subprocess.Popen(
            [
                "dockerd",
                "--config-file=" + settings,
                "--data-root=%s/data" % self.folder,
                "--exec-root=%s/exec" % self.folder,
                "--pidfile=%s/pid" % self.folder,
                "--host=unix://%s/socket" % self.folder,
                "--bridge=none",
                "--iptables=false",
                "--ip6tables=false",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        return self.up.wait(START_S) and self.process.poll() is None

    def run(self, commands, timeout, **more):
        """Runs a script of commands; returns what it printed on both."""
        environment = dict(self.environment, **more)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(
                "status %d of: %s\n%s"
                % (done.returncode, commands, done.stdout)
            )
        return done.stdout

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            try:
                self.run(
                    "docker ps --all --quiet | xargs -r docker rm -f -v\n"
                    "docker network prune --force",
                    STOP_S,
                )
            finally:
                self.process.terminate()
                try:
                    self.process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
        # The one mount that dockerd leaves behind.
        default = os.path.join(self.folder, "exec/netns/default")
        if os.path.ismount(default):
            subprocess.run(["umount", default], check=False)
        shutil.rmtree(self.folder)

    @property
    def log(self):
        return "".join(self.lines[-30:])

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if "API listen on" in line:
                self.up.set()
        self.up.set()  # It has ended.

    def _compose_plugin(self):
        """A `docker compose`, where only docker-compose is to be had."""
        folder = os.path.join(self.folder, "bin")
        os.mkdir(folder)
        path = os.path.join(folder, "docker")
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                "#!/bin/sh\n"
                '[ "$1" != compose ] || { shift; exec docker-compose "$@"; }\n'
                'exec %s "$@"\n' % shutil.which("docker")
            )
        os.chmod(path, 0o755)
        return folder
