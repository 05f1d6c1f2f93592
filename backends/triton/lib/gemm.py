"""What the launchers of matrix products share: programs that run at once, default tiles, tensor descriptors."""

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from touchstone.backends import Unsupported
from touchstone.backends.devices import multiprocessors
from touchstone.backends.triton.runtime.ready import kept
from touchstone.backends.triton.runtime.tuning import shared_limit

_CPU_PROCESSORS = 6  # of the interpreter's pretended GPU: few, so that persistent programs take several tiles


def processors(device: torch.device) -> int:
    """Multiprocessors of `device`."""
    if device.type != "cuda":
        return _CPU_PROCESSORS
    return multiprocessors(device)


def persistent_programs(device: torch.device, num_warps: int) -> int:
    """Programs of a persistent kernel that run at once: eight warps to a multiprocessor, as one program or as two."""
    return processors(device) * max(8 // num_warps, 1)


def roomy(device: torch.device) -> bool:
    """Whether a program on `device` may have 160 KB of shared memory, as on sm_80 and sm_90; sm_86, 89 and 120 have
    99."""
    return shared_limit(device) >= 160 * 1024


def options(m: int, n: int, k: int, warps: int, stages: int, group: int = 8) -> dict[str, int]:
    """Constexprs and launch options of a product in tiles of m × n × k, `group` tile rows visited together."""
    return {"GROUP_M": group, "BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "num_warps": warps, "num_stages": stages}


def default_tile(dtype: torch.dtype, M: int, N: int) -> dict[str, int]:
    """Options of an (M, N) product where none is pinned.

    float32 in full precision runs on the FMA pipes and unrolls K, so that its steps along K are short.
    """
    if dtype is torch.float32:
        return options(16 if M <= 16 else 64, 64, 32, 8, 3) if min(M, N) <= 64 else options(128, 128, 16, 16, 3)
    if M <= 64:
        return options(16, 64, 128, 4, 4) if M <= 16 else options(64, 64, 64, 8, 4)
    return options(128, 128, 64, 8, 3)


def default_two_tiles(dtype: torch.dtype, M: int, N: int) -> dict[str, int]:
    """The same for a program that accumulates two (M, N) products side by side."""
    if dtype is torch.float32:
        return options(16 if M <= 16 else 64, 64, 16, 8, 3)
    if M <= 64:
        return options(16, 64, 64, 4, 4) if M <= 16 else options(64, 64, 64, 8, 3)
    return options(128, 64, 64, 8, 3)


def default_tma_tile(dtype: torch.dtype, M: int, N: int) -> dict[str, int]:
    """The same for operands that tensor descriptors bring."""
    if dtype is torch.float32:
        return options(128, 64, 16, 8, 3)
    if M <= 64:
        return options(64, 64, 128, 4, 4)
    return options(128, 128, 64, 8, 4) if M * N <= 2048 * 2048 else options(128, 256, 64, 8, 4)


def default_streamk_tile(dtype: torch.dtype, M: int, N: int) -> dict[str, int]:
    """The same for one program to a multiprocessor and few tiles: deep ones, as many stages as there is room for."""
    if dtype is torch.float32:
        return default_tma_tile(dtype, M, N)
    if M <= 64:
        return options(64, 128, 128, 4, 4)
    return options(128, 64, 128, 4, 4) if M <= 128 else options(128, 128, 64, 8, 5)


def default_tma_factor_tile(dtype: torch.dtype, M: int, N: int) -> dict[str, int]:
    """A stage fewer, where the tile of a factor in the epilogue would not fit in shared memory beside four."""
    config = default_tma_tile(dtype, M, N)
    return {**config, "num_stages": 3} if config["BLOCK_M"] * config["BLOCK_N"] > 128 * 128 else config


@kept
def descriptor(x: torch.Tensor, name: str, rows: int, cols: int) -> tuple[TensorDescriptor, bool]:
    """A descriptor of the matrix `x` in tiles of (rows, cols), and whether it describes `x.t()`; `name` is for errors.

    A descriptor wants the axis of stride 1 last, so a matrix whose first axis has stride 1, such as
    `nn.Linear.weight.t()`, is described transposed. Raises Unsupported where no descriptor exists.
    """
    if reason := undescribed(x, name):
        raise Unsupported(reason)
    transposed = x.stride(1) != 1
    shape, strides, block = list(x.shape), list(x.stride()), [rows, cols]
    if transposed:
        shape, strides, block = shape[::-1], strides[::-1], block[::-1]
    return TensorDescriptor(x, shape, strides, block), transposed


def undescribed(x: torch.Tensor, name: str) -> str | None:
    """Why no descriptor describes the matrix `x`; None: one does."""
    strides = tuple(x.stride())
    far, near = strides if strides[1] == 1 else strides[::-1]
    pitch = far * x.element_size()
    if near != 1:
        return f"{name}: strides {strides}; a tensor descriptor needs an axis of stride 1"
    if pitch == 0 or pitch % 16:
        return f"{name}: {pitch} bytes from row to row; a tensor descriptor needs a positive multiple of 16"
    if x.data_ptr() % 16:
        return f"{name}: starts {x.data_ptr() % 16} bytes off; a tensor descriptor needs 16-byte alignment"
    return None
