"""How many clusters of thread blocks run at once."""

import ctypes
from functools import lru_cache

import torch

from touchstone.backends.devices import shared_per_block
from touchstone.backends.prepared import Attribute, Config

_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_IN_EMULATOR = 2


@lru_cache(maxsize=64)
def at_once(device: torch.device, blocks: int) -> int:
    """Clusters of `blocks` blocks that run at once on `device`, a block to a multiprocessor; a few in the emulator.

    Fewer than multiprocessors / blocks: a cluster stays within one of the parts (GPC) that a chip is made of, and chips
    of one name have parts of different sizes (an H200 with 132: 15 clusters of eight, 30 of four). The driver tells.
    """
    if device.type != "cuda":
        return _IN_EMULATOR
    import cupy

    shared = shared_per_block(device)  # so much that a multiprocessor has room for one
    with cupy.cuda.Device(device.index or 0):
        kernel = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing", backend="nvrtc")
        kernel.max_dynamic_shared_size_bytes = shared
        attribute = Attribute(_CLUSTER_DIMENSION, 0, (blocks, 1, 1))
        config = Config((blocks, 1, 1), (32, 1, 1), shared, None, ctypes.pointer(attribute), 1)
        found = ctypes.c_int()
        ask = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveClusters
        ask.argtypes = [ctypes.POINTER(ctypes.c_int), ctypes.c_void_p, ctypes.POINTER(Config)]
        status = ask(found, kernel.kernel.ptr, config)
    if status or not found.value:
        raise RuntimeError(f"cuOccupancyMaxActiveClusters: error {status}, {found.value} clusters of {blocks} blocks")
    return found.value
