"""Numbers as a GPU has them: formats, casts, dot products, arithmetic."""

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from touchstone.backends.triton.runtime.interpreter.registry import KernelError, repair
from touchstone.backends.triton.runtime.interpreter.undefined import overflows

BF16 = np.dtype(ml_dtypes.bfloat16)
FP8 = {
    "fp8e5": np.dtype(ml_dtypes.float8_e5m2),
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5b16": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "fp8e4b8": np.dtype(ml_dtypes.float8_e4m3fnuz),
}


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@repair("bfloat16", "arithmetic, comparisons, reductions on values, not on bit patterns", "triton#11584, #11585")
def _bfloat16() -> None:
    types = {
        "int1": np.bool_,
        "int8": np.int8,
        "uint8": np.uint8,
        "int16": np.int16,
        "uint16": np.uint16,
        "int32": np.int32,
        "uint32": np.uint32,
        "int64": np.int64,
        "uint64": np.uint64,
        "fp16": np.float16,
        "fp32": np.float32,
        "fp64": np.float64,
        "bf16": BF16,
        "fp8e4b15": np.uint8,
        **dict.fromkeys(FP8, np.uint8),
    }
    numpy_types = {name: np.dtype(dtype) for name, dtype in types.items()}
    pointer = np.dtype(np.uint64)

    def get_np_dtype(ty):
        scalar = ty.scalar
        return pointer if isinstance(scalar, tl.pointer_type) else numpy_types[scalar.name]

    def get_bf16(self, value):
        return TensorHandle(np.array([value], dtype=BF16), tl.bfloat16)

    def fabs(self, arg):
        return TensorHandle(np.abs(arg.data), arg.dtype.scalar)

    stock._get_np_dtype = get_np_dtype
    InterpreterBuilder.get_bf16 = get_bf16
    InterpreterBuilder.create_fabs = fabs


@repair("casts", "to nearest even or toward zero; float8 and integers saturate", "triton#11584, #11585")
def _casts() -> None:
    original = InterpreterBuilder.create_fp_to_fp

    def cast(self, src, dst_type, rounding_mode=None):
        source, target = src.dtype.scalar, dst_type.scalar
        if "fp8e4b15" in (source.name, target.name):
            return original(self, src, dst_type, rounding_mode)
        data = src.data
        if source.name in FP8 and data.dtype == np.uint8:
            data = data.view(FP8[source.name])
        if target.name in FP8:
            return TensorHandle(_to_fp8(data, FP8[target.name]).view(np.uint8), target)
        dtype = stock._get_np_dtype(target)
        if dtype.kind in "iu" and data.dtype.kind not in "iub":
            return TensorHandle(to_integer(data, dtype), target)
        result = data.astype(dtype)
        if rounding_mode == stock._ir.ROUNDING_MODE.RTZ and result.dtype.itemsize < data.dtype.itemsize:
            over = np.abs(result.astype(np.float64)) > np.abs(data.astype(np.float64))
            result = np.where(over, np.nextafter(result, np.zeros((), result.dtype)), result)
        return TensorHandle(result, target)

    def cast_impl(self, src, dst_type):
        return cast(self, src, dst_type)

    InterpreterBuilder.create_fp_to_fp = cast
    InterpreterBuilder.cast_impl = cast_impl


def to_integer(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Floats toward zero; out of range the nearest end, 8 bits by way of 16, as an H200 does.

    NaN gives 0, but from float64 and to 64 bits the highest bit alone, as PTX has it.
    """
    wide = np.dtype(f"{dtype.kind}{max(dtype.itemsize, 2)}")
    low, high = np.iinfo(wide).min, np.iinfo(wide).max
    values = data.astype(np.float64)
    inside = (values > low) & (values < high)  # false for NaN
    result = np.where(inside, values, 0).astype(wide)
    result = np.where(values >= high, wide.type(high), np.where(values <= low, wide.type(low), result))
    if wide.itemsize == 8 or data.dtype == np.float64:
        middle = low if wide.kind == "i" else 1 << (8 * wide.itemsize - 1)
        result = np.where(np.isnan(values), wide.type(middle), result)
    return result.astype(dtype)


def _to_fp8(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    largest = float(ml_dtypes.finfo(dtype).max)
    return np.clip(data.astype(np.float32), -largest, largest).astype(dtype)  # clip lets NaN through


@repair("dot", "tl.dot, tl.dot_scaled on values, operands cut as input_precision says: to TF32", "triton#11584")
def _dot() -> None:
    builder = stock.interpreter_builder
    allowed = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
    builder.options = dataclasses.replace(builder.options, allowed_dot_input_precisions=allowed)
    try:
        from triton.backends.compiler import GPUTarget
        from triton.backends.nvidia.compiler import min_dot_size
    except ImportError:
        pass
    else:
        builder.codegen_fns["min_dot_size"] = min_dot_size(GPUTarget("cuda", 90, 32))

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        left, right, acc = _dot_operand(a), _dot_operand(b), d.data
        if acc.dtype == np.float16:
            return TensorHandle(_half_accumulated(left, right, acc), d.dtype.scalar)
        if left.dtype.kind in "iu":  # exact: 127 · 127 · K stays below 2^53
            product = np.matmul(left.astype(np.float64), right.astype(np.float64)).astype(acc.dtype)
        elif a.dtype.scalar.name == "fp32":
            product = _float32_product(left, right, input_precision.name.lower())
        else:
            product = np.matmul(left, right)
        return TensorHandle((product + acc).astype(acc.dtype, copy=False), d.dtype.scalar)

    def create_dot_scaled(self, a, a_scale, a_format, b, b_scale, b_format, fast_math, a_k_pack, b_k_pack, d):
        half = stock._ir.ScaleDotElemTypeTY.FP16 in (a_format, b_format)
        left, right = _scaled(a, a_scale, a_k_pack, -1), _scaled(b, b_scale, b_k_pack, -2)
        between = np.float16 if half else BF16  # what the operands are on GPUs without such tensor cores
        product = np.matmul(left.astype(between).astype(np.float32), right.astype(between).astype(np.float32))
        return TensorHandle(product + d.data, d.dtype.scalar)

    def dot_scaled(self, lhs, lhs_scale, lhs_format, rhs, rhs_scale, rhs_format, *rest):
        formats = _Format(lhs_format), _Format(rhs_format)
        return scaled(self, lhs, lhs_scale, formats[0], rhs, rhs_scale, formats[1], *rest)

    scaled = TritonSemantic.dot_scaled
    InterpreterBuilder.create_dot, InterpreterBuilder.create_dot_scaled = create_dot, create_dot_scaled
    TritonSemantic.dot_scaled = dot_scaled


class _Format(str):
    """The name of a format, as the constexpr that Triton before 3.9 takes it for."""

    @property
    def value(self) -> str:
        return str(self)


def _scaled(operand: TensorHandle, scale: TensorHandle | None, k_pack: bool, k_axis: int) -> np.ndarray:
    """The float32 values of an operand of tl.dot_scaled whose K is on `k_axis`.

    uint8 holds two numbers of format e2m1, the lower bits first, that are neighbours along K or, without `k_pack`,
    along the other axis. A row of scales covers K in equal parts: uint8 is an exponent (e8m0), else it is a float8.
    """
    if operand.dtype.scalar.name == "uint8":
        pairs = np.stack([operand.data & 15, operand.data >> 4], axis=-1)
        if k_pack == (k_axis == -1):
            values = E2M1[pairs.reshape(*pairs.shape[:-2], -1)]
        else:
            swapped = np.swapaxes(pairs, -1, -2)
            values = E2M1[swapped.reshape(*swapped.shape[:-3], -1, swapped.shape[-1])]
    else:
        values = _dot_operand(operand).astype(np.float32)
    if scale is None:
        return values
    data, name = scale.data, scale.dtype.scalar.name
    if name in FP8:
        factors = data.view(FP8[name]).astype(np.float32)
    else:
        factors = np.where(data == 255, np.float32(np.nan), np.ldexp(np.float32(1), data.astype(np.int32) - 127))
    factors = np.repeat(factors, values.shape[k_axis] // factors.shape[-1], axis=-1)
    return values * (factors if k_axis == -1 else np.swapaxes(factors, -1, -2))


def _dot_operand(handle: TensorHandle) -> np.ndarray:
    """The values of an operand of tl.dot: integers as they are, floats of up to 32 bits as float32."""
    data, name = handle.data, handle.dtype.scalar.name
    if name in FP8:
        return data.view(FP8[name]).astype(np.float32)
    if data.dtype == BF16:
        return (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return data.astype(np.float32) if data.dtype == np.float16 else data


def _half_accumulated(left: np.ndarray, right: np.ndarray, acc: np.ndarray) -> np.ndarray:
    """left @ right + acc with a float16 accumulator, rounded after every 16 products as the tensor core does."""
    for k in range(0, left.shape[-1], 16):
        product = np.matmul(left[..., k : k + 16], right[..., k : k + 16, :])
        acc = (product + acc.astype(np.float32)).astype(np.float16)
    return acc


def _float32_product(left: np.ndarray, right: np.ndarray, precision: str) -> np.ndarray:
    """left @ right of float32 operands, each cut into the pieces that `precision` multiplies; small products first."""
    if precision == "ieee":
        return np.matmul(left, right)
    rounded = to_tf32 if precision.startswith("tf32") else _to_bf16
    pieces = {"tf32": 1, "tf32x3": 2, "bf16x3": 2, "bf16x6": 3}[precision]
    lefts, rights = _pieces(left, rounded, pieces), _pieces(right, rounded, pieces)
    product = None
    for order in reversed(range(pieces)):
        for i in range(order + 1):
            term = np.matmul(lefts[i], rights[order - i])
            product = term if product is None else product + term
        if order:
            product = np.where(np.isnan(product), np.float32(0), product)  # inf - inf of a small piece, as Triton does
    return product


def _pieces(x: np.ndarray, rounded: Callable[[np.ndarray], np.ndarray], count: int) -> list[np.ndarray]:
    found = []
    for _ in range(count):
        found.append(rounded(x))
        x = x - found[-1]
    return found


def to_tf32(x: np.ndarray) -> np.ndarray:
    """float32 cut to TF32's 10 mantissa bits, as the tensor core of an H200 reads its operands; inf and NaN stay."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    special = bits & np.uint32(0x7F800000) == np.uint32(0x7F800000)
    return np.where(special, bits, bits & np.uint32(0xFFFFE000)).view(np.float32)


def _to_bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(BF16).astype(np.float32)


@repair("arithmetic", "tl.maximum and tl.minimum skip NaN, fma rounds once, int1 wraps: as on a GPU", "triton#10919")
def _arithmetic() -> None:
    def binary_op(self, lhs, rhs, op):
        left, right, scalar = lhs.data, rhs.data, lhs.dtype.scalar
        if left.dtype == np.bool_ and op in (np.add, np.subtract):
            op = np.not_equal
        return TensorHandle(op(left, right), scalar)

    def clampf(self, arg, low, high, propagate_nan):
        if propagate_nan == stock._ir.PROPAGATE_NAN.ALL:
            return TensorHandle(np.minimum(np.maximum(arg.data, low.data), high.data), arg.dtype.scalar)
        return TensorHandle(np.fmin(np.fmax(arg.data, low.data), high.data), arg.dtype.scalar)

    def fma(self, x, y, z):
        return TensorHandle(fused_multiply_add(x.data, y.data, z.data), z.dtype.scalar)

    InterpreterBuilder.binary_op = binary_op
    InterpreterBuilder.create_minnumf = lambda self, lhs, rhs: binary_op(self, lhs, rhs, np.fmin)
    InterpreterBuilder.create_maxnumf = lambda self, lhs, rhs: binary_op(self, lhs, rhs, np.fmax)
    InterpreterBuilder.create_clampf = clampf
    InterpreterBuilder.create_fma = fma


def fused_multiply_add(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x y + z rounded once, to the type of z."""
    dtype = z.dtype
    if dtype.kind in "iu":
        return x * y + z
    if dtype == np.float64:
        return np.frompyfunc(_fused, 3, 1)(x, y, z).astype(dtype)
    product, addend = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)  # the product is exact
    total = product + addend
    part = total - product
    lost = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    odd = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))  # rounded to odd, a second rounding does no harm
    even = (bits & 1 == 0) & (lost != 0) & np.isfinite(lost)
    return np.where(even, odd, total).astype(dtype)


def _fused(x: float, y: float, z: float) -> float:
    if not math.isfinite(x) or not math.isfinite(y):
        return x * y + z
    if not math.isfinite(z):  # also where the product would overflow
        return z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:  # and so was every step: a zero of the right sign
        return x * y + z
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


@repair("assertions", "tl.device_assert is checked, and integer arithmetic that overflows its type raises")
def _assertions() -> None:
    builder = stock.interpreter_builder
    builder.options = dataclasses.replace(builder.options, debug=True, sanitize_overflow=True)

    def sanitize(self, lhs, rhs, binary_op):
        if 1 < lhs.type.scalar.int_bitwidth < 64:
            self.builder.create_overflow_check(lhs.handle, rhs.handle, binary_op.__name__)

    def create_assert(self, condition, message):
        if not condition.data.all():
            raise KernelError(f"device_assert failed: {message}")

    TritonSemantic.binary_op_sanitize_overflow_impl = sanitize
    InterpreterBuilder.create_assert = create_assert
    InterpreterBuilder.create_overflow_check = staticmethod(_check_overflow)


def _check_overflow(lhs: TensorHandle, rhs: TensorHandle, name: str) -> None:
    """Tell `overflows` where "add", "sub" or "mul" leaves the operands' type; exact only if the extremes might."""
    left, right, scalar = lhs.data, rhs.data, lhs.dtype.scalar
    a, b = _extremes(left), _extremes(right)
    if name == "add":
        ends, exact = (a[0] + b[0], a[1] + b[1]), np.add
    elif name == "sub":
        ends, exact = (a[0] - b[1], a[1] - b[0]), np.subtract
    else:
        ends, exact = (a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1]), np.multiply
    low, high = scalar.get_int_min_value(), scalar.get_int_max_value()
    if low <= min(ends) and max(ends) <= high:
        return
    wide = exact(left.astype(np.int64), right.astype(np.int64))
    outside = (wide < low) | (wide > high)
    if outside.any():
        first = int(wide[outside].flat[0])
        overflows(f"{scalar.name} {name}", first, (first - low) % (high - low + 1) + low)


def _extremes(data: np.ndarray) -> tuple[int, int]:
    return (data.item(),) * 2 if data.size == 1 else (int(data.min()), int(data.max()))
