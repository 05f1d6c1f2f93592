"""From a `@cuda.jit` kernel and its arguments to a launch on the engine."""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from touchstone import backends
from touchstone.backends import cuda_face
from touchstone.backends.emulator import binary, instruments
from touchstone.backends.emulator.errors import KernelError
from touchstone.backends.emulator.library import Loaded, Report, ranges
from touchstone.backends.emulator.library import engine as engine_library
from touchstone.backends.emulator.numba import findings, kernels, lines, linking, packing, why_not
from touchstone.backends.emulator.program import geometry


class Launched:
    """What this process has launched: how many kernels, and what was found in them, also where a program went on."""

    def __init__(self) -> None:
        self.count = 0
        self.findings: list[str] = []


launched = Launched()


@functools.cache
def prepare() -> None:
    """Raise RuntimeError where numba-cuda's compiler is not there."""
    reason = why_not()
    if reason:
        raise RuntimeError(reason)
    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack  # numba-cuda 0.30 calls it in every compilation
    from numba import cuda

    if "numba_cuda" not in (cuda.__file__ or "") or "simulator" in getattr(cuda, "cudadrv", cuda).__name__:
        raise RuntimeError(
            "numba.cuda is not numba-cuda's: unset NUMBA_ENABLE_CUDASIM and install numba-cuda in site-packages"
        )


def launch(
    kernel: Any,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: Sequence[Any],
    shared: int = 0,
    cooperative: bool | None = None,
) -> None:
    """Run a `@cuda.jit` kernel on this CPU and wait for it.

    `arguments`: NumPy arrays and CPU tensors of torch, which the kernel writes in place; numbers; tuples; records.
    `shared`: bytes of dynamic shared memory. `cooperative`: whether all blocks are resident at once; None: where the
    kernel meets the whole grid. Raises KernelError for a finding, ValueError or TypeError for a bad call.
    """
    prepare()
    from numba.cuda.dispatcher import CUDADispatcher

    if not isinstance(kernel, CUDADispatcher):
        raise TypeError(f"kernel: expected a function decorated with @cuda.jit, got {type(kernel).__name__}")
    grid3, block3 = geometry(grid, block, shared)
    names = list(kernel.py_func.__code__.co_varnames[: kernel.py_func.__code__.co_argcount])
    if len(arguments) != len(names):
        raise TypeError(f"{kernel.__name__}: expected {len(names)} arguments, got {len(arguments)}")
    _refuse_host_tensors(kernel.__name__, names, arguments)
    values = [packing.as_array(value) for value in arguments]
    kinds = tuple(packing.type_of(value) for value in values)
    made = kernels.compiled(kernel, kinds)
    launch_compiled(kernel, made, kinds, values, grid3, block3, shared, cooperative)


def _refuse_host_tensors(kernel: str, names: Sequence[str], arguments: Sequence[Any]) -> None:
    """A GPU, where one is asked for, stops at the address of a tensor that lies on the CPU."""
    if cuda_face.answers() is None:
        return
    for name, value in zip(names, arguments, strict=False):
        if hasattr(value, "data_ptr") and value.numel() and cuda_face.on_host(value):
            raise KernelError(
                f"{kernel}: {name}: a tensor on the CPU, whose memory no GPU reaches; allocate it with device="
            )


def launch_compiled(
    kernel: Any,
    made: kernels.Compiled,
    kinds: Sequence[Any],
    arguments: Sequence[Any],
    grid: int | Sequence[int],
    block: int | Sequence[int],
    shared: int,
    cooperative: bool | None = None,
) -> None:
    """Run a kernel that is compiled for the types `kinds` on arguments that can be taken for these."""
    grid, block = geometry(grid, block, shared)
    names = list(kernel.py_func.__code__.co_varnames)
    _refuse_host_tensors(kernel.__name__, names, arguments)
    packed = packing.Packed()
    copies: list[tuple[np.ndarray, np.ndarray]] = []  # of host arrays at odd addresses, which a GPU gets a copy of
    for position, (kind, value) in enumerate(zip(kinds, arguments, strict=True)):
        value = packing.as_array(value)
        if isinstance(arguments[position], np.ndarray) and not value.flags.aligned and value.dtype.names is None:
            copies.append((value, np.array(value)))
            value = copies[-1][1]
        packed.add(kind, value, names[position] if position < len(names) else str(position))
    if len(packed.cells) != len(made.types):
        raise TypeError(f"{kernel.__name__}: {len(packed.cells)} values for {len(made.types)} parameters")
    resident = made.native.cooperative if cooperative is None else cooperative
    _run(kernel.__name__, made, packed, grid, block, shared, resident)
    for original, copy in copies:
        if original.flags.writeable:
            original[...] = copy


def _run(
    name: str,
    made: kernels.Compiled,
    packed: packing.Packed,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared: int,
    cooperative: bool,
) -> None:
    library, path = linking.support()
    engine = engine_library(str(path))
    lines.sites.publish(library)
    pointers = (ctypes.c_void_p * max(1, len(packed.cells)))(*(cell.ctypes.data for cell in packed.cells))
    constants = made.native.constants
    memory, count = ranges(packed.regions, ((start, size, 0) for start, size in constants))
    options = instruments.options(cooperative)
    report = Report()
    loaded = Loaded(
        findings.PATH, library, engine, 0, [binary.Variable("const.array_like", 0, 0, False) for _ in constants], (0, 0)
    )

    def reached() -> list[backends.Reached]:
        kept = [(region, packing.allocation_at(region.start)) for region in packed.regions]
        return [backends.Reached(region.start, region.bytes, (packed, room)) for region, room in kept]

    with backends.running(reached, backends.EMULATOR):
        engine.ts_launch(
            ctypes.c_void_p(made.native.entry),
            pointers,
            (ctypes.c_uint32 * 3)(*grid),
            (ctypes.c_uint32 * 3)(*block),
            shared,
            memory,
            count,
            ctypes.byref(options),
            instruments.record(loaded, grid, block),
            ctypes.byref(report),
        )
        launched.count += 1
        if report.kind:
            error = findings.error(name, made.exceptions, loaded, report, packed.regions, made.classes)
            launched.findings.append(f"{type(error).__name__}: {error}")
            raise error


def _on_a_gpu(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_on_a_gpu, value))
    return hasattr(value, "__cuda_array_interface__")  # which a tensor on the CPU has not


def _of_torch(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_of_torch, value))
    return type(value).__module__.split(".")[0] == "torch" and hasattr(value, "data_ptr")


def install(gpu: bool | None = None) -> None:
    """Make `kernel[grid, block, stream, shared](...)` of every `@cuda.jit` kernel of this process run here.

    Where there is no GPU, all of numba-cuda's host functions work on host memory (driver.py). Where there is one, only
    those of host.py do, and a launch one of whose arguments lies on the GPU goes there. `gpu`: False leaves a GPU that
    is there alone; None looks for one.
    """
    prepare()
    from numba import cuda
    from numba.cuda import dispatcher
    from numba.cuda.core import config

    from touchstone.backends.emulator.numba import driver, host, overload

    if getattr(cuda, "touchstone_emulator", False):
        return
    stock_call, stock_for_all = dispatcher.CUDADispatcher.call, dispatcher.ForAll.__call__
    gpu = driver.available() if gpu is None else gpu

    def call(self: Any, args: tuple[Any, ...], launch_config: Any) -> None:
        here = not _on_a_gpu(args) if gpu else kernels.layouts_are_one() or any(map(_of_torch, args))
        if here:
            launch(self, launch_config.griddim, launch_config.blockdim, args, launch_config.sharedmem)
        else:
            stock_call(self, args, launch_config)

    def for_all(self: Any, *args: Any) -> None:
        if _on_a_gpu(args):
            stock_for_all(self, *args)
        elif self.ntasks:
            threads = self.thread_per_block or 128
            launch(self.dispatcher, -(-self.ntasks // threads), threads, args, self.sharedmem)

    dispatcher.CUDADispatcher.call = call
    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
    if gpu:
        dispatcher.ForAll.__call__ = for_all
        host.install()
    else:
        driver.install()
        overload.install()
    cuda.touchstone_emulator = True
