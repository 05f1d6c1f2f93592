"""CUDA C through CuPy's RawModule. So far the backend protocol only: there are no kernels in this folder yet."""

assert __name__ == "backends.cupy", "run Touchstone from its own root folder: this package must not be found as `cupy`"

import importlib.util
import math
from importlib import metadata

from backends.devices import cuda_works

ALIASES: dict[str, str] = {}
CPU_VARIABLES: tuple[str, ...] = ()
WORK_PER_SECOND = {"cpu": 4e7, "cuda": math.inf}
PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
NOTES = (
    "A kernel is one thread; blockIdx.x runs fastest, and __syncthreads() separates writing shared memory from reading it.",
    "NVRTC has no host headers: no <math.h>, no <stdint.h>, and INFINITY is undefined.",
    "Scalars need their C type at the launch: np.int32(n), np.float32(eps); a Python float arrives as a double.",
    "Launch order is kernel(grid, block, arguments, shared_mem=bytes).",
    "Dynamic shared memory beyond 48 KB has to be allowed on the kernel first.",
    "bfloat16 tensors have no CuPy dtype of their own: pass data_ptr().",
)


def why_not(device: str) -> str | None:
    """None if CUDA C runs on `device` here, else what is missing."""
    if device == "cpu":
        return "CUDA C needs a GPU; CuPy has no CPU mode"
    if importlib.util.find_spec("cupy") is None:
        return 'cupy is not installed: pip install "cupy-cuda13x[ctk]"'
    return cuda_works()


def prepare(device: str) -> None:
    """Nothing has to be set before CuPy is imported."""
    if reason := why_not(device):
        raise RuntimeError(reason)


def adopt(fn, device: str) -> None:
    """Nothing: a kernel of CuPy runs as it was compiled."""


def reimport(fn, device: str) -> bool:
    """Never: CuPy has one mode only."""
    return False


def lacks(needs: str, device: str) -> str | None:
    """Why a rung that `needs` an architecture does not run on this GPU, or None."""
    import cupy

    have = int(cupy.cuda.Device().compute_capability)
    wanted = needs.removeprefix("sm_")
    number = int(wanted.rstrip("a"))
    if have == number or (have > number and not wanted.endswith("a")):
        return None
    return f"needs {needs}; this GPU is sm_{have}"


def doctor() -> list[tuple[str, str, str]]:
    """(what, value, note) for `conformance doctor`."""
    for package in PACKAGES:
        try:
            return [(package, metadata.version(package), "version 14 or newer is supported; its [ctk] extra brings NVRTC")]
        except metadata.PackageNotFoundError:
            continue
    return [("cupy", "not installed", 'pip install "cupy-cuda13x[ctk]"')]


def resources(kernel) -> dict[str, int]:
    """Registers and local-memory bytes a thread, and shared memory a block, of a RawKernel."""
    return {"registers": kernel.num_regs, "spills": kernel.local_size_bytes, "shared": kernel.shared_size_bytes}
