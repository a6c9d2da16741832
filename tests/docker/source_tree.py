"""What the tests of deploy/docker read: the files, as they are.

The workspace is found behind its WORKSPACE file, because build.sh looks for
Bazel's outputs and other files relative to itself.
"""

import os
import re
import shlex

ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))
PAGE = os.path.join(ROOT, "docs/containers.md")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def instructions(dockerfile):
    """[(INSTRUCTION, its text)], with continued lines joined."""
    lines = [l for l in dockerfile.split("\n") if not l.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    words = [l.split(None, 1) for l in joined.split("\n") if l.strip()]
    return [(word[0], word[1]) for word in words]


def stages(dockerfile):
    """{name of the stage: its instructions}; the last without one is ""."""
    found, name = {}, None
    for instruction, text in instructions(dockerfile):
        if instruction == "FROM":
            parts = text.split()
            name = parts[2] if len(parts) == 3 else ""
            found[name] = [(instruction, text)]
        elif name is not None:
            found[name].append((instruction, text))
    return found


def installed_packages(stage_instructions):
    """The packages that apt-get installs in a stage."""
    packages = []
    for instruction, text in stage_instructions:
        match = re.search(r"apt-get install ([^&;]*)", text)
        if instruction == "RUN" and match:
            words = shlex.split(match.group(1))
            packages += [word for word in words if not word.startswith("-")]
    return packages


class Block:
    """A block of commands in a page.

    Each begins with ```sh, after a comment that says what a test does with
    it: <!-- run: NAME --> or <!-- not run: WHY -->.
    """

    def __init__(self, name, reason, commands):
        self.name = name
        self.reason = reason
        self.commands = commands


def blocks(page):
    pattern = r"(?:<!-- (not run|run): ([^>]*) -->\n)?```(\w*)\n(.*?)```\n"
    found = []
    for kind, words, language, text in re.findall(pattern, page, re.DOTALL):
        if language == "sh":
            found.append(
                Block(
                    words if kind == "run" else "",
                    words if kind == "not run" else "",
                    text,
                )
            )
    return found


def compose_file(variables, name="docker-compose.yml"):
    """A compose file, with variables put in as compose does."""
    import yaml

    def value(match):
        name, default = match.group(1), match.group(2)
        return variables.get(name, default)

    text = read("deploy/docker/" + name)
    return yaml.safe_load(re.sub(r"\$\{(\w+):-([^}]*)\}", value, text))
