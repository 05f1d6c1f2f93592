"""A tile of queries of one sequence among others, for every variant."""

import triton
import triton.language as tl

from touchstone.backends.triton.attention._launch import load_tile

PLAIN = ["B", "Tq", "Tk", "Hq", "Hkv", "tiles", "most"]  # whose value or alignment would not improve the code


@triton.jit
def sequence_at(cu_q_ptr, cu_k_ptr, cu_strides, b, B, Tq):
    """First row and length of sequence b in q, and in k and v. Sequence B is the rows of q that belong to none: it has
    no keys."""
    first_q, first_k = tl.load(cu_q_ptr + b * cu_strides[0]), tl.load(cu_k_ptr + b * cu_strides[1])
    end_q = tl.load(cu_q_ptr + (b + 1) * cu_strides[0], mask=b < B, other=0)
    end_k = tl.load(cu_k_ptr + (b + 1) * cu_strides[1], mask=b < B, other=0)
    seq_q = tl.where(b < B, end_q, Tq) - first_q
    return first_q.to(tl.int64), seq_q, first_k.to(tl.int64), tl.where(b < B, end_k - first_k, 0)


@triton.jit
def attend(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, first_q, seq_q, first_k, seq_k, top, h, scale,
    Tq, Hq, Hkv, D, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """o and lse of the queries from `top` on of one sequence and head."""
    q_ptr += first_q * q_strides[0] + h * q_strides[1]
    k_ptr += first_k * k_strides[0] + h // (Hq // Hkv) * k_strides[1]
    v_ptr += first_k * v_strides[0] + h // (Hq // Hkv) * v_strides[1]
    i, d = top + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    last = seq_k
    if CAUSAL:
        last = tl.minimum(seq_k, tl.maximum(top + BLOCK_M + seq_k - seq_q, 0))
    q_tile = load_tile(q_ptr, i, q_strides[0], seq_q, d, q_strides[2], D)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, last, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        k_tile = load_tile(k_ptr, j, k_strides[0], seq_k, d, k_strides[2], D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale
        visible = j[None, :] < seq_k
        if CAUSAL:
            visible &= j[None, :] <= i[:, None] + seq_k - seq_q
        s = tl.where(visible, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        base = tl.where(tl.abs(m_new) == float("inf"), 0.0, m_new)  # inf - inf is NaN: leave such rows unshifted
        p = tl.exp(s - base[:, None])
        alpha = tl.exp(m - base)
        l = l * alpha + tl.sum(p, 1)
        m = m_new
        v_tile = load_tile(v_ptr, j, v_strides[0], seq_k, d, v_strides[2], D)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision="ieee")

    l = tl.where(l == 0, 1.0, l)  # a row that sees nothing: zeros and m = -inf
    row = first_q + i
    o = (acc / l[:, None]).to(o_ptr.dtype.element_ty)
    inside = (i[:, None] < seq_q) & (d[None, :] < D)
    tl.store(o_ptr + (row[:, None] * Hq + h) * D + d[None, :], o, mask=inside)
    tl.store(lse_ptr + h * Tq + row, m + tl.log(l), mask=i < seq_q)
