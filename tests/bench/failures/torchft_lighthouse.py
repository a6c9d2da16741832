"""torchft's program torchft_lighthouse, without loading torch before, which its
own does: where it is started again, that would count."""

import glob
import importlib.machinery
import importlib.util
import os
import sys


def load():
    """Returns the extension module of torchft, and not the package around it."""
    package = importlib.util.find_spec("torchft")
    folder, = package.submodule_search_locations
    path, = glob.glob(os.path.join(folder, "_torchft*.so"))
    loader = importlib.machinery.ExtensionFileLoader("_torchft", path)
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("_torchft", loader)
    )
    loader.exec_module(module)
    return module


sys.exit(load().lighthouse_main())
