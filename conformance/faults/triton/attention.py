"""Wrong kernels of attention: online softmax over tiles of 32 queries and 32 keys."""

import math

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels


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
    if FAULT == "heads_interleaved":
        head_kv = head % Hkv
    q += batch * q_batch + head * q_head
    k += batch * k_batch + head_kv * k_head
    if FAULT == "strides_of_k_for_v":
        v += batch * k_batch + head_kv * k_head
    else:
        v += batch * v_batch + head_kv * v_head

    top = tl.program_id(0) % tiles * BLOCK_M
    i = top + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    q_tile = _load_tile(q, i, q_row, Sq, d, q_col, D)
    shift = Sk - Sq
    if FAULT == "causal_top_left":
        shift = 0
    first, last = 0, Sk
    if CAUSAL:
        last = tl.minimum(Sk, tl.maximum(top + BLOCK_M + Sk - Sq, 0))
        if FAULT == "border_tile_skipped":
            last = tl.minimum(last, tl.maximum(top + Sk - Sq, 0) // BLOCK_N * BLOCK_N)
    if FAULT == "first_key_tile_skipped":
        first = tl.minimum(BLOCK_N, (tl.cdiv(Sk, BLOCK_N) - 1) * BLOCK_N)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(first, last, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        if FAULT == "offset_int32":
            inside = (j[:, None] < Sk) & (d[None, :] < D)
            k_tile = tl.load(k + j[:, None] * k_row + d[None, :] * k_col, mask=inside, other=0.0)
        else:
            k_tile = _load_tile(k, j, k_row, Sk, d, k_col, D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale
        visible = (j[None, :] < Sk) & (i[:, None] >= 0)
        if FAULT == "padded_keys_visible":
            visible = (j[None, :] >= 0) & (i[:, None] >= 0)
        if CAUSAL:
            if FAULT == "causal_strict":
                visible &= j[None, :] < i[:, None] + shift
            elif FAULT != "causal_by_tile":
                visible &= j[None, :] <= i[:, None] + shift
        s = tl.where(visible, s, float("-inf"))

        m_new = tl.maximum(m, tl.max(s, 1))
        base = tl.where(tl.abs(m_new) == float("inf"), 0.0, m_new)
        p = tl.exp(s - base[:, None])
        alpha = tl.exp(m - base)
        l = l * alpha + tl.sum(p, 1)
        m = m_new
        v_tile = _load_tile(v, j, v_row, Sk, d, v_col, D)
        if FAULT != "accumulator_not_rescaled":
            acc = acc * alpha[:, None]
        if FAULT == "accumulator_float16":
            acc = acc.to(tl.float16).to(tl.float32)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision="ieee")

    if FAULT != "empty_row_nan":
        l = tl.where(l == 0, 1.0, l)
    inside = (i[:, None] < Sq) & (d[None, :] < D)
    if FAULT == "queries_unmasked":
        inside = d[None, :] < D
    tl.store(o + (pair * Sq + i[:, None]) * D + d[None, :], (acc / l[:, None]).to(o.dtype.element_ty), mask=inside)
    tl.store(lse + pair * Sq + i, m + tl.log(l), mask=i < Sq)


KERNELS = {
    "accumulator_not_rescaled": Kernel("rescale", "the accumulator is not rescaled when the maximum grows"),
    "causal_top_left": Kernel("causal", "the causal mask is aligned top left"),
    "causal_strict": Kernel("causal", "a query does not see its own key under the causal mask: `<` for `<=`"),
    "causal_by_tile": Kernel("causal", "the causal mask works on tiles of keys and not inside them"),
    "border_tile_skipped": Kernel("causal", "the key tile on the causal border is skipped as if it were hidden"),
    "first_key_tile_skipped": Kernel("tail", "the first of several key tiles is left out"),
    "padded_keys_visible": Kernel("mask", "keys past the last one, loaded as 0, take part with a score of 0"),
    "queries_unmasked": Kernel(
        "bounds",
        "the store does not mask queries: the last tile of a head writes into the next head and past the output",
        "OutOfBounds",
    ),
    "heads_interleaved": Kernel("heads", "query head h reads the keys of head h mod Hkv"),
    "strides_of_k_for_v": Kernel("strides", "batch and head of v are found by the strides of k"),
    "scale_of_padded_dim": Kernel("scale", "the default scale is that of the padded head dimension"),
    "scale_ignored": Kernel("parameter", "the scale is 1/√D whatever the argument says"),
    "empty_row_nan": Kernel("special", "a query that sees no key gives 0/0"),
    "accumulator_float16": Kernel(
        "precision", "the accumulator passes through float16 between key tiles", dtypes=("float32",)
    ),
    "offset_int32": Kernel("offset", "row times row stride of k is computed in 32 bits", "IntegerOverflowError"),
}


def _flash(
    q, k, v, *, causal: bool = False, scale: float | None = None, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    B, Hq, Sq, D, Hkv, Sk = shapes("B Hq Sq D, B Hkv Sk D, B Hkv Sk D", q=q, k=k, v=v)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    block_d = max(triton.next_power_of_2(D), 16)
    if scale is None or fault == "scale_ignored":
        scale = 1 / math.sqrt(block_d if fault == "scale_of_padded_dim" else D)
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


plant_kernels(
    globals(),
    _flash,
    KERNELS,
    "accumulator_not_rescaled",
    "causal_top_left",
    "causal_strict",
    "causal_by_tile",
    "border_tile_skipped",
    "first_key_tile_skipped",
    "padded_keys_visible",
    "queries_unmasked",
    "heads_interleaved",
    "strides_of_k_for_v",
    "scale_of_padded_dim",
    "scale_ignored",
    "empty_row_nan",
    "accumulator_float16",
    "offset_int32",
)
