#!/usr/bin/env python3
"""Programs use gRPC's public interface, and stand in front of none of it.

usage: symbols_test.py PROGRAM...

A program that defines a function of gRPC's own works with exactly one version
of it, and not in a process that has loaded gRPC before.
"""

import re
import subprocess
import sys

HEADERS = "/usr/include/grpc"
# "grpc::", as the compiler writes names, types and tables of that namespace.
PUBLIC_CPP = re.compile(r"^_Z(N[VK]*|T[VTIS]N[VK]*|ZN[VK]*|GVN[VK]*)4grpc")


def names(arguments, kinds):
    """The names that nm prints with one of these letters, without versions."""
    listed = subprocess.run(
        ["nm"] + arguments, stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    found = set()
    for line in listed.splitlines():
        words = line.split()
        if len(words) >= 2 and words[-2] in kinds:
            found.add(words[-1].split("@")[0])
    return found


def libraries(program):
    """The paths of gRPC's libraries that it is linked with."""
    listed = subprocess.run(
        ["ldd", program], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    return re.findall(r"libgrpc(?:\+\+)?\.so\S* => (\S+)", listed)


def public_c_names():
    return set(
        subprocess.run(
            ["grep", "-rhoE", r"\b(grpc|gpr|census)_[a-z0-9_]+", HEADERS],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        ).stdout.split()
    )


def complaints(program):
    theirs = set()
    for library in libraries(program):
        # Not what the library shares with all: inline functions, tables.
        theirs |= names(["-D", "--defined-only", library], "TDBR")
    if not theirs:
        return ["%s is not linked with gRPC, or nm lists nothing" % program]
    found = [
        "%s defines gRPC's %s" % (program, name)
        for name in sorted(theirs & names(["--defined-only", program], "TDBR"))
    ]
    public = public_c_names()
    for name in sorted(theirs & names(["-D", "--undefined-only", program], "U")):
        if name not in public and not PUBLIC_CPP.match(name):
            found.append("%s calls gRPC's private %s" % (program, name))
    return found


def main(programs):
    found = [line for program in programs for line in complaints(program)]
    print("\n".join(found))
    return 1 if found or not programs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
