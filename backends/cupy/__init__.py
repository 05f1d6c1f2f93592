"""CUDA C: compiled by NVRTC and launched by CuPy on a GPU, or run on the CPU by the emulator (backends/emulator/)."""

if __name__ != "touchstone.backends.cupy":
    raise ImportError(
        f"touchstone.backends.cupy was imported as {__name__!r}: start Python in Touchstone's own folder, or put "
        f"that folder (none "
        "inside it) on PYTHONPATH, so that `import cupy` finds CuPy itself"
    )

import contextlib
import functools
import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import Any

from touchstone.backends import EMULATOR, emulator
from touchstone.backends.devices import capability_lacks, cuda_unavailable
from touchstone.backends.emulator import compiler
from touchstone.backends.gpus import Gpu
from touchstone.backends.later import Later
from touchstone.backends.storage import artefacts, folders

ALIASES: dict[str, str] = {}
CPU_VARIABLES: tuple[str, ...] = ()
PACKAGES = ("cupy-cuda13x",)
ENGINE = EMULATOR  # of its kernels on the CPU
EMULATED = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a")  # of what a variant can need
# multiply-adds a second that a tiled matmul gets in the emulator on a busy core; 64 x 64 x 64 on an idle one: 1.1e8
WORK_PER_SECOND = {"cpu": 6e7, "cuda": math.inf}
NOTES = (
    "A kernel is one thread's program: blockIdx, threadIdx and blockDim give its place, x varies fastest in memory.",
    "A launch is module.launch(name, grid, block, arguments, dtype=, shared=bytes, definitions); a Triton grid counts "
    "tiles, here blocks. Tensors pass as pointers, numbers in the type that the kernel declares, on torch's "
    "current stream.",
    (
        "Every thread of a block reaches every __syncthreads(): no early return before one, none inside a divergent "
        "branch."
    ),
    "Guard the tail with `if`, not with a mask argument; shuffles name the lanes that take part.",
    "Shared memory holds what the block before left there: write before reading, and a barrier between.",
    "A literal without suffix is double: write 0.5f, and expf rather than exp.",
    "fmaxf and fminf skip NaN: carry it by hand where torch does.",
    "Accumulate in float whatever the input; __half and __nv_bfloat16 convert with __half2float and __bfloat162float.",
    "Indices are int: write (long long)row * stride.",
    "A float4 wants its address a multiple of 16: check pointer and strides in the launcher, or take the scalar path.",
    (
        "gridDim.y and z are at most 65535; rows go to x. More than 48 KB of shared memory is dynamic, up to 227 KB "
        "on sm_90."
    ),
    "NVRTC has no host headers and no INFINITY; a macro of one letter breaks its own headers.",
    "ELEMENT is float, __half or __nv_bfloat16. Own headers are included with quotes; inline PTX stays in "
    "ptx.cuh and hopper.cuh; the emulator takes it as it is.",
)


def why_not(device: str) -> str | None:
    """None if CUDA C can run on `device` here, else what is missing and what to do."""
    if device == "cpu":
        return emulator.why_not()
    if importlib.util.find_spec("cupy") is None:
        return 'cupy is not installed: pip install "cupy-cuda13x[ctk]" (cupy-cuda12x for a CUDA 12 driver)'
    return cuda_unavailable()


def prepare(device: str) -> None:
    """Little to set up: a launch goes where its tensors are. Raises RuntimeError for a device it cannot run on."""
    if reason := why_not(device):
        raise RuntimeError(reason)
    if device == "cpu":
        artefacts.store().settle()
    else:
        _settle_cache()


def _settle_cache() -> None:
    """Have CuPy keep compiled kernels in memory where its folder cannot be used: its own attempt would end the call."""
    try:
        folders.secured(Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache").absolute())
    except (OSError, RuntimeError):  # the latter where there is no home
        os.environ.setdefault("CUPY_CACHE_IN_MEMORY", "1")


def adopt(fn: Callable[..., Any], device: str) -> None:
    """A user's function needs nothing changed; the emulator needs a folder that outlives the process it runs in."""
    if device == "cpu":
        artefacts.store().settle()


_later = Later("cupy", lambda: None)


@contextlib.contextmanager
def answering(gpu: Gpu) -> Iterator[None]:
    """Within: CuPy's raw kernels, as a user's file makes them, run in the emulator."""
    from touchstone.backends.cupy.runtime import launched

    with _later.within(launched.emulated):
        yield


def expect(device: str) -> None:
    """Run the raw kernels of a CuPy that a user's function imports later in the emulator."""
    if device == "cpu" and "cupy" not in sys.modules and importlib.util.find_spec("cupy") and not emulator.why_not():
        _later.watch()


def cannot(error: BaseException, device: str) -> str | None:
    """Why a call on the CPU that raised `error` says nothing about its kernel: CuPy found no GPU; else None."""
    from touchstone.backends.cupy.runtime import launched

    if device == "cpu" and launched.lacks_gpu(error):
        return f"CuPy needs a GPU, but for RawKernel and RawModule: {error}"
    return None


def ready(text: str) -> list[Path]:
    """What the emulator runs any kernel with, for a file that speaks of this backend."""
    return compiler.beginnings() if re.search(r"\bcupy\b", text) else []


def reimport(fn: Callable[..., Any], device: str) -> bool:
    """False: no kernel is bound to a device when its file is imported."""
    return False


def lacks(needs: str, device: str) -> str | None:
    """None if `device` has what a variant `needs` ("sm_80", "sm_90a"), else one sentence."""
    if device == "cuda":
        return capability_lacks(needs)
    return None if needs in EMULATED else f"needs {needs}; the emulator has the instructions of sm_70 to sm_90a"


def doctor() -> list[tuple[str, str, str]]:
    """(what, value, note) rows for `touchstone doctor`."""
    found = [d for d in metadata.distributions() if (d.metadata["Name"] or "").lower().startswith("cupy")]
    rows = [(d.metadata["Name"], d.version, "14 and newer are supported") for d in found]
    if not found:
        rows = [("cupy", "not installed", "CUDA C runs on no GPU; the emulator does without")]
    if len(found) > 1:
        rows.append(
            ("cupy", "installed more than once", "keep one of: " + ", ".join(d.metadata["Name"] for d in found))
        )
    rows.append(_nvrtc())
    command, headers = compiler.compiler(), compiler.cuda_headers()
    rows += [
        ("C++ compiler", " ".join(command or ["not found"]), "for the emulator; CXX names another"),
        ("CUDA headers", str(headers or "not found"), "for the emulator; from NVIDIA's wheels or CUDA_HOME"),
        ("compiled kernels", *artefacts.described()),
    ]
    return rows


def _nvrtc() -> tuple[str, str, str]:
    """The row about the compiler that compile conformance uses, and CuPy on a GPU."""
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
        return "NVRTC", f"{major}.{minor}", "compiles kernels for GPUs that are not there"
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        return "NVRTC", "does not load", f'pip install cuda-bindings "cupy-cuda13x[ctk]" ({why})'


def resources(kernel: Any) -> dict[str, int]:
    """`registers` and `spills` (bytes of local memory) a thread, and `shared` (static bytes a block), of a
    RawKernel."""
    attributes = kernel.attributes
    return {
        "registers": attributes["num_regs"],
        "spills": attributes["local_size_bytes"],
        "shared": attributes["shared_size_bytes"],
    }


def launched(call: Callable[[], Any]) -> list[Any]:
    """The compiled kernels that `call` launches on a GPU, each once; `resources` takes them."""
    from touchstone.backends.cupy.runtime import module

    module.launched, kept = {}, module.launched
    try:
        call()
        return list(module.launched.values())
    finally:
        module.launched = kept


def writers(device: str) -> AbstractContextManager[Any] | None:
    """Where kernels are emulated, a context manager that records who writes where: its `.of(address)` names the block,
    the thread and the source line that wrote a byte last, or is None."""
    return emulator.writers() if device == "cpu" and emulator.why_not() is None else None


def instruments(device: str) -> dict[str, Callable[[], AbstractContextManager[None]]]:
    """By name, context managers within which a right kernel is right too, and a wrong one may raise or go wrong."""
    if device != "cpu" or emulator.why_not() is not None:
        return {}
    return {
        "threads in reverse": functools.partial(emulator.schedule, "reverse"),
        "threads shuffled": functools.partial(emulator.schedule, "shuffled"),
        "races": emulator.races,
    }
