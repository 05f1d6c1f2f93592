"""Numba CUDA: kernels in Python, compiled by numba-cuda."""

if __name__ != "backends.numba":
    raise ImportError(
        f"backends.numba was imported as {__name__!r}: start Python in Touchstone's own folder, or put that folder (none "
        "inside it) on PYTHONPATH, so that `import numba` finds Numba itself"
    )

import importlib.util
import math
import os
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

from backends.devices import capability_lacks, cuda_works

ALIASES: dict[str, str] = {}
CPU_VARIABLES = ("NUMBA_ENABLE_CUDASIM",)
# multiply-adds a second; a tiled 64 x 64 matmul takes about 4 ms where CUDA threads are emulated on a CPU
WORK_PER_SECOND = {"cpu": 6e7, "cuda": math.inf}
NOTES = (
    "A kernel is one thread's program; cuda.grid(1) is blockIdx.x * blockDim.x + threadIdx.x, and x varies fastest in memory.",
    "The launch order is kernel[grid, block, stream, shared bytes](arguments); a Triton grid counts tiles, here blocks.",
    "Every thread of a block reaches every cuda.syncthreads(): no early return before one, none in a divergent branch.",
    "Guard the tail with `if`; a[-1] is not the last element but the one before the first.",
    "A literal is float64 and makes its expression float64: write np.float32(0.5).",
    "Accumulate in a variable that starts as np.float32(0.0).",
    "Indices are int64 already; np.int32 indices are faster and overflow.",
    "cuda.shared.array wants its shape and dtype as compile-time constants; a size from the launch is shape 0.",
)


def why_not(device: str) -> str | None:
    """None if Numba CUDA can run on `device` here, else what is missing and what to do."""
    if device == "cpu":
        return "Numba CUDA needs a GPU here: Numba's own simulator lacks shuffles and bfloat16 and is thousands of times slower"
    if importlib.util.find_spec("numba") is None:
        return 'numba is not installed: pip install "numba-cuda[cu13]" ([cu12] for a CUDA 12 driver)'
    if importlib.util.find_spec("numba_cuda") is None:
        return 'numba-cuda is not installed, and numba\'s built-in CUDA is too old: pip install "numba-cuda[cu13]"'
    return cuda_works()


def prepare(device: str) -> None:
    """Set Numba up for a GPU, before any op file is imported. Raises RuntimeError where it is set up for its simulator."""
    if device == "cpu":
        raise RuntimeError(why_not("cpu"))
    cuda = sys.modules.get("numba.cuda")
    if cuda is not None and "simulator" in getattr(cuda.cudadrv, "__name__", "simulator"):
        raise RuntimeError(
            "numba.cuda was imported as its simulator; start a fresh process without NUMBA_ENABLE_CUDASIM=1"
        )
    os.environ.pop("NUMBA_ENABLE_CUDASIM", None)
    _restore_row_stack()


def adopt(fn: Callable[..., Any], device: str) -> None:
    """Repair what a user's function needs to compile."""
    if device == "cuda" and "numba" in sys.modules:
        _restore_row_stack()


def reimport(fn: Callable[..., Any], device: str) -> bool:
    """False: Numba's simulator is not a lane."""
    return False


def lacks(needs: str, device: str) -> str | None:
    """None if `device` has what a rung `needs` ("sm_90a"), else one sentence."""
    return capability_lacks(needs) if device == "cuda" else f"needs {needs}; there is no GPU"


def doctor() -> list[tuple[str, str, str]]:
    """(what, value, note) rows for `conformance doctor`."""
    rows = []
    for name, note in (("numba", "0.60 and newer"), ("numba-cuda", "0.30 is supported")):
        try:
            rows.append((name, metadata.version(name), note))
        except metadata.PackageNotFoundError:
            rows.append((name, "not installed", "Numba kernels are not run"))
    if any(value == "not installed" for _, value, _ in rows):
        return rows
    _restore_row_stack()
    try:
        from numba import cuda
    except Exception as error:
        return [*rows, ("numba.cuda", "does not import", f"{type(error).__name__}: {error}".splitlines()[0])]
    taken = "numba_cuda" in (cuda.__file__ or "")
    note = (
        "as it should"
        if taken
        else "its .pth file did not run (PYTHONPATH or --target installs): install it in site-packages"
    )
    rows.append(("numba.cuda", "is numba-cuda's" if taken else "is Numba's own", note))
    import numpy

    note = "numba-cuda 0.30 calls np.row_stack, which NumPy 2.5 removed; np.vstack stands in for it"
    rows.append(("numpy", numpy.__version__, note if numpy.row_stack is numpy.vstack else "has np.row_stack itself"))
    return rows


def resources(kernel: Any) -> dict[str, int]:
    """`registers` and `spills` (bytes of local memory) a thread, and `shared` (static bytes a block), of a kernel.

    Of several compiled signatures the largest number counts.
    """

    def largest(found: Any) -> int:
        return max(found.values(), default=0) if isinstance(found, dict) else found

    return {
        "registers": largest(kernel.get_regs_per_thread()),
        "spills": largest(kernel.get_local_mem_per_thread()),
        "shared": largest(kernel.get_shared_mem_per_block()),
    }


def _restore_row_stack() -> None:
    """numba-cuda 0.30 calls np.row_stack in every compilation; NumPy 2.5 has removed it."""
    import numpy

    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack
