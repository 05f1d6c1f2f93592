"""How every variant launches: on torch's tensors, without copies, on torch's current stream."""

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from touchstone.backends import Unsupported, numba, replay
from touchstone.backends.emulator import numba as emulated
from touchstone.backends.numba.runtime import kept, ready

OPTED_IN = 48 * 1024  # more dynamic shared memory than this a kernel has to be allowed first
numba.restore_row_stack()  # a variant may be called by itself, with no judge to prepare for it
_allowed: "weakref.WeakKeyDictionary[Any, dict[int, int]]" = weakref.WeakKeyDictionary()


def launch(
    kernel: Any, grid: int | Sequence[int], block: int | Sequence[int], *arguments: Any, shared: int = 0
) -> None:
    """Launch a `@cuda.jit` kernel on tensors and numbers; `shared`: bytes of dynamic shared memory.

    A Python int is int64 to the kernel and a float float64: pass np.int32(...) or np.float32(...) for others. Tensors
    keep their strides; those on the CPU are taken by the emulator, or as arrays by Numba's own simulator, which knows
    no bfloat16 (Unsupported).
    """
    first = next((argument for argument in arguments if isinstance(argument, torch.Tensor)), None)
    if first is not None and first.is_cuda:
        _launch_on_gpu(kernel, grid, block, arguments, shared, first.device)
        return
    given = [argument.detach() if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    if numba.simulated():
        given = [_array(argument) if isinstance(argument, torch.Tensor) else argument for argument in given]
        kernel[grid, block, 0, shared](*given)
        return
    _take_launches()
    with emulated.one_layout():  # compilation is most of a small case's time
        kernel[grid, block, 0, shared](*given)


def _launch_on_gpu(
    kernel: Any, grid: Any, block: Any, arguments: Sequence[Any], shared: int, device: torch.device
) -> None:
    from numba import cuda

    key = None if ready.watched() else ready.signature(kernel, grid, block, arguments, shared, device.index)
    prepared = None if key is None else ready.made().get(key)
    if prepared is not None and prepared.launch(arguments, device.index):
        return
    replay.spoil("a first launch")
    given = [argument.detach() if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    kept.look_first(kernel)
    with torch.cuda.device(device), kept.without_ptx():
        stream = cuda.external_stream(torch.cuda.current_stream(device).cuda_stream)
        if shared > OPTED_IN:
            _allow(kernel, given, shared, device.index)
        kernel[grid, block, stream, shared](*given)
    if key is not None and key not in ready.made():
        ready.keep(key, kernel, grid, block, given, shared)


def _take_launches() -> None:
    """Let the emulator have the launches that numba-cuda still has; not those that somebody records."""
    from numba.cuda import dispatcher

    if dispatcher.CUDADispatcher.call.__module__.startswith("numba"):
        emulated.install()


def _allow(kernel: Any, arguments: Sequence[Any], shared: int, device: int) -> None:
    """Let the kernel that these arguments select have `shared` bytes of dynamic shared memory; numba-cuda has no way to
    ask."""
    from numba.cuda.cudadrv.driver import binding, driver

    compiled = kernel.compile(tuple(map(kernel.typeof_pyval, arguments)))
    known = _allowed.setdefault(compiled, {})
    if shared > known.get(device, OPTED_IN):
        function = compiled._codelibrary.get_cufunc()
        attribute = binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.cuKernelSetAttribute(attribute, shared, function.handle, function.device.id)
        known[device] = shared


def _array(tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bfloat16:
        raise Unsupported("bfloat16; Numba's own simulator has no such type")
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    return FakeCUDAArray(tensor.numpy())  # as it is: a plain array is copied, which a stride of 0 forbids
