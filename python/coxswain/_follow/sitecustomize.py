"""What `coxswain run --follow` puts on PYTHONPATH: Python imports it at start.

Once torch is imported, each DistributedDataParallel of the program is followed
(coxswain.torch.everything). A sitecustomize that it hides runs as well.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

_TRIGGER = "torch.nn.parallel.distributed"
_HERE = os.path.dirname(os.path.abspath(__file__))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module whose import shows that torch is nearly imported."""

    def find_spec(self, name, path, target=None):
        if name != _TRIGGER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        # Before the program can have made one.
        from coxswain.torch import everything

        everything.follow_all(module.DistributedDataParallel)


def _here(folder):
    return os.path.abspath(folder or os.getcwd()) == _HERE


def _run_hidden():
    path = [folder for folder in sys.path if not _here(folder)]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if importlib.util.find_spec("coxswain") is None:
    # Not installed: the package that this file belongs to.
    sys.path.append(os.path.dirname(os.path.dirname(_HERE)))
sys.meta_path.insert(0, _Finder())
_run_hidden()
