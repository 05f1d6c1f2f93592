"""Wrong kernels of attention: online softmax over tiles of 32 queries and 32 keys."""

import math

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import mutant


@triton.jit
def _load_tile(x, rows, row_stride, row_end, cols, col_stride, col_end):
    offsets = rows.to(tl.int64)[:, None] * row_stride + cols.to(tl.int64)[None, :] * col_stride
    return tl.load(x + offsets, mask=(rows[:, None] < row_end) & (cols[None, :] < col_end), other=0.0)


@triton.jit
def _flash_kernel(
    q,
    q_batch,
    q_head,
    q_row,
    q_col,
    k,
    k_batch,
    k_head,
    k_row,
    k_col,
    v,
    v_batch,
    v_head,
    v_row,
    v_col,
    o,
    lse,
    Hq,
    Hkv,
    Sq,
    Sk,
    D,
    scale,
    CAUSAL: tl.constexpr,
    FAULT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    tiles = tl.cdiv(Sq, BLOCK_M)
    pair = tl.program_id(0).to(tl.int64) // tiles
    batch, head, head_kv = pair // Hq, pair % Hq, pair % Hq // (Hq // Hkv)
    if FAULT == "heads":
        head_kv = head % Hkv
    q += batch * q_batch + head * q_head
    k += batch * k_batch + head_kv * k_head
    if FAULT == "strides of k":
        v += batch * k_batch + head_kv * k_head
    else:
        v += batch * v_batch + head_kv * v_head

    top = tl.program_id(0) % tiles * BLOCK_M
    i = top + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    q_tile = _load_tile(q, i, q_row, Sq, d, q_col, D)
    shift = Sk - Sq
    if FAULT == "top left":
        shift = 0
    first, last = 0, Sk
    if CAUSAL:
        last = tl.minimum(Sk, tl.maximum(top + BLOCK_M + Sk - Sq, 0))
        if FAULT == "border tile":
            last = tl.minimum(last, tl.maximum(top + Sk - Sq, 0) // BLOCK_N * BLOCK_N)
    if FAULT == "first key tile":
        first = tl.minimum(BLOCK_N, (tl.cdiv(Sk, BLOCK_N) - 1) * BLOCK_N)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(first, last, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        if FAULT == "int32":
            inside = (j[:, None] < Sk) & (d[None, :] < D)
            k_tile = tl.load(k + j[:, None] * k_row + d[None, :] * k_col, mask=inside, other=0.0)
        else:
            k_tile = _load_tile(k, j, k_row, Sk, d, k_col, D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale
        visible = (j[None, :] < Sk) & (i[:, None] >= 0)
        if FAULT == "key mask":
            visible = (j[None, :] >= 0) & (i[:, None] >= 0)
        if CAUSAL:
            if FAULT == "strict":
                visible &= j[None, :] < i[:, None] + shift
            elif FAULT != "causal":
                visible &= j[None, :] <= i[:, None] + shift
        s = tl.where(visible, s, float("-inf"))

        m_new = tl.maximum(m, tl.max(s, 1))
        base = tl.where(tl.abs(m_new) == float("inf"), 0.0, m_new)
        p = tl.exp(s - base[:, None])
        alpha = tl.exp(m - base)
        l = l * alpha + tl.sum(p, 1)
        m = m_new
        v_tile = _load_tile(v, j, v_row, Sk, d, v_col, D)
        if FAULT != "rescale":
            acc = acc * alpha[:, None]
        if FAULT == "fp16":
            acc = acc.to(tl.float16).to(tl.float32)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision="ieee")

    if FAULT != "empty row":
        l = tl.where(l == 0, 1.0, l)
    inside = (i[:, None] < Sq) & (d[None, :] < D)
    if FAULT == "query mask":
        inside = d[None, :] < D
    tl.store(o + (pair * Sq + i[:, None]) * D + d[None, :], (acc / l[:, None]).to(o.dtype.element_ty), mask=inside)
    tl.store(lse + pair * Sq + i, m + tl.log(l), mask=i < Sq)


def _flash(q, k, v, causal: bool, scale: float | None, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    B, Hq, Sq, D, Hkv, Sk = shapes("B Hq Sq D, B Hkv Sk D, B Hkv Sk D", q=q, k=k, v=v)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    block_d = max(triton.next_power_of_2(D), 16)
    if scale is None or fault == "scale argument":
        scale = 1 / math.sqrt(block_d if fault == "padded dim" else D)
    if o.numel():
        _flash_kernel[(B * Hq * triton.cdiv(Sq, 32),)](
            q,
            *q.stride(),
            k,
            *k.stride(),
            v,
            *v.stride(),
            o,
            lse,
            Hq,
            Hkv,
            Sq,
            Sk,
            D,
            scale,
            CAUSAL=causal,
            FAULT=fault,
            BLOCK_M=32,
            BLOCK_N=32,
            BLOCK_D=block_d,
        )
    return o, lse


@mutant("rescale")
def accumulator_not_rescaled(q, k, v, *, causal=False, scale=None):
    """the accumulator is not rescaled when the maximum grows"""
    return _flash(q, k, v, causal, scale, "rescale")


@mutant("causal")
def causal_top_left(q, k, v, *, causal=False, scale=None):
    """the causal mask is aligned top left"""
    return _flash(q, k, v, causal, scale, "top left")


@mutant("causal")
def causal_strict(q, k, v, *, causal=False, scale=None):
    """a query does not see its own key under the causal mask: `<` for `<=`"""
    return _flash(q, k, v, causal, scale, "strict")


@mutant("causal")
def causal_by_tile(q, k, v, *, causal=False, scale=None):
    """the causal mask works on tiles of keys and not inside them"""
    return _flash(q, k, v, causal, scale, "causal")


@mutant("causal")
def border_tile_skipped(q, k, v, *, causal=False, scale=None):
    """the key tile on the causal border is skipped as if it were hidden"""
    return _flash(q, k, v, causal, scale, "border tile")


@mutant("tail")
def first_key_tile_skipped(q, k, v, *, causal=False, scale=None):
    """the first of several key tiles is left out"""
    return _flash(q, k, v, causal, scale, "first key tile")


@mutant("mask")
def padded_keys_visible(q, k, v, *, causal=False, scale=None):
    """keys past the last one, loaded as 0, take part with a score of 0"""
    return _flash(q, k, v, causal, scale, "key mask")


@mutant("bounds")
def queries_unmasked(q, k, v, *, causal=False, scale=None):
    """the store does not mask queries: the last tile of a head writes into the next head and past the output"""
    return _flash(q, k, v, causal, scale, "query mask")


@mutant("heads")
def heads_interleaved(q, k, v, *, causal=False, scale=None):
    """query head h reads the keys of head h mod Hkv"""
    return _flash(q, k, v, causal, scale, "heads")


@mutant("strides")
def strides_of_k_for_v(q, k, v, *, causal=False, scale=None):
    """batch and head of v are found by the strides of k"""
    return _flash(q, k, v, causal, scale, "strides of k")


@mutant("scale")
def scale_of_padded_dim(q, k, v, *, causal=False, scale=None):
    """the default scale is that of the padded head dimension"""
    return _flash(q, k, v, causal, scale, "padded dim")


@mutant("parameter")
def scale_ignored(q, k, v, *, causal=False, scale=None):
    """the scale is 1/√D whatever the argument says"""
    return _flash(q, k, v, causal, scale, "scale argument")


@mutant("special")
def empty_row_nan(q, k, v, *, causal=False, scale=None):
    """a query that sees no key gives 0/0"""
    return _flash(q, k, v, causal, scale, "empty row")


@mutant("precision", dtypes=("float32",))
def accumulator_float16(q, k, v, *, causal=False, scale=None):
    """the accumulator passes through float16 between key tiles"""
    return _flash(q, k, v, causal, scale, "fp16")


@mutant("offset")
def offset_int32(q, k, v, *, causal=False, scale=None):
    """row times row stride of k is computed in 32 bits"""
    return _flash(q, k, v, causal, scale, "int32")
