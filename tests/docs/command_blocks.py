"""The blocks of shell commands of the pages, and what executes them.

A comment in front of a block is for all its lines:

    <!-- run: alone -->       commands_test.py runs them in an empty folder
    <!-- run: job -->         it does so beside a coordinator with the job mnist
    <!-- tested: PATH -->     the test, script or page at PATH executes them
    <!-- needs: THING -->     no test does: they need one of NEEDS
    <!-- usage -->            the form of a command, with [OPTIONAL] parts

A page whose blocks in ```sh are all run by a test has, once:

    <!-- commands: PATH -->

Without a comment each command must match one of KNOWN. A command that needs
something by KNOWN is left out where a block is run.
"""

import os
import re

NEEDS = {
    "browser", "cluster", "damage", "gpu", "hosts", "long", "root",
}
# What begins a command, in a block without a language.
PROGRAMS = {
    "bazel", "cc", "cmake", "coxswain", "curl", "docker", "etcdctl", "export",
    "kubectl", "pip", "python", "python3", "sbatch", "scancel", "scontrol",
    "sqlite3", "sudo", "torchrun",
}
# Commands that need no comment: a pattern, and what a comment would say.
KNOWN = (
    # In front of the others: another host is more than any test has.
    (r"\b10\.0\.0\.\d|\bhead:7077", "needs: hosts"),
    (r"\bCOXSWAIN_COORDINATOR=10\.|COXSWAIN_TLS_CA=ca\.crt", "needs: hosts"),
    (r"^coxswain run --nnodes", "needs: hosts"),
    (r"^\./quickstart\.sh$", "tested: .ci/run"),
    (r"^\./quickstart\.sh --", "needs: long"),
    (r" \.\.\.$", "usage"),
    (r"--gpus (?:\d|GPU)", "needs: gpu"),
    (r"^\./run_tests\.sh$", "tested: .ci/run"),
    (r"^\./run_tests\.sh --\w", "needs: long"),
    (r"^tools/lint\.sh --changed$", "tested: .ci/run"),
    (r"^tools/lint\.sh$", "needs: long"),
    (r"^tools/install_deps\.sh$", "tested: run_tests.sh"),
    # Bazel does not run within its own tests; the names are checked.
    (r"^(?:\w+=\S+ )?bazel (?:build|test) ", "bazel"),
    (r"^tools/(?:update_hook_cards|compile_commands)\.sh", "bazel"),
    (r"minimal/minimal$",
     "tested: tests/system/the_minimal_example_trains_test.cc"),
    # The shape of a job in README.md, as docs/operations.md has it.
    (r"^coxswain (?:status|plan|why|logs|certs|serve|version)\b",
     "tested: docs/operations.md"),
)

FENCE = re.compile(
    r"^(?P<comment><!-- [^\n]* -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PAGE = re.compile(r"^<!-- commands: (\S+) -->$", re.MULTILINE)
MARK = re.compile(r"<!-- (run|tested|needs|usage)(?:: (\S+))? -->\n")


class Block:
    """A block of commands, where it stands, and its comment."""

    def __init__(self, page, line, text, kind, value):
        self.page = page
        self.line = line
        self.text = text
        self.kind = kind
        self.value = value

    @property
    def where(self):
        return "%s:%d" % (self.page, self.line)

    def commands(self):
        """Returns its commands, each in one line and without its comment."""
        joined = self.text.replace("\\\n", " ")
        lines = [re.sub(r"(^|\s+)# .*", "", line) for line in
                 joined.split("\n")]
        return [re.sub(r"\s+", " ", line).strip() for line in lines
                if line.strip()]


def is_command(line):
    """Returns whether a line of a block without a language is a command."""
    words = [word for word in line.split() if not re.match(r"[A-Z_]+=", word)]
    if not words:
        return bool(line.split())
    return words[0] in PROGRAMS or bool(
        re.match(r"(\./|tools/|tests/|deploy/|bazel-bin/)[\w/.]+$", words[0])
    )


def blocks_of(page, text):
    """Yields the blocks of commands of a page."""
    tested = PAGE.search(text)
    for found in FENCE.finditer(text):
        language, body = found["language"], found["text"]
        if language not in ("", "sh", "bash"):
            continue
        mark = MARK.fullmatch(found["comment"] or "")
        if not language and not mark and not is_command(body.split("\n")[0]):
            continue
        said = (mark[1], mark[2]) if mark else (None, None)
        if language and tested:
            said = ("tested", tested[1])
        yield Block(
            page,
            text[: found.start("text")].count("\n") + 1,
            body,
            *said,
        )


def known(command):
    """Returns what KNOWN has for a command, as (kind, value), or None."""
    for pattern, said in KNOWN:
        if re.search(pattern, command):
            kind, _, value = said.partition(": ")
            return kind, value or None
    return None


def kinds_of(block):
    """Yields each command of a block with what executes it, or None.

    The comment of a block is yielded once, with a command of it.
    """
    if block.kind:
        own = [command for command in block.commands()
               if program_of(command) not in ("bazel", "export", "")]
        yield (own or block.commands())[0], (block.kind, block.value)
        return
    for command in block.commands():
        yield command, known(command)


def pages(root):
    """Returns {path: text} of the pages whose commands are looked at."""
    paths = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
    for folder, _, names in sorted(os.walk(os.path.join(root, "docs"))):
        if os.path.basename(folder) != "adr":
            paths += [
                os.path.relpath(os.path.join(folder, name), root)
                for name in sorted(names) if name.endswith(".md")
            ]
    found = {}
    for path in paths:
        full = os.path.join(root, path)
        if os.path.exists(full):
            with open(full, encoding="utf-8") as file:
                found[path] = file.read()
    return found


def program_of(command):
    """Returns the word by which an executing file must name a command."""
    words = [word for word in command.split()
             if not re.match(r"\w+=", word) and word != "sudo"]
    return re.sub(r"\.py$", "", os.path.basename(words[0])) if words else ""


def check(page_texts, read):
    """Yields what is wrong with the comments.

    Args:
      page_texts: {path: text} of the pages.
      read: returns the text of a file of the tree, or None.
    """
    for page, text in page_texts.items():
        for block in blocks_of(page, text):
            where = block.where
            for command, said in kinds_of(block):
                if said is None:
                    yield (
                        "%s: no test executes this; add a comment in front of the "
                        "block (see tests/docs/command_blocks.py): %s"
                        % (where, command)
                    )
                    continue
                kind, value = said
                if kind == "needs" and value not in NEEDS:
                    yield "%s: needs: one of %s" % (where, sorted(NEEDS))
                if kind == "run" and value not in ("alone", "job"):
                    yield "%s: run: alone, or job" % where
                if kind == "tested":
                    yield from check_tested(where, page, command, value, read)
                if kind == "bazel":
                    yield from check_labels(where, command, read)


def check_tested(where, page, command, path, read):
    """Yields a finding where the file at `path` has nothing of a command."""
    executing = read(path or "")
    if executing is None:
        yield "%s: there is no %s" % (where, path)
    elif (
        os.path.basename(page) not in executing
        and program_of(command) not in executing
    ):
        yield "%s: %s names neither the page nor %s" % (
            where, path, program_of(command),
        )


def check_labels(where, command, read):
    """Yields the targets of a bazel command that no BUILD file has."""
    for folder, name in re.findall(r"//([\w/]+)((?::[\w.]+)?)", command):
        folder = folder.rstrip("/")
        build = read(os.path.join(folder, "BUILD"))
        wanted = name[1:] or os.path.basename(folder)
        if "//%s/..." % folder in command:
            continue
        if build is None or '"%s"' % re.sub("_long_test$", "_test", wanted) \
                not in build:
            yield "%s: no target //%s:%s" % (where, folder, wanted)
