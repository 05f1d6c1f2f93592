"""Each function of libdevice, called from a kernel, against the error that CUDA documents; test_libdevice.py runs this.

Prints, for every symbol, its function, the largest error on a grid of arguments as a share of the documented one (at
most 1 is right), the arguments that gave it and how many elements were compared, and the special values that are wrong.
References are mpmath's to 200 bits, and Python's integers and fractions. With the argument `cuda` the functions run on
a GPU, else in the interpreter; with `few` on an eighth of the arguments.
"""

import json
import math
import statistics
import struct
import sys
import warnings
import zlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice as cuda_libdevice

from touchstone.backends.triton.runtime.interpreter.libdevice import SYMBOLS

mp = mpmath.mp
mp.prec = 200
EACH = 8 if sys.argv[1:] == ["few"] else 64  # arguments of each kind
TYPES = {
    "int32": "int32",
    "int64": "int64",
    "uint32": "uint32",
    "uint64": "uint64",
    "fp32": "float32",
    "fp64": "float64",
}


@triton.jit
def _call(out_ptr, a_ptr, b_ptr, c_ptr, d_ptr, FUNCTION: tl.constexpr, ARGUMENTS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + i)
    if ARGUMENTS == 1:
        result = FUNCTION(a)
    elif ARGUMENTS == 2:
        result = FUNCTION(a, tl.load(b_ptr + i))
    elif ARGUMENTS == 3:
        result = FUNCTION(a, tl.load(b_ptr + i), tl.load(c_ptr + i))
    else:
        result = FUNCTION(a, tl.load(b_ptr + i), tl.load(c_ptr + i), tl.load(d_ptr + i))
    tl.store(out_ptr + i, result)


def called(name: str, arguments: list[np.ndarray], result: str) -> np.ndarray:
    """The function of that name of libdevice.py, in a kernel, on arrays of one length."""
    count = -len(arguments[0]) % EACH + len(arguments[0])
    tensors = [torch.from_numpy(np.resize(a, count)) for a in arguments]
    out = torch.empty(count, dtype=getattr(torch, result), device=tensors[0].device)
    operands = (tensors * 4)[:4] if len(tensors) < 4 else tensors
    device = "cuda" if sys.argv[1:] == ["cuda"] else "cpu"
    out, operands = out.to(device), [t.to(device) for t in operands]
    _call[(count // EACH,)](out, *operands, getattr(cuda_libdevice, name), len(arguments), EACH)
    return out.cpu().numpy()[: len(arguments[0])]


def signatures() -> list[tuple[str, tuple[str, ...], str, str]]:
    """Every signature in Triton's libdevice.py: function, types of its arguments, symbol, type of the result."""

    class Result:
        def to(self, *_, **__):
            return self

    tables: list[dict] = []

    def spy(lib_name, lib_path, args, table, is_pure, _semantic=None):
        tables.append(table)
        return Result()

    found = []
    real, tl.core.extern_elementwise = tl.core.extern_elementwise, spy
    names = [name for name in vars(cuda_libdevice) if not name.startswith("_") and name != "core"]
    for name in names:
        function = getattr(cuda_libdevice, name)
        for count in range(1, 5):
            try:
                function(*[None] * count, _semantic=True)
                break
            except TypeError:
                continue
        for types, (symbol, result) in tables.pop().items():
            found.append((name, tuple(ty.name for ty in types), symbol, result.name))
    tl.core.extern_elementwise = real
    return found


# What each function is, of Python's floats and ints: a float, a fraction, mpmath's number, or an int that is then cut.


def _norm(*components: Any) -> Any:
    return mp.sqrt(sum(mp.mpf(c) ** 2 for c in components))


def _erfcinv(y: Any) -> Any:
    y = mp.mpf(y)
    if y > 1:
        return -_erfcinv(2 - y)
    if not y > 0:
        raise ValueError(f"no value at {y}")
    root = mp.mpf(-statistics.NormalDist().inv_cdf(float(y) / 2)) / mp.sqrt(2)
    for _ in range(4):  # Newton, from 50 bits
        root += (mp.erfc(root) / y - 1) * y * mp.sqrt(mp.pi) / 2 * mp.exp(root**2)
    return root


def _bessel(n: int, x: float, sign: int) -> Any:
    """J (sign -1) or I (sign 1) of order n, by its series."""
    if abs(x) > 750:
        raise ValueError(f"the series takes too long at {x}")
    half = mp.mpf(x) / 2
    with mp.workprec(1500):  # the terms of J cancel
        return half**n / mp.factorial(n) * mp.hyp0f1(n + 1, sign * half**2)


def _y(n: int, x: float) -> Any:
    if not 0 < x < 750:
        raise ValueError(f"no value, or after too long, at {x}")
    return mp.bessely(n, x)


def _away(x: float) -> int:
    """To the nearest whole number, halves away from zero."""
    return int(math.copysign(math.floor(abs(Fraction(x)) + Fraction(1, 2)), x))


def _clamped(x: int, bits: int) -> int:
    return min(max(x, -(2 ** (bits - 1))), 2 ** (bits - 1) - 1)


def _scaled(x: float, n: int) -> Fraction:
    return Fraction(x) * Fraction(2) ** min(max(n, -5000), 5000)


REALS: dict[str, Callable[..., Any]] = {
    "rsqrt": lambda x: 1 / mp.sqrt(x),
    "rsqrt_rn": lambda x: 1 / mp.sqrt(x),
    "sqrt": mp.sqrt,
    "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
    "rcbrt": lambda x: mp.sign(x) / mp.cbrt(abs(x)),
    "exp": mp.exp,
    "exp2": lambda x: mp.mpf(2) ** x,
    "exp10": lambda x: mp.mpf(10) ** x,
    "expm1": mp.expm1,
    "log": mp.log,
    "log2": lambda x: mp.log(x, 2),
    "log10": mp.log10,
    "log1p": lambda x: mp.log1p(x) if x > -1 else mp.nan,
    "sin": mp.sin,
    "cos": mp.cos,
    "tan": mp.tan,
    "sinpi": mp.sinpi,
    "cospi": mp.cospi,
    "asin": mp.asin,
    "acos": mp.acos,
    "atan": mp.atan,
    "atan2": mp.atan2,
    "sinh": mp.sinh,
    "cosh": mp.cosh,
    "tanh": mp.tanh,
    "asinh": mp.asinh,
    "acosh": mp.acosh,
    "atanh": mp.atanh,
    "pow": lambda x, y: mp.mpf(x) ** y,
    "hypot": _norm,
    "norm3d": _norm,
    "norm4d": _norm,
    "rhypot": lambda *components: 1 / _norm(*components),
    "rnorm3d": lambda *components: 1 / _norm(*components),
    "rnorm4d": lambda *components: 1 / _norm(*components),
    "erf": mp.erf,
    "erfc": mp.erfc,
    "erfcx": lambda x: (
        mp.exp(mp.mpf(x) ** 2) * mp.erfc(x) if x < 1e4 else 1 / (x * mp.sqrt(mp.pi)) * (1 - 0.5 / mp.mpf(x) ** 2)
    ),
    "erfinv": mp.erfinv,
    "erfcinv": _erfcinv,
    "normcdf": lambda x: mp.erfc(-x / mp.sqrt(2)) / 2,
    "normcdfinv": lambda p: -mp.sqrt(2) * _erfcinv(2 * mp.mpf(p)),
    "lgamma": lambda x: mp.log(abs(mp.gamma(x))) if abs(x) < 200 else mp.loggamma(x).real,
    "tgamma": mp.gamma,
    "j0": lambda x: _bessel(0, x, -1),
    "j1": lambda x: _bessel(1, x, -1),
    "jn": lambda n, x: _bessel(n, x, -1),
    "y0": lambda x: _y(0, x),
    "y1": lambda x: _y(1, x),
    "yn": _y,
    "cyl_bessel_i0": lambda x: _bessel(0, x, 1),
    "cyl_bessel_i1": lambda x: _bessel(1, x, 1),
    "fast_sinf": mp.sin,
    "fast_cosf": mp.cos,
    "fast_tanf": mp.tan,
    "fast_expf": mp.exp,
    "fast_exp10f": lambda x: mp.mpf(10) ** x,
    "fast_logf": mp.log,
    "fast_log2f": lambda x: mp.log(x, 2),
    "fast_log10f": mp.log10,
    "fast_powf": lambda x, y: mp.mpf(x) ** y if x > 0 else mp.nan,  # by a logarithm
    "fast_dividef": lambda x, y: Fraction(x) / Fraction(y),
    "rcp64h": lambda x: 1 / Fraction(x),
    "add": lambda x, y: Fraction(x) + Fraction(y),
    "sub": lambda x, y: Fraction(x) - Fraction(y),
    "mul": lambda x, y: Fraction(x) * Fraction(y),
    "div": lambda x, y: Fraction(x) / Fraction(y),
    "rcp": lambda x: 1 / Fraction(x),
    "fma": lambda x, y, z: Fraction(x) * Fraction(y) + Fraction(z),
    "fmod": lambda x, y: Fraction(x) - Fraction(y) * math.trunc(Fraction(x) / Fraction(y)),
    "remainder": lambda x, y: Fraction(x) - Fraction(y) * round(Fraction(x) / Fraction(y)),
    "fdim": lambda x, y: max(Fraction(x) - Fraction(y), Fraction(0)),
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "rint": round,
    "nearbyint": round,
    "round": _away,
    "llrint": lambda x: _clamped(round(x), 64),
    "llround": lambda x: _clamped(_away(x), 64),
    "logb": lambda x: math.frexp(x)[1] - 1,
    "ilogb": lambda x: math.frexp(x)[1] - 1,
    "ldexp": _scaled,
    "scalbn": _scaled,
    "copysign": math.copysign,
    "saturatef": lambda x: min(max(x, 0.0), 1.0),
    "abs": abs,
    "signbit": lambda x: math.copysign(1, x) < 0,
    "isnan": math.isnan,
    "isinf": math.isinf,
    "finitef": math.isfinite,
    "isfinited": math.isfinite,
}
WHOLE: dict[str, Callable[[Any], int]] = {"rn": round, "rz": math.trunc, "rd": math.floor, "ru": math.ceil}


def _octets(value: int, size: int) -> list[int]:
    return list((value % 2 ** (8 * size)).to_bytes(size, "little"))


def _permuted(x: int, y: int, selector: int) -> int:
    octets = _octets(x, 4) + _octets(y, 4)
    return sum(octets[(selector >> (4 * i)) & 7] << (8 * i) for i in range(4))


def _packed(source: str, target: str) -> Callable[..., Any]:
    """The bits of one type read as another, named as `struct` does."""
    size = struct.calcsize(f"<{source}")
    if source in "iq":
        return lambda x: struct.unpack(f"<{target}", (x % 2 ** (8 * size)).to_bytes(size, "little"))[0]
    return lambda x: struct.unpack(f"<{target}", struct.pack(f"<{source}", x))[0]


def _integers(symbol: str, bits: int) -> dict[str, Callable[..., Any]]:
    """Functions on bits; `bits` of their first argument."""
    low24 = (lambda x: x % 2**24) if symbol == "__nv_umul24" else (lambda x: (x % 2**24 + 2**23) % 2**24 - 2**23)
    return {
        "clz": lambda x: bits - (x % 2**bits).bit_length(),
        "ffs": lambda x: (x & -x).bit_length(),
        "popc": lambda x: (x % 2**bits).bit_count(),
        "brev": lambda x: int(f"{x % 2**bits:0{bits}b}"[::-1], 2),
        "byte_perm": _permuted,
        "mulhi": lambda x, y: (x * y) >> bits,
        "mul24": lambda x, y: low24(x) * low24(y),
        "sad": lambda x, y, z: abs(x - y) + z,
        "hadd": lambda x, y: (x + y) // 2,
        "rhadd": lambda x, y: (x + y + 1) // 2,
        "int_as_float": _packed("i", "f"),
        "uint_as_float": _packed("i", "f"),
        "float_as_int": _packed("f", "i"),
        "float_as_uint": _packed("f", "i"),
        "longlong_as_double": _packed("q", "d"),
        "double_as_longlong": _packed("d", "q"),
        "double2loint": lambda x: _packed("d", "q")(x) % 2**32,
        "double2hiint": lambda x: _packed("d", "q")(x) >> 32,
        "hiloint2double": lambda high, low: _packed("q", "d")((high << 32) | low % 2**32),
        "nextafter": lambda x, y: float(np.nextafter(*np.array([x, y], "f4" if symbol.endswith("f") else "f8"))),
    }


def reference(name: str, symbol: str, bits: int) -> tuple[Callable[..., Any], str]:
    """The function of that name and the mode in which its result is rounded."""
    stem, _, mode = name.rpartition("_")
    if mode not in WHOLE:
        return {**REALS, **_integers(symbol, bits)}[name], "rn"
    if stem in REALS:
        return REALS[stem], mode
    if stem.endswith(("float", "double")):
        return Fraction, mode
    size = 64 if "ll" in stem else 32
    low, high = (0, 2**size - 1) if "2u" in stem else (-(2 ** (size - 1)), 2 ** (size - 1) - 1)
    return lambda x: min(max(WHOLE[mode](Fraction(x)), low), high), mode


def exact(value: Any) -> Fraction | None:
    """A finite number as a fraction."""
    if isinstance(value, mpmath.mpf):
        if not mp.isfinite(value):
            return None
        magnitude = value.exp + int(value.man).bit_length()
        if abs(magnitude) > 5000:  # overflows, or is too small for any format
            return Fraction(-1 if value < 0 else 1) * Fraction(2) ** (5000 if magnitude > 0 else -5000)
        return Fraction(int(value.man) * (-1 if value < 0 else 1)) * Fraction(2) ** value.exp
    if isinstance(value, mpmath.mpc) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return Fraction(value)


def rounded(value: Fraction, single: bool, mode: str) -> float:
    """A fraction rounded to float32 or float64."""
    digits, least, most = (24, -126, 127) if single else (53, -1022, 1023)
    if value == 0:
        return 0.0
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, least) - digits + 1)
    whole = WHOLE[mode](value / unit)
    if abs(whole * unit) < Fraction(2) ** (most + 1):
        return float(whole * unit)
    largest = float((2 - Fraction(2) ** (1 - digits)) * Fraction(2) ** most)
    inward = mode == "rz" or (mode == "rd" and value > 0) or (mode == "ru" and value < 0)
    return (largest if inward else math.inf) * (1 if value > 0 else -1)


def arguments(name: str, types: tuple[str, ...], symbol: str) -> list[np.ndarray]:
    """A grid: EACH arguments of every kind that the types have."""
    rng = np.random.default_rng(zlib.crc32(symbol.encode()))
    kinds = 5
    grid = []
    for ty in types:
        dtype = np.dtype(TYPES[ty])
        if dtype.kind == "f":
            decades = 37 if ty == "fp32" else 300
            parts = [
                rng.uniform(-1, 1, EACH),
                rng.uniform(0, 2, EACH),
                rng.uniform(-100, 100, EACH),
                1 + rng.choice([-1, 1], EACH) * 10 ** rng.uniform(-16, -1, EACH),
                rng.choice([-1, 1], EACH) * 10 ** rng.uniform(-decades, decades, EACH),
            ]
        elif name in ("jn", "yn"):
            parts = [rng.integers(0, 12, EACH)] * 3 + [np.full(EACH, 128), np.full(EACH, 3)]
        else:
            limits = np.iinfo(dtype)
            parts = [
                rng.integers(limits.min, limits.max, EACH, dtype, endpoint=True),
                rng.integers(max(limits.min, -40), 40, EACH),
                rng.choice(np.array([0, 1, limits.min, limits.max, limits.max - 1], dtype), EACH),
                (2.0 ** rng.uniform(0, 8 * dtype.itemsize - 1, EACH)),
                rng.integers(max(limits.min, -200), 200, EACH),
            ]
        grid.append(np.concatenate([part.astype(dtype) for part in parts]))
    if len(types) > 1:  # every kind with every other
        grid = [rng.permutation(np.tile(values, 2)) for values in grid]
        if name in ("jn", "yn"):
            grid = [values[: 2 * EACH] for values in grid]
            grid[1] = np.maximum(np.abs(grid[1]) % 200, 1e-6)  # CUDA's own jn is NaN from 1e-14 on, for large n
    assert len(grid[0]) >= kinds
    return grid


def measure(name: str, types: tuple[str, ...], symbol: str, result: str) -> dict[str, Any]:
    grid = arguments(name, types, symbol)
    bits = 8 * grid[0].itemsize
    function, mode = reference(name, symbol, bits)
    kept: list[int] = []
    expected: list[Any] = []
    for i, values in enumerate(zip(*(a.tolist() for a in grid), strict=True)):
        try:
            value = function(*values)
            value = value if result.startswith("int") or result.startswith("uint") else exact(value)
        except (ValueError, ZeroDivisionError, OverflowError, mpmath.libmp.libhyper.NoConvergence):
            continue
        if value is not None:
            kept.append(i)
            expected.append(value)
    grid = [a[kept] for a in grid]
    got = called(name, grid, TYPES[result])
    if result.startswith(("int", "uint")):
        size = 8 * got.itemsize
        wrong = [int(g) % 2**size != int(e) % 2**size for g, e in zip(got, expected, strict=True)]
        share = np.where(wrong, np.inf, 0.0)
    else:
        single = result == "fp32"
        tiny = 2.0**-126 if single else 2.0**-1022
        right = np.array([rounded(e, single, mode) for e in expected])
        ulps, absolute = SYMBOLS[symbol].bound.at(*(a.astype(np.float64) for a in grid))
        unit = np.maximum(np.spacing(np.abs(right).astype(got.dtype)).astype(np.float64), 0)
        unit = np.where(np.isfinite(right), unit, 1)
        error = np.where(right == got, 0.0, np.abs(got.astype(np.float64) - right))
        error = np.where((np.abs(right) < tiny) & (np.abs(got) <= tiny), 0.0, error)  # flushed
        allowed = np.fmax(np.where(np.isnan(ulps), np.where(absolute > 0, 0, np.inf), ulps * unit), absolute)
        with np.errstate(all="ignore"):
            share = np.where((error == 0) | np.isinf(allowed), 0.0, error / allowed)
    worst = int(np.argmax(np.where(np.isnan(share), np.inf, share)))
    return {
        "function": name,
        "worst": None if np.isnan(share[worst]) else float(min(share[worst], 1e300)),
        "at": [a[worst].item() for a in grid],
        "got": got[worst].item(),
        "compared": len(kept),
    }


# Special values that the CUDA Math API documents; TINY, subnormal in float32, is a zero by `nvvm-reflect-ftz`.
INF, NAN, TINY = math.inf, math.nan, 2.0**-140
SPECIAL: dict[str, list[tuple[Any, ...]]] = {  # arguments, then the result
    "rsqrt": [(INF, 0.0), (0.0, INF), (-0.0, -INF), (-1.0, NAN), (NAN, NAN), (TINY, INF)],
    "sqrt": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-1.0, NAN), (NAN, NAN), (TINY, 0.0)],
    "sqrt_rn": [(-0.0, -0.0), (INF, INF), (-1.0, NAN), (NAN, NAN)],
    "rcp_rn": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-INF, -0.0), (NAN, NAN)],
    "cbrt": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "rcbrt": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-INF, -0.0), (NAN, NAN)],
    "exp": [(0.0, 1.0), (-0.0, 1.0), (-INF, 0.0), (INF, INF), (NAN, NAN), (TINY, 1.0)],
    "exp2": [(0.0, 1.0), (-INF, 0.0), (INF, INF), (NAN, NAN)],
    "exp10": [(0.0, 1.0), (-INF, 0.0), (INF, INF), (NAN, NAN)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (-INF, -1.0), (INF, INF), (NAN, NAN)],
    "log": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (-1.0, NAN), (INF, INF), (NAN, NAN)],
    "log2": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (-1.0, NAN), (INF, INF), (NAN, NAN)],
    "log10": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (-1.0, NAN), (INF, INF), (NAN, NAN)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (-2.0, NAN), (INF, INF), (NAN, NAN)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (NAN, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (NAN, NAN)],
    "sinpi": [(0.0, 0.0), (-0.0, -0.0), (0.5, 1.0), (INF, NAN), (NAN, NAN)],
    "cospi": [(0.0, 1.0), (-0.0, 1.0), (1.0, -1.0), (INF, NAN), (NAN, NAN)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (2.0, NAN), (-2.0, NAN), (NAN, NAN)],
    "acos": [(1.0, 0.0), (2.0, NAN), (-2.0, NAN), (NAN, NAN)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (INF, math.pi / 2), (-INF, -math.pi / 2), (NAN, NAN)],
    "atan2": [
        (0.0, -0.0, math.pi),
        (-0.0, -0.0, -math.pi),
        (0.0, 0.0, 0.0),
        (-0.0, 0.0, -0.0),
        (0.0, -1.0, math.pi),
        (0.0, 1.0, 0.0),
        (-1.0, 0.0, -math.pi / 2),
        (1.0, -0.0, math.pi / 2),
        (INF, 1.0, math.pi / 2),
        (INF, INF, math.pi / 4),
        (INF, -INF, 3 * math.pi / 4),
        (1.0, INF, 0.0),
        (-1.0, INF, -0.0),
        (NAN, 1.0, NAN),
        (1.0, NAN, NAN),
    ],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "cosh": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (NAN, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (TINY, 0.0), (-TINY, -0.0)],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "acosh": [(1.0, 0.0), (0.5, NAN), (-INF, NAN), (INF, INF), (NAN, NAN)],
    "atanh": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (2.0, NAN), (NAN, NAN)],
    "pow": [
        (0.0, -3.0, INF),
        (-0.0, -3.0, -INF),
        (-0.0, -2.0, INF),
        (-0.0, 3.0, -0.0),
        (-0.0, 2.0, 0.0),
        (-1.0, INF, 1.0),
        (-1.0, -INF, 1.0),
        (1.0, NAN, 1.0),
        (NAN, 0.0, 1.0),
        (NAN, 1.0, NAN),
        (-2.0, 0.5, NAN),
        (-2.0, 3.0, -8.0),
        (0.5, -INF, INF),
        (2.0, -INF, 0.0),
        (0.5, INF, 0.0),
        (2.0, INF, INF),
        (-INF, -3.0, -0.0),
        (-INF, 3.0, -INF),
        (-INF, 2.0, INF),
        (INF, -1.0, 0.0),
        (INF, 1.0, INF),
    ],
    "hypot": [(INF, NAN, INF), (NAN, -INF, INF), (0.0, -0.0, 0.0), (NAN, 1.0, NAN)],
    "rhypot": [(INF, NAN, 0.0), (NAN, -INF, 0.0), (0.0, -0.0, INF), (NAN, 1.0, NAN)],
    "norm3d": [(INF, NAN, 1.0, INF), (0.0, 0.0, 0.0, 0.0), (1.0, NAN, 1.0, NAN)],
    "rnorm3d": [(INF, NAN, 1.0, 0.0), (0.0, 0.0, 0.0, INF), (1.0, NAN, 1.0, NAN)],
    "norm4d": [(1.0, NAN, 1.0, -INF, INF), (0.0, 0.0, 0.0, 0.0, 0.0)],
    "rnorm4d": [(1.0, NAN, 1.0, -INF, 0.0), (0.0, 0.0, 0.0, 0.0, INF)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN)],
    "erfc": [(INF, 0.0), (-INF, 2.0), (NAN, NAN)],
    "erfcx": [(INF, 0.0), (-INF, INF), (NAN, NAN)],
    "erfinv": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (2.0, NAN), (NAN, NAN)],
    "erfcinv": [(0.0, INF), (-0.0, INF), (2.0, -INF), (1.0, 0.0), (-1.0, NAN), (3.0, NAN), (NAN, NAN)],
    "normcdf": [(INF, 1.0), (-INF, 0.0), (0.0, 0.5), (NAN, NAN)],
    "normcdfinv": [(0.0, -INF), (1.0, INF), (0.5, 0.0), (-1.0, NAN), (2.0, NAN), (NAN, NAN)],
    "lgamma": [(1.0, 0.0), (2.0, 0.0), (0.0, INF), (-0.0, INF), (-3.0, INF), (INF, INF), (-INF, INF), (NAN, NAN)],
    "tgamma": [(0.0, INF), (-0.0, -INF), (-3.0, NAN), (-INF, NAN), (INF, INF), (NAN, NAN)],
    "j0": [(0.0, 1.0), (INF, 0.0), (-INF, 0.0), (NAN, NAN)],
    "j1": [(0.0, 0.0), (-0.0, -0.0), (INF, 0.0), (NAN, NAN)],
    "jn": [(-1, 1.0, NAN), (2, INF, 0.0), (2, NAN, NAN)],
    "y0": [(0.0, -INF), (-1.0, NAN), (INF, 0.0), (NAN, NAN)],
    "y1": [(0.0, -INF), (-1.0, NAN), (INF, 0.0), (NAN, NAN)],
    "yn": [(-1, 1.0, NAN), (2, 0.0, -INF), (2, -1.0, NAN), (2, INF, 0.0), (2, NAN, NAN)],
    "cyl_bessel_i0": [(0.0, 1.0), (INF, INF), (-INF, INF), (NAN, NAN)],
    "cyl_bessel_i1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "fma": [
        (INF, 0.0, 1.0, NAN),
        (INF, 1.0, -INF, NAN),
        (0.0, 1.0, -0.0, 0.0),
        (NAN, 1.0, 1.0, NAN),
        (1.0, 1.0, INF, INF),
    ],
    "add_rd": [(1.0, -1.0, -0.0), (0.0, 0.0, 0.0), (INF, -INF, NAN), (3e38, 3e38, 3.4028234663852886e38)],
    "add_rz": [(1.0, -1.0, 0.0), (-3e38, -3e38, -3.4028234663852886e38)],
    "mul_ru": [(0.0, INF, NAN), (3e38, 3e38, INF), (-3e38, 3e38, -3.4028234663852886e38)],
    "div_rn": [(1.0, 0.0, INF), (-1.0, 0.0, -INF), (0.0, 0.0, NAN), (1.0, INF, 0.0), (INF, INF, NAN)],
    "div_rz": [(1.0, 0.0, INF), (-1.0, 0.0, -INF), (0.0, 0.0, NAN)],
    "rcp_rd": [(0.0, INF), (-0.0, -INF)],
    "floor": [(-0.0, -0.0), (INF, INF), (NAN, NAN), (-TINY, -0.0)],
    "ceil": [(-0.0, -0.0), (-0.5, -0.0), (INF, INF), (NAN, NAN), (TINY, 0.0)],
    "trunc": [(-0.5, -0.0), (INF, INF), (NAN, NAN)],
    "rint": [(-0.0, -0.0), (-0.5, -0.0), (2.5, 2.0), (INF, INF), (NAN, NAN)],
    "nearbyint": [(-0.0, -0.0), (1.5, 2.0), (INF, INF), (NAN, NAN)],
    "round": [(0.5, 1.0), (-0.5, -1.0), (2.5, 3.0), (-0.0, -0.0), (0.49999997, 0.0), (INF, INF), (NAN, NAN)],
    "llrint": [(2.5, 2), (-0.5, 0)],
    "llround": [(2.5, 3), (-0.5, -1)],
    "fmod": [(-0.0, 1.0, -0.0), (INF, 1.0, NAN), (1.0, 0.0, NAN), (1.0, INF, 1.0), (-5.0, 3.0, -2.0), (NAN, 1.0, NAN)],
    "remainder": [
        (-0.0, 1.0, -0.0),
        (INF, 1.0, NAN),
        (1.0, 0.0, NAN),
        (1.0, INF, 1.0),
        (5.0, 3.0, -1.0),
        (NAN, 1.0, NAN),
    ],
    "fdim": [(1.0, 2.0, 0.0), (INF, 1.0, INF), (NAN, 1.0, NAN), (1.0, NAN, NAN)],
    "logb": [(0.0, -INF), (-0.0, -INF), (INF, INF), (-INF, INF), (NAN, NAN)],
    "ilogb": [(0.0, -(2**31)), (NAN, -(2**31)), (INF, 2**31 - 1)],
    "ldexp": [(0.0, 5, 0.0), (INF, -5, INF), (NAN, 0, NAN), (1.0, 5000, INF), (-1.0, -5000, -0.0)],
    "scalbn": [(-0.0, 5, -0.0), (INF, -5, INF), (NAN, 0, NAN)],
    "copysign": [(NAN, -1.0, NAN), (INF, -0.0, -INF), (0.0, -1.0, -0.0)],
    "nextafter": [(1.0, NAN, NAN), (NAN, 1.0, NAN), (0.0, -0.0, -0.0)],
    "saturatef": [(NAN, 0.0), (-INF, 0.0), (INF, 1.0), (-0.5, 0.0)],
    "abs": [(-0.0, 0.0), (-INF, INF), (NAN, NAN)],
    "isnan": [(NAN, 1), (INF, 0), (0.0, 0)],
    "isinf": [(NAN, 0), (INF, 1), (-INF, 1), (0.0, 0)],
    "finitef": [(NAN, 0), (INF, 0), (1.0, 1)],
    "isfinited": [(NAN, 0), (INF, 0), (1.0, 1)],
    "signbit": [(-0.0, 1), (0.0, 0), (-INF, 1)],
    "float2int_rn": [(NAN, 0), (INF, 2**31 - 1), (-INF, -(2**31)), (0.5, 0), (1.5, 2)],
    "float2uint_rz": [(NAN, 0), (-1.0, 0), (INF, -1)],
    "float2ll_rz": [(NAN, -(2**63)), (INF, 2**63 - 1)],
    "float2ull_rz": [(NAN, -(2**63)), (-1.0, 0), (INF, -1)],
    "double2int_rz": [(NAN, -(2**31)), (INF, 2**31 - 1)],
    "double2uint_rz": [(NAN, -(2**31)), (-1.0, 0), (INF, -1)],
    "double2float_rz": [(1e300, 3.4028234663852886e38), (INF, INF), (NAN, NAN)],
    "double2float_rd": [(-1e300, -INF), (1e300, 3.4028234663852886e38)],
    "fast_expf": [(-INF, 0.0), (INF, INF), (NAN, NAN), (0.0, 1.0), (-90.0, 0.0)],
    "fast_exp10f": [(-INF, 0.0), (INF, INF), (NAN, NAN), (-39.0, 0.0)],
    "fast_logf": [(0.0, -INF), (TINY, -INF), (-1.0, NAN), (INF, INF), (NAN, NAN)],
    "fast_log2f": [(0.0, -INF), (TINY, -INF), (-1.0, NAN), (INF, INF), (NAN, NAN)],
    "fast_log10f": [(0.0, -INF), (TINY, -INF), (-1.0, NAN), (INF, INF), (NAN, NAN)],
    "fast_powf": [(0.0, 2.0, 0.0), (-2.0, 2.0, NAN), (2.0, INF, INF), (NAN, 1.0, NAN)],
    "fast_dividef": [(1.0, 2.0**127, 0.0), (INF, 2.0**127, NAN), (1.0, 0.0, INF), (1.0, TINY, INF), (1.0, INF, 0.0)],
    "fast_sinf": [(0.0, 0.0), (INF, NAN), (NAN, NAN)],
    "fast_cosf": [(0.0, 1.0), (INF, NAN), (NAN, NAN)],
    "mul24": [(-1, 3, -3), (0x1000001, 5, 5)],
    "byte_perm": [(0x03020100, 0x07060504, 0x7250, 0x07020500), (0x03020100, 0x07060504, 0xFEDC, 0x07060504)],
}


def specials(name: str, types: tuple[str, ...], symbol: str, result: str) -> list[str]:
    """The special values that a function gets wrong; those of subnormal arguments are for float32."""
    dtypes = [np.dtype(TYPES[ty]) for ty in types]
    rows = [
        row
        for row in SPECIAL.get(name, [])
        if all(isinstance(value, float) == (dtype.kind == "f") for value, dtype in zip(row[:-1], dtypes, strict=True))
        and not (types[0] == "fp64" and any(abs(value) in (TINY, 3e38) for value in row[:-1]))
        and not any(dtype.kind == "u" and value < 0 for value, dtype in zip(row[:-1], dtypes, strict=True))
    ]
    if not rows:
        return []
    grid = [np.array([row[i] for row in rows], dtype) for i, dtype in enumerate(dtypes)]
    found = []
    for *given, right, got in zip(*grid, (row[-1] for row in rows), called(name, grid, TYPES[result]), strict=True):
        want = np.array(right).astype(got.dtype)[()] if result.startswith("fp") else right
        same = (got != got and want != want) or (got == want and (got != 0 or np.signbit(got) == np.signbit(want)))
        close = (
            result.startswith("fp") and np.isfinite(want) and want != 0 and abs(got - want) <= 2 * np.spacing(abs(want))
        )
        if not same and not close:
            found.append(f"{name}({', '.join(map(str, given))}) gives {got}, not {want}")
    return found


def main() -> None:
    names = sys.argv[2:] if sys.argv[1:2] == ["only"] else []
    if sys.argv[1:] != ["cuda"]:
        import touchstone.backends.triton

        touchstone.backends.triton.prepare("cpu")
    torch.set_num_threads(1)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        found = {s[2]: {**measure(*s), "special": specials(*s)} for s in signatures() if not names or s[0] in names}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
