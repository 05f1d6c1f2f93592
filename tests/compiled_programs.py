"""Kernels and launchers on CPU tensors for test_triton_compiling.py, which runs this file in a process that compiles.

Prints a JSON object: what was recorded, and what compiling it gave.
"""

import json
import sys

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import backends.triton
from backends.triton import compiling


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["x_row"])
def _scale(x_ptr, y_ptr, x_row, x_col, rows, scale, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64)
    if row < rows:
        tl.store(y_ptr + row * BLOCK + i, tl.load(x_ptr + row * x_row + i * x_col).to(tl.float32) * scale)


def scale(x):
    y = torch.zeros(x.shape)
    _scale[(len(x),)](x, y, *x.stride(), len(x), 0.5, BLOCK=x.shape[1], num_warps=2)
    return y


@triton.jit
def _exp_of_half(x_ptr, BLOCK: tl.constexpr):  # E-18: tl.exp takes float32 and float64 only
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.exp(tl.load(x_ptr + i)))


def exponential(x):
    _exp_of_half[(1,)](x, len(x))


@triton.jit
def _changes_dtype(x_ptr, n, BLOCK: tl.constexpr):  # the interpreter lets a variable become another type
    total = 0
    for start in range(0, n, BLOCK):
        total += tl.sum(tl.load(x_ptr + start + tl.arange(0, BLOCK)), axis=0)
    tl.store(x_ptr, total)


def changes_dtype(x):
    _changes_dtype[(1,)](x, len(x), 16)


@triton.jit
def _product(a_ptr, b_ptr, c_ptr, K, N: tl.constexpr, STAGE: tl.constexpr):
    i, k = tl.arange(0, N), tl.arange(0, STAGE)
    acc = tl.zeros((N, N), tl.float32)
    for start in range(0, K, STAGE):
        a = tl.load(a_ptr + i[:, None] * K + start + k[None, :])
        b = tl.load(b_ptr + (start + k[:, None]) * N + i[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + i[:, None] * N + i[None, :], acc)


def too_much_shared(a):
    _product[(1,)](a, a, a, 1024, 256, 128, num_warps=8, num_stages=4)


@triton.autotune([triton.Config({"BLOCK": 16}, num_warps=1), triton.Config({"BLOCK": 32}, num_warps=4)], key=["n"])
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def _tuned(x_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 1.0, mask=None if EVEN else i < n)


def tuned(x):
    _tuned[(1,)](x, len(x))


@triton.jit
def _descriptor(x_desc, y_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y_ptr + i[:, None] * N + i[None, :], x_desc.load([0, 0]))


def descriptor(x):
    _descriptor[(1,)](TensorDescriptor.from_tensor(x, [16, 16]), torch.empty(16, 16), 16)


def record(call):
    with compiling.recording() as found:
        call()
    return found


def main():
    backends.triton.prepare("cuda")
    x = torch.randn(4, 64)
    (plain,) = record(lambda: scale(x))
    same = record(lambda: [scale(x), scale(torch.randn(7, 64)), scale(x + 1)])
    shifted = torch.randn(4 * 65)[1:].as_strided((4, 64), (64, 1))  # 4 bytes off a 16-byte boundary
    others = record(lambda: [scale(v) for v in (x, x.half(), x[:, :32], shifted, torch.randn(64, 4).t())])
    with compiling.recording():
        untouched = bool(scale(x).eq(0).all())
    calls = {
        "scale": lambda: scale(x),
        "exponential": lambda: exponential(torch.randn(16).half()),
        "changes_dtype": lambda: changes_dtype(torch.randn(64)),
        "too_much_shared": lambda: too_much_shared(torch.randn(1024, 256)),
        "descriptor": lambda: descriptor(torch.randn(16, 16)),
    }
    report = {
        "plain": str(plain),
        "same": len({launch.key for launch in same}),
        "distinct": len({launch.key for launch in others}),
        "untouched": untouched,
        "tuned": [str(launch) for launch in record(lambda: tuned(torch.empty(24)))],
        "compiled": {name: compiling.compile_one(record(call)[0], "sm_90") for name, call in calls.items()},
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
