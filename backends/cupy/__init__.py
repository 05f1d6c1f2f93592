"""CUDA C, compiled by NVRTC and launched by CuPy's RawModule."""

if __name__ != "backends.cupy":
    raise ImportError(
        f"backends.cupy was imported as {__name__!r}: start Python in Touchstone's own folder, or put that folder (none "
        "inside it) on PYTHONPATH, so that `import cupy` finds CuPy itself"
    )

import importlib.util
import math
from collections.abc import Callable
from importlib import metadata
from typing import Any

from backends.devices import capability_lacks, cuda_works

ALIASES: dict[str, str] = {}
CPU_VARIABLES: tuple[str, ...] = ()
# multiply-adds a second; a tiled 64 x 64 matmul takes about 4 ms where CUDA threads are emulated on a CPU
WORK_PER_SECOND = {"cpu": 6e7, "cuda": math.inf}
NOTES = (
    "A kernel is one thread's program: blockIdx, threadIdx and blockDim give its place, x varies fastest in memory.",
    "The launch order is kernel(grid, block, arguments, shared_mem=bytes, stream=); a Triton grid counts tiles, here blocks.",
    "Every thread of a block reaches every __syncthreads(): no early return before one, none inside a divergent branch.",
    "Guard the tail with `if`, not with a mask argument; shuffles name the lanes that take part.",
    "A literal without suffix is double: write 0.5f, and expf rather than exp.",
    "Accumulate in float whatever the input; __half and __nv_bfloat16 convert with __half2float and __bfloat162float.",
    "Indices are int: write (long long)row * stride.",
    "Scalars pass as np.int32, np.int64 or np.float32, tensors as t.data_ptr(); the stream is torch's current one.",
    "NVRTC has no host headers and no INFINITY; a macro of one letter breaks its own headers.",
)


def why_not(device: str) -> str | None:
    """None if CUDA C can run on `device` here, else what is missing and what to do."""
    if device == "cpu":
        return "CUDA C needs a GPU here: it is compiled by NVRTC and launched through CuPy"
    if importlib.util.find_spec("cupy") is None:
        return 'cupy is not installed: pip install "cupy-cuda13x[ctk]" (cupy-cuda12x for a CUDA 12 driver)'
    return cuda_works()


def prepare(device: str) -> None:
    """Nothing to set up: CuPy reads no variable before its import. Raises RuntimeError for a device it cannot run on."""
    if device == "cpu":
        raise RuntimeError(why_not("cpu"))


def adopt(fn: Callable[..., Any], device: str) -> None:
    """A user's function needs nothing changed."""


def reimport(fn: Callable[..., Any], device: str) -> bool:
    """False: no kernel is bound to a device when its file is imported."""
    return False


def lacks(needs: str, device: str) -> str | None:
    """None if `device` has what a rung `needs` ("sm_90a"), else one sentence."""
    return capability_lacks(needs) if device == "cuda" else f"needs {needs}; there is no GPU"


def doctor() -> list[tuple[str, str, str]]:
    """(what, value, note) rows for `conformance doctor`."""
    found = [d for d in metadata.distributions() if (d.metadata["Name"] or "").lower().startswith("cupy")]
    if not found:
        return [("cupy", "not installed", "CUDA C kernels are not run")]
    rows = [(d.metadata["Name"], d.version, "14 and newer are supported") for d in found]
    if len(found) > 1:
        rows.append(
            ("cupy", "installed more than once", "keep one of: " + ", ".join(d.metadata["Name"] for d in found))
        )
    try:
        import cupy

        major, minor = cupy.cuda.nvrtc.getVersion()
        rows.append(("NVRTC", f"{major}.{minor}", "comes with the [ctk] extra or a CUDA toolkit"))
    except Exception as error:
        rows.append(("NVRTC", "does not load", f"{type(error).__name__}: {error}".splitlines()[0]))
    return rows


def resources(kernel: Any) -> dict[str, int]:
    """`registers` and `spills` (bytes of local memory) a thread, and `shared` (static bytes a block), of a RawKernel."""
    attributes = kernel.attributes
    return {
        "registers": attributes["num_regs"],
        "spills": attributes["local_size_bytes"],
        "shared": attributes["shared_size_bytes"],
    }
