"""What rope and its backward share: kernels with the sign of sin as `turn`. Without positions any integers will do."""

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends.numba.lib.pointwise import LANES
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.lib.vector_io import lanes_of, load16, load_vector, pack, store16, unpacked
from touchstone.backends.numba.lib.vector_rows import are_rows_aligned
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.rope import checked_sizes, empty_outputs

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]


@cuda.jit
def _elements(x, y, cos, sin, positions, are_given, interleaved, turn):
    index, dims, tokens = uint64(cuda.grid(1)), uint64(x.shape[3]), uint64(x.shape[2])
    if index >= uint64(y.size):
        return
    d, t, bh = index % dims, index // dims % tokens, index // dims // tokens
    b, h, half = bh // uint64(x.shape[1]), bh % uint64(x.shape[1]), uint64(cos.shape[1])
    if d >= uint64(2) * half:
        y[b, h, t, d] = x[b, h, t, d]
        return
    if interleaved:
        pair, is_first, partner = d // uint64(2), d % uint64(2) == uint64(0), d ^ uint64(1)
    else:
        pair, is_first = d % half, d < half
        partner = d + half if is_first else d - half
    row = uint64(positions[b, t]) if are_given else t
    s = turn * float32(sin[row, pair])
    other = float32(x[b, h, t, partner]) * (-s if is_first else s)
    y[b, h, t, d] = float32(x[b, h, t, d]) * float32(cos[row, pair]) + other


def by_elements(operands: Operands, interleaved: bool, turn: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A thread an element, a launch each for q and k."""
    q, k, *tables = operands
    checked_sizes(*operands)
    outputs = empty_outputs(q, k)
    for x, y in zip((q, k), outputs, strict=True):
        if y.numel():
            arguments = (*_given(*tables), bool(interleaved), np.float32(turn))
            launch(_elements, checked_grid(-(-y.numel() // 256)), 256, x, y, *arguments)
    return outputs


@cuda.jit(device=True)
def _unit(x, y, b, h, t, unit, c, s, half, interleaved):
    """A pair of a head's dimensions, or one that belongs to none."""
    if unit >= half:
        y[b, h, t, unit + half] = x[b, h, t, unit + half]
        return
    first = uint64(2) * unit if interleaved else unit
    second = first + (uint64(1) if interleaved else half)
    one, other = float32(x[b, h, t, first]), float32(x[b, h, t, second])
    y[b, h, t, first] = one * c - other * s
    y[b, h, t, second] = other * c + one * s


@cuda.jit
def _pairs(q, k, q_out, k_out, cos, sin, positions, are_given, interleaved, turn):
    index, half, tokens = uint64(cuda.grid(1)), uint64(cos.shape[1]), uint64(q.shape[2])
    units, q_heads = uint64(q.shape[3]) - half, uint64(q.shape[1])
    unit, t, bh = index % units, index // units % tokens, index // units // tokens
    heads = q_heads + uint64(k.shape[1])
    b, h = bh // heads, bh % heads
    if b >= uint64(q.shape[0]):
        return
    c, s = float32(1), float32(0)
    if unit < half:
        row = uint64(positions[b, t]) if are_given else t
        c, s = float32(cos[row, unit]), turn * float32(sin[row, unit])
    if h < q_heads:
        _unit(q, q_out, b, h, t, unit, c, s, half, interleaved)
    else:
        _unit(k, k_out, b, h - q_heads, t, unit, c, s, half, interleaved)


def by_pairs(
    operands: Operands, interleaved: bool, turn: int, names: tuple[str, str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """A thread a pair; the heads of q, then those of k."""
    q, k, *tables = operands
    B, Hq, Hkv, S, D, half = checked_sizes(*operands, names=names)
    outputs = empty_outputs(q, k)
    if count := B * (Hq + Hkv) * S * (D - half):
        arguments = (*_given(*tables), bool(interleaved), np.float32(turn))
        launch(_pairs, checked_grid(-(-count // 256)), 256, q, k, *outputs, *arguments)
    return outputs


@cuda.jit(device=True)
def _table(table, row, pair, like, values, wide):
    """As many neighbours of a row as 16 bytes of `like` have; the elements of a table are of that type or float32."""
    words = cuda.local.array(LANES, uint32)
    for part in range(lanes_of(like) // lanes_of(table)):
        load_vector(table, (row, pair + uint64(part * lanes_of(table))), words, 4 * part, wide)
    for i in range(lanes_of(like)):
        values[i] = unpacked(words, i, table)


@cuda.jit(device=True)
def _vectors(x, y, b, h, t, unit, half, c, s, interleaved):
    """16 bytes of both sides of as many pairs, or of dimensions that belong to none."""
    words, one, other = cuda.local.array(8, uint32), cuda.local.array(LANES, float32), cuda.local.array(LANES, float32)
    lanes = uint64(lanes_of(x))
    if unit >= half:
        load16(x, (b, h, t, unit + half), words, 0)
        store16(words, 0, y, (b, h, t, unit + half))
        return
    first = uint64(2) * unit if interleaved else unit
    second = first + (lanes if interleaved else half)
    load16(x, (b, h, t, first), words, 0)
    load16(x, (b, h, t, second), words, 4)
    if interleaved:  # the pairs are neighbours: half of them in one vector, half in the other
        for i in range(lanes_of(x) // 2):
            for side in range(2):
                at, pair = side * lanes_of(x) + 2 * i, side * (lanes_of(x) // 2) + i
                left, right = unpacked(words, at, x), unpacked(words, at + 1, x)
                if side == 0:
                    one[2 * i], one[2 * i + 1] = left * c[pair] - right * s[pair], right * c[pair] + left * s[pair]
                else:
                    other[2 * i], other[2 * i + 1] = left * c[pair] - right * s[pair], right * c[pair] + left * s[pair]
    else:
        for i in range(lanes_of(x)):
            left, right = unpacked(words, i, x), unpacked(words, lanes_of(x) + i, x)
            one[i], other[i] = left * c[i] - right * s[i], right * c[i] + left * s[i]
    pack(one, words, 0, y)
    pack(other, words, 4, y)
    store16(words, 0, y, (b, h, t, first))
    store16(words, 4, y, (b, h, t, second))


@cuda.jit
def _vectorised(q, k, q_out, k_out, cos, sin, positions, are_given, interleaved, turn, wide):
    c, s = cuda.local.array(LANES, float32), cuda.local.array(LANES, float32)
    index, half, tokens = uint64(cuda.grid(1)), uint64(cos.shape[1]), uint64(q.shape[2])
    lanes, q_heads = uint64(lanes_of(q)), uint64(q.shape[1])
    units = (uint64(q.shape[3]) - half) // lanes
    unit, t, bh = index % units * lanes, index // units % tokens, index // units // tokens
    heads = q_heads + uint64(k.shape[1])
    b, h = bh // heads, bh % heads
    if b >= uint64(q.shape[0]):
        return
    if unit < half:
        row = uint64(positions[b, t]) if are_given else t
        _table(cos, row, unit, q, c, wide)
        _table(sin, row, unit, q, s, wide)
        for i in range(lanes_of(q)):
            s[i] *= turn
    if h < q_heads:
        _vectors(q, q_out, b, h, t, unit, half, c, s, interleaved)
    else:
        _vectors(k, k_out, b, h - q_heads, t, unit, half, c, s, interleaved)


def by_vectors(
    operands: Operands, interleaved: bool, turn: int, names: tuple[str, str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """A thread 16 bytes of both sides of as many pairs, where all rows are whole vectors; else a pair."""
    q, k, *tables = operands
    B, Hq, Hkv, S, D, half = checked_sizes(*operands, names=names)
    lanes = 16 // q.element_size()
    if half % lanes or not all(are_rows_aligned(x) for x in (q, k) if x.numel()):
        return by_pairs(operands, interleaved, turn, names)
    outputs = empty_outputs(q, k)
    if count := B * (Hq + Hkv) * S * ((D - half) // lanes):
        arguments = (*_given(*tables), bool(interleaved), np.float32(turn), all(map(are_rows_aligned, tables[:2])))
        launch(_vectorised, checked_grid(-(-count // 256)), 256, q, k, *outputs, *arguments)
    return outputs


def _given(cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None) -> tuple[object, ...]:
    """cos, sin, positions and whether there are any."""
    return cos, sin, cos if positions is None else positions, positions is not None
