"""libdevice in the interpreter, and on a GPU: every function within the error that CUDA documents; which that is."""

import dataclasses
import importlib.util
import json
import math
import sys

import numpy as np
import pytest

from tests.processes import interpret, run_touchstone
from tests.programs import PROGRAMS
from touchstone.backends.devices import cuda_unavailable

if not importlib.util.find_spec("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

from touchstone.backends.triton.runtime.interpreter import libdevice
from touchstone.backends.triton.runtime.interpreter.libdevice import SYMBOLS
from touchstone.backends.triton.runtime.interpreter.registry import KernelError, NotInterpreted

SCRIPT = PROGRAMS / "libdevice_functions.py"


def check(outcomes, least=100):
    assert set(outcomes) == set(SYMBOLS)  # 313 symbols, of 197 functions: all that Triton has, and no other
    assert {symbol: found for symbol, found in outcomes.items() if not 0 <= found["worst"] <= 1} == {}
    assert {symbol: found["special"] for symbol, found in outcomes.items() if found["special"]} == {}
    few = {symbol: found["compared"] for symbol, found in outcomes.items() if found["compared"] < least}
    assert few == {}


def test_the_next_number_after_zero_is_the_smallest_that_is_not_flushed():
    tiny = np.finfo(np.float32).tiny
    x, y = np.zeros(3, np.float32), np.array([1.0, -1.0, 0.0], np.float32)
    assert libdevice._next(x, y).tolist() == [tiny, -tiny, 0.0]
    of_doubles = libdevice._next(x.astype(np.float64), y.astype(np.float64))
    assert of_doubles.tolist() == [5e-324, -5e-324, 0.0]


@pytest.mark.slow
@pytest.mark.level("default")
def test_every_function_is_within_its_documented_error():
    done = interpret(str(SCRIPT))
    assert done.returncode == 0, done.stderr[-3000:]
    check(json.loads(done.stdout))


@pytest.mark.slow
def test_every_function_is_within_its_documented_error_for_a_few_arguments():
    done = interpret(str(SCRIPT), "few")
    assert done.returncode == 0, done.stderr[-3000:]
    check(json.loads(done.stdout), least=10)


@pytest.mark.slow
@pytest.mark.skipif(cuda_unavailable() is not None, reason=f"what holds on a GPU: {cuda_unavailable()}")
def test_every_function_is_within_its_documented_error_on_a_gpu():
    done = run_touchstone([str(SCRIPT), "cuda"], environment={"TRITON_INTERPRET": "0"})
    assert done.returncode == 0, done.stderr[-3000:]
    check(json.loads(done.stdout))


# The tables of the CUDA C++ Programming Guide, "Mathematical Functions" [cuda2025]: ulps of float32, ulps of float64.
FULL_RANGE = {
    "rsqrt": (2, 1), "cbrt": (1, 1), "rcbrt": (1, 1), "hypot": (3, 2), "rhypot": (2, 1), "norm3d": (3, 2),
    "rnorm3d": (2, 1), "norm4d": (3, 2), "rnorm4d": (2, 1), "exp": (2, 1), "exp2": (2, 1), "exp10": (2, 1),
    "expm1": (1, 1), "log": (1, 1), "log2": (1, 1), "log10": (2, 1), "log1p": (1, 1), "sin": (2, 2), "cos": (2, 2),
    "tan": (4, 2), "sinpi": (1, 2), "cospi": (1, 2), "asin": (2, 2), "acos": (2, 2), "atan": (2, 2), "atan2": (3, 2),
    "sinh": (3, 2), "cosh": (2, 1), "tanh": (2, 1), "asinh": (3, 3), "acosh": (4, 3), "atanh": (3, 2), "pow": (4, 2),
    "erf": (2, 2), "erfc": (4, 5), "erfinv": (2, 5), "erfcinv": (4, 6), "erfcx": (4, 4), "normcdf": (5, 5),
    "normcdfinv": (5, 8), "tgamma": (5, 10), "cyl_bessel_i0": (6, 6), "cyl_bessel_i1": (6, 6), "sqrt": (1, 0),
}  # fmt: skip
BESSEL = {f"__nv_{name}{'f' * single}": single for name in ("j0", "j1", "y0", "y1") for single in (True, False)}
NAN = math.nan
# Where the error depends on the arguments: these, then the ulps, or the absolute error; NaN where none is documented.
BY_ARGUMENT = {
    **{name: [((-7.9,), 9, 0), ((8.0,), 0, 2.2e-6)] if single else [((7.9,), 7, 0), ((-8.0,), 0, 5e-12)]
       for name, single in BESSEL.items()},
    "__nv_jnf": [((128, 9.5), 0, 2.2e-6), ((127, 9.5), NAN, 0)],
    "__nv_jn": [((128, 9.5), 0, 5e-12), ((129, 9.5), NAN, 0)],
    "__nv_ynf": [((3, 2.9), 10, 0), ((2, 1.5), 7, 0), ((3, 3.0), 0, 2.2e-6)],
    "__nv_yn": [((4, 6.0), NAN, 0), ((4, 6.1), 0, 5e-12)],
    "__nv_lgammaf": [((-10.1,), 6, 0), ((-10.0,), NAN, 0), ((-2.27,), NAN, 0), ((-2.26,), 6, 0)],
    "__nv_lgamma": [((-23.1,), 4, 0), ((-23.0,), NAN, 0), ((-2.264,), NAN, 0), ((-2.263,), 4, 0)],
    "__nv_fast_sinf": [((math.pi,), 0, 2**-21.41), ((-math.pi,), 0, 2**-21.41), ((3.2,), NAN, 0)],
    "__nv_fast_cosf": [((math.pi,), 0, 2**-21.19), ((-math.pi,), 0, 2**-21.19), ((-3.2,), NAN, 0)],
    "__nv_fast_log2f": [((0.5,), 0, 2**-22), ((2.0,), 0, 2**-22), ((0.49,), 2, 0), ((2.01,), 2, 0)],
    "__nv_fast_logf": [((0.5,), 0, 2**-21.41), ((2.0,), 0, 2**-21.41), ((0.49,), 3, 0), ((2.01,), 3, 0)],
    "__nv_fast_log10f": [((0.5,), 0, 2**-24), ((2.0,), 0, 2**-24), ((0.49,), 3, 0), ((2.01,), 3, 0)],
    "__nv_fast_expf": [((-10.0,), 13, 0), ((0.8,), 2, 0), ((80.0,), 95, 0)],
    "__nv_fast_exp10f": [((-10.0,), 31, 0), ((0.3,), 2, 0), ((30.0,), 91, 0)],
    "__nv_fast_fdividef": [((1.0, 2.0**126), 2, 0), ((1.0, -(2.0**-126)), 2, 0), ((1.0, 2.1**126), NAN, 0),
                           ((1.0, 2.1**-126), NAN, 0)],
    "__nv_powif": [((2.0, 3), NAN, 0)],
    "__nv_powi": [((2.0, 3), NAN, 0)],
    "__nv_rcp64h": [((3.0,), NAN, 0)],
}  # fmt: skip
POWERS = [(2.0, -3, 0.125), (-2.0, 3, -8.0), (-2.0, -2, 0.25), (3.0, 0, 1.0), (0.0, -1, math.inf), (0.0, 0, 1.0),
          (1.5, 5, 7.59375), (2.0, -149, 0.0), (10.0, -1, 0.1)]  # fmt: skip
DERIVED = ("__nv_fast_tanf", "__nv_fast_powf")  # of the functions that they are made of


def allowed(symbol, *arguments):
    """The ulps and the absolute error that a function may have, where its arguments are these."""
    ulps, absolute = SYMBOLS[symbol].bound.at(*(np.array([float(each)]) for each in arguments))
    return ulps.item(), absolute.item()


@pytest.mark.parametrize("symbol", BY_ARGUMENT)
def test_errors_that_depend_on_the_argument_are_those_of_cudas_tables(symbol):
    for arguments, ulps, absolute in BY_ARGUMENT[symbol]:
        assert allowed(symbol, *arguments) == pytest.approx((ulps, absolute), rel=1e-12, abs=0, nan_ok=True), arguments


@pytest.mark.parametrize("symbol", [name for name in SYMBOLS if name[5:].startswith(("j", "y"))])
def test_without_mpmath_bessel_functions_are_not_interpreted(monkeypatch, symbol):
    monkeypatch.setitem(sys.modules, "mpmath", None)
    orders = [np.ones(1, np.int32)] * symbol.removesuffix("f").endswith("n")
    with pytest.raises(NotInterpreted, match="Bessel function of libdevice is not interpreted without mpmath"):
        SYMBOLS[symbol].compute(*orders, np.ones(1, np.float32 if symbol.endswith("f") else np.float64))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_powers_with_a_whole_exponent():
    """Whose error nobody documents."""
    x, n, right = (np.array(each) for each in zip(*POWERS, strict=True))
    single = SYMBOLS["__nv_powif"].compute(x.astype(np.float32), n.astype(np.int32))
    assert single.dtype == np.float32 and single.tolist() == right.astype(np.float32).tolist()
    double = SYMBOLS["__nv_powi"].compute(x, n.astype(np.int32))
    assert double.tolist() == np.where(n == -149, 2.0**-149, right).tolist()


def test_every_other_error_is_that_of_cudas_tables():
    """A function that has no entry there is exact, or rounds once."""
    documented = {
        f"__nv_{name}{'f' * (i == 0)}": (ulps, 0) for name, both in FULL_RANGE.items() for i, ulps in enumerate(both)
    }
    others = {symbol: (0, 0) for symbol in SYMBOLS if symbol not in {*BY_ARGUMENT, *DERIVED}}
    assert documented.keys() <= others.keys()
    assert {symbol: allowed(symbol, 0.7) for symbol in others} == others | documented


def test_the_errors_of_the_fast_tangent_and_power_are_those_of_their_steps():
    """The documentation names the steps: the largest error of each, one after the other, and two roundings."""

    def ulps(worst, right):
        return abs(worst / right - 1) * 2**24  # of which the last place is at most 2^-23

    for x in (0.3, -1.0, 2.5, math.pi):
        sine, cosine = math.sin(x), math.cos(x)
        worst = (abs(sine) + 2**-21.41) / (abs(cosine) - 2**-21.19)
        assert allowed("__nv_fast_tanf", x) == pytest.approx((2 + ulps(worst, abs(sine / cosine)), 0), rel=0.01), x
    assert math.isnan(allowed("__nv_fast_tanf", 3.2)[0])
    for x, y, error in (
        (0.5, 30.0, 2**-22),
        (2.0, -9.0, 2**-22),
        (1.5, 40.0, 2**-22),
        (3.0, 20.0, None),
        (0.4, 7, None),
    ):
        power = y * math.log2(x)
        worst = abs(y) * error if error else abs(power) * 2**-22  # two units in the last place of the logarithm
        found = 2 + ulps(2 ** (worst + abs(power) * 2**-24), 1)
        assert allowed("__nv_fast_powf", x, y) == pytest.approx((found, 0), rel=0.01), (x, y)


def test_a_function_of_numbers_has_no_value_or_too_large_a_one():
    def one(x):
        return {1: lambda: 2.5, 2: lambda: 1 / 0, 3: lambda: math.log(-1), 4: lambda: math.exp(1e9)}[int(x)]()

    found = libdevice._each(one)(np.array([[1, 2], [3, 4]]))
    assert found.dtype == np.float64 and found[0, 0] == 2.5 and math.isnan(found[0, 1]) and math.isnan(found[1, 0])
    assert found[1, 1] == math.inf
    with pytest.raises(KernelError, match="^libdevice of CUDA has no tomorrow: the compiler refuses it, too$"):
        libdevice._of_target("tomorrow")(1, 2, a=3)


def test_a_documented_error_holds_for_each_argument():
    bound = libdevice.Bound(lambda x: x + 1, 0.5, where=lambda x: x > 2)
    ulps, absolute = bound.at(np.array([1.0, 3.0]))
    assert (ulps.tolist(), absolute.tolist()) == ([2.0, 0.0], [0.0, 0.5])
    assert [each.tolist() for each in libdevice.Bound(3.0).at(np.zeros(2))] == [[3.0, 3.0], [0.0, 0.0]]
    with pytest.raises(dataclasses.FrozenInstanceError):
        bound.ulps = 2.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        SYMBOLS["__nv_expf"].name = "exp2"
