"""The network of a cluster that is played: a bridge, addresses, and DNS.

Everything is in network namespaces of its own: nothing of this machine's network
is touched. Needs root and iproute2.
"""

import ctypes
import os
import socket
import struct
import subprocess
import threading

CLONE_NEWNET = 0x40000000
IP = "/sbin/ip"  # not in every user's PATH
GATEWAY = "10.79.0.1"
HARDWARE = "02:00:00:4f:00:01"


def ip(*arguments):
    done = subprocess.run(
        (IP,) + arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=60,
    )
    if done.returncode != 0:
        raise OSError("ip %s: %s" % (" ".join(arguments), done.stdout.decode()))


class Network:
    """Pods' namespaces on one bridge, in the namespace of a node."""

    def __init__(self):
        self.node = "coxswain-%d-node" % os.getpid()
        self.made = []
        self.count = 0

    def make(self):
        """Raises OSError where that cannot be done."""
        self._make_namespace(self.node)
        ip("-n", self.node, "link", "add", "bridge", "type", "bridge")
        # Its own, or it would be that of some pod, and change with the pods:
        # what others know of it would be wrong for half a minute.
        ip(*("-n %s link set bridge address" % self.node).split(), HARDWARE)
        ip("-n", self.node, "addr", "add", GATEWAY + "/16", "dev", "bridge")
        ip("-n", self.node, "link", "set", "bridge", "up")

    def _make_namespace(self, name):
        ip("netns", "add", name)
        self.made.append(name)
        ip("-n", name, "link", "set", "lo", "up")

    def add_pod(self):
        """(namespace, address) of a new one; no address is ever used twice."""
        self.count += 1
        name = "coxswain-%d-pod%d" % (os.getpid(), self.count)
        address = "10.79.1.%d" % self.count
        cable = "pod%d" % self.count
        self._make_namespace(name)
        ip(
            *("-n %s link add %s type veth" % (self.node, cable)).split(),
            *("peer name eth0 netns %s" % name).split(),
        )
        ip("-n", self.node, "link", "set", cable, "master", "bridge", "up")
        ip("-n", name, "addr", "add", address + "/16", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        return name, address

    def remove_pod(self, name):
        ip("netns", "del", name)
        self.made.remove(name)

    def close(self):
        for name in self.made:
            subprocess.run((IP, "netns", "del", name), check=False, timeout=60)


def socket_in(namespace, kind):
    """A socket that lives in a network namespace: of the calling thread, which
    must end after that."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/run/netns/" + namespace, "rb") as handle:
        if libc.setns(handle.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    return socket.socket(socket.AF_INET, kind)


class Dns:
    """Answers for the names that it was given, and denies all others.

    `on_question` gets (address of the sender, name, whether it was known).
    """

    def __init__(self, namespace, on_question):
        self.records = {}
        self.on_question = on_question
        self.socket = None
        self.failure = None
        ready = threading.Event()
        self.thread = threading.Thread(
            target=self._run, args=(namespace, ready), daemon=True
        )
        self.thread.start()
        if not ready.wait(30) or self.failure is not None:
            raise OSError("no DNS: %s" % self.failure)

    def _run(self, namespace, ready):
        try:
            self.socket = socket_in(namespace, socket.SOCK_DGRAM)
            self.socket.bind((GATEWAY, 53))
        except OSError as error:
            self.failure = error
            return
        finally:
            ready.set()
        while True:
            try:
                message, sender = self.socket.recvfrom(4096)
            except OSError:
                return
            answer = self._answer(message, sender[0])
            if answer is not None:
                self.socket.sendto(answer, sender)

    def _answer(self, message, sender):
        if len(message) < 17:
            return None
        labels, at = [], 12
        while message[at]:
            size = message[at]
            labels.append(message[at + 1 : at + 1 + size].decode())
            at += 1 + size
        name = ".".join(labels).lower()
        (kind,) = struct.unpack("!H", message[at + 1 : at + 3])
        known = name in self.records
        addresses = self.records.get(name, []) if kind == 1 else []
        self.on_question(sender, name, known)
        head = message[:2] + struct.pack(
            "!HHHHH", 0x8580 if known else 0x8583, 1, len(addresses), 0, 0
        )
        records = b"".join(
            b"\xc0\x0c"
            + struct.pack("!HHIH", 1, 1, 30, 4)
            + socket.inet_aton(address)
            for address in addresses
        )
        return head + message[12 : at + 5] + records

    def close(self):
        if self.socket is not None:
            self.socket.close()
