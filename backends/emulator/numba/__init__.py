"""Kernels of Numba CUDA on the CPU: an unmodified `@cuda.jit` function, over the same engine as CUDA C++.

numba-cuda types and lowers the kernel as for a GPU; its NVVM IR is then translated to this CPU (build.py).
docs/emulator-numba.md says what is covered. Importing this package imports no part of Numba.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

from touchstone.backends.emulator import compiler

if TYPE_CHECKING:
    from touchstone.backends.emulator.numba.front import install, launch
    from touchstone.backends.emulator.numba.kernels import one_layout

__all__ = ["install", "launch", "one_layout", "why_not"]


def why_not() -> str | None:
    """None if kernels of Numba can run on the CPU here, else what to install."""
    if importlib.util.find_spec("numba") is None or importlib.util.find_spec("numba_cuda") is None:
        return 'numba-cuda is not installed: pip install "numba-cuda[cu13]" (its compiler is used; no GPU is needed)'
    if compiler.compiler() is None:
        return compiler.why_not()
    return None


def __getattr__(name: str) -> Any:
    if name in ("install", "launch"):
        from touchstone.backends.emulator.numba import front

        return getattr(front, name)
    if name == "one_layout":
        from touchstone.backends.emulator.numba import kernels

        return kernels.one_layout
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
