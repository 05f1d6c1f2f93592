"""attention(q, k, v): o = softmax(scale·q·kᵀ)·v and lse = ln Σ exp(scale·q·kᵀ), causal or not, heads grouped or not.

naive: scores, softmax and product with v in three launches around a float32 score matrix in memory [vaswani2017]
fullrow: one launch; a block keeps four queries' rows of scores in shared memory, which bounds Sk [pearbiossom2026]
flash: online softmax over tiles of k and v, a 4 x 4 tile of scores a thread; hidden tiles are skipped [dao2023flash2]
tensorcore: flash on mma.m16n8k16; scores and o in registers, cp.async, border tiles alone masked, exp2 [dao2023flash2]
wgmma: a warpgroup has keys and values brought, two multiply them and form scores while values are used [shah2024]
packgqa: for few queries over many keys: the query heads of a key head are the rows of one mma.m16n8k16, keys are cut
  between blocks [yeetal2025]
"""

import math

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.lib.attention import check_copyable, heads_together, padded_dimension, sweep_of
from touchstone.backends.cupy.lib.norms import resident
from touchstone.backends.cupy.lib.packed_groups import plan
from touchstone.backends.cupy.lib.rows import blocks
from touchstone.backends.cupy.runtime.hopper import TensorMap
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import checked_sizes, empty_outputs, scale_or_default
from touchstone.backends.signatures.attention_decode import empty_parts
from touchstone.backends.sizes import ceil_div
from touchstone.backends.variants import HALF, variant

_naive = Module(__file__, "naive.cu")
_fullrow = Module(__file__, "fullrow.cu")
_flash = Module(__file__, "flash.cu")
_tensorcore = Module(__file__, "tensorcore.cu")
_wgmma = Module(__file__, "wgmma.cu")
_packgqa = Module(__file__, "packgqa.cu")

# fullrow: queries of a block, and the floats that a block has anywhere without asking for more
_QUERIES = 4
_HELD = 48 * 1024 // 4 - 64


@variant()
def naive(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq); 4·B·Hq·Sq·Sk bytes [vaswani2017]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    s = torch.empty((B, Hq, Sq, Sk), dtype=torch.float32, device=q.device)
    sizes = (Hq, Hkv, Sq, Sk, D)
    if Sk:
        operands = (q, *q.stride(), k, *k.stride(), s, s.numel(), *sizes, scale_or_default(scale, D), causal)
        _naive.launch("attention_scores", ceil_div(s.numel(), 128), 128, *operands, dtype=q.dtype)
    rows = lse.numel()
    _naive.launch("attention_softmax", ceil_div(rows, 32), 32, s, lse, rows, Sk, dtype=q.dtype)
    operands = (s, v, *v.stride(), o, o.numel(), *sizes)
    _naive.launch("attention_values", ceil_div(o.numel(), 128), 128, *operands, dtype=q.dtype)
    return o, lse


@variant()
def fullrow(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq).

    Declines more keys than fit on chip: 3056 - D. Source: [pearbiossom2026].
    """
    B, Hq, Sq, D, _, Sk = checked_sizes(q, k, v)
    o, lse = empty_outputs(q)
    held = _HELD // _QUERIES - D
    if Sk > held:
        raise Unsupported(f"{Sk} keys of dimension {D}; one block holds the scores of {held}")
    if o.numel():
        operands = _operands(q, k, v, o, lse, scale_or_default(scale, D), causal)
        grid, shared = B * Hq * ceil_div(Sq, _QUERIES), 4 * _QUERIES * (D + Sk)
        _fullrow.launch(
            "attention_fullrow", grid, 32 * _QUERIES, *operands, dtype=q.dtype, shared=shared, QUERIES=_QUERIES
        )
    return o, lse


@variant()
def flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq). Source: [dao2023flash2]."""
    B, Hq, Sq, D, _, _ = checked_sizes(q, k, v)
    o, lse = empty_outputs(q)
    if o.numel():
        operands = _operands(q, k, v, o, lse, scale_or_default(scale, D), causal)
        block_d = padded_dimension(D)
        grid, shared = B * Hq * ceil_div(Sq, 64), 4 * ((64 + 32) * (block_d + 4) + 64 * 33)
        _flash.launch("attention_flash", grid, 128, *operands, dtype=q.dtype, shared=shared, BLOCK_D=block_d)
    return o, lse


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq).

    Declines float32. Source: [dao2023flash2].
    """
    B, Hq, Sq, D, _, _ = checked_sizes(q, k, v)
    tiles = sweep_of(q, k, v)
    o, lse = empty_outputs(q)
    if o.numel():
        operands = _operands(q, k, v, o, lse, scale_or_default(scale, D) * math.log2(math.e), causal)
        grid, about = B * Hq * ceil_div(Sq, tiles.queries), {"dtype": q.dtype, "shared": tiles.shared}
        _tensorcore.launch("attention_tensorcore", grid, tiles.threads, *operands, **about, **tiles.definitions)
    return o, lse


@variant(needs="sm_90a", dtypes=HALF)
def wgmma(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq).

    Declines float32, D above 128, a negative scale, and operands that the copy engine does not take (the last axis not
    of stride 1, another's not a multiple of 16 bytes, a start that is not 16-byte aligned). Source: [shah2024].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    if q.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies float16 and bfloat16")
    if D > 128:
        raise Unsupported(f"head dimension {D}; the registers of a warpgroup hold 128")
    if scale_or_default(scale, D) < 0:
        raise Unsupported(f"scale {scale}; the maximum of a row is taken before the scale, which may not be negative")
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    if Sk == 0:
        return o.zero_(), lse.fill_(-math.inf)
    check_copyable(q=q, k=k, v=v)
    block_d = padded_dimension(D)
    groups, keys, each = _shares(q, Sk, block_d, causal)
    stages = max(groups, 2)  # a third stage is worth 1 % to three warpgroups, none to fewer
    o_map = TensorMap(o.view(B * Hq, Sq, D), (1, 16, 64)) if D % 8 == 0 else TensorMap(q, (1, 1, 64, 64))  # not used
    rows, width = 64 * groups, block_d * q.element_size()
    tiles = ceil_div(Sq, rows)  # of a head
    blocks, together = min(B * Hq * tiles, resident(q, each)), 1
    if causal:
        seen = range(tiles * rows + Sk - Sq, Sk - Sq, -rows)
        together = heads_together(blocks, B * Hq, seen, Sk, keys, 1.06 if D > 64 else 1.02)
    _wgmma.launch(
        "attention_wgmma",
        blocks,
        128 * groups + (128 if each == 1 else 32),
        *(TensorMap(x, (1, 1, tokens, 64)) for x, tokens in ((q, 64), (k, keys), (v, keys))),
        o_map,
        o,
        lse,
        *(B * Hq * tiles, together, Hq, Hkv, Sq, Sk, D),
        scale_or_default(scale, D) * math.log2(math.e),
        causal,
        dtype=q.dtype,
        shared=2 * (rows + keys * stages) * width + (2 + 4 * stages) * 8,
        arch="sm_90a",
        BLOCK_D=block_d,
        STAGES=stages,
        GROUPS=groups,
        KEYS=keys,
        BLOCKS=each,
    )
    return o, lse


def _shares(q: torch.Tensor, Sk: int, block_d: int, causal: bool) -> tuple[int, int, int]:
    """How many warpgroups share a block's keys, 64 queries each, the keys of a tile, and the blocks that share a
    multiprocessor.

    Up to D 64 the registers are enough for three warpgroups, which take four thirds of the time of two blocks of one.
    Of few keys a block spends as much on the first and the last as on all others, which a third block fills: three
    take seven fifths of the time of two.
    """
    pairs, Sq = q.shape[0] * q.shape[1], q.shape[2]
    if block_d > 64:
        return 2, 128, 1

    def rounds(queries: int, each: int) -> int:
        return ceil_div(pairs * ceil_div(Sq, queries), resident(q, each))

    if Sk <= (1536 if causal else 640):
        return (1, 64, 3) if 7 * rounds(64, 3) <= 5 * rounds(64, 2) else (1, 128, 2)
    return (3, 128, 1) if 4 * rounds(192, 1) <= 3 * rounds(64, 2) else (1, 128, 2)


@variant(needs="sm_80", dtypes=HALF)
def packgqa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq).

    Declines float32. Source: [yeetal2025].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    o, lse = empty_outputs(q)
    if o.numel():
        planned = plan(q, k, v, Hkv, Sk, alike=True)
        parts = empty_parts(q, planned.splits)
        factor = scale_or_default(scale, D) * math.log2(math.e)
        ahead = Sk - Sq if causal else Sk  # query i sees the keys up to i + ahead
        sizes = (Hkv, Hq // Hkv, Sq, Sk, planned.keys, D, ahead)
        operands = (q, k, v, *parts, *q.stride(), *k.stride(), *v.stride(), factor, *sizes)
        _packgqa.launch("attention_packgqa", planned.grid, 128, *operands, **planned.options)
        merged, options = (*parts, o, lse, planned.splits, D), {**planned.options, "shared": 0}
        _packgqa.launch("attention_merge", blocks(B * Hq * Sq), 32, *merged, **options)
    return o, lse


def _operands(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, factor: float, causal: bool
) -> tuple[torch.Tensor | float, ...]:
    """The arguments of a kernel that reads q, k and v by their strides; `factor` is that of the scores."""
    sizes = (q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3])
    return q, *q.stride(), k, *k.stride(), v, *v.stride(), o, lse, *sizes, factor, causal
