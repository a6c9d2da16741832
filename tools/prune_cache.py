#!/usr/bin/env python3
"""Keeps a compile cache of Bazel below a size.

usage: prune_cache.py FOLDER GIB

Removes the files of FOLDER (a --disk_cache) that were read and written the
longest ago until what is left takes at most GIB. Bazel takes a file that is not
there for one that it has to make, so a build may run meanwhile.
"""

import os
import sys


def files_by_age(folder):
    """Returns [(last use, bytes, path)], the oldest first."""
    files = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            try:
                info = os.lstat(path)
            except OSError:
                continue  # A build has moved or replaced it.
            used = max(info.st_atime, info.st_mtime)
            files.append((used, info.st_blocks * 512, path))
    return sorted(files)


def prune(folder, limit):
    """Returns how many bytes were removed to get below `limit` bytes."""
    files = files_by_age(folder)
    excess = sum(size for _, size, _ in files) - limit
    removed = 0
    for _, size, path in files:
        if removed >= excess:
            break
        try:
            os.remove(path)
        except OSError:
            continue
        removed += size
    return removed


def main(arguments):
    try:
        folder, gib = arguments
        limit = float(gib) * 2**30
        if not limit >= 0:
            raise ValueError
    except ValueError:
        print(
            "usage: prune_cache.py FOLDER GIB (a number of at least 0), not "
            + " ".join(arguments),
            file=sys.stderr,
        )
        return 2
    removed = prune(folder, limit)
    if removed:
        print(
            "Removed %.1f GiB of compile cache that was used longest ago"
            % (removed / 2**30),
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
