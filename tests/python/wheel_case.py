"""What the tests of the wheel share: the wheel, and environments with it."""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import types

from torch_python import cache_folder

TIMEOUT_S = 120
WORKER = os.path.abspath("tests/python/wheel_worker.py")


def run(*command, timeout=TIMEOUT_S, **options):
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, timeout=timeout, check=False,
        **options,
    )
    if done.returncode != 0:
        raise AssertionError("%s: %s" % (command, done.stdout + done.stderr))
    return done.stdout


def environment(**variables):
    """This process's, without what makes Python or Coxswain look elsewhere."""
    kept = {
        name: value for name, value in os.environ.items()
        if not name.startswith(("COXSWAIN_", "LD_", "PIP_", "PYTHON"))
    }
    return dict(kept, **variables)


def pip(python, *arguments):
    """Runs pip for another interpreter, without a package index."""
    return run(
        built().tools, "-m", "pip", "--python", python, *arguments,
        env=environment(PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1"),
    )


def all_below(root):
    """The paths of files and folders, from there."""
    return sorted(
        os.path.relpath(os.path.join(place, name), root)
        for place, folders, names in os.walk(root)
        for name in folders + names
    )


@functools.lru_cache(maxsize=None)
def built():
    """Builds the wheel, once: that takes longer than all the rest.

    Returns it with `folder`, for what tests write, `tools`, the interpreter
    that has auditwheel and pip, and `version`.
    """
    # Not below a test's own home folder.
    os.environ["XDG_CACHE_HOME"] = cache_folder()
    folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tools = run("tools/build_wheel.sh", "--install-tools").strip()
    wheel = run(
        "tools/build_wheel.sh", "--built", ".", "--out", folder,
        timeout=2 * TIMEOUT_S,
    )
    return types.SimpleNamespace(
        folder=folder,
        tools=tools,
        wheel=wheel.strip(),
        version=os.path.basename(wheel).split("-")[1],
    )


class Environment:
    """A virtual environment without pip, with the wheel in it or not."""

    def __init__(self, name, install=True):
        self.root = os.path.join(built().folder, name)
        run(sys.executable, "-m", "venv", "--without-pip", self.root)
        self.python = os.path.join(self.root, "bin", "python")
        self.program = os.path.join(self.root, "bin", "coxswain")
        if install:
            pip(self.python, "install", "--quiet", built().wheel)

    def package(self):
        code = "import coxswain; print(coxswain.__path__[0])"
        return run(self.python, "-c", code, env=environment()).strip()


def ranks(program, python, scene, **variables):
    """Two ranks of a scene, and what they and their launcher print."""
    done = subprocess.run(
        [program, "run", "--nproc", "2", "--", python, WORKER, scene],
        env=environment(PYTHONDONTWRITEBYTECODE="1", **variables),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False,
    )
    return done.returncode, done.stdout
