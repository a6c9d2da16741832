"""A container as a kubelet and a runtime make one, from a pod's rendered spec.

Its own mount, process, IPC, host name and network namespaces; a root that cannot
be written to; volumes; user, group and capabilities of the securityContext. What
is not played: images (the file system is this machine's, with our programs in
/usr/local/bin), limits of memory and CPU, seccomp. Needs root.
"""

import os
import re
import shlex
import signal
import subprocess
import threading

SCRIPT = r"""
set -euo pipefail
scratch="$1"; spec="$2"
mount -t tmpfs -o mode=755 tmpfs "${scratch}"
mkdir "${scratch}/upper" "${scratch}/work" "${scratch}/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=${scratch}/upper,\
workdir=${scratch}/work" "${scratch}/root"
root="${scratch}/root"
source "${spec}"
"""


def expand(text, known):
    """$(NAME) of what is known, as Kubernetes does; $$ is $."""

    def value(match):
        if match[0] == "$$":
            return "$"
        return known.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_.][\w.-]*)\)", value, text)


def field(pod, path):
    """Returns what the downward API provides."""
    metadata = pod["metadata"]
    indexed = re.fullmatch(r"metadata\.(annotations|labels)\['(.*)'\]", path)
    if indexed:
        return metadata.get(indexed[1], {}).get(indexed[2], "")
    if path in ("metadata.name", "metadata.namespace"):
        return metadata[path.split(".")[1]]
    raise ValueError("this kubelet does not know %s" % path)


def environment(pod, container):
    """All variables of a container."""
    known = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOSTNAME": pod["spec"]["hostname"],
        "HOME": "/",
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "KUBERNETES_PORT": "tcp://10.96.0.1:443",
    }
    for entry in container.get("env", []):
        if "value" in entry:
            known[entry["name"]] = expand(entry["value"], known)
        else:
            known[entry["name"]] = field(
                pod, entry["valueFrom"]["fieldRef"]["fieldPath"]
            )
    return known


def command(container, known):
    words = container.get("command", []) + container.get("args", [])
    return [expand(word, known) for word in words]


def mounts_of(pod, container, volumes):
    """Shell lines that mount a container's volumes below ${root}."""
    kinds = {v["name"]: v for v in pod["spec"].get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        target = '"${root}"' + shlex.quote(mount["mountPath"])
        empty = kinds.get(mount["name"], {}).get("emptyDir", {})
        if empty.get("medium") == "Memory":
            size = empty["sizeLimit"].replace("Mi", "m").replace("Gi", "g")
            yield "mount -t tmpfs -o mode=1777,size=%s tmpfs %s" % (
                size,
                target,
            )
            continue
        source = shlex.quote(volumes[mount["name"]])
        yield "mount --bind %s %s" % (source, target)
        if mount.get("readOnly"):
            yield "mount -o remount,bind,ro %s" % target


def script(pod, container, programs, volumes, resolver):
    """Sourced by SCRIPT: all that makes the container from its spec."""
    lines = []
    for name, path in programs.items():
        target = '"${root}"/usr/local/bin/%s' % name
        lines += ["touch %s" % target]
        lines += ["mount --bind %s %s" % (shlex.quote(path), target)]
    for mount in container.get("volumeMounts", []):
        path = shlex.quote(mount["mountPath"])
        lines.append('mkdir -p "${root}"%s' % path)
    hosts = "127.0.0.1 localhost\n%s %s\n" % (
        pod["status"]["podIP"],
        pod["spec"]["hostname"],
    )
    for path, text in (
        ("hosts", hosts),
        ("hostname", pod["spec"]["hostname"] + "\n"),
        ("resolv.conf", resolver),
    ):
        lines.append('rm -f "${root}"/etc/%s' % path)
        lines.append(
            'printf %%s %s > "${root}"/etc/%s' % (shlex.quote(text), path)
        )
    lines.append('mount --rbind /dev "${root}"/dev')
    context = dict(pod["spec"].get("securityContext", {}))
    context.update(container.get("securityContext", {}))
    if context.get("readOnlyRootFilesystem"):
        lines.append('mount -o remount,ro "${root}"')
    lines += mounts_of(pod, container, volumes)
    lines.append('mount -t proc proc "${root}"/proc')
    lines.append("hostname %s" % shlex.quote(pod["spec"]["hostname"]))
    known = environment(pod, container)
    # With the test dies unshare, and with that the container.
    words = ["exec", "chroot", '"${root}"', "setpriv", "--pdeathsig=KILL"]
    words += ["--reuid=%d" % context["runAsUser"]]
    words += ["--regid=%d" % context["runAsGroup"]]
    words += ["--groups=%d" % context["fsGroup"]]
    if context.get("allowPrivilegeEscalation") is False:
        words.append("--no-new-privs")
    if "ALL" in context.get("capabilities", {}).get("drop", []):
        words += ["--inh-caps=-all", "--bounding-set=-all"]
    words += ["env", "-i", "-C", "/"]
    words += [shlex.quote("%s=%s" % item) for item in known.items()]
    words += [shlex.quote(word) for word in command(container, known)]
    return "\n".join(lines + [" ".join(words)]) + "\n"


class Container:
    """One that runs. `on_line` and `on_end` are called on threads of its own."""

    def __init__(self, name, namespace, folder, text, on_line, on_end):
        self.name = name
        self.namespace = namespace
        self.status = None  # as a shell's, once it has ended
        self.killed = False
        scratch = os.path.join(folder, "root")
        os.makedirs(scratch)
        spec = os.path.join(folder, "spec.sh")
        with open(spec, "w", encoding="utf-8") as file:
            file.write(text)
        self.process = subprocess.Popen(
            ["/sbin/ip", "netns", "exec", namespace, "unshare", "--mount"]
            + ["--uts", "--pid", "--ipc", "--fork", "--kill-child=SIGKILL"]
            + ["bash", "-c", SCRIPT, "container", scratch, spec],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.thread = threading.Thread(
            target=self._read, args=(on_line, on_end), daemon=True
        )
        self.thread.start()

    def _read(self, on_line, on_end):
        for line in self.process.stdout:
            on_line(self, line.rstrip("\n"))
        status = self.process.wait()
        # unshare does not always hand on how its child was killed.
        self.status = 137 if self.killed else status
        on_end(self)

    def init(self):
        """Its process 1, as this machine knows it; None: it has ended."""
        pid = self.process.pid
        try:
            path = "/proc/%d/task/%d/children" % (pid, pid)
            with open(path, encoding="ascii") as file:
                children = file.read().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def signal(self, number):
        pid = self.init()
        if pid is None:
            return
        self.killed = self.killed or number == signal.SIGKILL
        os.kill(pid, number)

    def execute(self, words, timeout=60):
        """`kubectl exec`: in all namespaces of it, as its user."""
        pid = self.init()
        with open("/proc/%d/environ" % pid, "rb") as file:
            known = file.read().decode().split("\0")[:-1]
        return subprocess.run(
            ["nsenter", "--target", str(pid), "--all", "--root"]
            + ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups"]
            + ["env", "-C", "/", "-i"]
            + known
            + words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
            timeout=timeout,
            text=True,
        )

    def close(self):
        if self.status is None:
            self.signal(signal.SIGKILL)
        self.thread.join(30)
