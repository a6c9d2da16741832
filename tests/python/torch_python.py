"""Where the interpreter is that has torch: for the tests that need it."""

import os
import pwd


def cache_folder():
    """The user's cache, also where a test has a home folder of its own."""
    home = pwd.getpwuid(os.getuid()).pw_dir
    if not os.access(home, os.W_OK):
        home = os.environ.get("HOME", "/tmp")
    return os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")


def torch_python():
    """Returns the interpreter's path; fails with what to do if there is none.

    COXSWAIN_TORCH_PYTHON names another one.
    """
    python = os.environ.get("COXSWAIN_TORCH_PYTHON") or os.path.join(
        cache_folder(), "coxswain", "torch-venv", "bin", "python"
    )
    if not os.access(python, os.X_OK):
        raise AssertionError(
            "%s, the interpreter with torch, is not there: run "
            "tools/install_torch.sh" % python
        )
    return python
