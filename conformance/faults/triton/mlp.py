"""Wrong kernels of mlp: `_linear_kernel` with bias and activation in its epilogue, launched twice."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures._activations import check_activation
from touchstone.backends.triton.lib.activations import activate
from touchstone.conformance.faults import Kernel, plant_kernels


@triton.jit
def _linear_kernel(
    a_ptr,
    b_ptr,
    bias_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_bias,
    ACTIVATION: tl.constexpr,
    FAULT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    a_rows = a_ptr + m[:, None] * stride_am
    b_cols = b_ptr + n[None, :] * stride_bn
    bias = tl.zeros((BLOCK_N,), tl.float32)
    if bias_ptr is not None:
        offset = n * stride_bias
        if FAULT == "bias_stride_ignored":
            offset = n
        elif FAULT == "bias_of_the_first_tile":
            offset = (n - tl.program_id(1) * BLOCK_N) * stride_bias
        bias = tl.load(bias_ptr + offset, mask=n < N, other=0.0).to(tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        a = tl.load(a_rows + k[None, :] * stride_ak, mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        b = tl.load(b_cols + k[:, None] * stride_bk, mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        if FAULT == "bias_in_every_step":
            acc += bias[None, :]
        if FAULT == "default_precision":
            acc = tl.dot(a, b, acc)
        else:
            acc = tl.dot(a, b, acc, input_precision="ieee")
    if ACTIVATION is not None and FAULT == "activation_before_bias":
        acc = activate(acc, ACTIVATION)
    if FAULT != "bias_in_every_step":
        acc += bias[None, :]
    if ACTIVATION is not None and FAULT != "activation_before_bias":
        acc = activate(acc, ACTIVATION)
    c = acc.to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + m[:, None] * N + n[None, :], c, mask=(m[:, None] < M) & (n[None, :] < N))


def _linear(a, b, bias, activation: str | None, fault: str) -> torch.Tensor:
    (M, K), N = a.shape, b.shape[1]
    c = a.new_empty(M, N)
    if c.numel():
        programs_n = N // 32 if fault == "grid_of_whole_tiles" and N > 32 else triton.cdiv(N, 32)
        _linear_kernel[(triton.cdiv(M, 32), programs_n)](
            a,
            b,
            bias,
            c,
            M,
            N,
            K,
            *a.stride(),
            *b.stride(),
            0 if bias is None else bias.stride(0),
            ACTIVATION=activation,
            FAULT=fault,
            BLOCK_M=32,
            BLOCK_N=32,
            BLOCK_K=32,
        )
    return c


KERNELS = {
    "bias_in_every_step": Kernel("accumulator", "the biases are added once for every tile of k"),
    "activation_before_bias": Kernel("formula", "b1 is added after the activation"),
    "always_gelu": Kernel("parameter", "the activation is gelu whatever the argument says"),
    "bias_stride_ignored": Kernel("strides", "the strides of b1 and b2 are taken to be 1", "OutOfBounds"),
    "bias_of_the_first_tile": Kernel("weights", "every tile of columns takes the biases of the first"),
    "default_precision": Kernel(
        "precision",
        "tl.dot is left at its default precision, which rounds float32 operands to tf32",
        dtypes=("float32",),
    ),
    "grid_of_whole_tiles": Kernel(
        "tail", "the grid counts whole tiles of columns only: a last, narrower one is not written"
    ),
}


def _epilogue(x, w1, b1, w2, b2, *, activation: str = "gelu", fault: str = "none") -> torch.Tensor:
    shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    check_activation(activation)
    hidden = _linear(x, w1, b1, "gelu" if fault == "always_gelu" else activation, fault)
    return _linear(hidden, w2, b2, None, fault)


plant_kernels(
    globals(),
    _epilogue,
    KERNELS,
    "bias_in_every_step",
    "activation_before_bias",
    "always_gelu",
    "bias_stride_ignored",
    "bias_of_the_first_tile",
    "default_precision",
    "grid_of_whole_tiles",
)
