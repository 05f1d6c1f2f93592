"""Wrong kernels of matmul: tiles through shared memory, K cut between blocks, and a warp for an element."""

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults.cupy._module import Faulty

_SIXTEEN = ("float16", "bfloat16")
_SPLITS = 4

_module = Faulty(__file__, "matmul.cu")


def _tiled(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    if c.numel():
        down, across = -(-M // 16), -(-N // 16)
        if fault == "grid":
            down = max(M // 16, 1)
        strides = (*a.stride(), *b.stride())
        _module.launch("matmul_tiled", down * across, (16, 16), a, b, c, M, N, K, *strides, fault=fault, dtype=a.dtype)
    return c


@known_good
def tiled(a, b):
    """tiles of 16 by 16 through shared memory"""
    return _tiled(a, b)


@mutant("race")
def no_barrier_before_use(a, b):
    """no barrier between filling the tiles and using them: a thread reads what its neighbours have yet to write"""
    return _tiled(a, b, "no_barrier_before_use")


@mutant("race")
def no_barrier_after_use(a, b):
    """no barrier after the tiles are used: the next ones overwrite what slower threads still read"""
    return _tiled(a, b, "no_barrier_after_use")


@mutant("race")
def barrier_in_branches(a, b):
    """the barrier stands in both branches of an if: threads of a block wait at different ones"""
    return _tiled(a, b, "barrier_in_branches")


@mutant("race")
def early_return(a, b):
    """threads outside c return before the barrier that the others wait at"""
    return _tiled(a, b, "early_return")


@mutant("bounds")
def tile_row_overrun(a, b):
    """the loop over a tile takes one step too many, past the end of each of its rows"""
    return _tiled(a, b, "tile_row_overrun")


@mutant("mask")
def unfilled_tile(a, b):
    """what of a tile lies outside the operands is left as it was instead of set to 0"""
    return _tiled(a, b, "unfilled_tile")


@mutant("bounds")
def load_unguarded(a, b):
    """the loads do not ask whether k is inside: the last tile reads on past the row and past the last row"""
    return _tiled(a, b, "load_guard")


@mutant("bounds")
def store_unguarded(a, b):
    """the store asks for the row only: a tile at the right edge writes into the next row, the last past the output"""
    return _tiled(a, b, "store_guard")


@mutant("tail")
def k_tail_dropped(a, b):
    """the number of steps over k is rounded down: a last, shorter tile is left out"""
    return _tiled(a, b, "k_tail")


@mutant("tail")
def grid_rounded_down(a, b):
    """the grid counts whole tiles of rows only: a last, shorter one is not written"""
    return _tiled(a, b, "grid")


@mutant("offset")
def offset_int(a, b):
    """row times row stride of a is a product of two ints, which wraps"""
    return _tiled(a, b, "int_offset")


@mutant("strides")
def stride_of_a_for_b(a, b):
    """the rows of b are stepped over by the row stride of a"""
    return _tiled(a, b, "stride_of_a_for_b")


@mutant("precision", dtypes=_SIXTEEN)
def narrow_accumulator(a, b):
    """the accumulator has the 16-bit type of the operands"""
    return _tiled(a, b, "narrow_sum")


def _splitk(a: torch.Tensor, b: torch.Tensor, fault: str = "none", kept: dict | None = None) -> torch.Tensor:
    M, K, N = shapes("M K, K N", a=a, b=b)
    allocate = torch.empty if fault == "empty" else torch.zeros
    c = allocate((M, N), dtype=torch.float32, device=a.device)
    if kept is not None:
        c = kept.setdefault((M, N, a.device), c)
    if c.numel():
        grid = (-(-M // 16) * -(-N // 16), _SPLITS)
        strides = (*a.stride(), *b.stride())
        _module.launch("matmul_splitk", grid, (16, 16), a, b, c, M, N, K, *strides, fault=fault, dtype=a.dtype)
    return c.to(a.dtype, copy=True)


@known_good(deterministic=False)
def splitk(a, b):
    """k is cut into four parts, which add to c atomically"""
    return _splitk(a, b)


@mutant("race", deterministic=False)
def splits_add_without_atomic(a, b):
    """the parts of k add to c by load and store without an atomic: updates get lost"""
    return _splitk(a, b, "plain_add")


@mutant("accumulator", deterministic=False)
def splits_overlap(a, b):
    """each part of k ends one element late, which the next part adds once more"""
    return _splitk(a, b, "overlapping_splits")


@mutant("accumulator", deterministic=False)
def splits_add_to_empty(a, b):
    """the parts of k add to memory that nothing has set to zero"""
    return _splitk(a, b, "empty")


@mutant("cache", stateful=True, deterministic=False)
def sums_kept():
    """the float32 sums are kept between calls, and only the first call finds them zero"""
    kept: dict = {}
    return lambda a, b: _splitk(a, b, kept=kept)


def _dot(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    if c.numel():
        grid = (1, M * N) if fault == "grid" else (M * N, 1)
        strides = (*a.stride(), *b.stride())
        _module.launch("matmul_dot", grid, 32, a, b, c, M, N, K, *strides, fault=fault, dtype=a.dtype)
    return c


@mutant("race")
def lanes_left_out(a, b):
    """lanes that had no product skip the shuffles, whose mask names all 32"""
    return _dot(a, b, "lanes_left_out")


@mutant("tail")
def shuffle_width(a, b):
    """the shuffles have width 16: the products of the upper half of the warp are lost"""
    return _dot(a, b, "shuffle_width")


@mutant("mask")
def absent_lanes_summed(a, b):
    """the sum over shared memory takes in lanes that had no product and wrote nothing"""
    return _dot(a, b, "scratch_width")


@mutant("shapes")
def elements_along_y(a, b):
    """the elements of c are counted by gridDim.y, which ends at 65535"""
    return _dot(a, b, "grid")
