"""Wrong kernels of matmul: tiles through shared memory, K cut between blocks, and a warp for an element."""

from functools import partial

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, mutant, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty

_SPLITS = 4

_module = Faulty(__file__, "matmul.cu")

KERNELS = {
    "tiled": Kernel("known-good", "tiles of 16 by 16 through shared memory"),
    "no_barrier_before_use": Kernel(
        "race",
        "no barrier between filling the tiles and using them: a thread reads what its neighbours have yet to write",
        "UninitialisedShared",
    ),
    "no_barrier_after_use": Kernel(
        "race", "no barrier after the tiles are used: the next ones overwrite what slower threads still read"
    ),
    "early_return": Kernel(
        "race", "threads outside c return before the barrier that the others wait at", "UninitialisedShared"
    ),
    "tile_row_overrun": Kernel(
        "bounds", "the loop over a tile takes one step too many, past the end of each of its rows", "OutOfBounds"
    ),
    "unfilled_tile": Kernel(
        "mask", "what of a tile lies outside the operands is left as it was instead of set to 0", "UninitialisedShared"
    ),
    "load_unguarded": Kernel(
        "bounds",
        "the loads do not ask whether k is inside: the last tile reads on past the row and past the last row",
        "OutOfBounds",
    ),
    "store_unguarded": Kernel(
        "bounds",
        "the store asks for the row only: a tile at the right edge writes into the next row, the last past the output",
        "OutOfBounds",
    ),
    "k_tail_dropped": Kernel("tail", "the number of steps over k is rounded down: a last, shorter tile is left out"),
    "grid_rounded_down": Kernel("tail", "the grid counts whole tiles of rows only: a last, shorter one is not written"),
    "offset_int": Kernel("offset", "row times row stride of a is a product of two ints, which wraps", "OutOfBounds"),
    "stride_of_a_for_b": Kernel(
        "strides", "the rows of b are stepped over by the row stride of a", "values: |OutOfBounds"
    ),
    "narrow_accumulator": Kernel(
        "precision", "the accumulator has the 16-bit type of the operands", dtypes=("float16", "bfloat16")
    ),
    "splitk": Kernel("known-good", "k is cut into four parts, which add to c atomically"),
    "splits_add_without_atomic": Kernel(
        "race", "the parts of k add to c by load and store without an atomic: updates get lost", "RaceCondition"
    ),
    "splits_overlap": Kernel("accumulator", "each part of k ends one element late, which the next part adds once more"),
    "splits_add_to_empty": Kernel("accumulator", "the parts of k add to memory that nothing has set to zero"),
    "lanes_left_out": Kernel(
        "race", "lanes that had no product skip the shuffles, whose mask names all 32", "InactiveLanes"
    ),
    "shuffle_width": Kernel("tail", "the shuffles have width 16: the products of the upper half of the warp are lost"),
    "absent_lanes_summed": Kernel(
        "mask", "the sum over shared memory takes in lanes that had no product and wrote nothing", "UninitialisedShared"
    ),
    "elements_along_y": Kernel(
        "shapes", "the elements of c are counted by gridDim.y, which ends at 65535", "ValueError"
    ),
}


def _tiled(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    if c.numel():
        down, across = -(-M // 16), -(-N // 16)
        if fault == "grid_rounded_down":
            down = max(M // 16, 1)
        strides = (*a.stride(), *b.stride())
        _module.launch("matmul_tiled", down * across, (16, 16), a, b, c, M, N, K, *strides, fault=fault, dtype=a.dtype)
    return c


plant_kernels(
    globals(),
    _tiled,
    KERNELS,
    "tiled",
    "no_barrier_before_use",
    "no_barrier_after_use",
    "early_return",
    "tile_row_overrun",
    "unfilled_tile",
    "load_unguarded",
    "store_unguarded",
    "k_tail_dropped",
    "grid_rounded_down",
    "offset_int",
    "stride_of_a_for_b",
    "narrow_accumulator",
)


def _splitk(a: torch.Tensor, b: torch.Tensor, fault: str = "none", kept: dict | None = None) -> torch.Tensor:
    M, K, N = shapes("M K, K N", a=a, b=b)
    allocate = torch.empty if fault == "splits_add_to_empty" else torch.zeros
    c = allocate((M, N), dtype=torch.float32, device=a.device)
    if kept is not None:
        c = kept.setdefault((M, N, a.device), c)
    if c.numel():
        grid = (-(-M // 16) * -(-N // 16), _SPLITS)
        strides = (*a.stride(), *b.stride())
        _module.launch("matmul_splitk", grid, (16, 16), a, b, c, M, N, K, *strides, fault=fault, dtype=a.dtype)
    return c.to(a.dtype, copy=True)


plant_kernels(
    globals(),
    _splitk,
    KERNELS,
    "splitk",
    "splits_add_without_atomic",
    "splits_overlap",
    "splits_add_to_empty",
    deterministic=False,
)


@mutant("cache", found="repeat", stateful=True, deterministic=False)
def sums_kept():
    """the float32 sums are kept between calls, and only the first call finds them zero"""
    kept: dict = {}
    return partial(_splitk, kept=kept)


def _dot(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    if c.numel():
        grid = (1, M * N) if fault == "elements_along_y" else (M * N, 1)
        strides = (*a.stride(), *b.stride())
        _module.launch("matmul_dot", grid, 32, a, b, c, M, N, K, *strides, fault=fault, dtype=a.dtype)
    return c


plant_kernels(globals(), _dot, KERNELS, "lanes_left_out", "shuffle_width", "absent_lanes_summed", "elements_along_y")
