"""Hosts that are network namespaces of this machine, and what connects them:
veth devices whose speed `tc tbf` limits. Their congestion control is cubic, the
kernel's default, whatever this machine's is. Needs root and iproute2. Changes
nothing outside its namespaces, which end with the block that made them."""

import contextlib
import dataclasses
import os
import shutil
import subprocess

from measure import Unable

NETWORK = "10.78.0."


@dataclasses.dataclass(frozen=True)
class Host:
    name: str
    address: str
    device: str  # its end of the link

    def within(self):
        """What comes before a command that runs there."""
        return ["ip", "netns", "exec", self.name]


def command(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unable("%s: %s" % (" ".join(words), done.stderr.strip()))


def check():
    # Debian keeps them in a folder that not every PATH has.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    if os.geteuid() != 0:
        raise Unable("network namespaces need root; run it with sudo")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise Unable(tool + " is missing; install iproute2")


def _limit(namespace, device, rate):
    """Of what leaves that device."""
    command(
        *("tc", "-n", namespace, "qdisc", "add", "dev", device, "root"),
        *("tbf", "rate", rate, "burst", "256kb", "latency", "50ms"),
    )


def _begin(host, mtu):
    command("ip", "-n", host.name, "link", "set", "lo", "up")
    command(
        *host.within(),
        *("sysctl", "-qw", "net.ipv4.tcp_congestion_control=cubic"),
    )
    at = ("dev", host.device)
    command("ip", "-n", host.name, "addr", "add", host.address + "/24", *at)
    command("ip", "-n", host.name, "link", "set", host.device, *mtu, "up")


def _join(host, namespace, device):
    command(
        *("ip", "link", "add", host.device, "netns", host.name),
        *("type", "veth", "peer", "name", device, "netns", namespace),
    )


@contextlib.contextmanager
def _namespaces(count):
    """Yields that many hosts without devices, and the name of one more
    namespace."""
    hosts = [
        Host(
            "coxswain-%d-%d" % (os.getpid(), number),
            NETWORK + str(number + 1),
            "cxs%d%s" % (os.getpid(), chr(ord("a") + number)),
        )
        for number in range(count)
    ]
    between = "coxswain-%d-between" % os.getpid()
    names = [host.name for host in hosts] + [between]
    try:
        for name in names:
            command("ip", "netns", "add", name)
        yield hosts, between
    finally:
        for name in names:
            subprocess.run(
                ["ip", "netns", "del", name], stderr=subprocess.DEVNULL
            )


@contextlib.contextmanager
def alone():
    """Yields one host, which has its loopback device only."""
    check()
    with _namespaces(1) as ((host,), _):
        command("ip", "-n", host.name, "link", "set", "lo", "up")
        yield host


@contextlib.contextmanager
def cable(rate):
    """Yields two hosts with a link of that rate, such as 1gbit, each way."""
    check()
    with _namespaces(2) as ((a, b), _):
        _join(a, b.name, b.device)
        for host in (a, b):
            _begin(host, mtu=())
            _limit(host.name, host.device, rate)
        yield [a, b]


@contextlib.contextmanager
def switch(rates):
    """Yields hosts with a bridge between them; the rates are those of each
    one's link to it, each way. Frames are large: what tc counts includes their
    heads, which would be 4.5% of frames of 1500 bytes."""
    check()
    mtu = ("mtu", "9000")
    with _namespaces(len(rates)) as (hosts, between):
        at = ("ip", "-n", between)
        command(*at, "link", "add", "bridge", "type", "bridge")
        command(*at, "link", "set", "bridge", "up")
        for number, (host, rate) in enumerate(zip(hosts, rates)):
            port = "port%d" % number
            _join(host, between, port)
            command(*at, "link", "set", port, "master", "bridge", *mtu, "up")
            _begin(host, mtu)
            _limit(host.name, host.device, rate)
            _limit(between, port, rate)
        yield hosts
