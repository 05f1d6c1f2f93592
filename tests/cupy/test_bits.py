"""Variants whose every operation IEEE 754 rounds give the same bits in the emulator and on a GPU."""

import pytest

from tests.night import some
from tests.programs import cupy_bits
from touchstone.backends import emulator
from touchstone.backends.devices import cuda_unavailable

needs_emulator = pytest.mark.skipif(bool(emulator.why_not()), reason=emulator.why_not() or "")
needs_gpu = pytest.mark.skipif(bool(cuda_unavailable()), reason=f"needs a GPU: {cuda_unavailable()}")

CASES = [pytest.param(name, fn, arguments, id=name.replace(" ", "-")) for name, fn, arguments in cupy_bits.cases()]


def test_each_family_has_a_variant_that_is_compared():
    assert {str(case.id).partition(".")[0] for case in CASES} == {
        "matmul",
        "softmax_backward",
        "rms_norm_backward",
        "layer_norm_backward",
    }
    assert set(cupy_bits.recorded()) <= {str(case.values[0]) for case in CASES}


@needs_emulator
@pytest.mark.parametrize(("name", "fn", "arguments"), some(CASES, 3))
def test_the_emulators_bits_are_those_kept(name, fn, arguments):
    """On every machine and compiler; after a change of the kernel: python -m tests.programs.cupy_bits --write."""
    found = cupy_bits.digest(fn, arguments, "cpu")
    if found is None:
        pytest.skip("the variant declines this input")
    assert found == cupy_bits.recorded().get(name)


@needs_gpu
@pytest.mark.parametrize(("name", "fn", "arguments"), some(CASES, 3))
def test_a_gpu_gives_the_emulators_bits(name, fn, arguments):
    pytest.importorskip("cupy")
    with cupy_bits.gpu_compiled(*cupy_bits.STRICT):
        found = cupy_bits.digest(fn, arguments, "cuda")
    wanted = cupy_bits.recorded().get(name) if emulator.why_not() else cupy_bits.digest(fn, arguments, "cpu")
    if found is None:
        pytest.skip("the variant declines this input")
    assert found == wanted


@needs_gpu
def test_fused_multiply_adds_would_show():
    """The comparison can fail: a GPU's own way of compiling gives a matmul other bits."""
    pytest.importorskip("cupy")
    name, fn, arguments = next(case.values for case in CASES if case.values[0] == "matmul.naive float32")
    with cupy_bits.gpu_compiled("-fmad=true"):
        assert cupy_bits.digest(fn, arguments, "cuda") != cupy_bits.recorded()[name]


# ulp from the exact value; CUDA's programming guide states 1 for expf and 2 for rsqrtf
LIMITS = {"expf": 2, "exp2f": 2, "logf": 1, "rsqrtf": 2, "sqrtf": 0.5, "tanhf": 2, "erff": 2, "x / y": 0.5, "fmaf": 0.5}


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=needs_emulator), pytest.param("cuda", marks=needs_gpu)])
def test_elementary_functions_are_as_close_as_stated(device, capsys):
    heads, *rows = cupy_bits.table([device], count=1 << 12)
    with capsys.disabled():
        print(f"\n{heads[0]:12} {heads[1]} in ulp")
        for name, error in rows:
            print(f"{name:12} {error}")
    errors = {name: float(error) for name, error in rows}
    far = {name: errors[name] for name, limit in LIMITS.items() if errors[name] > limit + 0.005}
    assert not far


@needs_emulator
@needs_gpu
def test_how_far_the_emulator_is_from_a_gpu(capsys):
    rows = cupy_bits.table(["cpu", "cuda"])
    with capsys.disabled():
        for row in rows:
            print("".join(f"{cell:>18}" for cell in row))
    between = {row[0]: float(row[-1]) for row in rows[1:]}
    assert all(between[name] == 0 for name in ("sqrtf", "x / y", "fmaf"))
    assert all(between[name] <= 3 for name in ("expf", "exp2f", "logf", "rsqrtf", "tanhf", "erff"))
