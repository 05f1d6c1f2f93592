"""Programs that hold on a GPU and not in Triton's stock interpreter; test_triton_interpreter.py runs this file.

With the argument `cuda` it prints what the programs about values raised on a GPU. Else, with TRITON_INTERPRET=1, it
prints for every program what it raised (None if it held) with every repair installed, and with the one that it is
there for left out. Each set of repairs gets a forked child, because a program may end in a segmentation fault.
"""

import contextlib
import importlib.util
import inspect
import json
import math
import os
import sys
from collections.abc import Callable
from types import ModuleType
from unittest import mock

import cloudpickle
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra import libdevice
from triton.language.extra.cuda.libdevice import erf
from triton.language.extra.libdevice import rsqrt

_exp = tl.exp  # before the repairs are installed
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
PROGRAMS: list[tuple[str, Callable[[], None], bool]] = []  # a repair, and whether the program needs it
NEVER = (0, 0)  # as `fixed`: holds without the repair too


def program(repair: str, fixed: tuple[int, int] = (99, 0), since: tuple[int, int] = (0, 0)):
    """Register a program that fails without `repair`, in Triton from version `since` to before version `fixed`."""

    def register(function):
        PROGRAMS.append((repair, function, since <= VERSION < fixed))
        return function

    return register


@triton.jit
def _binary(x_ptr, y_ptr, out_ptr, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    y = tl.load(y_ptr + i, mask=i < n, other=0)
    if OP == "add":
        out = x + y
    elif OP == "mul":
        out = x * y
    elif OP == "less":
        out = tl.where(x < y, x, y)
    elif OP == "maximum":
        out = tl.maximum(x, y)
    elif OP == "fma":
        out = tl.fma(x, y, y)
    else:
        out = tl.abs(x) - y
    tl.store(out_ptr + i, out, mask=i < n)


def _run_binary(op, x, y):
    out = torch.empty_like(x)
    _binary[(triton.cdiv(len(x), 64),)](x, y, out, len(x), op, 64)
    return out


def _same(got, expected):
    got, expected = got.double(), expected.double()
    assert torch.equal(got.isnan(), expected.isnan()), (got, expected)
    assert torch.equal(got[~got.isnan()], expected[~expected.isnan()]), (got, expected)


@program("bfloat16")
def bfloat16_arithmetic_is_that_of_values():
    x, y = torch.randn(2, 300).bfloat16()
    _same(_run_binary("add", x, y), x + y)
    _same(_run_binary("mul", x, y), x * y)
    _same(_run_binary("abs", x, y), x.abs() - y)


@program("bfloat16")
def bfloat16_comparisons_see_the_sign():
    x, y = torch.randn(2, 300).bfloat16()
    _same(_run_binary("less", x, y), torch.minimum(x, y))


@triton.jit
def _plus_a_number(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i) + tl.full((BLOCK,), 1.5, tl.bfloat16))


@program("bfloat16")
def numbers_of_bfloat16_are_written_down():
    x = torch.randn(8).bfloat16()
    out = torch.empty_like(x)
    _plus_a_number[(1,)](x, out, 8)
    _same(out, x + 1.5)


@triton.jit
def _cast(x_ptr, out_ptr, n, ROUNDING: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, x.to(out_ptr.dtype.element_ty, fp_downcast_rounding=ROUNDING), mask=i < n)


def _run_cast(x, dtype, rounding="rtne"):
    out = torch.empty(len(x), dtype=dtype)
    _cast[(1,)](x, out, len(x), rounding, triton.next_power_of_2(len(x)))
    return out


@program("casts")
def casts_to_bfloat16_round_to_nearest_even():
    bits = torch.randint(-(2**31), 2**31, (4096,), dtype=torch.int64).to(torch.int32)
    x = torch.cat(
        [bits.view(torch.float32), torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, float("inf"), float("nan")])]
    )
    _same(_run_cast(x, torch.bfloat16), x.bfloat16())


@program("casts")
def casts_toward_zero_truncate():
    x = torch.tensor([1 + 2**-8 + 2**-9, -1 - 2**-8 - 2**-9, 3.0])
    _same(_run_cast(x, torch.bfloat16, "rtz"), torch.tensor([1.0, -1.0, 3.0]))
    _same(_run_cast(torch.tensor([1 + 2**-11 + 2**-12, 70000.0]), torch.float16, "rtz"), torch.tensor([1.0, 65504.0]))


@program("casts")
def casts_to_float8_round_and_saturate():
    x = torch.linspace(-440, 440, 2001)
    _same(_run_cast(x, torch.float8_e4m3fn), x.to(torch.float8_e4m3fn))
    _same(_run_cast(x, torch.float8_e5m2), x.to(torch.float8_e5m2))
    edges = torch.tensor([float("inf"), -1e30, float("nan")])
    _same(_run_cast(edges, torch.float8_e4m3fn), torch.tensor([448.0, -448.0, float("nan")]))


@program("casts")
def casts_to_integers_saturate():
    x = torch.tensor([3e9, -3e9, float("nan"), 300.0, -1.5])
    assert _run_cast(x, torch.int32, None).tolist() == [2**31 - 1, -(2**31), 0, 300, -1]
    assert _run_cast(x, torch.int16, None).tolist() == [2**15 - 1, -(2**15), 0, 300, -1]
    assert _run_cast(x, torch.int64, None).tolist() == [3 * 10**9, -3 * 10**9, -(2**63), 300, -1]
    assert _run_cast(x, torch.int8, None).tolist() == [-1, 0, 0, 44, -1]


@triton.jit
def _by_way_of(x_ptr, out_ptr, TYPE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(TYPE).to(tl.float32))


@program("casts", fixed=NEVER)
def casts_to_every_float_keep_what_it_has():
    x = torch.tensor([0.0, 1.0, -1.5, 0.0625, 1.875, -0.15625, 0.75, -1.0])
    for ty in (tl.float8e4b15, tl.float8e4nv, tl.float8e5, tl.float16, tl.bfloat16, tl.float64):
        out = torch.full_like(x, 7.0)
        _by_way_of[(1,)](x, out, ty, 8)
        exact = x if ty != tl.float8e5 else torch.where(x == 1.875, 2.0, x)  # two bits of fraction, halves to even
        _same(out, exact)


@triton.jit
def _dot(a_ptr, b_ptr, c_ptr, PRECISION: tl.constexpr, HALF: tl.constexpr, K: tl.constexpr):
    m, k = tl.arange(0, 16), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * 16 + m[None, :])
    if HALF:
        c = tl.dot(a, b, out_dtype=tl.float16).to(tl.float32)
    else:
        c = tl.dot(a, b, input_precision=PRECISION)
    tl.store(c_ptr + m[:, None] * 16 + m[None, :], c)


def _dot_error(a, b, precision=None, half=False):
    c = torch.empty(16, 16)
    _dot[(1,)](a, b, c, precision, half, a.shape[1])
    exact = a.double() @ b.double()
    return ((c.double() - exact).abs().max() / exact.abs().max()).item(), c


@program("bfloat16")
def dots_of_bfloat16_multiply_values():
    a, b = torch.randn(16, 64).bfloat16(), torch.randn(64, 16).bfloat16()
    assert _dot_error(a, b)[0] < 1e-6


@program("dot")
def dots_of_float32_are_cut_to_tf32_by_default():
    a, b = torch.randn(16, 64), torch.randn(64, 16)
    assert 1e-5 < _dot_error(a, b)[0] < 1e-2
    assert _dot_error(a, b, "ieee")[0] < 1e-6
    assert _dot_error(a, b, "tf32x3")[0] < 1e-6
    cut = torch.full((16, 16), 1 + 2**-11 + 2**-12), torch.eye(16)  # TF32 operands are cut, not rounded
    assert _dot_error(*cut, "tf32")[1][0, 0] == 1
    infinite = torch.zeros(16, 16).fill_diagonal_(float("inf")), torch.eye(16)
    assert _dot_error(*infinite, "tf32x3")[1][0, 0] == float("inf")


@program("dot")
def dots_with_a_float16_accumulator_round_on_the_way():
    a, b = torch.ones(16, 64, dtype=torch.float16), torch.ones(64, 16, dtype=torch.float16)
    a[:, 0], b[1:, :] = 2048.0, 1 / 16  # 2048 + 15/16, then ones: each alone is lost next to 2048
    assert _dot_error(a, b, half=True)[1][0, 0] == 2048


@program("dot")
def dots_over_fewer_than_16_products_are_refused():
    with pytest.raises(Exception, match="K >= 16"):
        _dot_error(torch.ones(16, 8).half(), torch.ones(8, 16).half())


@triton.jit
def _dot_onto(a_ptr, b_ptr, c_ptr, PRECISION: tl.constexpr, K: tl.constexpr):
    m, k = tl.arange(0, 16), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * 16 + m[None, :])
    c = c_ptr + m[:, None] * 16 + m[None, :]
    tl.store(c, tl.dot(a, b, tl.load(c), input_precision=PRECISION, out_dtype=c_ptr.dtype.element_ty))


@program("dot", NEVER)
def dots_add_to_what_they_are_given():
    """Small integers, whose sums are exact in every type and precision."""
    half, single = torch.float16, torch.float32
    kinds = [(half, half), (half, single), (torch.bfloat16, single), (torch.int8, torch.int32)]
    precisions = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
    given = [(*kind, None) for kind in kinds] + [(single, single, each) for each in precisions]
    for dtype, wide, precision in given:
        a, b = torch.randint(-3, 4, (16, 64)), torch.randint(-3, 4, (64, 16))
        before = torch.randint(-9, 10, (16, 16))
        c = before.to(wide)
        _dot_onto[(1,)](a.to(dtype), b.to(dtype), c, precision, 64)
        _same(c, before + a @ b)


@triton.jit
def _dot_scaled_by_one(a_ptr, b_ptr, scale_ptr, c_ptr, FORMAT: tl.constexpr, REST: tl.constexpr):
    m, k, scales = tl.arange(0, 32), tl.arange(0, 64), tl.arange(0, 2)
    a = tl.load(a_ptr + m[:, None] * 64 + k[None, :])
    b = tl.load(b_ptr + k[:, None] * 32 + m[None, :])
    scale = tl.load(scale_ptr + m[:, None] * 2 + scales[None, :])
    c = c_ptr + m[:, None] * 32 + m[None, :]
    if REST:
        tl.store(c, tl.dot_scaled(b.trans(1, 0), scale, "e4m3", a.trans(1, 0), None, FORMAT, tl.load(c)))
    else:
        tl.store(c, tl.dot_scaled(a, None, FORMAT, b, scale, "e4m3", tl.load(c)))


@program("dot", NEVER)
def scaled_dots_beside_16_bits_are_of_their_type():
    """1 + 2^-10 is a number of float16 on either side, and of bfloat16 there is none near it."""
    b, scale = torch.ones(64, 32).to(torch.float8_e4m3fn), torch.full((32, 2), 128, dtype=torch.uint8)
    for dtype, name, value in ((torch.float16, "fp16", 1 + 2**-10), (torch.bfloat16, "bf16", 1 + 2**-7)):
        a, c = torch.full((32, 64), value, dtype=dtype), torch.full((32, 32), 3.0)
        for swapped in (False, True):
            c.fill_(3)
            _dot_scaled_by_one[(1,)](a, b, scale, c, name, swapped)
            _same(c, torch.full((32, 32), 3 + 2 * 64 * value))


@program("arithmetic", fixed=(3, 9))
def maximum_skips_nan():
    nan = float("nan")
    x, y = torch.tensor([nan, 1.0, nan]), torch.tensor([2.0, nan, nan])
    _same(_run_binary("maximum", x, y), torch.tensor([2.0, 1.0, nan]))


@program("arithmetic", fixed=(3, 9))
def fma_rounds_once():
    x, y = torch.tensor([-1 - 2**-12]), torch.tensor([1 + 2**-12])  # float32 rounds the product's -2^-24 away
    _same(_run_binary("fma", x, y), torch.tensor([-(2**-12) - 2**-24]))


@triton.jit
def _of_booleans(out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = i >= 2, (i & 1) == 1
    tl.store(out_ptr + i, (a + b).to(tl.int32))
    tl.store(out_ptr + N + i, (a - b).to(tl.int32))
    tl.store(out_ptr + 2 * N + i, (a * b).to(tl.int32))


@program("arithmetic")
def booleans_are_numbers_of_one_bit():
    out = torch.empty(3, 4, dtype=torch.int32)
    _of_booleans[(1,)](out, 4)
    assert out.tolist() == [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]


@triton.jit
def _clamp(x_ptr, out_ptr, low, high, PROPAGATE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    if PROPAGATE:
        tl.store(out_ptr + i, tl.clamp(x, low, high, tl.PropagateNan.ALL))
        tl.store(out_ptr + N + i, tl.maximum(x, low, propagate_nan=tl.PropagateNan.ALL))
        tl.store(out_ptr + 2 * N + i, tl.minimum(x, low, propagate_nan=tl.PropagateNan.ALL))
    else:
        tl.store(out_ptr + i, tl.clamp(x, low, high))
        tl.store(out_ptr + N + i, tl.maximum(x, low))
        tl.store(out_ptr + 2 * N + i, tl.minimum(x, low))


@program("arithmetic")
def clamps_and_extrema_pass_nan_on_where_they_are_told_to():
    """Else it gives way to the other operand, and of a clamp to the lower end."""
    x = torch.tensor([float("nan"), -5.0, -1.0, 0.25, 2.0, 3.0, float("inf"), -float("inf")])
    for propagate, first in ((False, -1.0), (True, float("nan"))):
        out = torch.empty(3, 8)
        _clamp[(1,)](x, out, -1.0, 2.0, propagate, 8)
        expected = torch.stack([x.clamp(-1, 2), x.clamp(min=-1), x.clamp(max=-1)])
        expected[:, 0] = first
        _same(out, expected)


@triton.jit
def _dot_scaled(a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, c_ptr, FORMAT: tl.constexpr, PACK: tl.constexpr):
    m, n, scales = tl.arange(0, 32), tl.arange(0, 32), tl.arange(0, 2)
    columns = tl.arange(0, 64 // PACK)
    a = tl.load(a_ptr + m[:, None] * (64 // PACK) + columns[None, :])
    b = tl.load(b_ptr + columns[:, None] * 32 + n[None, :])
    a_scale = tl.load(a_scale_ptr + m[:, None] * 2 + scales[None, :])
    b_scale = tl.load(b_scale_ptr + n[:, None] * 2 + scales[None, :])
    c = tl.dot_scaled(a, a_scale, FORMAT, b, b_scale, FORMAT, tl.zeros((32, 32), tl.float32))
    tl.store(c_ptr + m[:, None] * 32 + n[None, :], c)


@program("dot", fixed=(3, 8))
def scaled_dots_multiply_numbers_of_each_format():
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    scales = torch.randint(120, 130, (2, 32, 2), dtype=torch.uint8)
    left, right = (2.0 ** (scale.float() - 127).repeat_interleave(32, 1) for scale in scales)
    for name, dtype in (("e2m1", None), ("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        if dtype is None:
            codes = torch.randint(0, 8, (2, 64, 32))
            a, b = table[codes[0].T], table[codes[1]]
            packed = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
            operands = packed[0].T.contiguous(), packed[1].contiguous()
        else:
            operands = torch.randn(32, 64).to(dtype), torch.randn(64, 32).to(dtype)
            a, b = (operand.float() for operand in operands)
        c = torch.empty(32, 32)
        _dot_scaled[(1,)](operands[0], scales[0], operands[1], scales[1], c, name, 2 if dtype is None else 1)
        assert torch.allclose(c, (a * left) @ (b * right.T), rtol=1e-5, atol=1e-5), name


@triton.jit
def _asm(x_ptr, out_ptr, ASM: tl.constexpr, PACK: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    x = tl.inline_asm_elementwise(ASM, "=r,r", [x], dtype=x.dtype, is_pure=False, pack=PACK)
    tl.store(out_ptr + tl.arange(0, N), x)


@program("inline asm")
def moves_give_their_operand():
    for x, pack in ((torch.randn(8), 1), (torch.randn(8).half(), 2), (torch.randn(8).bfloat16(), 2)):
        out = torch.empty_like(x)
        _asm[(1,)](x, out, "mov.b32 $0, $1;", pack, 8)
        _same(out, x)


@triton.jit
def _asm_of_two(x_ptr, y_ptr, out_ptr, ASM: tl.constexpr, CONSTRAINTS: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, tl.inline_asm_elementwise(ASM, CONSTRAINTS, [x, y], dtype=x.dtype, is_pure=True, pack=1))


@program("inline asm")
def instructions_compute():
    x, y, out = torch.randn(64), torch.randn(64), torch.empty(64)
    for asm, expected, error in (
        ("tanh.approx.f32 $0, $1;", x.tanh(), 2**-11),
        ("ex2.approx.ftz.f32 $0, $1;", x.exp2(), 2**-22),
        ("{ rcp.approx.ftz.f32 $0, $1; }", 1 / x, 2**-22),
        ("abs.f32 $0, $1; sqrt.approx.f32 $0, $0;", x.abs().sqrt(), 2**-22),
        ("neg.ftz.f32 $0, $1;", -x, 0),
        ("cvt.rna.tf32.f32 $0, $1;", x, 2**-11),
        (
            "{ .reg .pred p; setp.gt.f32 p, $1, 0.; @p mov.f32 $0, $1; @!p mov.f32 $0, 0f3F800000; }",
            x.where(x > 0, 1),
            0,
        ),
    ):
        _asm[(1,)](x, out, asm, 1, 64)
        assert torch.allclose(out, expected, rtol=error, atol=0), (asm, out - expected)
    tanh = torch.empty(64)
    _asm[(1,)](x, tanh, "tanh.approx.f32 $0, $1;", 1, 64)
    assert (tanh != x.tanh()).any()  # no more exact than the instruction is
    for asm, expected in (
        ("add.rn.f32 $0, $1, $2;", x + y),
        ("fma.rn.f32 $0, $1, $2, $2; // fused", torch.addcmul(y.double(), x.double(), y.double()).float()),
        ("max.f32 $0, $1, $2;", torch.maximum(x, y)),
    ):
        _asm_of_two[(1,)](x, y, out, asm, "=f, f, f", 64)
        _same(out, expected)


def _shifted(x, by):
    """x << by as PTX has it, where `by` may be 32 or more."""
    return torch.where(by.abs() < 32, x << by.clamp(0, 31), 0)


@program("inline asm")
def integers_are_computed_bit_by_bit():
    x = torch.tensor([5, -9, 2**31 - 1, -(2**31), 0, 0x12345678, 77, -1], dtype=torch.int32)
    y = torch.tensor([3, 7, 1, 31, 40, 4, 2, 0], dtype=torch.int32)
    unsigned = x.long() % 2**32
    for asm, expected in (
        ("add.s32 $0, $1, $2;", x + y),
        ("sub.u32 $0, $1, $2;", x - y),
        ("and.b32 $0, $1, $2;", x & y),
        ("or.b32 $0, $1, $2;", x | y),
        ("xor.b32 $0, $1, $2;", x ^ y),
        ("not.b32 $0, $1;", ~x),
        ("min.s32 $0, $1, $2;", torch.minimum(x, y)),
        ("max.s32 $0, $1, $2;", torch.maximum(x, y)),
        ("max.u32 $0, $1, $2;", torch.maximum(unsigned, y.long())),
        ("min.u32 $0, $1, $2;", torch.minimum(unsigned, y.long())),
        ("shl.b32 $0, $1, $2;", _shifted(x, y)),
        ("shr.u32 $0, $1, $2;", torch.where(y < 32, unsigned >> y.clamp(max=31), 0)),
        ("shr.s32 $0, $1, $2;", x >> y.clamp(max=31)),
        ("mov.b32 $0, -7; /* a line */ add.s32 $0, $0, 0x10; // and another", torch.full_like(x, 9)),
        ("{ .reg .pred p; setp.lt.s32 p, $1, $2; selp.b32 $0, $1, $2, p; }", torch.minimum(x, y)),
        ("{ .reg .pred p; setp.ge.u32 p, $1, $2; selp.b32 $0, 1, 2, p; }", torch.where(unsigned >= y, 1, 2)),
        ("{ .reg .pred p; setp.eq.s32 p, $2, 7; @p mov.b32 $0, 1; @!p mov.b32 $0, $1; }", x.where(y != 7, 1)),
        ("{ .reg .pred p; setp.ne.s32 p, $2, 7; selp.s32 $0, $2, $1, p; }", y.where(y != 7, x)),
        ("{ .reg .pred p; setp.gt.s32 p, $1, $2; @p mov.b32 $0, $2; }", y.where(x > y, 0)),
        ("{ .reg .pred p; setp.le.s32 p, $1, $2; @p mov.b32 $0, $2; }", y.where(x <= y, 0)),
    ):
        out = torch.full_like(x, 99)
        _asm_of_two[(1,)](x, y, out, asm, "=r,r,r", 8)
        assert torch.equal(out.long() % 2**32, expected.long() % 2**32), (asm, out, expected)


@program("inline asm")
def floats_are_computed_as_each_instruction_says():
    nan = float("nan")
    x = torch.tensor([1.5, -2.0, nan, 0.25, 2.0**-130, 3.0, -0.5, 100.0])
    y = torch.tensor([2.0, nan, 1.0, -0.5, 1.0, 2.0**-130, 4.0, 3.0])
    flushed_x, flushed_y = (torch.where(each.abs() < 2**-126, 0.0, each) for each in (x, y))
    for asm, expected in (
        ("sub.f32 $0, $1, $2;", x - y),
        ("mul.f32 $0, $1, $2;", x * y),
        ("mul.ftz.f32 $0, $1, $2;", flushed_x * flushed_y),
        ("add.ftz.f32 $0, $1, $2;", flushed_x + flushed_y),
        ("min.f32 $0, $1, $2;", torch.fmin(x, y)),
        ("max.f32 $0, $1, $2;", torch.fmax(x, y)),
        ("min.NaN.f32 $0, $1, $2;", torch.minimum(x, y)),
        ("max.NaN.f32 $0, $1, $2;", torch.maximum(x, y)),
        ("div.rn.f32 $0, $1, $2;", x / y),
        ("div.full.f32 $0, $1, $2;", x / y),
        ("rcp.rn.f32 $0, $2;", 1 / y),
        ("abs.f32 $0, $1; sqrt.rn.f32 $0, $0;", x.abs().sqrt()),
        ("mov.f32 $0, 0f40490FDB; mul.f32 $0, $0, -2.0;", torch.full_like(x, -2 * torch.tensor(torch.pi))),
        ("{ .reg .pred p; setp.ge.f32 p, $1, $2; selp.f32 $0, $1, 0.5, p; }", x.where(x >= y, 0.5)),
        ("{ .reg .pred p; setp.lt.f32 p, $1, 1.0; @!p add.f32 $0, $1, $1; }", torch.where(x < 1, 0.0, x + x)),
    ):
        out = torch.full_like(x, 99.0)
        _asm_of_two[(1,)](x, y, out, asm, "=f,f,f", 8)
        _same(out, expected)
    angles = torch.tensor([0.5, -1.0, 2.0, 3.0, -3.0, 0.1, 1.5, -2.5])
    out = torch.empty(8)
    for asm, expected in (
        ("sin.approx.f32 $0, $1;", angles.sin()),
        ("cos.approx.f32 $0, $1;", angles.cos()),
        ("abs.f32 $0, $1; lg2.approx.f32 $0, $0;", angles.abs().log2()),
        ("abs.f32 $0, $1; rsqrt.approx.f32 $0, $0;", angles.abs().rsqrt()),
        ("div.approx.f32 $0, $1, 3.0;", angles / 3),
    ):
        _asm[(1,)](angles, out, asm, 1, 8)
        assert torch.allclose(out, expected, rtol=2**-20, atol=2**-20), asm
    halves = torch.tensor([1 + 2**-11, -1 - 2**-11, 1 + 2**-12, 1.0]).repeat(2)  # halfway between two numbers of TF32
    _asm[(1,)](halves, out, "cvt.rna.tf32.f32 $0, $1;", 1, 8)
    assert out[:4].tolist() == [1 + 2**-10, -1 - 2**-10, 1.0, 1.0]


@triton.jit
def _packed(x_ptr, y_ptr, out_ptr, ASM: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, tl.inline_asm_elementwise(ASM, "=r,f,f", [x, y], dtype=tl.int32, is_pure=True, pack=1))


@program("inline asm")
def two_floats_are_packed_into_a_word_the_first_into_its_upper_half():
    x, y = torch.randn(2, 16)
    for name, dtype in (("f16x2", torch.float16), ("bf16x2", torch.bfloat16)):
        out = torch.empty(16, dtype=torch.int32)
        _packed[(1,)](x, y, out, f"cvt.rn.{name}.f32 $0, $1, $2;", 16)
        assert torch.equal(out.view(dtype), torch.stack([y, x], 1).reshape(-1).to(dtype))


@triton.jit
def _waits(x_ptr, out_ptr, N: tl.constexpr):
    tl.extra.cuda.gdc_wait()
    tl.store(out_ptr + tl.arange(0, N), tl.load(x_ptr + tl.arange(0, N)))
    tl.extra.cuda.gdc_launch_dependents()


@program("inline asm")
def instructions_without_effect_on_one_program_are_passed_over():
    x, out = torch.randn(8), torch.empty(8)
    _waits[(1,)](x, out, 8)
    _same(out, x)


@program("inline asm")
def other_inline_asm_is_not_interpreted():
    from touchstone.backends.triton.runtime.interpreter import KernelError, NotInterpreted

    x, out = torch.ones(8), torch.empty(8)
    with pytest.raises(NotInterpreted, match=r"inline PTX is not interpreted: bfind.u32 \(in "):
        _asm[(1,)](x, out, "bfind.u32 $0, $1;", 1, 8)
    with pytest.raises(NotInterpreted, match=r"inline PTX is not interpreted: mov.b32 \{\$0"):
        _asm[(1,)](x, out, "mov.b32 {$0, $0}, $1;", 1, 8)
    with pytest.raises(NotInterpreted, match=r"the operand \$1"):
        _asm[(1,)](x.half(), out.half(), "mov.b32 $0, $1;", 1, 8)
    with pytest.raises(KernelError, match="takes 2 elements at a time: 1 is no multiple"):  # as the compiler wants it
        _asm[(1,)](x.half(), out.half(), "mov.b32 $0, $1;", 2, 1)


@triton.jit
def _extern(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = rsqrt(x) + libdevice.tanh(x) + erf(x) + tl.extra.cuda.libdevice.pow(x, 2) + libdevice.pow(x, 2.5) + _exp(x)
    y += rsqrt(tl.sum(x, 0))  # of a scalar
    tl.store(out_ptr + i, y)


@program("libdevice")
def libdevice_functions_run_however_they_were_imported():
    x, out = torch.rand(64) + 0.5, torch.empty(64)
    _extern[(1,)](x, out, 64)
    expected = x.rsqrt() + x.tanh() + x.erf() + x**2 + x**2.5 + x.exp() + x.sum().rsqrt()
    assert torch.allclose(out, expected, rtol=1e-6), (out - expected).abs().max()


def _executed_again(module):
    """A second copy of a module, as packages make one that work with several versions of Triton."""
    spec = importlib.util.find_spec(module.__name__)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


rsqrt_of_a_copy = _executed_again(libdevice).rsqrt
tanh_of_a_copy = _executed_again(tl.extra.cuda.libdevice).tanh


@triton.jit
def _of_copies(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr + tl.arange(0, N), rsqrt_of_a_copy(x) + tanh_of_a_copy(x))


@program("libdevice")
def functions_of_a_copy_of_libdevice_run():
    x, out = torch.rand(64) + 0.5, torch.empty(64)
    _of_copies[(1,)](x, out, 64)
    assert torch.allclose(out, x.rsqrt() + x.tanh(), rtol=1e-6), (out - x.rsqrt() - x.tanh()).abs().max()


@triton.jit
def _missing(x_ptr, out_ptr, NAME: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    if NAME == "rsqrt":
        x = rsqrt(x)
    elif NAME == "fast_tanhf":
        x = libdevice.fast_tanhf(x)
    else:
        x = tl.core.extern_elementwise(
            "lib", "", [x], {(tl.core.dtype("fp32"),): ("__nv_new", tl.core.dtype("fp32"))}, is_pure=True
        )
    tl.store(out_ptr + tl.arange(0, N), x)


@program("libdevice")
def libdevice_functions_that_a_gpu_lacks_are_refused_and_unknown_ones_not_interpreted():
    from touchstone.backends.triton.runtime.interpreter import KernelError, NotInterpreted

    x, out = torch.ones(8), torch.empty(8)
    with pytest.raises(KernelError, match=r"libdevice.rsqrt takes \(fp32\) or \(fp64\), not \(fp16\)"):
        _missing[(1,)](x.half(), out, "rsqrt", 8)
    with pytest.raises(KernelError, match="libdevice of CUDA has no fast_tanhf"):
        _missing[(1,)](x, out, "fast_tanhf", 8)
    with pytest.raises(NotInterpreted, match="libdevice.new is not interpreted"):
        _missing[(1,)](x, out, "new", 8)


@triton.jit
def _sum(x_ptr, out_ptr, N: tl.constexpr):
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, N)), axis=0))


@program("reductions")
def sums_of_float16_round_at_every_addition():
    x = torch.ones(1024, dtype=torch.float16)
    x[0] = 4096.0  # its neighbours of the first level of the tree are lost next to it
    out = torch.empty(1, dtype=torch.float16)
    _sum[(1,)](x, out, 1024)
    assert out.item() < 4096 + 1023, out  # 5120 is what rounding once gives


@triton.jit
def _welford_combine(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    count = count_a + count_b
    delta = mean_b - mean_a
    return mean_a + delta * (count_b / count), m2_a + m2_b + delta * delta * (count_a * count_b / count), count


@triton.jit
def _affine_combine(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def _reduce_and_scan(x_ptr, mean_ptr, scan_ptr, ROWS: tl.constexpr, COLS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    x = tl.load(x_ptr + at)
    mean, m2, count = tl.reduce((x, tl.zeros_like(x), tl.full((ROWS, COLS), 1.0, tl.float32)), 1, _welford_combine)
    row = tl.arange(0, ROWS)
    tl.store(mean_ptr + row, mean)
    tl.store(mean_ptr + ROWS + row, m2 / count)
    _, scanned = tl.associative_scan((x, x + 1.0), 1, _affine_combine)
    tl.store(scan_ptr + at, scanned)


@program("reductions", fixed=NEVER)
def custom_combine_functions_give_the_same_on_whole_tiles():
    x = torch.randn(4, 32)
    moments, scanned = torch.empty(2, 4), torch.empty(4, 32)
    _reduce_and_scan[(1,)](x, moments, scanned, 4, 32)
    assert torch.allclose(moments[0], x.mean(1), atol=1e-6)
    assert torch.allclose(moments[1], x.var(1, correction=0), atol=1e-5)
    state, expected = torch.zeros(4), []
    for column in range(32):
        state = state * x[:, column] + x[:, column] + 1
        expected.append(state)
    assert torch.allclose(scanned, torch.stack(expected, 1), atol=1e-4)


@triton.jit
def _of_a_cube(
    x_ptr,
    out_ptr,
    kept_ptr,
    scan_ptr,
    back_ptr,
    AXIS: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
    C: tl.constexpr,
    OTHERS: tl.constexpr,
):
    at = tl.arange(0, A)[:, None, None] * (B * C) + tl.arange(0, B)[None, :, None] * C + tl.arange(0, C)[None, None, :]
    x = tl.load(x_ptr + at)
    _, found = tl.reduce((x, x + 1.0), AXIS, _affine_combine)
    _, kept = tl.reduce((x, x + 1.0), AXIS, _affine_combine, keep_dims=True)
    tl.store(out_ptr + tl.arange(0, OTHERS), found.reshape([OTHERS]))
    tl.store(kept_ptr + at, kept + tl.zeros([A, B, C], tl.float32))
    _, scanned = tl.associative_scan((x, x + 1.0), AXIS, _affine_combine)
    _, back = tl.associative_scan((x, x + 1.0), AXIS, _affine_combine, reverse=True)
    tl.store(scan_ptr + at, scanned)
    tl.store(back_ptr + at, back)


@program("reductions", fixed=NEVER)
def custom_combine_functions_go_along_the_axis_that_is_named():
    """One that is associative and depends on the order of its operands, over a tile of three different sides."""
    x = torch.randint(-2, 3, (2, 8, 4)).float()
    for axis in range(3):
        lines = x.movedim(axis, 0)
        forward, state = [], torch.zeros_like(lines[0])
        for line in lines:
            state = state * line + line + 1
            forward.append(state)
        backward, state = [], torch.zeros_like(lines[0])
        for line in lines.flip(0):
            state = state * line + line + 1
            backward.insert(0, state)
        out, (kept, scan, back) = torch.empty(x.numel() // x.shape[axis]), torch.empty(3, *x.shape)
        _of_a_cube[(1,)](x, out, kept, scan, back, axis, *x.shape, len(out))
        _same(out, forward[-1].reshape(-1))
        _same(kept, forward[-1].unsqueeze(axis).expand_as(x))
        _same(scan, torch.stack(forward).movedim(0, axis))
        _same(back, torch.stack(backward).movedim(0, axis))


@triton.jit
def _wholes(x_ptr, out_ptr, ROWS: tl.constexpr, COLS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    x = tl.load(x_ptr + at)
    _, found = tl.reduce((x, x + 1.0), None, _affine_combine)
    tl.store(out_ptr, found)
    tl.store(out_ptr + 1, tl.sum(x.to(tl.float16), None))
    kept = tl.sum(x.to(tl.float16), None, keep_dims=True)
    tl.store(out_ptr + 2 + at, kept + tl.zeros([ROWS, COLS], tl.float16))


@program("reductions", fixed=NEVER)
def without_an_axis_a_whole_tile_is_reduced():
    x, out = torch.randint(-2, 3, (4, 8)).float(), torch.empty(34)
    _wholes[(1,)](x, out, 4, 8)
    state = 0.0
    for value in x.reshape(-1).tolist():
        state = state * value + value + 1
    assert out[0].item() == state
    _same(out[1:], x.sum().expand(33))


@triton.jit
def _larger_combine(a, b):
    if a > b:
        return a
    return b


@triton.jit
def _combined(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, tl.associative_scan(x, 0, _larger_combine) + tl.reduce(x, 0, _plus_combine))


@triton.jit
def _plus_combine(a, b):
    return a + b


@program("reductions")
def combine_functions_do_not_run_as_python_of_their_author():
    x, out = torch.arange(8.0), torch.empty(8)
    ran = set()
    sys.setprofile(lambda frame, event, argument: ran.add(frame.f_code))
    try:
        _combined[(1,)](x, out, 8)
    finally:
        sys.setprofile(None)
    assert torch.equal(out, x + 28)
    assert not ran & {_larger_combine.fn.__code__, _plus_combine.fn.__code__}


@triton.jit
def _loop(x_ptr, out_ptr, n, stride, KIND: tl.constexpr):
    start = tl.program_id(0)
    if KIND == "int64":
        for row in tl.range(start.to(tl.int64), n):
            tl.static_assert(row.dtype == tl.int64)
            tl.store(out_ptr + row, row * stride)
    else:
        for row in range(start, n):
            tl.static_assert(row.dtype == tl.int32)
            tl.store(out_ptr + row, tl.load(x_ptr + row * stride))


@program("loops")
def loop_variables_have_the_type_of_their_bounds():
    out = torch.zeros(40, dtype=torch.int64)
    _loop[(1,)](out, out, 40, 2**26, "int64")
    assert out.tolist() == [row * 2**26 for row in range(40)]
    x, copy = torch.arange(10.0), torch.zeros(5)
    _loop[(1,)](x, copy, 5, 2, "int32")
    assert copy.tolist() == [0, 2, 4, 6, 8]


@triton.jit
def _both(x_ptr, out_ptr, low, high, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.where((i >= low) and (i < high), tl.load(x_ptr + i), 0.0))


@program("loops")
def and_of_tiles_is_elementwise():
    out = torch.empty(8)
    _both[(1,)](torch.ones(8), out, 2, 5, 8)
    assert out.tolist() == [0, 0, 1, 1, 1, 0, 0, 0]


@triton.jit
def _any_or_none(x_ptr, out_ptr, low, high, FLAG: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.where((i < low) or (i >= high), x, 0.0)
    y = tl.where((i < N) and (i != low) and (i != high - 1), y, 9.0)
    if FLAG and FLAG > 2:
        y += 1
    if FLAG is None or FLAG > 2:
        y += 2
    tl.store(out_ptr + i, y)


@program("loops")
def or_of_tiles_is_elementwise_and_that_of_constants_stops_early():
    for flag, more in ((None, 2.0), (0, 0.0), (3, 3.0)):
        out = torch.empty(8)
        _any_or_none[(1,)](torch.ones(8), out, 2, 5, flag, 8)
        assert out.tolist() == [v + more for v in (1, 1, 9, 0, 9, 1, 1, 1)]


@triton.jit
def _steps(out_ptr, first, last, step, count_ptr):
    at = 0
    for i in range(first, last, step):
        tl.store(out_ptr + at, i)
        at += 1
    for _ in tl.range(last):
        at += 0
    tl.store(count_ptr, at)


@program("loops", fixed=NEVER)
def loops_go_by_any_step():
    for first, last, step in ((0, 5, 1), (5, 0, -2), (3, 3, 1), (4, 2, 1), (-3, 7, 4)):
        out, count = torch.full((8,), -9), torch.zeros(1, dtype=torch.int32)
        _steps[(1,)](out, first, last, step, count)
        assert out[: count.item()].tolist() == list(range(first, last, step))


@triton.jit
def _loops_over(x_ptr, out_ptr, KIND: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    if KIND == "float":
        for _ in range(tl.sum(x, 0)):
            tl.store(out_ptr, 1.0)
    else:
        for _ in range(x.to(tl.int32)):
            tl.store(out_ptr, 1.0)


@program("loops")
def the_bounds_of_a_loop_are_scalar_integers():
    from touchstone.backends.triton.runtime.interpreter import KernelError

    for kind, named in (("float", "fp32"), ("tile", r"<\['?4'?\], int32>")):
        with pytest.raises(KernelError, match=f"the bounds and the step of a loop are scalar integers, not {named}"):
            _loops_over[(1,)](torch.ones(4), torch.ones(1), kind, 4)


@triton.jit
def _extrema(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    half, two = 0.5, 2
    tl.static_assert((x.to(tl.float16) * half).dtype == tl.float32)  # as any other variable that holds a number
    y = max(x, ONE) + min(x, half, x * two) + max(tl.sum(x, 0), 0.0) + max(N, 3) + tl.max(x, 0)
    tl.store(out_ptr + i, y)


@program("loops")
def maxima_and_tuples_are_triton_s():
    x, out = torch.randn(8), torch.empty(8)
    _extrema[(1,)](x, out, 8)
    expected = x.clamp(min=1) + torch.minimum(x, x * 2).clamp(max=0.5) + x.sum().clamp(min=0) + 8 + x.max()
    assert torch.allclose(out, expected), out - expected


_python = ModuleType("_python")  # by way of a module a kernel reaches functions that are not Triton's
_python.doubled = lambda value: value * 2
_python.next = iter(range(100)).__next__


@triton.jit
def _calls_python(x_ptr, out_ptr, N: tl.constexpr, function: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x + math.log2(N) + _python.doubled(N) + _python.next() - _python.next())
    if function is not None:
        tl.store(out_ptr + i, function(x))


@program("calls")
def python_is_called_on_constants_alone():
    from touchstone.backends.triton.runtime.interpreter import KernelError

    x, out = torch.ones(8), torch.empty(8)
    _calls_python[(1,)](x, out, 8, None)
    assert out.tolist() == [1 + 3 + 16] * 8
    for function in (_python.doubled, type("Of", (), {"__call__": lambda self, x: x + x})(), torch.square):
        with pytest.raises(KernelError, match="is no function of Triton's"):
            _calls_python[(1,)](x, out, 8, function)


class _Largest:
    most: tl.tensor
    total: tl.tensor

    def __init__(self, most, total):
        self.most = most
        self.total = total

    @triton.jit
    def joined(self, x):
        most = tl.maximum(self.most, tl.max(x, 0))
        return _State(most, self.total * tl.exp(self.most - most) + tl.sum(tl.exp(x - most), 0))


@triton.jit
def _joins(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    first = _State(tl.max(x, 0), tl.sum(x * 0, 0))
    tl.store(out_ptr, first.joined(x).joined(x).total)


@program("aggregates")
def a_kernel_is_a_method_of_an_aggregate():
    global _State
    _State = tl.core._aggregate(_Largest)
    assert isinstance(_State.joined, type(_joins)) and _Largest.joined is vars(_Largest)["joined"]
    out = torch.empty(1)
    _joins[(1,)](torch.ones(8), out, 8)
    assert out.tolist() == [16]


def _unwritten(out, BLOCK: tl.constexpr):
    _ran.append(BLOCK)


_unwritten.__signature__, _unwritten.__wrapped__ = inspect.signature(_unwritten), len  # whose source nobody finds
_ran: list[int] = []


@triton.jit
def _filled(out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), 1.0)


@program("calls")
def where_launches_are_watched_a_kernel_is_what_was_made_of_its_source():
    from touchstone import backends
    from touchstone.backends.triton.runtime.interpreter import KernelError

    out, within = torch.zeros(8), []
    backends.before_launch.append(lambda reached: None)
    backends.on_constants.append(lambda: contextlib.nullcontext(within.append(1)))
    try:
        _filled[(1,)](out, BLOCK=8)
        assert out.eq(1).all() and not within
        _calls_python[(1,)](out, out, 8, None)
        assert within
        put = lambda out, BLOCK: _ran.append(BLOCK)  # noqa: E731
        made = _filled.rewritten_fn[_filled.fn]
        for kernel, other in ((triton.jit(_unwritten), None), (_filled, put)):
            if other is not None:
                _filled.rewritten_fn[_filled.fn] = other
            with pytest.raises(KernelError, match="is not as the interpreter makes it of its source"):
                kernel[(1,)](out, BLOCK=8)
        _filled.rewritten_fn[_filled.fn] = made
        _filled[(1,)](out, BLOCK=8)
    finally:
        backends.before_launch.pop()
        backends.on_constants.pop()
    assert not _ran


@triton.jit
def _asks_a_tile(x_ptr, out_ptr, NAME: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    getattr(x, NAME)
    tl.store(out_ptr + tl.arange(0, N), x)


@program("calls")
def where_launches_are_watched_what_python_knows_of_a_tile_is_not_asked():
    from touchstone import backends
    from touchstone.backends.triton.runtime.interpreter import KernelError

    x, out = torch.ones(8), torch.zeros(8)
    _asks_a_tile[(1,)](x, out, "__dict__", 8)
    backends.before_launch.append(lambda reached: None)
    try:
        _asks_a_tile[(1,)](x, out, "dtype", 8)
        with pytest.raises(KernelError, match="what Python knows of a tile: Triton does not compile it"):
            _asks_a_tile[(1,)](x, out, "__dict__", 8)
    finally:
        backends.before_launch.pop()


CALLING = """
x[f(1)]
x[f(1)] = g(2)
x[f(1)] += g(2)
x += f(g(1), *h(2), k=f(3))
f(1).y
f(1).y = g(2)
f(1)[g(2)].y += h(3)
f(1) % g(2) + h(3)
"%s" % (f(1), g(2))
[f(i) for i in range(g(1)) if h(i)]
for i in range(f(1), g(2)): h(i)
for i in f(1): g(i)
while f(1) and g(2) or not h(3): pass
a: T = f(1)
a = f(1) if g(2) else h(3)
a, b = f(1), -g(2) < h(3)
max(f(1), min(g(2), h(3)))
max(f(1), 2).y
lambda a: f(a)
assert f(1), g(2)
return f(1)
with f(1) as a: g(2)
"""


@program("calls")
def whatever_a_kernel_calls_is_looked_at_wherever_it_stands():
    import ast
    import re

    from triton.runtime.interpreter import FunctionRewriter

    transformer = type(FunctionRewriter.ast_transformer)()
    for text in [*CALLING.strip().splitlines(), "f'{f(1)} {g(2)!r:>{h(3)}}'"]:
        made = ast.unparse(ast.fix_missing_locations(transformer.visit(ast.parse(f"def kernel():\n    {text}"))))
        for name in "fgh":
            bare, looked_at = f"{name}\\(", rf"_touchstone_called\({name}\)\("
            assert len(re.findall(rf"\b{bare}", text)) == len(re.findall(looked_at, made)), (text, made)
            assert not re.findall(rf"(?<!called\()\b{bare}", made), (text, made)
        nodes = list(ast.walk(ast.parse(f"def kernel():\n    {text}")))
        placed = [node for node in nodes if hasattr(node, "ctx")]
        reads = [node for node in placed if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)]
        parts = [node for node in placed if isinstance(node, ast.Attribute | ast.Subscript)]
        stores = [node for node in parts if isinstance(node.ctx, ast.Store)]
        assert made.count("_touchstone_read(") == len(reads), (text, made)
        assert made.count("_touchstone_stored(") == len(stores), (text, made)
        added = [node for node in nodes if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)]
        assert made.count("_touchstone_added(") == len(added), (text, made)
        remainders = [node for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)]
        assert made.count("_touchstone_remainder(") == len(remainders), (text, made)
        shown = [node for node in nodes if isinstance(node, ast.FormattedValue)]
        assert made.count("_touchstone_formatted(") == len(shown), (text, made)


@triton.jit
def _decides(x_ptr, out_ptr, n, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.load(x_ptr + i)
    if HOW == "index":
        total += (1, 2, 3)[n]  # which the compiler does not take
    elif HOW == "condition":
        if n > 1:
            total += 3
    elif HOW == "loop":
        for _ in range(n + 1):
            total += 1
    elif HOW == "tile":
        total += tl.where(i < N, n + 1, 0)
    tl.store(out_ptr + i, total + _python.doubled(N))


@program("calls")
def what_is_called_after_a_number_has_become_one_of_pythons_is_told():
    from touchstone import backends

    x = torch.ones(8)
    for how, told in (("tile", 0), ("index", 1), ("loop", 0), ("condition", 0), ("tile", 0), ("tile", 1), ("loop", 1)):
        out, before = torch.empty(8), backends.chosen()
        _decides[(1,)](x, out, 2, how, 8)
        assert out.eq(1 + 3 + 16).all(), (how, out)
        assert backends.chosen() - before == told, how


@program("calls")
def what_was_made_of_a_kernel_is_known_for_that():
    from touchstone import backends

    x, out = torch.ones(8), torch.empty(8)
    _copy[(1,)](x, out, 8, 0, 1, True, 8)
    assert _copy.rewritten_fn[_copy.fn].__code__ in backends.kernel_code
    assert _copy.fn.__code__ not in backends.kernel_code


ONE = tl.constexpr(1.0)
TWO = tl.constexpr(2)


@triton.jit
def _same_value(x):
    return x + ONE - ONE


@triton.jit
def _constants(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = _same_value(ONE * x) + _same_value(ONE - x) * TWO + tl.exp(-ONE * x) + _same_value(ONE / (x + 3))
    y += tl.where(ONE < x, ONE, x) + tl.where((ONE > x) & (x != ONE), -ONE, TWO)  # noqa: SIM300 (the point of it)
    y += tl.full([N], ONE, tl.float32)
    y += tl.where((TWO << (i & 3)) == (i & TWO), 1, 0)
    for j in tl.static_range(TWO):
        y += j * ONE
    tl.store(out_ptr + i, y)


@program("constants", since=(3, 7))
def module_level_constants_are_operands():
    x, out = torch.randn(8), torch.empty(8)
    _constants[(1,)](x, out, 8)
    expected = x + (1 - x) * 2 + (-x).exp() + 1 / (x + 3) + x.clamp(max=1) + torch.where(x < 1, -1, 2) + 1
    i = torch.arange(8)
    expected += ((2 << (i & 3)) == (i & 2)) + 1
    assert torch.allclose(out, expected), out - expected


@triton.jit
def _scale(x_ptr, out_ptr, scale, flag, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.static_assert((x * scale).dtype == tl.float32)
    tl.static_assert((x * 2.0).dtype == tl.float16)
    tl.store(out_ptr + tl.arange(0, N), tl.where(flag, x * scale, 0.0))


@program("arguments")
def float_arguments_are_float32():
    x, out = torch.full((4,), 3.0, dtype=torch.float16), torch.empty(4)
    _scale[(1,)](x, out, 0.1, True, 4)
    assert (out == torch.tensor(0.1) * 3).all(), out


@triton.jit
def _copy(x_ptr, out_ptr, n, shift, step, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (i < n) if MASKED else (i < BLOCK * tl.num_programs(0))
    tl.store(out_ptr + i, tl.load(x_ptr + i * step + shift, mask=inside, other=0.0), mask=inside)


def _out_of_bounds(pattern, *arguments, grid=(1,)):
    from touchstone.backends.triton.runtime.interpreter import OutOfBounds

    with pytest.raises(OutOfBounds, match=pattern):
        _copy[grid](*arguments)


@program("bounds")
def a_load_past_the_end_is_reported():
    x, out = torch.ones(100), torch.empty(128)
    _out_of_bounds(
        r"_copy \(interpreted_programs.py:\d+\), program \(1, 0, 0\): load of lane \[36\] at element offset 100 "
        r"of x_ptr, "
        r"which has elements 0 to 99 \(shape \(100,\), strides \(1,\)\); 27 more lanes are outside",
        x,
        out,
        100,
        0,
        1,
        False,
        64,
        grid=(2,),
    )


@program("bounds")
def a_load_before_the_start_is_reported():
    _out_of_bounds(
        r"load of lane \[0\] at element offset -1 of x_ptr", torch.ones(8), torch.empty(8), 8, -1, 1, True, 8
    )


@program("bounds")
def a_store_past_the_end_is_reported():
    _out_of_bounds(
        r"store of lane \[7\] at element offset 7 of out_ptr", torch.ones(8), torch.empty(7), 8, 0, 1, True, 8
    )


@program("bounds")
def a_far_load_is_reported_and_does_not_crash():
    _out_of_bounds("element offset 70368744177664", torch.ones(8), torch.empty(8), 8, 2**46, 1, True, 8)


@program("bounds")
def a_view_ends_where_its_last_element_does():
    x = torch.arange(20.0)
    _out_of_bounds(r"elements 0 to 14 \(.*\)$", x[0:15:2], torch.empty(8), 8, 1, 2, True, 8)  # one lane alone
    out = torch.empty(8)
    _copy[(1,)](x[0:15:2], out, 8, 0, 2, True, 8)
    assert out.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


@program("bounds")
def another_argument_s_memory_is_out_of_bounds():
    x, out = torch.ones(8), torch.empty(8)
    _out_of_bounds("x_ptr", x, out, 8, (out.data_ptr() - x.data_ptr()) // 4, 1, True, 8)


@program("bounds")
def an_empty_tensor_has_no_elements():
    _out_of_bounds("x_ptr, which has no elements", torch.empty(0), torch.empty(8), 8, 0, 1, True, 8)


@program("bounds", fixed=NEVER)
def two_views_of_one_storage_may_be_reached_from_each_other():
    packed = torch.arange(16.0)
    _copy[(1,)](packed[:8], packed[8:], 8, 0, 1, True, 8)
    assert packed.tolist() == [*range(8), *range(8)]
    _copy[(1,)](packed[:8], packed[8:], 4, 8, 1, True, 4)


@triton.jit
def _one_or_the_other(x_ptr, y_ptr, out_ptr, by, BOTH: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    other = y_ptr if BOTH else x_ptr
    tl.store(out_ptr + i, tl.load(tl.where(i < 2, x_ptr + i, other + i + by)))


@program("bounds")
def a_pointer_that_is_chosen_may_lead_where_each_of_the_two_does():
    from touchstone.backends.triton.runtime.interpreter import OutOfBounds

    x, y, out = torch.arange(4.0), torch.arange(4.0, 8.0), torch.empty(4)
    for by, both, values in ((0, True, [0, 1, 6, 7]), (-1, False, [0, 1, 1, 2])):
        _one_or_the_other[(1,)](x, y, out, by, both, 4)
        assert out.tolist() == values
    with pytest.raises(OutOfBounds, match=r"load of lane \[3\] at element offset 4 of x_ptr"):
        _one_or_the_other[(1,)](x, y, out, 1, False, 4)


@triton.jit
def _descriptor(x_desc, out_ptr, row, col, R: tl.constexpr, C: tl.constexpr):
    x = x_desc.load([row, col])
    tl.store(out_ptr + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :], x)


@program("bounds")
def descriptors_clip_and_their_base_is_checked():
    from triton.tools.tensor_descriptor import TensorDescriptor

    from touchstone.backends.triton.runtime.interpreter import OutOfBounds

    x, out = torch.arange(64.0).reshape(8, 8), torch.empty(4, 4)
    _descriptor[(1,)](TensorDescriptor.from_tensor(x, [4, 4]), out, 6, 4, 4, 4)
    assert torch.equal(out, torch.cat([x[6:, 4:], torch.zeros(2, 4)]))
    wrong = TensorDescriptor(x, [16, 8], [8, 1], [4, 4])
    with pytest.raises(OutOfBounds, match="x_desc"):
        _descriptor[(1,)](wrong, out, 6, 4, 4, 4)


@triton.jit
def _stored(y_desc, row, col):
    y_desc.store([row, col], tl.full([4, 4], 1.0, tl.float32))


@program("descriptors")
def boxes_that_the_copy_engine_refuses():
    from triton.tools.tensor_descriptor import TensorDescriptor

    from touchstone.backends.triton.runtime.interpreter import KernelError

    x, out = torch.arange(64.0).reshape(8, 8), torch.empty(4, 4)
    described = TensorDescriptor.from_tensor(x, [4, 4])
    with pytest.raises(KernelError, match="load of a descriptor's block: the last coordinate, 2, is no multiple of 16"):
        _descriptor[(1,)](described, out, 0, 2, 4, 4)
    _descriptor[(1,)](described, out, -2, -4, 4, 4)
    assert not out.any()
    for row, col, message in [(0, 2, "no multiple of 16 bytes"), (-1, 0, "as -1 is"), (0, -4, "as -4 is")]:
        with pytest.raises(KernelError, match=message):
            _stored[(1,)](described, row, col)
    assert torch.equal(x, torch.arange(64.0).reshape(8, 8))
    _stored[(1,)](described, 6, 4)
    assert x[6:, 4:].eq(1).all() and x.eq(1).sum() == 9


@triton.jit
def _load_without_other(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n))


@program("masked lanes")
def masked_lanes_without_other_are_conspicuous():
    out = torch.empty(8)
    _load_without_other[(1,)](torch.ones(5), out, 5, 8)
    assert out[:5].eq(1).all()
    assert out[5:].isnan().all()
    numbers = torch.empty(8, dtype=torch.int32)
    _load_without_other[(1,)](torch.ones(5, dtype=torch.int32), numbers, 5, 8)
    assert numbers[5:].eq(12345).all()


@program("masked lanes")
def masked_lanes_of_every_type_are_conspicuous():
    for dtype, shown in (
        (torch.int8, 85), (torch.uint8, 85), (torch.int16, 12345), (torch.int64, 12345), (torch.bool, True),
        (torch.float64, None), (torch.bfloat16, None), (torch.float16, None),
    ):  # fmt: skip
        out = torch.zeros(8, dtype=dtype)
        _load_without_other[(1,)](torch.ones(5, dtype=dtype), out, 5, 8)
        assert out[:5].eq(1).all()
        assert out[5:].eq(shown).all() if shown is not None else out[5:].isnan().all(), dtype


@program("masked lanes")
def within_undefined_masked_lanes_are_0_and_their_line_is_told():
    from touchstone.backends.triton.runtime import interpreter

    out = torch.empty(8)
    with interpreter.undefined() as found:
        _load_without_other[(1,)](torch.ones(8), out, 8, 8)
        assert found == {}  # no lane is masked
        _load_without_other[(1,)](torch.ones(5), out, 5, 8)
    (place,) = found
    assert out.tolist() == [1] * 5 + [0] * 3
    assert place.startswith("interpreted_programs.py:")
    assert "masked load without `other`" in found[place]
    for conspicuous, shown in (([place], True), (None, True), (["other.py:1"], False)):
        with interpreter.undefined(conspicuous):
            _load_without_other[(1,)](torch.ones(5), out, 5, 8)
        assert out[5:].isnan().all() == shown
    _load_without_other[(1,)](torch.ones(5), out, 5, 8)
    assert out[5:].isnan().all()


@triton.jit
def _load_scalar(x_ptr, out_ptr, n):
    tl.store(out_ptr, tl.load(x_ptr, mask=n > 0, other=0.0))


@program("launch")
def a_scalar_load_of_a_masked_lane_gives_other():
    out = torch.empty(1)
    _load_scalar[(1,)](torch.ones(1), out, 0)
    assert out.item() == 0


@triton.jit
def _accumulate(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(out_ptr + i % 2, tl.load(x_ptr + i))


@program("memory")
def atomics_add_bfloat16():
    x, out = torch.arange(8.0).bfloat16(), torch.zeros(2).bfloat16()
    _accumulate[(1,)](x, out, 8)
    assert out.tolist() == [12, 16]


@triton.jit
def _exchange(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    before = tl.atomic_xchg(out_ptr + i, tl.load(x_ptr + i), mask=i < N - 1)
    tl.store(x_ptr + i, before, mask=i < N - 1)


@program("memory")
def atomics_exchange_floats():
    for dtype in (torch.float32, torch.float64):
        x, out = torch.arange(8.0, dtype=dtype), torch.full((8,), 9.0, dtype=dtype)
        _exchange[(1,)](x, out, 8)
        assert x.tolist() == [9.0] * 7 + [7.0]
        assert out.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0]


@program("memory")
def atomics_are_bounds_checked():
    from touchstone.backends.triton.runtime.interpreter import OutOfBounds

    with pytest.raises(OutOfBounds, match=r"atomic of lane \[1\]"):
        _accumulate[(1,)](torch.ones(8), torch.zeros(1), 8)


@triton.jit
def _widened(x_ptr, out_ptr, first, N: tl.constexpr):
    i = tl.arange(0, N)
    wide = (x_ptr + first).to(tl.pointer_type(tl.int32), bitcast=True)
    tl.store(out_ptr + i, tl.load(wide + i))


@program("memory", fixed=NEVER)
def pointers_of_another_width_reach_their_bytes():
    x = torch.arange(9, dtype=torch.int16)
    for first, n in ((0, 4), (1, 4), (1, 1)):  # of 1: between two words
        out = torch.empty(n, dtype=torch.int32)
        _widened[(1,)](x, out, first, n)
        assert torch.equal(out, x[first : first + 2 * n].clone().view(torch.int32))


@triton.jit
def _asserts(x_ptr, n):
    tl.device_assert(tl.load(x_ptr) > 0, "x is positive")


@program("assertions")
def device_asserts_are_checked():
    _asserts[(1,)](torch.ones(1), 1)
    with pytest.raises(
        Exception, match=r"_asserts \(.*:\d+\), program \(0, 0, 0\): device_assert failed: .*x is positive"
    ):
        _asserts[(1,)](-torch.ones(1), 1)


@triton.jit
def _multiply(out_ptr, n, stride, WIDE: tl.constexpr):
    row = tl.program_id(0) + n
    if WIDE:
        row = row.to(tl.int64)
    tl.store(out_ptr, row * stride)


@program("assertions")
def integer_overflow_is_reported():
    from touchstone.backends.triton.runtime.interpreter import IntegerOverflowError

    out = torch.empty(1, dtype=torch.int64)
    _multiply[(1,)](out, 33, 2**26, True)
    assert out.item() == 33 * 2**26
    _multiply[(1,)](out, 31, 2**26, False)
    assert out.item() == 31 * 2**26
    with pytest.raises(IntegerOverflowError, match=r"^_multiply .*: int32 mul overflows, .* the exact 2214592512 "):
        _multiply[(1,)](out, 33, 2**26, False)


@program("assertions")
def within_undefined_integers_wrap_and_their_line_is_told():
    from touchstone.backends.triton.runtime import interpreter

    out = torch.empty(1, dtype=torch.int64)
    with interpreter.undefined() as found:
        _multiply[(1,)](out, 33, 2**26, False)
    assert out.item() == 33 * 2**26 - 2**32
    (what,) = found.values()
    assert what.startswith(f"int32 mul overflows, and wraps on a GPU: the exact 2214592512 becomes {out.item()}; ")


@triton.jit
def _adds(x_ptr, out_ptr):
    tl.store(out_ptr, tl.load(x_ptr) + 1.0)


@gluon.jit
def _in_gluon(x_ptr, y_ptr):
    i = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(y_ptr + i, gl.load(x_ptr + i) + gl.sum(gl.load(x_ptr + i), 0))


@program("gluon")
def kernels_in_gluon_run():
    x, y = torch.arange(128.0), torch.empty(128)
    _in_gluon[(1,)](x, y)
    assert torch.equal(y, x + x.sum())


@program("launch")
def what_the_interpreter_lacks_is_not_held_against_a_kernel():
    from touchstone import backends
    from touchstone.backends.triton.runtime.interpreter import NotInterpreted

    assert issubclass(NotInterpreted, backends.NotRun)
    from triton.runtime.interpreter import InterpreterBuilder

    add = InterpreterBuilder.create_fadd
    del InterpreterBuilder.create_fadd
    try:
        with pytest.raises(NotInterpreted, match=r"_adds \(.*: fadd is not interpreted"):
            _adds[(1,)](torch.ones(1), torch.ones(1))
    finally:
        InterpreterBuilder.create_fadd = add


@triton.jit
def _divide(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x / (x - x) + undefined_name)  # noqa: F821


@triton.jit
def _members(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr + tl.arange(0, N), x.exp() + x.abs().sqrt() + x.sum(0))


@program("launch")
def functions_of_mathematics_are_members_of_a_tensor():
    x, out = torch.randn(8), torch.empty(8)
    _members[(1,)](x, out, 8)
    assert torch.allclose(out, x.exp() + x.abs().sqrt() + x.sum())


@program("launch")
def errors_name_kernel_line_and_program():
    from touchstone.backends.triton.runtime.interpreter import KernelError

    pattern = r"^_divide \(interpreted_programs.py:\d+\), program \(0, 0, 0\): NameError: .*undefined"
    with pytest.raises(KernelError, match=pattern) as caught:
        _divide[(3,)](torch.ones(4), torch.ones(4), 4)
    assert caught.traceback[-1].name == "_divide"  # where a debugger lands


@program("launch")
def grids_have_up_to_three_axes():
    from touchstone.backends.triton.runtime.interpreter import KernelError

    x, out = torch.ones(8), torch.empty(8)
    for grid in ((1,), (1, 1), (1, 1, 1), [1]):
        _copy[grid](x, out, 8, 0, 1, True, 8)
    for grid, message in (
        ((), "_copy: a grid has 1 to 3 axes, not 0"),
        ((1, 1, 1, 1), "a grid has 1 to 3 axes, not 4"),
        ((2**31,), r"grid \(2147483648, 1, 1\) is larger than a GPU's limit"),
        ((1, 1, 65536), "larger than a GPU's limit"),
    ):
        with pytest.raises(KernelError, match=message):
            _copy[grid](x, out, 8, 0, 1, True, 8)


@program("launch")
def unknown_options_and_impossible_grids_are_refused():
    x, out = torch.ones(8), torch.empty(8)
    with pytest.raises(KeyError, match="num_warp'"):
        _copy[(1,)](x, out, 8, 0, 1, True, 8, num_warp=4)
    with pytest.raises(Exception, match="larger than a GPU's limit"):
        _copy[(1, 65536)](x, out, 8, 0, 1, True, 8)


@program("launch")
def a_grid_function_sees_the_arguments_themselves():
    x, out = torch.ones(24), torch.zeros(24)
    seen = []

    def grid(meta):
        seen.append((type(meta["n"]), meta["x_ptr"] is x))
        return (triton.cdiv(meta["n"], meta["BLOCK"]),)

    _copy[grid](x, out, 24, 0, 1, True, 8)
    assert out.eq(1).all()
    assert seen == [(int, True)]


@program("launch", fixed=NEVER)
def tensors_are_used_in_place():
    storage = torch.empty(2**31, dtype=torch.int16)  # 4 GiB of which only two pages are touched
    x, out = storage[: 2**30 + 8 : 2**30], storage[-8:]
    x.copy_(torch.tensor([3, 4]))
    page = os.sysconf("SC_PAGESIZE")

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * page

    before = resident()
    _copy[(1,)](x, out, 2, 0, 2**30, True, 2)
    assert out[:2].tolist() == [3, 4]
    assert resident() - before < 2**26
    y = torch.zeros(4, 4)
    _copy[(1,)](torch.ones(4), y.t()[1], 4, 0, 1, True, 4)
    assert y.flatten()[1:5].eq(1).all()


@triton.jit
def _times(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i) if EVEN else tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x * factor, mask=i < n)


@program("launch")
def a_warmed_up_kernel_tells_what_launchers_ask_and_can_be_launched():
    from touchstone.backends import NotRun

    x, out = torch.arange(20.0), torch.zeros(20)
    kernel = _times.warmup(torch.float32, out, 20, 2.0, BLOCK=8, EVEN=False, num_warps=8, num_stages=2, grid=(1,))
    assert out.eq(0).all()
    kernel._init_handles()
    assert kernel.n_regs > 0 and kernel.n_spills == 0 and kernel.metadata.shared > 0
    metadata = kernel.metadata
    assert (metadata.num_warps, metadata.num_stages, metadata.num_ctas, metadata.name) == (8, 2, 1, "_times")
    assert math.prod(metadata.cluster_dims) == metadata.num_ctas
    assert metadata.target.backend == "cuda" and metadata.target.arch == 90
    kernel[(3, 1, 1)](x, out, 20, 2.0, 8, False)
    assert torch.equal(out, 2 * x)
    if VERSION >= (3, 7):  # whose launcher leaves out the compile-time parameters at the end
        kernel[(3, 1, 1)](-x, out, 20, 2.0)
        assert torch.equal(out, -2 * x)
    with pytest.raises(NotRun, match=r"reads \.asm of a compiled kernel"):
        kernel.asm["ptx"]
    with pytest.raises(NotRun, match=r"reads \.metadata\.nosuch"):
        metadata.nosuch  # noqa: B018
    with pytest.raises(KeyError, match="num_warp'"):
        _times.warmup(x, out, 20, 2.0, BLOCK=8, EVEN=False, num_warp=4, grid=(1,))
    with pytest.raises(TypeError):
        _times.warmup(x, out, grid=(1,))


@program("launch")
def launches_return_their_kernel_and_call_their_hooks():
    x, out, seen = torch.ones(8), torch.zeros(8), []
    _times.add_pre_run_hook(lambda *args, **kwargs: seen.append((args[0] is x, kwargs)))
    try:
        launched = _times.run(x, out, 8, 3.0, BLOCK=8, EVEN=True, num_warps=2, grid=lambda meta: (1,), warmup=False)
    finally:
        _times.pre_run_hooks.clear()
    assert out.eq(3).all() and launched.metadata.num_warps == 2
    assert seen == [(True, {"BLOCK": 8, "EVEN": True, "num_warps": 2})]
    assert [parameter.name for parameter in _times.params if parameter.is_constexpr] == ["BLOCK", "EVEN"]
    assert "def _times" in _times.src and not hasattr(_times, "nosuch")
    assert _times.__globals__ is globals() and _times.cache_key != _copy.cache_key


@program("launch")
def launchers_find_the_kernel_below_what_is_around_it():
    found = triton.heuristics({"EVEN": _even})(_times)
    while not isinstance(found, triton.runtime.JITFunction):
        found = found.fn
    assert found is _times and not isinstance(_even, triton.runtime.JITFunction)
    sent, out = cloudpickle.loads(cloudpickle.dumps(found)), torch.zeros(8)  # as to a process of its own
    sent[(1,)](torch.ones(8), out, 8, 3.0, BLOCK=8, EVEN=True)
    assert out.eq(3).all()


@program("launch")
def a_kernel_is_not_called_without_a_grid():
    with pytest.raises(RuntimeError, match=r"_times: a kernel is launched as kernel\[grid\]"):
        _times(torch.ones(8), torch.ones(8), 8, 1.0, 8, True)


def _even(meta):
    return meta["n"] % meta["BLOCK"] == 0


CONFIGS = [triton.Config({"BLOCK": 8}, num_warps=4), triton.Config({"BLOCK": 16}, num_warps=8)]
outside = triton.autotune(CONFIGS, key=["n"])(triton.heuristics({"EVEN": _even})(_times))
inside = triton.heuristics({"EVEN": lambda meta: False})(
    triton.autotune(CONFIGS, key=["n"], do_bench=lambda call, quantiles: [1.0], cache_results=True)(_times)
)


@program("launch", fixed=NEVER)
def heuristics_and_configurations_stack_in_either_order():
    for stacked in (outside, inside):
        for n in (20, 16):
            x, out = torch.arange(float(n)), torch.zeros(n)
            stacked[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, out, n, 2.0)
            assert torch.equal(out, 2 * x)


@program("timing")
def do_bench_runs_the_function_and_gives_a_time():
    from triton.testing import do_bench_cudagraph

    calls = []
    assert 0 < triton.testing.do_bench(lambda: calls.append(1), warmup=1, rep=1) < 1000
    assert len(triton.testing.do_bench(lambda: calls.append(1), quantiles=[0.5, 0.2, 0.8])) == 3
    assert do_bench_cudagraph(lambda: calls.append(1), return_mode="median") > 0
    assert len(calls) == 3


@program("timing")
def times_are_milliseconds_on_this_machine_s_clock():
    bench, nothing = triton.testing.do_bench, lambda: None
    for options, expected in (
        ({}, 250.0),
        ({"return_mode": "median"}, 250.0),
        ({"return_mode": "all"}, [250.0]),
        ({"quantiles": [0.5]}, 250.0),
        ({"quantiles": [0.5, 0.2]}, [250.0, 250.0]),
    ):
        with mock.patch("time.perf_counter", side_effect=[1.0, 1.25]):
            assert bench(nothing, **options) == expected, options


@triton.jit
def _square(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr + tl.arange(0, N), x * x)


@triton.jit
def _product(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    first = tl.load(x_ptr)
    tl.store(out_ptr + i, x * y)
    tl.store(out_ptr + N + i, x + 0.0)
    tl.store(out_ptr + 2 * N + i, tl.where(x > first, first, y) + first * first + (i + 1) * 1.0 + (i + 1.0))


@program("traces", fixed=NEVER)
def operations_done_before_are_done_on_their_own_operands():
    for x in (torch.randn(8), torch.randn(8).double(), torch.randn(8)):
        y, out = torch.randn(8).to(x.dtype), torch.empty(3, 8, dtype=x.dtype)
        _square[(1,)](x, y, out, 8)
        assert torch.equal(out[0], x * x)
        _product[(1,)](x, y, out, 8)
        assert torch.equal(out[0], x * y)
        assert torch.equal(out[1], x)
        i = torch.arange(1, 9)
        assert torch.allclose(out[2], torch.where(x > x[0], x[0], y) + x[0] ** 2 + 2 * i)


@program("traces")
def operations_done_before_do_without_triton_s_code():
    from triton.language import semantic

    x, out, calls = torch.randn(8), torch.empty(3, 8), []

    def count(frame, event, argument):
        if event == "call" and frame.f_code.co_filename == semantic.__file__:
            calls.append(frame.f_code.co_name)

    _product[(1,)](x, x, out, 8)
    sys.setprofile(count)
    try:
        _product[(2,)](x, x, out, 8)
    finally:
        sys.setprofile(None)
    assert len(calls) < 10, calls  # some 500, else


def _tile(block, **options):
    return triton.Config({"BLOCK": block}, **options)


@triton.autotune(
    [_tile(4), _tile(8, pre_hook=lambda arguments: arguments["out_ptr"].fill_(7.0)), _tile(16)],
    key=["n"],
    prune_configs_by={
        "early_config_prune": lambda configs, named, **_: [c for c in configs if c.kwargs["BLOCK"] >= named["n"]]
    },
)
@triton.jit
def _tuned(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK >= 8)
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0), mask=i < n)


@triton.autotune([_tile(2), _tile(4)], key=["n"])
@triton.jit
def _refusing(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK >= 8)


@program("autotune")
def autotuned_kernels_run_their_first_possible_configuration():
    out = torch.zeros(8)
    _tuned[(1,)](torch.ones(5), out, 5)
    assert out.tolist() == [1.0] * 5 + [7.0] * 3
    assert _tuned.best_config.kwargs == {"BLOCK": 8} and _tuned.nargs is None
    _tuned[(1,)](torch.ones(3), out, 3)  # BLOCK=4 is left after pruning and refused by the kernel
    assert _tuned.best_config.kwargs == {"BLOCK": 8}


@program("autotune")
def what_a_tuned_kernel_was_given_is_not_kept_whatever_becomes_of_it():
    from touchstone.backends.triton.runtime.interpreter import KernelError

    x, out = torch.ones(5), torch.zeros(32)
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        _tuned[(1,)](x, out, 6, BLOCK=8)
    assert _tuned.nargs is None
    with pytest.raises(Exception, match="after pruning"):  # Triton's own since 3.7
        _tuned[(1,)](x, out, 17)
    assert _tuned.nargs is None
    with pytest.raises(KernelError, match="element offset 5 of x_ptr"):
        _tuned[(1,)](x, out, 7)
    assert _tuned.nargs is None
    with pytest.raises(KernelError, match="static_assert failed"):
        _refusing[(1,)](x, out, 5)
    assert _refusing.nargs is None
    out = torch.zeros(32)
    _tuned[(1,)](torch.ones(16), out, 16)
    assert _tuned.best_config.kwargs == {"BLOCK": 16} and out.tolist() == [1.0] * 16 + [0.0] * 16


@triton.autotune([_tile(4), _tile(8)], key=["n"], reset_to_zero=["out_ptr"], restore_value=["x_ptr"])
@triton.jit
def _summed(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + i, mask=i < n, other=0.0)))


@program("autotune", fixed=NEVER if torch.cuda.is_available() else (99, 0))
def outputs_are_reset_where_a_gpu_would_tune_and_not_in_later_calls():
    out = torch.full((1,), 5.0)
    for total in (8.0, 16.0):
        _summed[lambda meta: (triton.cdiv(8, meta["BLOCK"]),)](torch.ones(8), out, 8)
        assert out.item() == total


def _attempt(function: Callable[[], None]) -> str | None:
    torch.manual_seed(0)
    try:
        function()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


def _in_child(without: frozenset[str], functions: list[Callable[[], None]]) -> list[str | None]:
    """Run functions one after another in a forked child with all repairs but `without`; what each raised."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        from touchstone.backends.triton.runtime import interpreter

        interpreter.install(without)
        with os.fdopen(send, "w") as pipe:
            for function in functions:
                print(json.dumps(_attempt(function)), file=pipe, flush=True)
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as pipe:
        answers = [json.loads(line) for line in pipe]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if len(answers) < len(functions):
        rest = functions[len(answers) + 1 :]
        return [*answers, f"ended with status {status}", *(_in_child(without, rest) if rest else [])]
    return answers


def on_a_gpu() -> None:
    torch.set_default_device("cuda")
    about_values = ("bfloat16", "casts", "dot", "arithmetic", "reductions", "loops", "arguments")
    report = {f.__name__: _attempt(f) for repair, f, _ in PROGRAMS if repair in about_values}
    json.dump({"triton": triton.__version__, "programs": report}, sys.stdout)


def main() -> None:
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    held = _in_child(frozenset(), [function for _, function, _ in PROGRAMS])
    report = {f.__name__: {"with": error} for (_, f, _), error in zip(PROGRAMS, held, strict=True)}
    for repair in dict.fromkeys(repair for repair, _, _ in PROGRAMS):
        needing = [f for r, f, needs in PROGRAMS if r == repair and needs]
        for function, error in zip(needing, _in_child(frozenset([repair]), needing), strict=True):
            report[function.__name__]["without"] = error
    json.dump({"triton": triton.__version__, "programs": report}, sys.stdout)


if __name__ == "__main__":
    on_a_gpu() if sys.argv[1:] == ["cuda"] else main()
