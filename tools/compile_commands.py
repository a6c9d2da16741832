#!/usr/bin/env python3
"""Writes compile_commands.json from what `bazel aquery` prints as JSON.

    tools/compile_commands.py ROOT EXECROOT < AQUERY > compile_commands.json

A file that joins several sources (bazel/cc.bzl) gives each of them an entry with
its own name. Paths of the tree are ROOT's, so that an editor finds them.
"""

import json
import os
import re
import sys

LINE = re.compile(r'^#line 1 "([^"]+)"$', re.MULTILINE)
# What clangd does not know, or writes files.
DROPPED = {"-fno-canonical-system-headers", "-Wno-subobject-linkage", "-c"}
DROPPED_WITH_VALUE = {"-o", "-MF"}


def source_of(arguments):
    """Returns the source that a compilation reads, or None."""
    for flag, value in zip(arguments, arguments[1:]):
        if flag == "-c":
            return value
    return None


def joined_sources(path):
    """Returns the sources in a file that joins several, or the file alone."""
    try:
        with open(path, encoding="utf-8") as file:
            return LINE.findall(file.read())
    except OSError:
        return []


def without_outputs(arguments, source):
    """Returns the command for an editor: no outputs, and no source."""
    kept, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in DROPPED_WITH_VALUE:
            skip = True
        elif argument not in DROPPED and argument != source and \
                not re.match(r"-(MD|frandom-seed=.*)$", argument):
            kept.append(argument)
    return kept


def entries(query, root, execroot):
    """Yields the entries of a query's answer, one for each source."""
    seen = set()
    for action in query.get("actions", []):
        if action.get("mnemonic") != "CppCompile":
            continue
        arguments = action.get("arguments", [])
        compiled = source_of(arguments)
        if compiled is None or compiled.startswith("external/"):
            continue
        command = without_outputs(arguments, compiled)
        sources = joined_sources(os.path.join(execroot, compiled))
        for source in sources or [compiled]:
            if source in seen:
                continue
            seen.add(source)
            in_tree = os.path.exists(os.path.join(root, source))
            yield {
                "directory": execroot,
                "file": os.path.join(root if in_tree else execroot, source),
                "arguments": command + [
                    "-I" + root, "-c",
                    os.path.join(root if in_tree else execroot, source),
                ],
            }


def main():
    root, execroot = sys.argv[1:]
    found = sorted(
        entries(json.load(sys.stdin), root, execroot),
        key=lambda entry: entry["file"],
    )
    if not found:
        print("compile_commands.py: bazel named no compilation",
              file=sys.stderr)
        return 1
    json.dump(found, sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
