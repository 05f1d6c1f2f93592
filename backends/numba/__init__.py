"""Numba CUDA. So far the backend protocol only: there are no kernels in this folder yet."""

assert __name__ == "backends.numba", "run Touchstone from its own root folder: this package must not be found as `numba`"

import importlib.util
import math
import os
import sys
from importlib import metadata

from backends.devices import cuda_works

ALIASES: dict[str, str] = {}
CPU_VARIABLES = ("NUMBA_ENABLE_CUDASIM",)
WORK_PER_SECOND = {"cpu": 2e5, "cuda": math.inf}  # on the CPU Numba's own simulator, one thread of the OS per CUDA thread
NOTES = (
    "A kernel is one thread; cuda.grid(2) gives (x, y) with x fastest, and cuda.syncthreads() is the barrier.",
    "Float literals are float64: write np.float32(0.5), or the arithmetic around them is double.",
    "Launch order is kernel[grid, block, stream, shared_bytes](arguments).",
    "Signed indices add code for negative ones; np.uint32 indices do not.",
    "torch tensors are taken as they are, bfloat16 included; a tensor that requires grad has to be detached.",
)


def why_not(device: str) -> str | None:
    """None if Numba CUDA kernels run on `device` here, else what is missing."""
    if importlib.util.find_spec("numba") is None or importlib.util.find_spec("numba_cuda") is None:
        return 'numba-cuda is not installed: pip install "numba-cuda[cu13]==0.30.*"'
    return cuda_works() if device == "cuda" else None


def prepare(device: str) -> None:
    """Set Numba up for its simulator ("cpu") or the GPU ("cuda"), for the life of the process.

    Raises RuntimeError where numba.cuda was imported for the other device already.
    """
    if reason := why_not(device):
        raise RuntimeError(reason)
    loaded = sys.modules.get("numba.cuda")
    if loaded is not None and bool(loaded.config.ENABLE_CUDASIM) != (device == "cpu"):
        raise RuntimeError(
            f"numba.cuda was imported before Touchstone could set it up for {device!r}; one process runs one device: start a "
            f"fresh process, with NUMBA_ENABLE_CUDASIM={'1' if device == 'cpu' else '0'} from the start"
        )
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1" if device == "cpu" else "0"
    _give_numpy_its_row_stack()


def _give_numpy_its_row_stack() -> None:
    """numba-cuda 0.30 uses np.row_stack, which NumPy 2.5 removed: every compilation would raise."""
    import numpy as np

    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack


def adopt(fn, device: str) -> None:
    """Where numba.cuda is loaded, make it work with the NumPy of this process."""
    if "numba.cuda" in sys.modules:
        _give_numpy_its_row_stack()


def reimport(fn, device: str) -> bool:
    """Never: functions are not searched for Numba kernels."""
    return False


def lacks(needs: str, device: str) -> str | None:
    """Why a rung that `needs` an architecture does not run here, or None."""
    if device == "cpu":
        return f"needs {needs}; Numba's simulator has no architecture"
    from numba import cuda

    major, minor = cuda.get_current_device().compute_capability
    have, number = 10 * major + minor, int(needs.removeprefix("sm_").rstrip("a"))
    return None if have >= number else f"needs {needs}; this GPU is sm_{have}"


def doctor() -> list[tuple[str, str, str]]:
    """(what, value, note) for `conformance doctor`."""
    if why_not("cpu"):
        return [("numba-cuda", "not installed", why_not("cpu") or "")]
    import numpy as np

    missing = not hasattr(np, "row_stack")
    note = "numba-cuda 0.30 uses np.row_stack, which NumPy 2.5 removed; prepare() puts np.vstack in its place"
    return [
        ("numba", metadata.version("numba"), ""),
        ("numba-cuda", metadata.version("numba-cuda"), "takes numba.cuda over through a .pth file, which needs a normal install"),
        ("numba.cuda is numba-cuda's", "yes" if _redirected() else "no", "no means an install by --target or PYTHONPATH: reinstall"),
        ("np.row_stack", "missing" if missing else "present", note),
    ]


def _redirected() -> bool:
    """Whether `numba.cuda` comes from numba-cuda, without importing it."""
    spec = importlib.util.find_spec("numba.cuda")
    return spec is not None and "numba_cuda" in (spec.origin or "")


def resources(kernel) -> dict[str, int]:
    """Registers and local-memory bytes a thread, and shared memory a block, of a compiled and specialised kernel."""
    return {
        "registers": kernel.get_regs_per_thread(),
        "spills": kernel.get_local_mem_per_thread(),
        "shared": kernel.get_shared_mem_per_block(),
    }
