"""Numba CUDA: kernels in Python, compiled by numba-cuda for a GPU, or run on the CPU by the emulator (backends/emulator/numba/)."""

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
from backends.emulator import numba as emulated

ALIASES: dict[str, str] = {}
CPU_VARIABLES = ("NUMBA_ENABLE_CUDASIM",)
EMULATED = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89")  # of what a rung can need
# multiply-adds a second that a tiled matmul gets in the emulator on one core (64 x 64 x 64 in 4 ms), and in Numba's own
# simulator (in 5 s)
WORK_PER_SECOND = {
    "cpu": 5e4 if os.environ.get("NUMBA_ENABLE_CUDASIM", "0").strip().lower() in ("1", "true", "yes", "on") else 6e7,
    "cuda": math.inf,
}
NOTES = (
    "A kernel is one thread's program; cuda.grid(1) is blockIdx.x * blockDim.x + threadIdx.x, and x varies fastest in memory.",
    "The launch order is kernel[grid, block, stream, shared bytes](arguments); a Triton grid counts tiles, here blocks.",
    "Every thread of a block reaches every cuda.syncthreads(): no early return before one, none in a divergent branch.",
    "Guard the tail with `if`; a computed index below 0 counts from the end and so reads another element in silence.",
    "A literal is float64 and makes its expression float64: write np.float32(0.5).",
    "Accumulate in a variable that starts as np.float32(0.0).",
    "Indices are int64 already; np.int32 indices are faster and overflow.",
    "cuda.shared.array wants its shape and dtype as compile-time constants; a size from the launch is shape 0.",
)


def why_not(device: str) -> str | None:
    """None if Numba CUDA can run on `device` here, else what is missing and what to do."""
    if importlib.util.find_spec("numba") is None:
        return 'numba is not installed: pip install "numba-cuda[cu13]" ([cu12] for a CUDA 12 driver)'
    if importlib.util.find_spec("numba_cuda") is None:
        return 'numba-cuda is not installed, and numba\'s built-in CUDA is too old: pip install "numba-cuda[cu13]"'
    if device == "cuda":
        return cuda_works()
    return None if simulated() else emulated.why_not()


def simulated() -> bool:
    """Whether NUMBA_ENABLE_CUDASIM asks for Numba's own simulator instead of the emulator."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0").strip().lower() in ("1", "true", "yes", "on")


def prepare(device: str) -> None:
    """Set Numba up for `device`, before any op file is imported. Raises RuntimeError where it is set up for another."""
    if reason := why_not(device):
        raise RuntimeError(reason)
    cuda = sys.modules.get("numba.cuda")
    simulator = cuda is not None and "simulator" in getattr(cuda, "cudadrv", cuda).__name__
    if device == "cpu" and simulated():
        if cuda is not None and not simulator:
            raise RuntimeError("numba.cuda was imported without NUMBA_ENABLE_CUDASIM=1; start a fresh process with it")
        _restore_row_stack()
        return
    if simulator:
        raise RuntimeError(
            "numba.cuda was imported as its simulator; start a fresh process without NUMBA_ENABLE_CUDASIM=1"
        )
    os.environ.pop("NUMBA_ENABLE_CUDASIM", None)
    _restore_row_stack()
    if device == "cpu":
        emulated.install()
    elif cuda is not None and getattr(cuda, "touchstone_emulator", False):
        raise RuntimeError("this process runs Numba's kernels on the CPU; start a fresh one for the GPU")


def adopt(fn: Callable[..., Any], device: str) -> None:
    """Let the kernels of a user's function compile, and on the CPU launch on the emulator."""
    if "numba" not in sys.modules or why_not(device):
        return
    _restore_row_stack()
    if device == "cpu" and not simulated():
        emulated.install()


def reimport(fn: Callable[..., Any], device: str) -> bool:
    """False: a kernel is bound to no device when its file is imported."""
    return False


def lacks(needs: str, device: str) -> str | None:
    """None if `device` has what a rung `needs` ("sm_80", or "shuffles"), else one sentence."""
    if needs == "shuffles":
        simulator = device == "cpu" and simulated()
        return "needs shuffles, which Numba's own simulator lacks (the emulator has them)" if simulator else None
    if device == "cuda":
        return capability_lacks(needs)
    return None if needs in EMULATED else f"needs {needs}; the emulator has the instructions of sm_70 to sm_89"


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
    ran = "Numba's own simulator (NUMBA_ENABLE_CUDASIM)" if simulated() else "Touchstone's emulator"
    rows.append(("numba on the CPU", ran, why_not("cpu") or "NUMBA_ENABLE_CUDASIM=1 selects Numba's own simulator"))
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
