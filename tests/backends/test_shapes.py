"""`touchstone.backends.shapes`: what it returns, and that its errors name the argument."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from touchstone.backends import Unsupported, shapes


def t(*shape, dtype=torch.float32, device="cpu") -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def test_sizes_come_in_order_of_first_appearance():
    assert shapes("M K, K N", a=t(2, 3), b=t(3, 4)) == (2, 3, 4)
    assert shapes("rows cols, cols, cols", x=t(5, 7), weight=t(7), bias=t(7)) == (5, 7)
    assert shapes("B H S, B S", x=t(2, 3, 4), y=t(2, 4)) == (2, 3, 4)


def test_empty_sizes_are_sizes():
    assert shapes("M K, K N", a=t(0, 3), b=t(3, 0)) == (0, 3, 0)


@pytest.mark.parametrize(
    ("spec", "operands", "message"),
    [
        ("rows cols", dict(x=t(3)), r"^x: expected shape \(rows, cols\), got \(3,\)$"),
        ("rows cols", dict(x=t(3, 4, 5)), r"^x: expected shape \(rows, cols\), got \(3, 4, 5\)$"),
        ("rows cols", dict(x=t()), r"^x: expected shape \(rows, cols\), got \(\)$"),
        ("M K, K N", dict(a=t(2, 3), b=t(4, 5)), r"^b: .*\(K, N\), where a gives K = 3, got \(4, 5\)$"),
        ("M M", dict(a=t(2, 3)), r"^a: .*where a gives M = 2, got \(2, 3\)$"),
        ("M 4", dict(a=t(2, 3)), r"^a: expected shape \(M, 4\), got \(2, 3\)$"),
        ("N C ..., C", dict(x=t(2), weight=t(3)), r"^x: expected shape \(N, C, \.\.\.\), got \(2,\)$"),
        ("N C ..., C", dict(x=t(2, 4, 5), weight=t(3)), r"^weight: .*where x gives C = 4, got \(3,\)$"),
        ("rows cols, cols?", dict(x=t(2, 3), bias=t(4)), r"^bias: .*where x gives cols = 3, got \(4,\)$"),
        ("M K, K N", dict(a=t(2, 3), b=t(3, 4, device="meta")), r"^b: is on meta, but a is on cpu$"),
        ("M, M:float32", dict(a=t(2, device="meta"), b=t(2)), r"^b: is on cpu, but a is on meta$"),
    ],
)
def test_shape_and_device_errors(spec, operands, message):
    with pytest.raises(ValueError, match=message):
        shapes(spec, **operands)


@pytest.mark.parametrize(
    ("spec", "operands", "message"),
    [
        (
            "rows cols",
            dict(x=t(2, 3, dtype=torch.float64)),
            "^x: expected dtype float32, float16 or bfloat16, got float64$",
        ),
        ("rows cols", dict(x=t(2, 3, dtype=torch.int32)), "^x: .* got int32$"),
        ("rows cols", dict(x=t(2, 3, dtype=torch.bool)), "^x: .* got bool$"),
        (
            "M, M",
            dict(a=t(2), b=t(2, dtype=torch.float16)),
            "^b: dtype float16, but a has float32; all operands share one dtype$",
        ),
        ("M:float32, M", dict(lse=t(2, dtype=torch.float16), x=t(2)), "^lse: expected dtype float32, got float16$"),
        ("M", dict(x=None), "^x: expected a torch.Tensor, got NoneType$"),
        ("M, M?", dict(x=t(2), bias=[1.0, 2.0]), "^bias: expected a torch.Tensor or None, got list$"),
        ("M", dict(x=np.zeros(2, np.float32)), "^x: expected a torch.Tensor, got ndarray$"),
        ("M", dict(x=1.0), "^x: expected a torch.Tensor, got float$"),
        ("M, M", dict(x=t(2)), "2 entries in 'M, M' for 1 operands"),
    ],
)
def test_type_errors(spec, operands, message):
    with pytest.raises(TypeError, match=message):
        shapes(spec, **operands)


def test_a_fixed_dtype_is_no_part_of_the_common_one():
    assert shapes("M, M:float32", x=t(2, dtype=torch.bfloat16), lse=t(2)) == (2,)
    assert shapes("M:float32, M, M", lse=t(2), x=t(2, dtype=torch.float16), y=t(2, dtype=torch.float16)) == (2,)
    with pytest.raises(TypeError, match="^y: dtype bfloat16, but x has float16"):
        shapes("M:float32, M, M", lse=t(2), x=t(2, dtype=torch.float16), y=t(2, dtype=torch.bfloat16))


def test_optional_operands_may_be_none():
    assert shapes("rows cols, cols?", x=t(2, 3), bias=None) == (2, 3)
    assert shapes("rows cols, cols?", x=t(2, 3), bias=t(3)) == (2, 3)
    assert shapes("M?, M:float32?", x=None, y=t(2)) == (2,)


def test_trailing_axes_are_free_and_not_returned():
    for trailing in ((), (4,), (4, 5, 6)):
        assert shapes("N C ..., C", x=t(2, 3, *trailing), weight=t(3)) == (2, 3)


def test_one_of_several_dtypes():
    index = torch.zeros(3, dtype=torch.int32)
    for dtype in (torch.int32, torch.int64):
        assert shapes("T, T:int64|int32", x=t(3), index=index.to(dtype)) == (3,)
    with pytest.raises(TypeError, match="^index: expected dtype int64 or int32, got int16$"):
        shapes("T, T:int64|int32", x=t(3), index=index.short())
    for dtype in (torch.float32, torch.float16):
        assert shapes("T, T:float32|same", x=t(3, dtype=torch.float16), table=t(3, dtype=dtype)) == (3,)
    with pytest.raises(TypeError, match="^table: dtype bfloat16, but x has float16; .* or it is float32$"):
        shapes("T, T:float32|same", x=t(3, dtype=torch.float16), table=t(3, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="^x: dtype bfloat16, but table has float16"):
        shapes("T:float32|same, T", table=t(3, dtype=torch.float16), x=t(3, dtype=torch.bfloat16))


def test_parts_of_a_size():
    assert shapes("M K, K/8 N", a=t(2, 16), b=t(2, 5)) == (2, 16, 5)
    with pytest.raises(ValueError, match="^a: K = 15 is no multiple of 8$"):
        shapes("M K, K/8 N", a=t(2, 15), b=t(2, 5))
    with pytest.raises(ValueError, match=r"^b: expected shape \(K/8, N\), where a gives K = 16, got \(3, 5\)$"):
        shapes("M K, K/8 N", a=t(2, 16), b=t(3, 5))


def test_no_axes_at_all():
    assert shapes("M, ()", x=t(2), scale=torch.zeros(())) == (2,)
    with pytest.raises(ValueError, match=r"^scale: expected shape \(\), got \(1,\)$"):
        shapes("M, ()", x=t(2), scale=t(1))


def test_strides_and_offsets_do_not_matter():
    base = torch.empty(100)
    assert shapes("M K", a=base.as_strided((2, 3), (0, 2), 5)) == (2, 3)
    assert shapes("M K", a=torch.empty(3, 2).t()) == (2, 3)


def test_a_call_like_one_before_is_checked_as_that_one():
    x, w, half = t(2, 3), t(3), t(3, dtype=torch.float16)
    for _ in range(2):
        assert shapes("rows cols, cols?", x=x, weight=w) == (2, 3)
        assert shapes("rows cols, cols?", x=x, weight=None) == (2, 3)
        assert shapes("rows cols, rest?", x=x, weight=w) == (2, 3, 3)
        assert shapes("M, M?, 3?", x=t(2), a=None, b=w) == (2,)
        with pytest.raises(ValueError, match="^a: expected"):
            shapes("M, M?, 3?", x=t(2), a=w, b=None)
        with pytest.raises(TypeError, match="^weight: dtype float16"):
            shapes("rows cols, cols?", x=x, weight=half)
        with pytest.raises(ValueError, match="^weight: is on meta"):
            shapes("rows cols, cols?", x=x, weight=t(3, device="meta"))
        with pytest.raises(TypeError, match="^weight: expected a torch.Tensor or None, got ndarray"):
            shapes("rows cols, cols?", x=x, weight=np.zeros(3, np.float32))
        like = SimpleNamespace(dtype=w.dtype, shape=w.shape, device=w.device)
        with pytest.raises(TypeError, match="^weight: expected a torch.Tensor or None, got SimpleNamespace"):
            shapes("rows cols, cols?", x=x, weight=like)


def test_unsupported_is_a_decline():
    assert issubclass(Unsupported, NotImplementedError)
