#!/usr/bin/env python3
"""Checks the annotations of locks, which gcc ignores, with clang.

    tools/check_locks.py FOLDER_OF_GENERATED_HEADERS [TOP]...

Each folder below the TOPs that has a lock is read by clang as one file, which
takes a tenth of the time that its sources take one by one. Where they cannot
be joined, each is read by itself. Tests are left out.
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

COMPILER = "clang++-14"
TOPS = (
    "base", "capi", "cli", "client", "examples", "hooks", "schedule", "server",
    "train", "transport",
)
LOCK = re.compile(r"\bMutexLock\b|GUARDED_BY|ABSL_\w*LOCK")
# What clang has to refuse, or this checks nothing.
BROKEN = """
#include "base/mutex.h"
struct Counter {
  void Add() { ++count; }
  coxswain::Mutex mutex;
  int count ABSL_GUARDED_BY(mutex) = 0;
};
"""
# Not on every machine, and compiled only where they are.
OPTIONAL_HEADER = re.compile(r"'(?:cuda\w*|nccl)\.h' file not found")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def folders_with_locks(tops):
    """Yields the sources of each folder in which a file names a lock."""
    for top in tops:
        for folder, _, names in sorted(os.walk(top)):
            files = [
                os.path.join(folder, name)
                for name in sorted(names)
                if name.endswith((".h", ".cc"))
                and not name.endswith("_test.cc")
            ]
            sources = [path for path in files if path.endswith(".cc")]
            if sources and any(LOCK.search(read(path)) for path in files):
                yield sources


def compile_text(text, generated):
    """Returns whether clang took the text of a source, and what it said."""
    with tempfile.NamedTemporaryFile("w", suffix=".cc") as unit:
        unit.write(text)
        unit.flush()
        done = subprocess.run(
            [
                COMPILER, "-std=c++17", "-fsyntax-only",
                "-Wno-everything", "-Werror=thread-safety",
                "-I.", "-I" + generated,
                "-isystem", "/usr/include/torch/csrc/api/include", unit.name,
            ],
            stderr=subprocess.PIPE, text=True, check=False,
        )
    return done.returncode == 0, done.stderr


def compile_together(sources, generated):
    """Returns whether clang took the sources as one file, and what it said."""
    return compile_text(
        "".join(
            '#line 1 "%s"\n%s\n' % (source, read(source))
            for source in sources
        ),
        generated,
    )


def check(sources, generated):
    """Returns the findings in sources, and the sources that were left out."""
    good, said = compile_together(sources, generated)
    if good or "thread-safety" in said:
        return said, []
    findings, left_out = "", []
    for source in sources:
        good, said = compile_together([source], generated)
        if OPTIONAL_HEADER.search(said):
            left_out.append(source)
        elif not good:
            findings += said
    return findings, left_out


def main(arguments):
    generated = arguments[0]
    _, said = compile_text(BROKEN, generated)
    if "thread-safety" not in said:
        print("check_locks.py: clang does not see a member that is read "
              "without its lock: " + said, file=sys.stderr)
        return 1
    found = list(folders_with_locks(arguments[1:] or TOPS))
    if not found:
        print("check_locks.py: no locks, which cannot be", file=sys.stderr)
        return 1
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda one: check(one, generated), found))
    status = 0
    for findings, left_out in results:
        for source in left_out:
            print("left out, for want of a header: " + source)
        if findings:
            status = 1
            print(findings, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
