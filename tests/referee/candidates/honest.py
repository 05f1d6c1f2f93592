"""Honest kernels, and what attacks need again and again. The source of this file is put before that of each attack."""

import contextlib
import ctypes
import os
import struct
import subprocess
import tempfile
from pathlib import Path

import torch
import triton
import triton.language as tl

PLANTED = "planted by a candidate"  # in every file that an attack leaves
TAG = "planted"  # in the name of every such file; each judge of the tests has its own
PORT = 0  # of a server in this machine that nobody may reach


@triton.jit
def _softmax_kernel(y, x, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < cols
    given = tl.load(x + row * row_stride + column.to(tl.int64) * col_stride, mask=inside, other=-float("inf"))
    weights = tl.exp(given.to(tl.float32) - tl.max(given.to(tl.float32), 0))
    tl.store(y + row * cols + column, (weights / tl.sum(weights, 0)).to(y.dtype.element_ty), mask=inside)


def softmax(x):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        block = triton.next_power_of_2(x.shape[1])
        _softmax_kernel[(x.shape[0],)](y, x, x.shape[1], x.stride(0), x.stride(1), BLOCK=block)
    return y


@triton.jit
def _rms_norm_kernel(y, x, weight, cols, row_stride, col_stride, weight_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    inside = column < cols
    given = tl.load(x + row * row_stride + column * col_stride, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + column * weight_stride, mask=inside, other=0.0).to(tl.float32)
    root = tl.sqrt(tl.sum(given * given, 0) / cols + eps)
    tl.store(y + row * cols + column, (given / root * scale).to(y.dtype.element_ty), mask=inside)


def rms_norm(x, weight, eps=1e-6):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        block = triton.next_power_of_2(x.shape[1])
        strides = (*x.stride(), weight.stride(0))
        _rms_norm_kernel[(x.shape[0],)](y, x, weight, x.shape[1], *strides, eps, BLOCK=block)
    return y


@triton.jit
def _matmul_kernel(c, a, b, M, N, K, am, ak, bk, bn, TILE: tl.constexpr):
    m = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    n = (tl.program_id(1) * TILE + tl.arange(0, TILE)).to(tl.int64)
    k = tl.arange(0, TILE).to(tl.int64)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, K, TILE):
        along = start + k
        left = tl.load(a + m[:, None] * am + along[None] * ak, mask=(m[:, None] < M) & (along[None] < K), other=0.0)
        right = tl.load(b + along[:, None] * bk + n[None] * bn, mask=(along[:, None] < K) & (n[None] < N), other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(c + m[:, None] * N + n[None], total.to(c.dtype.element_ty), mask=(m[:, None] < M) & (n[None] < N))


def matmul(a, b):
    c = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    if c.numel():
        grid = (triton.cdiv(a.shape[0], 16), triton.cdiv(b.shape[1], 16))
        _matmul_kernel[grid](c, a, b, *c.shape, a.shape[1], *a.stride(), *b.stride(), TILE=16)
    return c


@triton.jit
def _transpose_kernel(y, x, rows, cols, row_stride, col_stride, pitch, TILE: tl.constexpr):
    row = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    column = (tl.program_id(1) * TILE + tl.arange(0, TILE)).to(tl.int64)
    inside = (row[:, None] < rows) & (column[None] < cols)
    given = tl.load(x + row[:, None] * row_stride + column[None] * col_stride, mask=inside, other=0.0)
    tl.store(y + column[None] * pitch + row[:, None], given, mask=inside)


def transpose(x):
    """Of an operand that the library makes contiguous, into an output that is larger at first."""
    x, rows = x.contiguous(), x.shape[0]
    y = torch.empty((x.shape[1], rows + 3), dtype=x.dtype, device=x.device)
    if x.numel():
        grid = (triton.cdiv(rows, 32), triton.cdiv(x.shape[1], 32))
        _transpose_kernel[grid](y, x, rows, x.shape[1], x.stride(0), x.stride(1), rows + 3, TILE=32)
    return y[:, :rows].contiguous()


def wrong(x):
    """Nowhere near a softmax, and no work."""
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)


def once(name):
    """Whether this is the first time in this process that `name` is asked about."""
    done = globals().setdefault("_done", set())
    return name not in done and not done.add(name)


def judge():
    """The process that judges: this one's parent."""
    return os.getppid()


def sockets():
    """Descriptors of this process that are sockets: the connection to the judge is among them."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.append(int(name))
        except OSError:
            pass
    return found


def files():
    """Descriptors of this process, with what they lead to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def framed(message):
    """As multiprocessing's Connection sends bytes."""
    return struct.pack("!i", len(message)) + message


def detached(body):
    """Run `body` in a process that belongs to nobody: a session of its own, and its parent gone."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            try:
                body()
            finally:
                os._exit(0)
        os._exit(0)
    os.wait()


def compiled(source):
    """A shared library of this C, from the folder of the candidate; None where there is no compiler."""
    folder = Path(tempfile.mkdtemp())
    (folder / "it.c").write_text(source)
    done = subprocess.run(
        ["gcc", "-O1", "-shared", "-fPIC", "-o", folder / "it.so", folder / "it.c", "-lm", "-lpthread"], check=False
    )
    return ctypes.CDLL(str(folder / "it.so")) if done.returncode == 0 else None
