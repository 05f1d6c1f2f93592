"""Numba CUDA: kernels in Python, compiled by numba-cuda for a GPU, or run on the CPU by the emulator
(backends/emulator/numba/)."""

if __name__ != "touchstone.backends.numba":
    raise ImportError(
        f"touchstone.backends.numba was imported as {__name__!r}: start Python in Touchstone's own folder, or "
        f"put that folder (none "
        "inside it) on PYTHONPATH, so that `import numba` finds Numba itself"
    )

import functools
import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import Any

from touchstone.backends import EMULATOR, emulator, seen_by
from touchstone.backends.devices import capability_lacks, cuda_unavailable
from touchstone.backends.emulator import compiler
from touchstone.backends.emulator import numba as emulated
from touchstone.backends.later import Later
from touchstone.backends.storage import artefacts

ALIASES: dict[str, str] = {}
CPU_VARIABLES = ("NUMBA_ENABLE_CUDASIM",)
PACKAGES = ("numba", "numba-cuda")
ENGINE = EMULATOR  # of its kernels on the CPU
EMULATED = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89")  # of what a variant can need
# multiply-adds a second that a tiled matmul gets in the emulator on one core (64 x 64 x 64 in 4 ms), and in Numba's own
# simulator (in 5 s)
WORK_PER_SECOND = {
    "cpu": 5e4 if os.environ.get("NUMBA_ENABLE_CUDASIM", "0").strip().lower() in ("1", "true", "yes", "on") else 6e7,
    "cuda": math.inf,
}
NOTES = (
    (
        "A kernel is one thread's program; cuda.grid(1) is blockIdx.x * blockDim.x + threadIdx.x, and x varies "
        "fastest in memory."
    ),
    (
        "The launch order is kernel[grid, block, stream, shared bytes](arguments); a Triton grid counts tiles, here "
        "blocks."
    ),
    "Every thread of a block reaches every cuda.syncthreads(): no early return before one, none in a divergent branch.",
    "Guard the tail with `if`; a computed index below 0 counts from the end and so reads another element in silence.",
    "A literal is float64 and makes its expression float64: write np.float32(0.5).",
    "Accumulate in a variable that starts as np.float32(0.0).",
    "Indices are int64 already; np.int32 indices are faster and overflow.",
    "cuda.shared.array wants its shape and dtype as compile-time constants; a size from the launch is shape 0.",
)


def why_not(device: str) -> str | None:
    """None if Numba CUDA can run on `device` here, else what is missing and what to do."""
    if reason := not_installed():
        return reason
    if device == "cuda":
        return cuda_unavailable()
    return None if simulated() else emulated.why_not()


def not_installed() -> str | None:
    """None if Numba and numba-cuda are there to compile, else what to install."""
    if importlib.util.find_spec("numba") is None:
        return 'numba is not installed: pip install "numba-cuda[cu13]" ([cu12] for a CUDA 12 driver)'
    if importlib.util.find_spec("numba_cuda") is None:
        return 'numba-cuda is not installed, and numba\'s built-in CUDA is too old: pip install "numba-cuda[cu13]"'
    return None


def simulated() -> bool:
    """Whether NUMBA_ENABLE_CUDASIM asks for Numba's own simulator instead of the emulator."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0").strip().lower() in ("1", "true", "yes", "on")


def target(device: str) -> str:
    """`numba@simulator` where Numba's own simulator runs the kernels, not the emulator."""
    return "numba@simulator" if device == "cpu" and simulated() else f"numba@{device}"


def prepare(device: str) -> None:
    """Set Numba up for `device`, before any op file is imported. Raises RuntimeError where it is set up for another."""
    if reason := why_not(device):
        raise RuntimeError(reason)
    restore_row_stack()
    cuda = sys.modules.get("numba.cuda")
    simulator = cuda is not None and "simulator" in getattr(cuda, "cudadrv", cuda).__name__
    if device == "cpu" and simulated():
        if cuda is not None and not simulator:
            raise RuntimeError("numba.cuda was imported without NUMBA_ENABLE_CUDASIM=1; start a fresh process with it")
        return
    if simulator:
        raise RuntimeError(
            "numba.cuda was imported as its simulator; start a fresh process without NUMBA_ENABLE_CUDASIM=1"
        )
    os.environ.pop("NUMBA_ENABLE_CUDASIM", None)
    # small cases fill no GPU, by intent; numba-cuda would warn at each launch
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    if device == "cpu":
        artefacts.store().settle()
        emulated.install()


def adopt(fn: Callable[..., Any], device: str) -> None:
    """Let the kernels of a user's function compile, and on the CPU launch on the emulator."""
    if "numba" not in sys.modules or why_not(device):
        return
    restore_row_stack()
    if device == "cpu" and not simulated():
        artefacts.store().settle()
        emulated.install()


def expect(device: str) -> None:
    """Run the kernels of a Numba that a user's function imports later on the emulator."""
    if device == "cpu" and "numba" not in sys.modules and why_not(device) is None and not simulated():
        _later.watch()


_later = Later("numba", lambda: prepare("cpu"))


def ready(text: str) -> list[Path]:
    """What the emulator runs any kernel with, for a file that speaks of Numba."""
    if not re.search(r"\bnumba\b", text) or why_not("cpu"):
        return []
    from touchstone.backends.emulator.numba import linking

    return [compiler.engine(), linking.library()]


def reimport(fn: Callable[..., Any], device: str) -> bool:
    """False: a kernel is bound to no device when its file is imported."""
    return False


def lacks(needs: str, device: str) -> str | None:
    """None if `device` has what a variant `needs` ("sm_80", or "shuffles"), else one sentence."""
    if device == "cpu" and simulated():
        return f"needs {needs}, which Numba's own simulator lacks (the emulator has it)"
    if needs == "shuffles":
        return None
    if device == "cuda":
        return capability_lacks(needs)
    return None if needs in EMULATED else f"needs {needs}; the emulator has the instructions of sm_70 to sm_89"


def doctor() -> list[tuple[str, str, str]]:
    """(what, value, note) rows for `touchstone doctor`."""
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
    import numpy

    removed = not hasattr(numpy, "row_stack") or numpy.row_stack is numpy.vstack
    note = "numba-cuda 0.30 calls it in every compilation, and NumPy 2.5 has removed it"
    restore_row_stack()
    rows.append(("patch: np.row_stack", "np.vstack stands in" if removed else "not needed: NumPy's own", note))
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
    if not simulated():
        rows += [*_PATCHES, _compilers()]
    command = compiler.compiler()
    return [
        *rows,
        ("C++ compiler", " ".join(command or ["not found"]), "for the emulator; CXX names another"),
        ("compiled kernels", *artefacts.described()),
    ]


# What the emulator replaces in numba-cuda, while it compiles a kernel for the CPU and where one is launched.
_PATCHES = (
    (
        "patch: get_current_device",
        "on the CPU only",
        "numba-cuda asks a driver what to compile for; here it is an sm_90",
    ),
    ("patch: compile_cuda", "on the CPU only", "lines of Python are kept, so that a finding names one"),
    (
        "patch: indexing",
        "on the CPU only",
        "an index outside its axis, or below 0, is reported; a GPU takes another element",
    ),
    ("patch: shared.array", "on the CPU only", "the engine gives every block memory that holds NaN and is watched"),
    ("patch: kernel[...](...)", "on the CPU only", "a launch, and to_device and its like, need no driver"),
)


def _compilers() -> tuple[str, str, str]:
    """The row about what compiles kernels for a GPU, and for none in compile conformance."""
    try:
        from cuda.bindings import nvjitlink
        from numba.cuda.cudadrv import nvvm

        versions = f"{'.'.join(map(str, nvvm.NVVM().get_version()))} and {'.'.join(map(str, nvjitlink.version()))}"
        return "NVVM and nvJitLink", versions, "compile kernels for GPUs that are not there"
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        return "NVVM and nvJitLink", "do not load", f'pip install "numba-cuda[cu13]" ({why})'


def resources(kernel: Any) -> dict[str, int]:
    """`registers` and `spills` (bytes of local memory) a thread, and `shared` (static bytes a block), of a kernel.

    Of a `@cuda.jit` function with several compiled signatures the largest number counts.
    """
    compiled = list(kernel.overloads.values()) if hasattr(kernel, "overloads") else [kernel]
    names = {"registers": "regs_per_thread", "spills": "local_mem_per_thread", "shared": "shared_mem_per_block"}
    return {name: max((getattr(each, of) for each in compiled), default=0) for name, of in names.items()}


def launched(call: Callable[[], Any]) -> list[Any]:
    """The compiled kernels that `call` launches on a GPU, each once; `resources` takes them."""
    from numba.cuda.dispatcher import _Kernel

    return seen_by(_Kernel, "launch", lambda kernel, _: kernel, call)


def writers(device: str) -> AbstractContextManager[Any] | None:
    """Where kernels are emulated, a context manager that records who writes where: its `.of(address)` names the block,
    the thread and the source line that wrote a byte last, or is None."""
    return emulator.writers() if _emulates(device) else None


def instruments(device: str) -> dict[str, Callable[[], AbstractContextManager[None]]]:
    """By name, context managers within which a right kernel is right too, and a wrong one may raise or go wrong."""
    if not _emulates(device):
        return {}
    return {
        "threads in reverse": functools.partial(emulator.schedule, "reverse"),
        "threads shuffled": functools.partial(emulator.schedule, "shuffled"),
        "races": emulator.races,
    }


def _emulates(device: str) -> bool:
    return device == "cpu" and not simulated() and emulated.why_not() is None


def restore_row_stack() -> None:
    """numba-cuda 0.30 calls np.row_stack in every compilation; NumPy 2.5 has removed it."""
    import numpy

    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack
