#!/usr/bin/env python3
"""Writes what goes with the program: its manual page and shell completions.

usage: cli_docs.py COXSWAIN man|bash|zsh|fish

All of it is read from the --help of the program and of its commands, so it
names the options that this very program has. Reads nothing else; the manual
page has no date, so that equal programs give equal pages.
"""

import re
import subprocess
import sys

TIMEOUT_S = 30
SECTION = re.compile(r"^(Options|Positionals|Subcommands):$")
# "--name TYPE=DEFAULT (Env:VARIABLE) description", of which the description
# may be on the lines below.
ENTRY = re.compile(r"^  (?P<left>\S.*?)(?:\s{2,}(?P<text>.*))?$")
WITH_VARIABLE = re.compile(r"^  (?P<left>\S.*?\(Env:\w+\))\s*(?P<text>.*)$")
# "...: one, two or three" at the end of a description lists the values.
VALUES = re.compile(r": (\w+(?:, \w+)+(?: or \w+)?)$")
PATH_TYPES = ("FILE", "DIR", "FOLDER")


class Entry:
    """An option, positional or command: how it is written, and its help."""

    def __init__(self, left, text):
        self.left = left
        self.lines = [text] if text else []

    @property
    def text(self):
        return " ".join(self.lines)

    @property
    def first_line(self):
        return self.lines[0] if self.lines else ""

    @property
    def names(self):
        words = self.left.split(" ")[0].split(",")
        return [re.sub(r"[{=].*", "", word) for word in words]

    @property
    def type(self):
        rest = self.left.partition(" ")[2]
        return re.sub(r"\s*\(Env:\w+\)", "", rest)

    @property
    def values(self):
        listed = VALUES.search(self.text)
        return re.split(", | or ", listed.group(1)) if listed else []

    @property
    def takes_path(self):
        return re.split(r"\W", self.type)[0] in PATH_TYPES


class Command:
    """What --help says of one command, and of those below it."""

    def __init__(self, program, path):
        self.path = path
        self.entries = {"Options": [], "Positionals": [], "Subcommands": []}
        self.about = []
        self.footer = []
        self._read(subprocess.run(
            [program] + path + ["--help"], check=True, text=True,
            stdout=subprocess.PIPE, timeout=TIMEOUT_S).stdout)
        self.commands = [
            Command(program, path + [entry.left])
            for entry in self.entries["Subcommands"]
        ]

    def _read(self, text):
        part = self.about
        for line in text.split("\n"):
            heading = SECTION.match(line)
            if heading:
                part = self.entries[heading.group(1)]
            elif part is self.about or part is self.footer:
                part.append(line)
            elif line and not line.startswith(" "):
                part = self.footer
                part.append(line)
            elif line.startswith("    ") and part:
                part[-1].lines.append(line.strip())
            elif line:
                found = WITH_VARIABLE.match(line) or ENTRY.match(line)
                part.append(Entry(found["left"], found["text"]))

    @property
    def options(self):
        return self.entries["Options"]

    @property
    def below(self):
        """This command and all below it."""
        found = [self]
        for command in self.commands:
            found += command.below
        return found


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def block(lines):
    """Text as it stands, without blank lines around it."""
    text = "\n".join(lines).strip("\n")
    if not text:
        return []
    return [".nf"] + [roff(line) for line in text.split("\n")] + [".fi"]


def man(root, version):
    out = ['.TH COXSWAIN 1 "" "coxswain %s" "User Commands"' % roff(version)]
    out += [".SH NAME", "coxswain \\- coordinates data\\-parallel training"]
    out += [".SH SYNOPSIS", ".B coxswain", ".I COMMAND", "[OPTIONS]"]
    out += [".SH OPTIONS"] + man_entries(root.options) + [".SH COMMANDS"]
    for command in root.below[1:]:
        out.append(".SS coxswain %s" % roff(" ".join(command.path)))
        out += block(
            line for line in command.about if not line.startswith("Usage:"))
        for kind in ("Positionals", "Options", "Subcommands"):
            out += man_entries(command.entries[kind])
        if command.footer:
            out += [".PP"] + block(command.footer)
    out += [".SH ENVIRONMENT"] + block(root.footer)
    return out


def man_entries(entries):
    out = []
    for entry in entries:
        out += [".TP", ".B " + roff(entry.left), roff(entry.text)]
    return out


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


BASH = """\
# bash completion for coxswain
_coxswain_words() {
  local word
  while read -r word; do
    [[ -z "${word}" ]] || COMPREPLY+=("${word}")
  done < <(compgen "$@" -- "${COMP_WORDS[COMP_CWORD]}")
}

_coxswain() {
  local path='' word before="${COMP_WORDS[COMP_CWORD - 1]}" i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${COMP_WORDS[i]}"
    if [[ "${word}" == -- ]]; then
      compopt -o default
      return
    fi
    case "${path:+${path} }${word}" in
@COMMANDS@
        path="${path:+${path} }${word}" ;;
    esac
  done
  case "${path} ${before}" in
@VALUES@
  esac
  case "${path}" in
@WORDS@
  esac
}

complete -F _coxswain coxswain
"""


def words_of(command):
    names = [entry.left for entry in command.entries["Subcommands"]]
    for entry in command.options:
        names += entry.names
    return names


def bash(root):
    paths, values, words = [], [], []
    for command in root.below:
        path = " ".join(command.path)
        if path:
            paths.append(quoted(path))
        words.append("    %s) _coxswain_words -W %s ;;" % (
            quoted(path), quoted(" ".join(words_of(command)))))
        for entry in command.options:
            for name in entry.names:
                case = "    %s)" % quoted(path + " " + name)
                if entry.values:
                    listed = quoted(" ".join(entry.values))
                    values.append("%s _coxswain_words -W %s; return ;;" % (
                        case, listed))
                elif entry.takes_path:
                    values.append("%s _coxswain_words -f; return ;;" % case)
                elif entry.type:
                    values.append("%s return ;;" % case)
    cases = "      " + (" | \\\n      ").join(paths) + ")"
    text = BASH.replace("@COMMANDS@", cases)
    text = text.replace("@VALUES@", "\n".join(values))
    return text.replace("@WORDS@", "\n".join(words)).rstrip("\n").split("\n")


def zsh(root):
    """Bash's completion, through zsh's own adapter."""
    return (["#compdef coxswain", "autoload -U +X bashcompinit && bashcompinit"]
            + bash(root))


def fish(root):
    out = ["# fish completion for coxswain",
           "complete -c coxswain -f",
           # The commands that were given: the words before -- that are some.
           "function __coxswain_path",
           "    set -l path",
           "    for word in (commandline -opc)[2..-1]",
           "        test $word = --; and break",
           "        set -l longer (string join ' ' $path $word)",
           "        contains -- $longer $__coxswain_commands",
           "        and set path $path $word",
           "    end",
           "    string join ' ' $path",
           "end",
           "set -g __coxswain_commands " + " ".join(
               quoted(" ".join(command.path)) for command in root.below[1:])]
    for command in root.below:
        when = "test \"$(__coxswain_path)\" = %s" % (
            '"%s"' % " ".join(command.path))
        start = "complete -c coxswain -n %s" % quoted(when)
        for entry in command.entries["Subcommands"]:
            out.append("%s -a %s -d %s" % (
                start, entry.left, quoted(entry.first_line)))
        for entry in command.options:
            line = start
            for name in entry.names:
                line += (" -l " if name.startswith("--") else " -s ")
                line += name.lstrip("-")
            if entry.values:
                line += " -x -a " + quoted(" ".join(entry.values))
            elif entry.takes_path:
                line += " -r -F"
            elif entry.type:
                line += " -x"
            out.append("%s -d %s" % (line, quoted(entry.first_line)))
    return out


def main(arguments):
    writers = {"bash": bash, "zsh": zsh, "fish": fish}
    if len(arguments) != 2 or arguments[1] not in [*writers, "man"]:
        sys.exit(__doc__)
    root = Command(arguments[0], [])
    if arguments[1] == "man":
        version = subprocess.run(
            [arguments[0], "version"], check=True, text=True,
            stdout=subprocess.PIPE, timeout=TIMEOUT_S).stdout.split()[1]
        lines = man(root, version)
    else:
        lines = writers[arguments[1]](root)
    print("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
