"""Where numbers come from: the command, the commit, the versions, the machine."""

import multiprocessing
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import torch

import touchstone
from touchstone.conformance.discovery import registry

CLOCKS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")


def provenance(device: str, command: Sequence[str] | None = None) -> dict[str, Any]:
    """What a record starts with. `device` is cpu or cuda; `command` as typed, but files by name alone (None: this
    process's own `python -m touchstone`).
    """
    if command is None:
        command = ["python", "-m", "touchstone", *sys.argv[1:]]
    return {
        "command": shlex.join(re.sub("(^|=)/(.*/)?", r"\1", word) for word in command),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "changed": bool(git("status", "--porcelain", "--untracked-files=no")),
        "versions": versions(),
        "machine": machine(device),
    }


def versions() -> dict[str, str]:
    """Versions that a result depends on: Touchstone's, Python's, the shared libraries', the backends' packages'."""
    found = {"touchstone": touchstone.__version__, "python": platform.python_version()}
    found["machine"] = platform.machine()
    packages = [name for backend in registry.backends() for name in registry.backend(backend).PACKAGES]
    for package in ("torch", "numpy", *packages, "ml_dtypes"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine(device: str) -> dict[str, Any]:
    """The processor, and on a GPU its name, memory, driver and CUDA."""
    found: dict[str, Any] = {"device": device, "system": platform.system(), "cpus": os.cpu_count()}
    found["threads"] = torch.get_num_threads()
    if device == "cuda":
        if torch.cuda.is_initialized():
            found |= _gpu()
        else:  # asking initialises CUDA, after which no fork of this process could use it
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
                found |= pool.submit(_gpu).result()
    return found


def _gpu() -> dict[str, Any]:
    about = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": about.name,
        "memory": about.total_memory,
        "multiprocessors": about.multi_processor_count,
        "l2": about.L2_cache_size,
        "capability": f"{about.major}.{about.minor}",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        **_smi("driver_version", "clocks.max.sm", "power.limit"),
    }


def clocks() -> dict[str, str]:
    """Clocks, power and temperature of the GPU as nvidia-smi says now; nothing where it does not answer."""
    return _smi(*CLOCKS)


def _smi(*names: str) -> dict[str, str]:
    index = str(torch.cuda.current_device()) if torch.cuda.is_available() else "0"
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits", "-i", index]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [part.strip() for part in done.stdout.strip().split(",")]
    return dict(zip(names, values, strict=True)) if done.returncode == 0 and len(values) == len(names) else {}


def git(*arguments: str) -> str | None:
    """What git says of the clone; None where there is none, as an installed package may lie in another repository."""
    if not registry.is_clone():
        return None
    try:
        done = subprocess.run(["git", *arguments], cwd=registry.ROOT, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
