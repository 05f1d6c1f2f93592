"""Triton's driver where there is none: what launchers ask of `triton.runtime.driver.active` is answered as a GPU would.

Within `answering(gpu)` alone. Nothing can be loaded or launched through it: kernels are interpreted.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from unittest import mock

import torch
from triton import testing
from triton._C import libtriton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from touchstone.backends import NotRun, cuda_face
from touchstone.backends.gpus import Gpu


class Driver:
    """In the place of Triton's CudaDriver."""

    binary_ext = "cubin"

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.utils = gpu, Utils(gpu)
        major, minor = gpu.capability
        self.get_current_target = _asked("get_current_target", GPUTarget("cuda", 10 * major + minor, gpu.warp))
        self.get_active_torch_device = _asked("get_active_torch_device", cuda_face.CUDA)
        self.get_current_device = _asked("get_current_device", 0)
        self.set_current_device = _asked("set_current_device", None)
        self.get_current_stream = _asked("get_current_stream", 0)
        self.get_device_capability = _asked("get_device_capability", gpu.capability)
        self.get_device_interface = _asked("get_device_interface", torch.cuda)
        self.get_empty_cache_for_benchmark = _asked("get_empty_cache_for_benchmark", None)
        self.clear_cache = _asked("clear_cache", None)

    @staticmethod
    def is_active() -> bool:
        return True

    def get_benchmarker(self) -> Callable[..., Any]:
        return testing.do_bench

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(name, f"driver.active.{name}")


class Utils:
    """In the place of `driver.active.utils`."""

    def __init__(self, gpu: Gpu) -> None:
        properties = {
            "max_shared_mem": gpu.shared_per_block,
            "max_num_regs": gpu.registers,
            "multiprocessor_count": gpu.multiprocessors,
            "warpSize": gpu.warp,
            "sm_clock_rate": gpu.clock,
            "mem_clock_rate": gpu.memory_clock,
            "mem_bus_width": gpu.bus,
        }
        self.get_device_properties = _asked("utils.get_device_properties", properties)

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(name, f"driver.active.utils.{name}")


def _asked(name: str, answer: Any) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        cuda_face.note(f"driver.active.{name}")
        return answer

    return ask


def _refuse(attribute: str, what: str) -> NoReturn:
    if attribute.startswith("__"):  # copying and pickling ask for optional methods
        raise AttributeError(attribute)
    raise NotRun(f"the launcher needs triton.runtime.{what}, which takes a GPU")


of = functools.cache(Driver)


class CublasLt:
    """In the place of Triton's handle of cuBLAS, which a file may make as it is imported: it computes nothing."""

    def __init__(self, workspace: torch.Tensor) -> None:
        cuda_face.note("libtriton.nvidia.cublas.CublasLt")

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(name, f"cublas.CublasLt.{name}")


@functools.cache
def _nvsmi(gpu: Gpu) -> Callable[..., list[int]]:
    """In the place of `triton.testing.nvsmi`, which asks the program nvidia-smi: clocks in MHz."""
    clocks = {"sm": gpu.clock, "graphics": gpu.clock, "mem": gpu.memory_clock, "memory": gpu.memory_clock}

    def ask(attrs: list[str]) -> list[int]:
        cuda_face.note("triton.testing.nvsmi")
        for attribute in attrs:
            if not attribute.startswith("clocks.") or attribute.split(".")[-1] not in clocks:
                raise NotRun(f"the launcher asks nvidia-smi for {attribute}, which takes a GPU")
        return [clocks[attribute.split(".")[-1]] // 1000 for attribute in attrs]

    return ask


@contextlib.contextmanager
def answering(gpu: Gpu) -> Iterator[None]:
    """Within: `triton.runtime.driver.active`, and what else of Triton asks a GPU, answers as on `gpu`."""
    before = driver._active
    driver.set_active(of(gpu))
    try:
        with contextlib.ExitStack() as others:
            others.enter_context(mock.patch.object(testing, "nvsmi", _nvsmi(gpu)))
            if cublas := getattr(getattr(libtriton, "nvidia", None), "cublas", None):
                others.enter_context(mock.patch.object(cublas, "CublasLt", CublasLt))
            yield
    finally:
        driver._active = before
