"""The GPU of this machine, asked about in a child process, so that this one may still fork and use CUDA in the fork.

`cuInit` in a parent makes CUDA unusable in every fork of it; the question is therefore put to a child of about 50 ms,
and only where a CUDA driver is installed.
"""

import ctypes
import os
import subprocess
import sys
from functools import lru_cache
from typing import Any

_PROBE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
status, count, version = cuda.cuInit(0), ctypes.c_int(), ctypes.c_int()
cuda.cuDriverGetVersion(ctypes.byref(version))
print(status, version.value, end=" ")
if status == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
    for device in range(count.value):
        major, minor = ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        print(f"{major.value}.{minor.value}", end=" ")
"""


@lru_cache(maxsize=1)
def _driver() -> tuple[str | None, list[tuple[int, int]]]:
    """Why the CUDA driver cannot be used (None if it can), and the compute capability of every visible GPU."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver is installed (libcuda.so.1 not found)", []
    try:
        done = subprocess.run([sys.executable, "-I", "-S", "-c", _PROBE], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "the CUDA driver did not answer within 60 s", []
    words = done.stdout.split()
    if len(words) < 2:
        return f"the CUDA driver could not be asked (exit status {done.returncode})", []
    status, version, *found = words
    if status == "100" or (status == "0" and not found):
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        return "the CUDA driver sees no GPU" + (f" (CUDA_VISIBLE_DEVICES={hidden!r})" if hidden is not None else ""), []
    if status != "0":
        cuda = f"{int(version) // 1000}.{int(version) % 1000 // 10}"
        return f"the CUDA driver (CUDA {cuda}) does not start: cuInit gave error {status}", []
    return None, [(int(major), int(minor)) for major, minor in (text.split(".") for text in found)]


@lru_cache(maxsize=1)
def cuda_unavailable() -> str | None:
    """None if a CUDA device can be used here, else one sentence that says what is missing."""
    reason, _ = _driver()
    if reason is None:
        import torch

        if torch.version.cuda is None:
            return f"torch {torch.__version__} is a CPU build; install a CUDA build of torch"
    return reason


def gpus() -> list[str]:
    """The visible GPUs, as CUDA_VISIBLE_DEVICES names them."""
    numbers = [str(index) for index in range(len(_driver()[1]))]
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[: len(numbers)] if named else numbers


def keep_one(worker: int) -> None:
    """Have this process and those that it starts see one GPU, where there are several: workers take them by turns.

    Before anything here has used CUDA, which reads CUDA_VISIBLE_DEVICES when it starts.
    """
    there = gpus()
    if len(there) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = there[worker % len(there)]
        _driver.cache_clear()  # the GPUs of a machine may differ


def capability() -> tuple[int, int] | None:
    """Compute capability of the first visible GPU, (9, 0) for an H100; None without one."""
    _, found = _driver()
    return found[0] if found else None


@lru_cache(maxsize=64)
def multiprocessors(device: Any) -> int:
    """How many the GPU `device`, a torch.device with its index, has. Launchers ask at every call."""
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count


# bytes of shared memory that one block may have, by architecture
SHARED_LIMIT = {"sm_80": 166912, "sm_86": 101376, "sm_89": 101376, "sm_90": 232448, "sm_100": 232448, "sm_120": 101376}


@lru_cache(maxsize=64)
def shared_per_block(device: Any) -> int:
    """Bytes of shared memory that a block may ask the GPU `device` for."""
    import torch

    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def capability_lacks(needs: str, have: tuple[int, int] | None = None) -> str | None:
    """None if the first visible GPU, or one of compute capability `have`, meets `needs` ("sm_80", "sm_90a"), else one
    sentence.

    A plain number is a minimum; one with a letter ("a", "f": features of one generation) asks for exactly that one.
    """
    digits = needs.removeprefix("sm_").rstrip("af")
    if not needs.startswith("sm_") or not digits.isdigit():
        raise ValueError(f"needs: expected a form like 'sm_90' or 'sm_90a', got {needs!r}")
    wanted = (int(digits[:-1]), int(digits[-1]))
    have = have or capability()
    if have is None:
        return f"needs {needs}, and there is no GPU"
    fits = have == wanted if needs[-1] in "af" else have >= wanted
    return None if fits else f"needs {needs}; this GPU is sm_{have[0]}{have[1]}"
