"""Numbers in Triton's interpreter, where rounding decides: sums of products, casts, and what overflows."""

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

if not pytest.importorskip("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from touchstone.backends.triton.runtime.interpreter import numerics
from touchstone.backends.triton.runtime.interpreter.registry import IntegerOverflowError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # as of a kernel's arithmetic
BF16 = np.dtype(ml_dtypes.bfloat16)
INF, NAN = math.inf, math.nan


def nearest(exact, dtype):
    """The number of a type nearest to a fraction, of two the even one."""
    guess = np.float64(exact).astype(dtype)
    beside = [np.nextafter(guess, dtype.type(end)) for end in (-INF, INF)]

    def apart(number):
        odd = int(np.array(number).view(f"u{dtype.itemsize}")) & 1
        return abs(Fraction(float(number)) - exact), odd

    return min((guess, *beside), key=apart)


def products_beside_a_tie(dtype, digits):
    """x, y and z with x y + z so near to the middle of two numbers that a sum in float64 would be that middle."""
    tiny = 2.0 ** (1 - digits)
    rng = np.random.default_rng(0)
    for odd, sign, above in itertools.product((0, 1), (1, -1), (1 - tiny, 1 + tiny)):
        z = 1 + tiny * (2 * int(rng.integers(1, 2 ** (digits - 3))) + odd)
        half = 2.0 ** ((1 - digits) // 2)
        x, y = half * (1 + tiny), half * above / (2 if (1 - digits) % 2 == 0 else 1)
        for scale in (1.0, 2.0**40 if dtype == np.float32 else 1.0):
            yield sign * x * scale, y, z * scale


def test_a_sum_of_a_product_is_rounded_once():
    rows = list(products_beside_a_tie(np.dtype(np.float32), 24))
    middle = 1 + 2.0**-12, 1 + 3 * 2.0**-12  # whose square is in the middle of two numbers, and what is added tiny
    rows += [(sign * x, x, z) for x in middle for sign in (1, -1) for z in (2.0**-80, -(2.0**-80), 0.0)]
    rng = np.random.default_rng(1)
    rows += [tuple(row) for row in rng.standard_normal((300, 3)) * 10.0 ** rng.integers(-6, 7, (300, 3))]
    x, y, z = np.array(rows, np.float32).T
    found = numerics.fused_multiply_add(x, y, z)
    assert found.dtype == np.float32
    twice = (x.astype(np.float64) * y.astype(np.float64) + z).astype(np.float32)
    for a, b, c, got in zip(x.tolist(), y.tolist(), z.tolist(), found, strict=True):
        assert got == nearest(Fraction(a) * Fraction(b) + Fraction(c), found.dtype), (a, b, c)
    assert (twice != found).sum() >= 4  # of those that are beside a tie


def test_a_sum_of_a_product_of_float64_is_rounded_once():
    e = 2.0**-52
    rows = [
        (1 + e, 1 - e, -1.0),
        (1 + e, 1 + e, -1 - 2 * e),
        (3.0, 0.1, -0.3),
        (1e200, 1e200, -INF),
        (1e200, 1e200, 1.0),
    ]
    rows += [(-1e200, 1e200, 1.0), (0.0, -1.0, 0.0), (0.0, -1.0, -0.0), (INF, 0.0, 1.0), (2.0, 3.0, NAN)]
    found = numerics.fused_multiply_add(*np.array(rows).T)
    assert found[:2].tolist() == [-e * e, e * e] and found[2] == float(Fraction(3) * Fraction(0.1) - Fraction(0.3))
    assert found[3:6].tolist() == [-INF, INF, -INF]
    endless = np.array([(INF, 2.0, 1.0), (2.0, -INF, 5.0), (INF, 2.0, INF), (-INF, -INF, 1.0)]).T
    assert numerics.fused_multiply_add(*endless).tolist() == [INF, -INF, INF, INF]
    assert [math.copysign(1, each) for each in found[6:8]] == [1, -1] and np.isnan(found[8:]).all()


def test_sums_of_products_of_other_types():
    for dtype in (np.float16, BF16):
        x = np.array([1.5, -2.0, 3.0, INF]).astype(dtype)
        assert numerics.fused_multiply_add(x, x, x).astype(float).tolist() == [3.75, 2.0, 12.0, INF]
    i = np.array([3, -4], np.int32)
    assert numerics.fused_multiply_add(i, i, i).tolist() == [12, 12]
    wide = np.array([2**53 + 1, -(2**60) - 1])
    assert numerics.fused_multiply_add(wide, np.array([1, 3]), wide).tolist() == [2**54 + 2, -(2**62) - 4]


TO_INTEGERS = {  # from float32 numbers
    "int8": {1.9: 1, -1.9: -1, 300.0: 44, -300.0: -44, 40000.0: -1, -40000.0: 0, NAN: 0, INF: -1},  # by way of 16 bits
    "uint8": {1.9: 1, -1.0: 0, 300.0: 44, 70000.0: 255, NAN: 0},
    "int16": {40000.0: 32767, -40000.0: -32768, 32767.5: 32767, NAN: 0},
    "uint16": {40000.5: 40000, -1.5: 0, 70000.0: 65535, NAN: 0},
    "int32": {3e9: 2**31 - 1, -3e9: -(2**31), 1e9: 10**9, NAN: 0, INF: 2**31 - 1, -INF: -(2**31), -0.9: 0},
    "uint32": {3e9: 3 * 10**9, -3e9: 0, 5e9: 2**32 - 1, NAN: 0},
    "int64": {1e19: 2**63 - 1, -1e19: -(2**63), 2.0**40: 2**40, NAN: -(2**63)},
    "uint64": {1e19: int(np.float32(1e19)), 1e20: 2**64 - 1, -1.0: 0, NAN: 2**63},
}


@pytest.mark.parametrize("name", TO_INTEGERS)
def test_floats_become_integers_as_an_h200_makes_them(name):
    given = list(TO_INTEGERS[name])
    assert numerics.to_integer(np.array(given, np.float32), np.dtype(name)).tolist() == [*TO_INTEGERS[name].values()]
    ends = [np.iinfo(name).min, np.iinfo(name).max]
    assert numerics.to_integer(np.array(ends, np.float64), np.dtype(name)).tolist() == ends
    bits = max(16, 8 * np.dtype(name).itemsize)
    middle = np.array(2 ** (bits - 1), f"u{bits // 8}").astype(name).item()
    assert numerics.to_integer(np.array([NAN]), np.dtype(name)).tolist() == [middle]  # of float64


def test_tf32_keeps_ten_bits_and_what_is_no_number():
    x = np.array([1 + 2**-10, 1 + 2**-11, -1 - 2**-11 - 2**-12, INF, -INF, NAN, 0.0, 2**-140], np.float32)
    found = numerics.to_tf32(x)
    assert found[:3].tolist() == [1 + 2**-10, 1, -1] and found[3:5].tolist() == [INF, -INF]
    assert np.isnan(found[5]) and found[6] == 0 and found[7] == 2**-140 - 2**-140 % 2**-139
    assert numerics.to_tf32(np.array([1 + 2**-23, 1 + 2**-13], np.float32)).tolist() == [1.0, 1.0]
    nan = np.array([0x7F800001], np.uint32).view(np.float32)
    assert numerics.to_tf32(nan).view(np.uint32).tolist() == [0x7F800001]  # which stays one


def test_float8_saturates_and_keeps_nan():
    for dtype, largest in ((ml_dtypes.float8_e4m3fn, 448.0), (ml_dtypes.float8_e5m2, 57344.0)):
        x = np.array([1e6, -1e6, INF, -INF, NAN, 1.0, largest])
        found = numerics._to_fp8(x, np.dtype(dtype)).astype(np.float32)
        assert (
            found[:4].tolist() == [largest, -largest] * 2
            and np.isnan(found[4])
            and found[5:].tolist() == [1.0, largest]
        )


@pytest.mark.parametrize(
    ("precision", "bits"), [("tf32", 10), ("tf32x3", 21), ("bf16x3", 15), ("bf16x6", 22), ("ieee", 23)]
)
def test_products_of_float32_are_as_exact_as_their_pieces(precision, bits):
    rng = np.random.default_rng(0)
    left, right = (rng.uniform(1, 2, (8, 8)).astype(np.float32) for _ in range(2))
    exact = left.astype(np.float64) @ right.astype(np.float64)
    error = np.abs(numerics._float32_product(left, right, precision) / exact - 1).max()
    assert 2.0 ** -(bits + 8) < error < 2.0 ** -(bits - 2)


@pytest.mark.parametrize(
    ("precision", "gives"),
    [("tf32", 1 + 2**-9), ("tf32x3", 1 + 2**-9 + 2**-17), ("bf16x3", 1 + 2**-9), ("bf16x6", 1 + 2**-9 + 2**-17)],
)
def test_the_pieces_of_a_number(precision, gives):
    x = np.array([[1 + 2**-9 + 2**-17]], np.float32)
    one = np.ones((1, 1), np.float32)
    assert (
        numerics._float32_product(x, one, precision).item()
        == gives
        == numerics._float32_product(one, x, precision).item()
    )


def test_products_of_pieces_keep_what_is_infinite_or_no_number():
    left = np.array([[INF, 1.0], [1.0, 2.0], [1.0, np.nan]], np.float32)
    for precision in ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"):
        found = numerics._float32_product(left, np.eye(2, dtype=np.float32) + 1, precision)
        assert found[0].tolist() == [INF, INF] and found[1].tolist() == [4.0, 5.0], precision
        assert np.isnan(found[2]).all(), precision


@pytest.mark.parametrize(
    ("operation", "left", "right", "exact"),
    [
        ("add", [2**31 - 1, 0], [0, 1], None),
        ("add", [2**31 - 1, 5], [1, 0], 2**31),
        ("add", [-(2**31), 5], [-1, 0], -(2**31) - 1),
        ("add", [2**31 - 1, -5], [-1, 7], None),  # the extremes are in other lanes
        ("sub", [-(2**31), 5], [1, 0], -(2**31) - 1),
        ("sub", [2**31 - 1, 5], [-1, 0], 2**31),
        ("sub", [0, 5], [2**31 - 1, 1], None),
        ("mul", [2**16, 1], [2**15, 1], 2**31),
        ("mul", [-(2**16), 1], [2**15, 1], None),
        ("mul", [-(2**16), 1], [-(2**15), 1], 2**31),
        ("mul", [2**16, 1], [1, 2**15], None),
        ("mul", [7], [2**30], 7 * 2**30),
        ("mul", [-(2**16), 1], [2**16, 1], -(2**32)),
        ("mul", [2**16, -1], [-(2**16), -1], -(2**32)),
        ("add", [-(2**31), 5], [0, -1], None),
        ("add", [2**31 - 1, -5], [0, 7], None),
    ],
)
def test_integers_that_leave_their_type_are_told(operation, left, right, exact):
    handles = [TensorHandle(np.array(each, np.int32), tl.int32) for each in (left, right)]
    if exact is None:
        numerics._check_overflow(*handles, operation)
        return
    with pytest.raises(IntegerOverflowError) as caught:
        numerics._check_overflow(*handles, operation)
    becomes = np.int64(exact).astype(np.int32)
    assert str(caught.value) == (
        f"int32 {operation} overflows, and wraps on a GPU: the exact {exact} becomes {becomes}; compute addresses in "
        "int64"
    )


def test_what_an_unsigned_integer_wraps_to():
    handles = [TensorHandle(np.array([each], np.uint32), tl.uint32) for each in (3, 5)]
    with pytest.raises(IntegerOverflowError, match="the exact -2 becomes 4294967294; "):
        numerics._check_overflow(*handles, "sub")


def test_operands_of_scaled_dots():
    scales = np.array([[127, 128]], np.uint8)

    def scaled(data, ty, k_pack=True, axis=-1, scale=scales):
        handle = None if scale is None else SimpleNamespace(data=scale, dtype=tl.uint8)
        return numerics._scaled(SimpleNamespace(data=data, dtype=ty), handle, k_pack, axis)

    codes = np.array([[0x21, 0x43]], np.uint8)  # of e2m1, the lower four bits first
    assert scaled(codes, tl.uint8).tolist() == [[0.5, 1.0, 3.0, 4.0]]
    assert scaled(codes, tl.uint8, scale=None).tolist() == [[0.5, 1.0, 1.5, 2.0]]
    assert scaled(codes.T, tl.uint8, axis=-2).tolist() == [[0.5], [1.0], [3.0], [4.0]]
    assert scaled(np.array([[0x21, 0xC3]], np.uint8), tl.uint8, k_pack=False).tolist() == [[0.5, 3.0], [1.0, -4.0]]
    half = np.array([[1.0, 2.0, 3.0, 4.0]], np.float16)
    assert scaled(half, tl.float16).tolist() == [[1.0, 2.0, 6.0, 8.0]]
    assert scaled(half.T, tl.float16, axis=-2).tolist() == [[1.0], [2.0], [6.0], [8.0]]
    assert np.isnan(scaled(half, tl.float16, scale=np.array([[255, 127]], np.uint8))).tolist() == [
        [True, True, False, False]
    ]
    small = scaled(half, tl.float16, scale=np.array([[0, 254]], np.uint8))
    assert small[0, :2].tolist() == [2.0**-127, 2.0**-126] and small[0, 2:].tolist() == [INF, INF]
    brain = np.array([[1.5, -2.0, 3.0, 0.5]], BF16)
    assert scaled(brain, tl.bfloat16).tolist() == [[1.5, -2.0, 6.0, 1.0]]


def test_scales_of_float8():
    scale = SimpleNamespace(
        data=np.array([[2.0, 0.5]]).astype(ml_dtypes.float8_e4m3fn).view(np.uint8), dtype=tl.float8e4nv
    )
    half = SimpleNamespace(data=np.array([[1.0, 2.0, 3.0, 4.0]], np.float16), dtype=tl.float16)
    assert numerics._scaled(half, scale, True, -1).tolist() == [[2.0, 4.0, 1.5, 2.0]]


def test_the_numbers_of_e2m1():
    """The values of the OCP's format: 1 bit of sign, 2 of exponent, 1 of mantissa."""
    for code in range(16):
        exponent, mantissa = (code >> 1) & 3, code & 1
        magnitude = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
        assert numerics.E2M1[code] == (-magnitude if code & 8 else magnitude)
        assert np.signbit(numerics.E2M1[code]) == (code >= 8)


def test_operands_of_dots_are_their_values():
    for ty, dtype in ((tl.float8e5, ml_dtypes.float8_e5m2), (tl.float8e4nv, ml_dtypes.float8_e4m3fn)):
        data = np.array([1.5, -2.0, 0.25]).astype(dtype).view(np.uint8)
        found = numerics._dot_operand(TensorHandle(data, ty))
        assert (found.dtype, found.tolist()) == (np.float32, [1.5, -2.0, 0.25])
    for data in (np.array([1.5, INF]).astype(BF16), np.array([1.5, INF], np.float16), np.array([1.5, INF], np.float32)):
        ty = {2: tl.float16, 4: tl.float32}[data.itemsize] if data.dtype != BF16 else tl.bfloat16
        found = numerics._dot_operand(TensorHandle(data, ty))
        assert (found.dtype, found.tolist()) == (np.float32, [1.5, INF])
    whole = np.array([3, -4], np.int8)
    assert numerics._dot_operand(TensorHandle(whole, tl.int8)) is whole


def test_a_half_accumulator_is_rounded_after_sixteen_products():
    left, right = np.ones((1, 48), np.float32), np.ones((48, 1), np.float32)
    right[:, 0] = np.where(np.arange(48) < 16, 128, 1 / 16)  # 2048, and then twice half of its last place
    acc = np.zeros((1, 1), np.float16)
    found = numerics._half_accumulated(left, right, acc)
    assert found.dtype == np.float16 and found.tolist() == [[2048.0]]
    assert numerics._half_accumulated(left[:, :16], right[16:32], acc).tolist() == [[1.0]]
    several = np.arange(2 * 32, dtype=np.float32).reshape(2, 32) % 7
    assert np.array_equal(
        numerics._half_accumulated(several, several.T, np.zeros((2, 2), np.float16)), several @ several.T
    )
