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

    Each begins with ```sh, after a comment on what a test does with
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


def listens(service):
    """Where a coordinator of a compose file listens, but for its own loopback."""
    variables = service.get("environment", {})
    found = {
        # The image's own.
        "listen": variables.get("COXSWAIN_LISTEN", "0.0.0.0:7077"),
        "http": variables.get("COXSWAIN_HTTP", ""),
        "health-listen": variables.get("COXSWAIN_HEALTH_LISTEN", ""),
    }
    for word in service.get("command", []):
        match = re.match(r"--(listen|http|health-listen)=(.*)", word)
        if match:
            found[match.group(1)] = match.group(2)
    return sorted(
        address
        for address in found.values()
        if address and not address.startswith("127.")
    )


def reached_from_elsewhere(file):
    """What other machines can reach of a compose file's services, and how.

    An internal network is this machine's alone, and so is its gateway, as far as
    other machines do not route it here: there a port asks for certificates.
    """
    found, gateways = [], set()
    for name, network in file["networks"].items():
        if network.get("internal") is not True:
            found.append("the network %s is not internal" % name)
        for config in network.get("ipam", {}).get("config", []):
            gateways.add(config["gateway"])
    for name, service in file["services"].items():
        for port in service.get("ports", []):
            if not str(port).startswith("127."):
                found.append("%s publishes %s" % (name, port))
        if service.get("network_mode", "none") == "none":
            continue
        certificates = "COXSWAIN_TLS_CA" in service.get("environment", {})
        for address in listens(service):
            if address.rsplit(":", 1)[0] not in gateways or not certificates:
                found.append("%s listens on %s" % (name, address))
    return found
