# ruff: noqa: N802, N815 (the names are CUDA's)
"""A CUDA driver on host memory: numba-cuda's own arrays, streams, events and contexts work on it without a GPU.

The functions have the names, arguments and results of CUDA's driver API as cuda.bindings gives them. Device memory is
host memory that is aligned as cuMemAlloc aligns, and holds NaN in every float type until it is written. All is done
when a function returns. Import this module only where numba.cuda is numba-cuda's (front.prepare): it imports it.
"""

import ctypes
import itertools
import threading
import time
import weakref
from typing import Any

import numpy as np
from cuda.bindings import driver as binding
from numba.cuda.cudadrv import driver as stock
from numba.cuda.cudadrv.error import CudaSupportError

from touchstone.backends.emulator.numba.patches import CAPABILITY

NAME = "Touchstone's emulator"
_ALIGN = 512  # of an allocation, in bytes
_TOTAL = 80 << 30  # what the device says it has, in bytes

# An H100's, as far as a program asks for them
ATTRIBUTES = {
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_BLOCK_DIM_X": 1024,
    "MAX_BLOCK_DIM_Y": 1024,
    "MAX_BLOCK_DIM_Z": 64,
    "MAX_GRID_DIM_X": 2**31 - 1,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "MAX_SHARED_MEMORY_PER_BLOCK": 48 << 10,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 << 10,
    "MAX_REGISTERS_PER_BLOCK": 65536,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "MULTIPROCESSOR_COUNT": 132,
    "WARP_SIZE": 32,
    "TOTAL_CONSTANT_MEMORY": 64 << 10,
    "CLOCK_RATE": 1_980_000,
    "MEMORY_CLOCK_RATE": 2_619_000,
    "GLOBAL_MEMORY_BUS_WIDTH": 5120,
    "L2_CACHE_SIZE": 50 << 20,
    "COMPUTE_CAPABILITY_MAJOR": CAPABILITY[0],
    "COMPUTE_CAPABILITY_MINOR": CAPABILITY[1],
    "CAN_MAP_HOST_MEMORY": 1,
    "UNIFIED_ADDRESSING": 1,
    "MANAGED_MEMORY": 1,
    "CONCURRENT_MANAGED_ACCESS": 1,
    "CONCURRENT_KERNELS": 1,
    "COOPERATIVE_LAUNCH": 1,
    "ASYNC_ENGINE_COUNT": 3,
    "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 2,
    "KERNEL_EXEC_TIMEOUT": 0,
    "TCC_DRIVER": 0,
    "INTEGRATED": 0,
    "ECC_ENABLED": 1,
    "COMPUTE_MODE": 0,
    "PCI_DOMAIN_ID": 0,
    "PCI_BUS_ID": 0,
    "PCI_DEVICE_ID": 0,
}


def _failure(code: str, function: str) -> Exception:
    return stock.CudaAPIError(getattr(binding.CUresult, code), f"Call to {function} results in {code}")


class StreamHandle(int):
    """A stream's number, with the attribute that numba-cuda's Stream.add_callback reads."""

    @property
    def value(self) -> int:
        return int(self)


class HostDriver(stock.Driver):
    """What numba-cuda's one Driver becomes."""

    def begin(self) -> None:
        """Forget that no driver was found."""
        self.is_initialized, self.initialization_error = True, None
        self.memory: dict[int, np.ndarray] = {}  # by address
        self.events: dict[int, float | None] = {}  # when each was recorded, in seconds
        self.numbers = itertools.count(0x1000, 16)  # of streams and events
        self.threads = threading.local()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cu"):
            raise CudaSupportError(f"{name}: the emulator has no such function of CUDA's driver")
        raise AttributeError(f"the driver has no attribute {name!r}")

    # devices and contexts

    def cuInit(self, flags: int) -> None:
        pass

    def cuDriverGetVersion(self) -> int:
        return 13000

    def cuDeviceGetCount(self) -> int:
        return 1

    def cuDeviceGetAttribute(self, code: Any, device: int) -> int:
        name = code.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        if name not in ATTRIBUTES:
            raise CudaSupportError(f"{name}: an attribute that the emulator's device does not tell")
        return ATTRIBUTES[name]

    def cuDeviceCanAccessPeer(self, device: int, peer: Any) -> int:
        return 0

    def cuDevicePrimaryCtxRelease(self, device: int) -> None:
        pass

    def cuDevicePrimaryCtxReset(self, device: int) -> None:
        self.memory.clear()

    def _stack(self) -> list[Any]:
        if not hasattr(self.threads, "stack"):
            self.threads.stack = []
        found: list[Any] = self.threads.stack
        return found

    def cuCtxGetCurrent(self) -> Any:
        return self._stack()[-1] if self._stack() else binding.CUcontext(0)

    def cuCtxGetDevice(self) -> int:
        return 0

    def cuCtxPushCurrent(self, context: Any) -> None:
        self._stack().append(context)

    def cuCtxPopCurrent(self) -> Any:
        if not self._stack():
            raise _failure("CUDA_ERROR_INVALID_CONTEXT", "cuCtxPopCurrent")
        return self._stack().pop()

    def cuCtxSynchronize(self) -> None:
        pass

    def cuProfilerStart(self) -> None:
        pass

    def cuProfilerStop(self) -> None:
        pass

    # memory

    def _allocate(self, size: int, function: str) -> int:
        if size > _TOTAL:
            raise _failure("CUDA_ERROR_OUT_OF_MEMORY", function)
        if size <= 0:
            raise _failure("CUDA_ERROR_INVALID_VALUE", function)
        try:
            room = np.full(size + _ALIGN, 0xFF, np.uint8)
        except MemoryError:
            raise _failure("CUDA_ERROR_OUT_OF_MEMORY", function) from None
        address = -(-room.ctypes.data // _ALIGN) * _ALIGN
        start = address - room.ctypes.data
        self.memory[address] = room[start : start + size]
        return address

    def cuMemAlloc(self, size: int) -> Any:
        return binding.CUdeviceptr(self._allocate(size, "cuMemAlloc"))

    def cuMemAllocManaged(self, size: int, flags: int) -> Any:
        return binding.CUdeviceptr(self._allocate(size, "cuMemAllocManaged"))

    def cuMemHostAlloc(self, size: int, flags: int) -> int:
        return self._allocate(size, "cuMemHostAlloc")

    def cuMemHostGetDevicePointer(self, pointer: int, flags: int) -> Any:
        return binding.CUdeviceptr(int(pointer))

    def cuMemHostRegister(self, pointer: int, size: int, flags: int) -> None:
        pass

    def cuMemHostUnregister(self, pointer: int) -> None:
        pass

    def cuMemFree(self, pointer: Any) -> None:
        self.memory.pop(int(pointer), None)

    def cuMemFreeHost(self, pointer: Any) -> None:
        self.memory.pop(int(pointer), None)

    def cuMemGetInfo(self) -> tuple[int, int]:
        return max(0, _TOTAL - sum(room.nbytes for room in list(self.memory.values()))), _TOTAL

    def cuMemGetAddressRange(self, pointer: Any) -> tuple[Any, int]:
        room = allocation_at(int(pointer))
        if room is None:
            raise _failure("CUDA_ERROR_NOT_FOUND", "cuMemGetAddressRange")
        return binding.CUdeviceptr(room.ctypes.data), room.nbytes

    def cuPointerGetAttribute(self, attribute: Any, pointer: Any) -> Any:
        return pointer

    def cuMemcpyHtoD(self, to: Any, source: Any, size: int, stream: Any = None) -> None:
        ctypes.memmove(int(to), int(source), size)

    def cuMemsetD8(self, to: Any, byte: int, size: int, stream: Any = None) -> None:
        ctypes.memset(int(to), byte, size)

    cuMemcpyDtoH = cuMemcpyDtoD = cuMemcpyHtoDAsync = cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = cuMemcpyHtoD
    cuMemsetD8Async = cuMemsetD8

    # streams and events

    def cuStreamCreate(self, flags: int) -> Any:
        return StreamHandle(next(self.numbers))

    def cuStreamDestroy(self, stream: Any) -> None:
        pass

    def cuStreamSynchronize(self, stream: Any) -> None:
        pass

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> None:
        pass

    def cuStreamAddCallback(self, stream: Any, callback: Any, data: int, flags: int) -> None:
        stock.Stream._stream_callback(int(stream or 0), 0, ctypes.cast(data, ctypes.py_object).value)

    def cuEventCreate(self, flags: int) -> Any:
        number = next(self.numbers)
        self.events[number] = None
        return binding.CUevent(number)

    def cuEventDestroy(self, event: Any) -> None:
        self.events.pop(int(event), None)

    def cuEventRecord(self, event: Any, stream: Any) -> None:
        self.events[int(event)] = time.perf_counter()

    def cuEventQuery(self, event: Any) -> None:
        pass

    def cuEventSynchronize(self, event: Any) -> None:
        pass

    def cuEventElapsedTime(self, start: Any, end: Any) -> float:
        begun, ended = self.events.get(int(start)), self.events.get(int(end))
        if begun is None or ended is None:
            raise _failure("CUDA_ERROR_INVALID_HANDLE", "cuEventElapsedTime")
        return (ended - begun) * 1e3


class HostDevice(stock.Device):
    """The one device."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.compute_capability = CAPABILITY
        self.name = NAME
        self.uuid = "GPU-00000000-0000-0000-0000-000000000000"
        self.primary_context = None

    def __getattr__(self, name: str) -> Any:
        if not hasattr(binding.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"):
            raise AttributeError(f"the device has no attribute {name!r}")
        return super().__getattr__(name)

    def get_primary_context(self) -> Any:
        if self.primary_context is None:
            self.primary_context = stock.Context(weakref.proxy(self), binding.CUcontext(1))
        return self.primary_context


def allocation_at(address: int) -> np.ndarray | None:
    """The bytes of the allocation that `address` lies in."""
    for start, room in list(stock.driver.memory.items()):
        if start <= address < start + room.nbytes:
            return room
    return None


def available() -> bool:
    """Whether a real driver and a GPU are there, so that this one is not wanted."""
    if isinstance(stock.driver, HostDriver):
        return False
    try:
        return stock.driver.is_available and bool(stock.driver.get_device_count())
    except (stock.CudaAPIError, stock.CudaSupportError):  # a driver that sees no GPU does not start
        return False


def installed() -> bool:
    """Whether device memory is host memory here."""
    return isinstance(stock.driver, HostDriver)


def install() -> None:
    """Make numba-cuda's driver this one."""
    if installed():
        return
    stock._logger = stock.make_logger()
    stock.driver.__class__ = HostDriver
    stock.driver.begin()
    stock.Device = HostDevice
