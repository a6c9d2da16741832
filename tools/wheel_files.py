"""Small things that the scripts of the wheel share: files and programs."""

import os
import subprocess
import sys


def run(*command, **variables):
    """Returns what a program prints; exits with its output if it fails."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=dict(os.environ, **variables), check=False,
    )
    if done.returncode != 0:
        sys.exit(
            "build_wheel.sh: %s failed:\n%s"
            % (" ".join(command), done.stdout + done.stderr)
        )
    return done.stdout


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
