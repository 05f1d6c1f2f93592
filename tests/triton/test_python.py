"""Python in a kernel that the interpreter runs: what of it is refused, what it becomes, which errors are told."""

import sys

import numpy as np
import pytest
import torch

if not pytest.importorskip("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime import autotuner
from triton.runtime import interpreter as stock

from touchstone import backends
from touchstone.backends.triton.runtime.interpreter import launch, loops, reductions
from touchstone.backends.triton.runtime.interpreter.registry import KernelError

pytestmark = pytest.mark.needs("interpreter")
counted = 0


def ran(kernel, x, *constants, grid=(1,)):
    kernel[grid](x, *constants)
    return x.tolist()


@triton.jit
def _with_match(x_ptr, KIND: tl.constexpr):
    match KIND:
        case 1:
            tl.store(x_ptr, 1.0)
        case _:
            tl.store(x_ptr, 2.0)


@triton.jit
def _with_global(x_ptr, KIND: tl.constexpr):
    global counted
    counted = KIND
    tl.store(x_ptr, 1.0 * counted)


def _closing():
    found = 1.0

    @triton.jit
    def with_nonlocal(x_ptr, KIND: tl.constexpr):
        nonlocal found
        found = KIND
        tl.store(x_ptr, 1.0 * found)

    return with_nonlocal


@triton.jit
def _with_inside(x_ptr, KIND: tl.constexpr):
    x = tl.load(x_ptr)
    tl.store(x_ptr, x + len(x.__class__.__name__))


@triton.jit
def _with_method(x_ptr, KIND: tl.constexpr):
    kinds = (4, KIND)
    tl.store(x_ptr, 1.0 * kinds.index(KIND))


REFUSED = [
    (_with_match, 2.0, "match"),
    (_with_global, 7.0, "global counted"),
    (_closing(), 7.0, "nonlocal found"),
    (_with_inside, 6.0, "what Python knows of a tile"),
]


@pytest.mark.parametrize(("kernel", "gives", "what"), REFUSED, ids=[what for *_, what in REFUSED])
def test_what_no_compiler_takes_is_python_and_refused_where_launches_are_watched(monkeypatch, kernel, gives, what):
    assert ran(kernel, torch.zeros(1), 7) == [gives]
    monkeypatch.setattr(backends, "before_launch", [lambda reached: None])
    x = torch.zeros(1)
    with pytest.raises(KernelError, match=f"{what}: Triton does not compile it, and numbers could leave the kernel"):
        kernel[(1,)](x, 7)
    assert x.tolist() == [0.0]


def test_methods_of_pythons_own_are_called_where_launches_are_watched(monkeypatch):
    monkeypatch.setattr(backends, "before_launch", [lambda reached: None])
    assert ran(_with_method, torch.zeros(1), 7) == [1.0]


@triton.jit
def _larger(a, b):
    if a > b:
        return a
    return b


@triton.jit
def _later(a, b):
    return a * 0 + b


@triton.jit
def _reduced(x_ptr, y_ptr, KEEP: tl.constexpr, AXIS: tl.constexpr):
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    x = tl.load(x_ptr + 8 * i + j)
    most = tl.reduce(x, AXIS, _larger, keep_dims=KEEP)
    last = tl.reduce(x, AXIS, _later, keep_dims=KEEP)
    tl.static_assert(most.shape == last.shape)
    if KEEP:
        tl.store(y_ptr + i, most - 100 * last)
    else:
        tl.store(y_ptr + tl.arange(0, 4 if AXIS == 1 else 8), most - 100 * last)


@pytest.mark.parametrize(("axis", "keep"), [(0, False), (1, False), (1, True)])
def test_a_function_that_combines_may_branch(axis, keep):
    """It then runs on one element after another; without a branch on whole tiles."""
    x = torch.randint(0, 9, (4, 8), generator=torch.Generator().manual_seed(0)).float()
    expected = x.amax(axis) - 100 * x.select(axis, -1)
    y = torch.empty(expected.shape)
    _reduced[(1,)](x, y, keep, axis)
    assert y.tolist() == expected.tolist()


@triton.jit
def _scanned(x_ptr, y_ptr, z_ptr, REVERSE: tl.constexpr):
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    x = tl.load(x_ptr + 8 * i + j)
    tl.store(y_ptr + 8 * i + j, tl.associative_scan(x, 1, _larger, REVERSE))
    tl.store(z_ptr + 8 * i + j, tl.associative_scan(x, 0, _later, REVERSE))


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_by_functions_with_a_branch_and_without(reverse):
    x = torch.randint(0, 9, (4, 8), generator=torch.Generator().manual_seed(0)).float()
    y, z = torch.empty(2, 4, 8)
    _scanned[(1,)](x, y, z, reverse)
    most = x.flip(1).cummax(1).values.flip(1) if reverse else x.cummax(1).values
    assert y.tolist() == most.tolist() and z.tolist() == x.tolist()


def test_a_combining_function_without_a_source_runs_element_by_element():
    unwritten = stock.InterpretedFunction.__new__(stock.InterpretedFunction)
    unwritten.fn = eval("lambda a, b: a + b")
    assert reductions._branches(unwritten) and reductions._branches(_larger) and not reductions._branches(_later)


def test_an_axis_is_first_for_what_combines():
    data = np.arange(6).reshape(2, 3)
    assert reductions._axis_first(data, 1).tolist() == data.T.tolist()
    assert reductions._axis_first(data, None).tolist() == [0, 1, 2, 3, 4, 5]


@triton.jit
def _divides(x_ptr, BY: tl.constexpr):
    tl.store(x_ptr, 1 // BY)


def test_the_error_of_a_kernel_is_its_own_where_the_front_end_is_debugged(monkeypatch):
    with pytest.raises(KernelError, match=r"^_divides \(test_python.py:\d+\), program \(0, 0, 0\): ZeroDivisionError"):
        ran(_divides, torch.zeros(1), 0)
    monkeypatch.setattr(triton.knobs.compilation, "front_end_debugging", True)
    with pytest.raises(ZeroDivisionError):
        ran(_divides, torch.zeros(1), 0)


def test_which_options_a_launch_has_is_not_known_without_the_compiler(monkeypatch):
    assert {"num_warps", "num_stages", "num_ctas", "instrumentation_mode"} <= launch.launch_options()
    monkeypatch.setitem(sys.modules, "triton.backends.nvidia.compiler", None)
    assert launch.launch_options.__wrapped__() is None


def test_an_interpreted_kernel_is_wrapped_for_torch_as_it_is():
    """Also one that is autotuned, or has heuristics."""
    tuned = triton.autotune([triton.Config({"KIND": 1}), triton.Config({"KIND": 2})], key=[])(_with_match)
    told = triton.heuristics({"KIND": lambda arguments: 1})(tuned)
    assert isinstance(told, autotuner.Heuristics) and isinstance(tuned, autotuner.Autotuner)
    for kernel in (_with_match, tuned, told):
        assert torch.library.wrap_triton(kernel) is kernel
    with pytest.raises(RuntimeError):
        torch.library.wrap_triton(lambda x: x)


@triton.jit
def _summed(x_ptr, y_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXIS: tl.constexpr, KEEP: tl.constexpr):
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    found = tl.sum(tl.load(x_ptr + COLUMNS * i + j), axis=AXIS, keep_dims=KEEP)
    if AXIS is None:
        if KEEP:
            tl.store(y_ptr + tl.arange(0, 1)[:, None] + tl.arange(0, 1)[None, :], found)
        else:
            tl.store(y_ptr, found)
    elif KEEP:
        tl.store(y_ptr + (i if AXIS == 1 else j), found)
    else:
        tl.store(y_ptr + tl.arange(0, ROWS if AXIS == 1 else COLUMNS), found)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize(("dtype", "large"), [(torch.float16, 2048.0), (torch.bfloat16, 256.0)])
def test_sums_of_16_bits_round_at_every_addition(dtype, large, axis, keep):
    """Halves of a tile are added: large + 1 rounds to large, and 1 + 1 is 2, which counts."""
    x = torch.zeros(4, 4, dtype=dtype)
    x[:, 0] = torch.tensor([large, 1, 1, 1])
    x[0, :] = torch.tensor([large, 1, 1, 1])
    expected = {0: [large + 2, 1, 1, 1], 1: [large + 2, 1, 1, 1], None: [large + 6]}[axis]
    y = torch.full((len(expected),), -1.0, dtype=dtype)
    _summed[(1,)](x, y, 4, 4, axis, keep)
    assert y.tolist() == expected if axis is not None else large + 2 <= y.item() <= large + 6
    exact = torch.full((len(expected),), -1.0)
    _summed[(1,)](x.float(), exact, 4, 4, axis, keep)
    assert exact.tolist() == ([large + 3, 1, 1, 1] if axis is not None else [large + 6])


def test_a_loop_variable_is_a_number_of_the_type_that_its_bounds_promote_to():
    for bounds, values, kind in (
        ((3,), [0, 1, 2], "int32"),
        ((2, 7, 3), [2, 5], "int32"),
        ((4, 1, -2), [4, 2], "int32"),
        ((2**33, 2**33 + 2), [2**33, 2**33 + 1], "int64"),
        ((0, 2, 2**33), [0], "int64"),
    ):
        found = list(loops._typed_range(*bounds))
        assert [each.handle.data.tolist() for each in found] == [[value] for value in values], bounds
        assert {str(each.dtype) for each in found} == {str(each.handle.data.dtype) for each in found} == {kind}, bounds
    tile = tl.tensor(stock.TensorHandle(np.zeros(4, np.int32), tl.int32), tl.block_type(tl.int32, [4]))
    for wrong in (2.5, tile):
        with pytest.raises(TypeError, match="the bounds and the step of a loop are scalar integers, not "):
            next(loops._typed_range(wrong))
