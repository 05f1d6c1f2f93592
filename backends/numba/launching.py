"""How every rung launches: on torch's tensors, without copies, on torch's current stream."""

from collections.abc import Sequence
from typing import Any

import torch

from backends import Unsupported, numba
from backends.emulator import numba as emulated


def launch(
    kernel: Any, grid: int | Sequence[int], block: int | Sequence[int], *arguments: Any, shared: int = 0
) -> None:
    """Launch a `@cuda.jit` kernel on tensors and numbers; `shared`: bytes of dynamic shared memory.

    A Python int is int64 to the kernel and a float float64: pass np.int32(...) or np.float32(...) for others. Tensors
    keep their strides; those on the CPU are taken by the emulator, or as arrays by Numba's own simulator, which knows no
    bfloat16 (Unsupported).
    """
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    given = [argument.detach() if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    if tensors and tensors[0].is_cuda:
        from numba import cuda

        device = tensors[0].device
        with torch.cuda.device(device):
            stream = cuda.external_stream(torch.cuda.current_stream(device).cuda_stream)
            kernel[grid, block, stream, shared](*given)
        return
    if numba.simulated():
        given = [_array(argument) if isinstance(argument, torch.Tensor) else argument for argument in given]
        kernel[grid, block, 0, shared](*given)
        return
    with emulated.one_layout():  # compilation is most of a small case's time
        kernel[grid, block, 0, shared](*given)


def _array(tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bfloat16:
        raise Unsupported("bfloat16; Numba's own simulator has no such type")
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    return FakeCUDAArray(tensor.numpy())  # as it is: a plain array is copied, which a stride of 0 forbids
