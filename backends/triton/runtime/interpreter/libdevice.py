"""NVIDIA's libdevice in the interpreter: each function, its formula, and the error that CUDA documents for it.

A function is known by its symbol ("__nv_expf"), so `triton.language.extra.libdevice`, `tl.extra.cuda.libdevice` and a
kernel's own `tl.extern_elementwise` reach the same one. float32 functions are computed in float64, float64 functions in
NumPy's longest float, and rounded once. Triton links libdevice with `nvvm-reflect-ftz`: float32 functions take
subnormal arguments as zeros and give zeros for subnormal results, but for those that move bits.

Errors are those of the tables "Mathematical Functions" and "Intrinsic Functions" of the CUDA C++ Programming Guide
[cuda2025].
"""

import dataclasses
import functools
import math
import types
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import cuda, libdevice
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from touchstone.backends.triton.runtime.interpreter.launch import operation
from touchstone.backends.triton.runtime.interpreter.numerics import fused_multiply_add, to_integer
from touchstone.backends.triton.runtime.interpreter.registry import KernelError, NotInterpreted, redirect, repair

Formula = Callable[..., np.ndarray]


@dataclasses.dataclass(frozen=True)
class Bound:
    """A documented maximum error: `ulps` from the correctly rounded result or, where `where` holds, `absolute`.

    `ulps` and `where` may be functions of the arguments, as float64 arrays. NaN: nothing is documented.
    """

    ulps: float | Formula = 0.0
    absolute: float = 0.0
    where: Formula | None = None

    def at(self, *arguments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The allowed error of each element, in ulps and absolute: it may be as large as the larger of the two."""
        shape = np.shape(arguments[0])
        ulps = self.ulps(*arguments) if callable(self.ulps) else np.full(shape, self.ulps)
        if self.where is None:
            return ulps, np.full(shape, self.absolute)
        inside = self.where(*arguments)
        return np.where(inside, 0.0, ulps), np.where(inside, self.absolute, 0.0)


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of libdevice: its name in libdevice.py, how to compute it on arrays, its documented error."""

    name: str
    compute: Formula
    bound: Bound


EXACT = Bound()
SYMBOLS: dict[str, Function] = {}


def flushed(x: np.ndarray) -> np.ndarray:
    """float32 with zeros of the same sign for its subnormal numbers; other arrays as they are."""
    if x.dtype != np.float32:
        return x
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def _real(name: str, formula: Formula, single: Bound | float, double: Bound | float) -> None:
    """Register a function of floats for both precisions; `formula` gets its float arguments as longer floats."""
    for symbol, narrow, wide, bound in (
        (f"__nv_{name}f", np.float32, np.float64, single),
        (f"__nv_{name}", np.float64, np.longdouble, double),
    ):
        compute = functools.partial(_rounded, formula, narrow, wide)
        SYMBOLS[symbol] = Function(name, compute, bound if isinstance(bound, Bound) else Bound(bound))


def _rounded(formula: Formula, narrow: Any, wide: Any, *arguments: np.ndarray) -> np.ndarray:
    values = [flushed(a).astype(wide) if a.dtype.kind == "f" else a for a in arguments]
    return flushed(formula(*values).astype(narrow))


def _typed(name: str, compute: Formula, *symbols: str, bound: Bound = EXACT) -> None:
    """Register a function that takes its arguments in their own types, under one or more symbols."""
    for symbol in symbols or (name,):
        SYMBOLS[f"__nv_{symbol}"] = Function(name, compute, bound)


def _either(single: Formula, double: Formula) -> Formula:
    """`single` for the float32 function, which gets float64, and `double` for the other, which gets longer floats."""

    def formula(*arguments: np.ndarray) -> np.ndarray:
        return (single if arguments[-1].dtype == np.float64 else double)(*arguments)

    return formula


def _torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Formula:
    """A function of torch, on float64."""

    def formula(x: np.ndarray) -> np.ndarray:
        return function(torch.from_numpy(np.array(x, np.float64, ndmin=1))).numpy().reshape(x.shape)

    return formula


def _each(function: Callable[..., float]) -> Formula:
    """A function of Python floats, element by element; NaN where it has no value, infinity where it is too large."""

    def one(*values: float) -> float:
        try:
            return float(function(*map(float, values)))
        except (ValueError, ZeroDivisionError):
            return math.nan
        except OverflowError:
            return math.inf

    def formula(*arguments: np.ndarray) -> np.ndarray:
        return np.frompyfunc(one, len(arguments), 1)(*arguments).astype(np.float64)

    return formula


def _precise(function: Callable[..., Any]) -> Formula:
    """A function of mpmath to 100 bits, element by element. torch brings mpmath along: it needs sympy, which does."""

    def formula(*arguments: np.ndarray) -> np.ndarray:
        try:
            import mpmath
        except ImportError:
            raise NotInterpreted("a Bessel function of libdevice is not interpreted without mpmath") from None

        context = mpmath.MPContext()
        context.prec = 100
        return _each(lambda *values: function(context, *values))(*arguments)

    return formula


# Elementary functions: the ulps of float32, then those of float64.

_real("rsqrt", lambda x: 1 / np.sqrt(x), 2, 1)
_real("cbrt", np.cbrt, 1, 1)
_real("rcbrt", lambda x: 1 / np.cbrt(x), 1, 1)
_real("exp", np.exp, 2, 1)
_real("exp2", np.exp2, 2, 1)
_real("exp10", lambda x: np.power(x.dtype.type(10), x), 2, 1)
_real("expm1", np.expm1, 1, 1)
_real("log", np.log, 1, 1)
_real("log2", np.log2, 1, 1)
_real("log10", np.log10, 2, 1)
_real("log1p", np.log1p, 1, 1)
_real("sin", np.sin, 2, 2)
_real("cos", np.cos, 2, 2)
_real("tan", np.tan, 4, 2)
_real("asin", np.arcsin, 2, 2)
_real("acos", np.arccos, 2, 2)
_real("atan", np.arctan, 2, 2)
_real("atan2", np.arctan2, 3, 2)
_real("sinh", np.sinh, 3, 2)
_real("cosh", np.cosh, 2, 1)
_real("tanh", np.tanh, 2, 1)
_real("asinh", np.arcsinh, 3, 3)
_real("acosh", np.arccosh, 4, 3)
_real("atanh", np.arctanh, 3, 2)
_real("pow", np.power, 4, 2)


def _sinpi(x: np.ndarray) -> np.ndarray:
    return np.copysign(1, x) * _of_half_turns(np.abs(x), 0)


def _cospi(x: np.ndarray) -> np.ndarray:
    return _of_half_turns(np.abs(x), 1) + 0.0  # no negative zero


def _of_half_turns(x: np.ndarray, shift: int) -> np.ndarray:
    """sin(pi (x + shift / 2)) of x >= 0: the nearest multiple of a quarter turn is taken off exactly."""
    x = np.fmod(x, 2)
    quarter = np.rint(2 * x)
    angle = (x - quarter / 2) * (4 * np.arctan(x.dtype.type(1)))
    quadrant = np.fmod(quarter + shift, 4)
    value = np.where(np.fmod(quadrant, 2) == 0, np.sin(angle), np.cos(angle))
    return np.where(quadrant >= 2, -value, value)


_real("sinpi", _sinpi, 1, 2)
_real("cospi", _cospi, 1, 2)


def _norm(*components: np.ndarray) -> np.ndarray:
    return functools.reduce(np.hypot, components)


_real("hypot", _norm, 3, 2)
_real("norm3d", _norm, 3, 2)
_real("norm4d", _norm, 3, 2)
_real("rhypot", lambda *components: 1 / _norm(*components), 2, 1)
_real("rnorm3d", lambda *components: 1 / _norm(*components), 2, 1)
_real("rnorm4d", lambda *components: 1 / _norm(*components), 2, 1)


# Special functions.


def _erfcx(x: np.ndarray) -> np.ndarray:
    near = np.where(x < 25, x, 0)  # erfc is a normal number there
    return np.where(x < 25, np.exp(near * near) * _torch(torch.erfc)(near), _torch(torch.special.erfcx)(x))


def _erfcinv(y: np.ndarray) -> np.ndarray:
    small = np.where(y > 1, 2 - y, y)  # exact; erfcinv(2 - y) = -erfcinv(y)
    first = -_torch(torch.special.ndtri)(small / 2) / np.sqrt(2)
    slope = 2 / np.sqrt(4 * np.arctan(y.dtype.type(1))) * np.exp(-(first.astype(y.dtype) ** 2))
    better = first + (_torch(torch.erfc)(first) - small) / slope
    tail = np.where((small > 1e-290) & np.isfinite(first), better, first)
    value = np.where(small < 0.5, tail, _torch(torch.erfinv)(1 - small))
    return np.where(y > 1, -value, value)


def _normcdf(x: np.ndarray) -> np.ndarray:
    exact = -x / np.sqrt(x.dtype.type(2))
    near = exact.astype(np.float64)
    slope = -2 / np.sqrt(np.pi) * np.exp(-near * near)
    rest = np.where(np.isfinite(near), exact - near, 0)  # what erfc's float64 argument lacks
    return (_torch(torch.erfc)(near) + slope * rest) / 2


def _tgamma(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, x)
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf


def _jn(mp: Any, n: float, x: float) -> Any:
    if n < 0 or math.isnan(x):
        return math.nan
    return 0.0 if math.isinf(x) else x if x == 0 and n == 1 else mp.besselj(int(n), x)  # -0 stays


def _yn(mp: Any, n: float, x: float) -> Any:
    if n < 0 or not x >= 0:
        return math.nan
    return -math.inf if x == 0 else 0.0 if math.isinf(x) else mp.bessely(int(n), x)


def _i0(x: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(x), np.inf, _torch(torch.special.i0)(x))


def _i1(x: np.ndarray) -> np.ndarray:
    plain = np.isfinite(x) & (x != 0)
    nearby = _either(_torch(torch.special.i1), _precise(lambda mp, v: mp.besseli(1, v)))(np.where(plain, x, 1))
    return np.where(plain, nearby, x)


def _within_8(ulps: float, absolute: float) -> Bound:
    return Bound(ulps, absolute, where=lambda x: np.abs(x) >= 8)


def _outside(low: float, high: float, ulps: float) -> Bound:
    return Bound(lambda x: np.where((x > low) & (x < high), np.nan, ulps))


_real("erf", _torch(torch.erf), 2, 2)
_real("erfc", _torch(torch.erfc), 4, 5)
_real("erfcx", _erfcx, 4, 4)
_real("erfinv", _torch(torch.erfinv), 2, 5)
_real("erfcinv", _erfcinv, 4, 6)
_real("normcdf", _normcdf, 5, 5)
_real("normcdfinv", lambda p: 0 - np.sqrt(p.dtype.type(2)) * _erfcinv(2 * p), 5, 8)
_real("lgamma", _torch(torch.special.gammaln), _outside(-10.001, -2.264, 6), _outside(-23.0001, -2.2637, 4))
_real("tgamma", _each(_tgamma), 5, 10)
_real("j0", _precise(lambda mp, x: _jn(mp, 0, x)), _within_8(9, 2.2e-6), _within_8(7, 5e-12))
_real("j1", _precise(lambda mp, x: _jn(mp, 1, x)), _within_8(9, 2.2e-6), _within_8(7, 5e-12))
_real("y0", _precise(lambda mp, x: _yn(mp, 0, x)), _within_8(9, 2.2e-6), _within_8(7, 5e-12))
_real("y1", _precise(lambda mp, x: _yn(mp, 1, x)), _within_8(9, 2.2e-6), _within_8(7, 5e-12))
_real(
    "jn",
    _precise(_jn),
    Bound(np.nan, 2.2e-6, where=lambda n, x: n == 128),
    Bound(np.nan, 5e-12, where=lambda n, x: n == 128),
)
_real(
    "yn",
    _precise(_yn),
    Bound(lambda n, x: np.ceil(2 + 2.5 * n), 2.2e-6, where=lambda n, x: np.abs(x) >= n),
    Bound(np.nan, 5e-12, where=lambda n, x: np.abs(x) > 1.5 * n),
)
_real("cyl_bessel_i0", _i0, 6, 6)
_real("cyl_bessel_i1", _i1, 6, 6)


# Arithmetic and conversions in a rounding mode: rn to nearest even, rz toward zero, rd down, ru up.


def _in_mode(mode: str, nearest: Formula, excess: Callable[..., Any], terms: Formula | None = None) -> Formula:
    """An operation rounded in `mode`: what `nearest` gives, or its neighbour where that is on the wrong side.

    `excess(result, *arguments)`, of fractions, has the sign of the exact value minus the result. `terms(*arguments)`
    are the two that a sum adds: of opposite signs they give -0 when rounded down.
    """

    def side(result: float, *arguments: float) -> int:
        if math.isnan(result) or not all(map(math.isfinite, arguments)):
            return 0
        if math.isinf(result):  # by an overflow, or exactly, by a division by zero
            return 0 if terms is None and arguments[-1] == 0 else -1 if result > 0 else 1
        exact = excess(Fraction(result), *map(Fraction, arguments))
        return (exact > 0) - (exact < 0)

    def compute(*arguments: np.ndarray) -> np.ndarray:
        values = [flushed(a) for a in arguments]
        result = nearest(*values)
        if mode == "rn":
            return flushed(result)
        error = np.frompyfunc(side, 1 + len(values), 1)(*(v.astype(object) for v in (result, *values)))
        error = np.asarray(error).astype(np.int8)
        infinity = np.array(np.inf, result.dtype)
        zero = (result == 0) & (error == 0)
        down = (error < 0) & ((mode == "rd") | ((mode == "rz") & (result > 0)))
        up = (error > 0) & ((mode == "ru") | ((mode == "rz") & (result < 0)))
        result = np.where(down, np.nextafter(result, -infinity), result)
        result = np.where(up, np.nextafter(result, infinity), result)
        if terms is not None and mode == "rd":
            signs = [np.signbit(term) for term in terms(*values)]
            result = np.where(zero & (signs[0] != signs[1]), np.negative(np.abs(result)), result)
        return flushed(result)

    return compute


def _register_rounded() -> None:
    one = Fraction(1)
    operations: dict[str, tuple[Formula, Callable[..., Any], Formula | None]] = {
        "add": (np.add, lambda r, x, y: x + y - r, lambda x, y: (x, y)),
        "sub": (np.subtract, lambda r, x, y: x - y - r, lambda x, y: (x, -y)),
        "mul": (np.multiply, lambda r, x, y: x * y - r, None),
        "div": (np.divide, lambda r, x, y: (x - r * y) * (1 if y > 0 else -1), None),
        "rcp": (np.reciprocal, lambda r, x: (one - r * x) * (1 if x > 0 else -1), None),
        "sqrt": (np.sqrt, lambda r, x: x - r * r, None),
        "fma": (fused_multiply_add, lambda r, x, y, z: x * y + z - r, lambda x, y, z: (x * y, z)),
    }
    wholes = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
    for mode in ("rn", "rz", "rd", "ru"):
        for name, (nearest, excess, terms) in operations.items():
            symbols = ("fmaf", "fma") if name == "fma" else (f"f{name}", f"d{name}")
            compute = _in_mode(mode, nearest, excess, terms)
            _typed(f"{name}_{mode}", compute, *(f"{symbol}_{mode}" for symbol in symbols))
        for source, target, dtype in (
            ("double", "float", np.float32),
            ("int", "float", np.float32),
            ("uint", "float", np.float32),
            ("ll", "float", np.float32),
            ("ull", "float", np.float32),
            ("ll", "double", np.float64),
            ("ull", "double", np.float64),
            *((("int", "double", np.float64), ("uint", "double", np.float64)) if mode == "rn" else ()),  # exact
        ):
            nearest = functools.partial(_cast, dtype)
            _typed(f"{source}2{target}_{mode}", _in_mode(mode, nearest, lambda r, x: x - r))
        for target, dtype in (("int", np.int32), ("uint", np.uint32), ("ll", np.int64), ("ull", np.uint64)):
            compute = functools.partial(_to_integer_in_mode, wholes[mode], np.dtype(dtype))
            _typed(f"float2{target}_{mode}", compute)
            _typed(f"double2{target}_{mode}", compute)


def _cast(dtype: Any, x: np.ndarray) -> np.ndarray:
    return x.astype(dtype)


def _to_integer_in_mode(whole: Formula, dtype: np.dtype, x: np.ndarray) -> np.ndarray:
    return to_integer(whole(flushed(x)), dtype)


_register_rounded()
_typed("fma", _in_mode("rn", fused_multiply_add, lambda r, *_: r), "fmaf", "fma")
_typed("sqrt", _in_mode("rn", np.sqrt, lambda r, *_: r), "sqrt")
_typed("sqrt", _in_mode("rn", np.sqrt, lambda r, *_: r), "sqrtf", bound=Bound(1))  # as without -prec-sqrt
_typed("rsqrt_rn", lambda x: flushed((1 / np.sqrt(flushed(x).astype(np.longdouble))).astype(np.float32)), "frsqrt_rn")


# Whole numbers, parts and neighbours of floats.


def _round(x: np.ndarray) -> np.ndarray:
    """To the nearest whole number, halves away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1, x), whole)


def _logb(x: np.ndarray) -> np.ndarray:
    exponent = (np.frexp(x)[1] - 1).astype(x.dtype)
    return np.where(np.isfinite(x) & (x != 0), exponent, np.where(x == 0, -np.inf, x * x))


def _ilogb(x: np.ndarray) -> np.ndarray:
    return to_integer(np.where(np.isnan(x), -np.inf, _logb(flushed(x))).astype(np.float32), np.dtype(np.int32))


def _scaled(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    return np.ldexp(flushed(x).astype(np.longdouble), n).astype(x.dtype)


def _next(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype == np.float64:
        return np.nextafter(x, y)
    x, y = flushed(x), flushed(y)
    smallest = np.copysign(np.finfo(np.float32).tiny, y)
    return np.where((x == 0) & (y != 0) & ~np.isnan(y), smallest, np.nextafter(x, y))


for _name, _formula in {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "nearbyint": np.rint,
    "round": _round,
    "logb": _logb,
    "fmod": np.fmod,
    "remainder": _each(math.remainder),
}.items():
    _real(_name, _formula, 0, 0)
_typed("llrint", lambda x: to_integer(np.rint(x), np.dtype(np.int64)), "llrintf", "llrint")
_typed("llround", lambda x: to_integer(_round(x), np.dtype(np.int64)), "llroundf", "llround")
_typed("ilogb", _ilogb, "ilogbf", "ilogb")
_typed("ldexp", _scaled, "ldexpf", "ldexp")
_typed("scalbn", _scaled, "scalbnf", "scalbn")
_typed("nextafter", _next, "nextafterf", "nextafter")
_typed("fdim", lambda x, y: np.where(x <= y, np.zeros_like(x), x - y), "fdimf", "fdim")
_typed("copysign", np.copysign, "copysignf", "copysign")
_typed("abs", lambda x: flushed(np.abs(x)), "fabsf", "fabs", "abs", "llabs")
_typed("saturatef", lambda x: np.fmin(np.fmax(flushed(x), np.float32(0)), np.float32(1)))
_typed("isnan", np.isnan, "isnanf", "isnand")
_typed("isinf", np.isinf, "isinff", "isinfd")
_typed("finitef", np.isfinite)
_typed("isfinited", np.isfinite)
_typed("signbit", np.signbit, "signbitf", "signbitd")


def _powi(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    """By repeated squaring, as the library does it."""
    left = np.abs(n.astype(np.int64))
    factor, product = flushed(x), np.ones_like(x)
    while left.any():
        product = np.where(left & 1, flushed(product * factor), product)
        factor, left = flushed(factor * factor), left >> 1
    return np.where(n < 0, 1 / product, product)


_typed("pow", _powi, "powif", "powi", bound=Bound(np.nan))


# Bits.


def _unsigned(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


def _as(dtype: Any) -> Formula:
    """The same bits as another type of that size."""
    return lambda x: np.ascontiguousarray(x).view(dtype)


def _bit_length(x: np.ndarray) -> np.ndarray:
    bits, length = _unsigned(x), np.zeros(x.shape, np.int32)
    while bits.any():
        length, bits = length + (bits != 0), bits >> bits.dtype.type(1)
    return length


def _reversed(x: np.ndarray) -> np.ndarray:
    size = x.itemsize
    octets = _unsigned(x).astype(f">u{size}").reshape(*x.shape, 1).view(np.uint8)
    mirrored = np.packbits(np.unpackbits(octets, axis=-1)[..., ::-1], axis=-1)
    return np.ascontiguousarray(mirrored).view(f">u{size}")[..., 0].astype(f"u{size}")


def _permuted(x: np.ndarray, y: np.ndarray, selector: np.ndarray) -> np.ndarray:
    both = (_unsigned(y).astype(np.uint64) << np.uint64(32)) | _unsigned(x)
    result = np.zeros(x.shape, np.uint64)
    for place in range(4):
        octet = (_unsigned(selector).astype(np.uint64) >> np.uint64(4 * place)) & np.uint64(7)
        result |= ((both >> (octet * np.uint64(8))) & np.uint64(255)) << np.uint64(8 * place)
    return result.astype(np.uint32)


def _wrapped(whole: Callable[..., Any]) -> Formula:
    """Exact on Python's integers, cut to the type of the first argument."""

    def compute(*arguments: np.ndarray) -> np.ndarray:
        dtype = arguments[0].dtype
        exact = np.asarray(whole(*(a.astype(object) for a in arguments)))
        return (exact & (2 ** (8 * dtype.itemsize) - 1)).astype(f"u{dtype.itemsize}").view(dtype)

    return compute


def _mul24(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    eight = x.dtype.type(8)
    return _wrapped(lambda a, b: a * b)(*((value << eight) >> eight for value in (x, y)))


def _high_of_product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _wrapped(lambda a, b: (a * b) >> (8 * x.itemsize))(x, y)


def _high_reciprocal(x: np.ndarray) -> np.ndarray:
    """1 / x of and to the upper 32 bits of a float64."""
    upper = np.uint64(0xFFFFFFFF00000000)
    return (_unsigned(1 / (_unsigned(x) & upper).view(np.float64)) & upper).view(np.float64)


def _joined(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    return ((_unsigned(high).astype(np.uint64) << np.uint64(32)) | _unsigned(low)).view(np.float64)


_typed("clz", lambda x: 8 * x.itemsize - _bit_length(x), "clz", "clzll")
_typed("ffs", lambda x: _bit_length(x & -x), "ffs", "ffsll")
_typed("popc", lambda x: np.bitwise_count(_unsigned(x)), "popc", "popcll")
_typed("brev", _reversed, "brev", "brevll")
_typed("byte_perm", _permuted)
_typed("mulhi", _high_of_product, "mulhi", "umulhi", "mul64hi", "umul64hi")
_typed("mul24", _mul24, "mul24", "umul24")
_typed("sad", _wrapped(lambda x, y, z: abs(x - y) + z), "sad", "usad")
_typed("hadd", _wrapped(lambda x, y: (x + y) >> 1), "hadd", "uhadd")
_typed("rhadd", _wrapped(lambda x, y: (x + y + 1) >> 1), "rhadd", "urhadd")
_typed("rcp64h", _high_reciprocal, bound=Bound(np.nan))
_typed("hiloint2double", _joined)
_typed("double2loint", lambda x: (_unsigned(x) & np.uint64(0xFFFFFFFF)).astype(np.uint32))
_typed("double2hiint", lambda x: (_unsigned(x) >> np.uint64(32)).astype(np.uint32))
_typed("int_as_float", _as(np.float32))
_typed("uint_as_float", _as(np.float32))
_typed("float_as_int", _as(np.int32))
_typed("float_as_uint", _as(np.uint32))
_typed("longlong_as_double", _as(np.float64))
_typed("double_as_longlong", _as(np.int64))


# Approximate functions: the steps that the library takes in float32, each instruction exact but for one rounding.


def _turns(x: np.ndarray) -> np.ndarray:
    """x / 2 pi, rounded: what the unit for sines gets, and why they lose accuracy far from zero."""
    return (x * np.float32(1 / (2 * math.pi))).astype(np.float64)


def sin_approx(x: np.ndarray) -> np.ndarray:
    return np.sin(2 * np.pi * _turns(x)).astype(np.float32)


def cos_approx(x: np.ndarray) -> np.ndarray:
    return np.cos(2 * np.pi * _turns(x)).astype(np.float32)


def ex2_approx(x: np.ndarray) -> np.ndarray:
    return np.exp2(x.astype(np.float64)).astype(np.float32)


def lg2_approx(x: np.ndarray) -> np.ndarray:
    return np.log2(x.astype(np.float64)).astype(np.float32)


def div_approx(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    huge = (np.abs(y) > np.float32(2.0**126)) & np.isfinite(y)  # its reciprocal is subnormal
    return np.where(huge, x * np.copysign(np.float32(0), y), x / y)


def _approximate(name: str, steps: Formula, bound: Bound, symbol: str = "") -> None:
    _typed(name, lambda *arguments: flushed(steps(*map(flushed, arguments))), symbol or name, bound=bound)


def _near_1(ulps: float, bits: float) -> Bound:
    return Bound(ulps, 2.0**-bits, where=lambda x: (x >= 0.5) & (x <= 2))


def _within_pi(bits: float) -> Bound:
    return Bound(np.nan, 2.0**-bits, where=lambda x: np.abs(x) <= np.pi)


def _tan_bound(x: np.ndarray) -> np.ndarray:
    """Of a quotient of the fast sine and the fast cosine."""
    relative = 2**-21.41 / np.abs(np.sin(x)) + 2**-21.19 / np.abs(np.cos(x))
    return np.where(np.abs(x) <= np.pi, 2 + relative * 2**24, np.nan)


def _pow_bound(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of exp2(y log2(x)) with the fast log2."""
    exponent = np.abs(y * np.log2(np.abs(x)))
    logarithm = np.where((x >= 0.5) & (x <= 2), np.abs(y) * 2.0**-22, exponent * 2.0**-22)
    return 2 + np.log(2) * 2**24 * (logarithm + exponent * 2.0**-24)


_approximate("fast_sinf", sin_approx, _within_pi(21.41))
_approximate("fast_cosf", cos_approx, _within_pi(21.19))
_approximate("fast_tanf", lambda x: div_approx(sin_approx(x), cos_approx(x)), Bound(_tan_bound))
_approximate("fast_log2f", lg2_approx, _near_1(2, 22))
_approximate("fast_logf", lambda x: lg2_approx(x) * np.float32(math.log(2)), _near_1(3, 21.41))
_approximate("fast_log10f", lambda x: lg2_approx(x) * np.float32(math.log10(2)), _near_1(3, 24))
_approximate(
    "fast_expf",
    lambda x: ex2_approx(x * np.float32(math.log2(math.e))),
    Bound(lambda x: 2 + np.floor(np.abs(1.173 * x))),
)
_approximate(
    "fast_exp10f", lambda x: ex2_approx(x * np.float32(math.log2(10))), Bound(lambda x: 2 + np.floor(np.abs(2.97 * x)))
)
_approximate("fast_powf", lambda x, y: ex2_approx(flushed(lg2_approx(x) * y)), Bound(_pow_bound))
_approximate(
    "fast_dividef",
    div_approx,
    Bound(lambda x, y: np.where((np.abs(y) >= 2.0**-126) & (np.abs(y) <= 2.0**126), 2, np.nan)),
    symbol="fast_fdividef",
)


@repair("libdevice", "its functions run, each within the error that CUDA documents; a type that it lacks raises")
def _libdevice() -> None:
    def create_extern_elementwise(self, lib_name, lib_path, symbol, arguments, ret_type, is_pure):
        function = SYMBOLS.get(symbol)
        if function is None:
            raise NotInterpreted(
                f"libdevice.{symbol.removeprefix('__nv_')} is not interpreted"
                if symbol.startswith("__nv_")
                else f"{symbol}, of {lib_name or lib_path or 'a library'}, is not interpreted"
            )
        result = function.compute(*(argument.data for argument in arguments))
        dtype = stock._get_np_dtype(ret_type)
        same = result.dtype.kind in "iu" and result.itemsize == dtype.itemsize
        return TensorHandle(result.view(dtype) if same else result.astype(dtype), ret_type.scalar)

    def extern_elementwise(lib_name, lib_path, args, arg_type_symbol_dict, is_pure, _semantic=None):
        semantic = stock.interpreter_semantic
        types = tuple(semantic.to_tensor(arg).dtype for arg in args)
        if types not in arg_type_symbol_dict:
            symbol = next(iter(arg_type_symbol_dict.values()))[0]
            name = f"libdevice.{SYMBOLS[symbol].name}" if symbol in SYMBOLS else symbol
            taken = " or ".join(f"({', '.join(map(str, key))})" for key in arg_type_symbol_dict)
            raise KernelError(f"{name} takes {taken}, not ({', '.join(map(str, types))}): the compiler refuses it, too")
        return dispatch(lib_name, lib_path, list(args), arg_type_symbol_dict, is_pure, _semantic=semantic)

    dispatch = tl.core.extern_elementwise
    tl.core.extern_elementwise = extern_elementwise
    InterpreterBuilder.create_extern_elementwise = create_extern_elementwise
    for module in (cuda, cuda.libdevice):
        for name, member in list(vars(module).items()):
            if isinstance(member, types.FunctionType) and tl.core.is_builtin(member):
                setattr(module, name, operation(member))
                redirect(member, getattr(module, name))
    for name, member in vars(libdevice).items():  # what the compiler puts the target's own functions in the place of
        if isinstance(member, types.FunctionType):
            redirect(member, _of_target(name))
    rewrite = stock.InterpretedFunction.rewrite

    def rewritten(self):
        """With the target's own functions for those of any copy of these modules, known by its name as to a compiler:
        xformers executes libdevice.py once more for itself."""
        if self.fn not in self.rewritten_fn:
            for name in self.fn.__code__.co_names:
                member = self.fn.__globals__.get(name)
                if isinstance(member, types.FunctionType) and member.__module__ in COPIED:
                    target = _of_target(member.__name__)
                    if member is not target:
                        redirect(member, target)
        return rewrite(self)

    stock.InterpretedFunction.rewrite = rewritten


COPIED = (libdevice.__name__, cuda.libdevice.__name__)


def _of_target(name: str) -> Callable[..., Any]:
    """What the compiler puts in the place of libdevice's `name`."""
    return getattr(cuda.libdevice, name, functools.partial(_missing, name))


def _missing(name: str, *_: Any, **__: Any) -> None:
    raise KernelError(f"libdevice of CUDA has no {name}: the compiler refuses it, too")
