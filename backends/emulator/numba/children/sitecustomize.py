"""A Python that a program in the emulator starts: its kernels are emulated too, once it imports numba.cuda.

script.py puts this folder on PYTHONPATH. The environment's own sitecustomize runs as it would without it.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

_HERE = str(Path(__file__).parent)


class _WithEmulator:
    """Finds numba.cuda as the other finders do, and installs the emulator once it is imported."""

    @classmethod
    def find_spec(cls, name, path=None, target=None) -> ModuleSpec | None:
        if name != "numba.cuda":
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then_install(module):
                execute(module)
                from touchstone.backends.emulator.numba import front

                front.install(gpu=False)

            vars(spec.loader)["exec_module"] = then_install
        return spec


sys.meta_path.insert(0, _WithEmulator)
_own = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != _HERE])
if _own is not None and _own.loader is not None:
    _own.loader.exec_module(importlib.util.module_from_spec(_own))
