"""matmul's `aligned`: which operand it copies, and what it copies."""

import importlib

import pytest
import torch

aligned = importlib.import_module("touchstone.backends.triton.matmul.aligned")  # a function of that name hides it


@pytest.mark.parametrize(
    ("M", "K", "N", "copied"),
    [
        (4096, 4096, 4096, (False, False)),  # rows start at lines
        (6000, 5000, 7000, (False, True)),
        (7000, 9000, 3000, (False, True)),
        (1000, 3000, 20000, (True, False)),  # b is 20 times as large, and copying it takes longer than the product
        (300, 3000, 3000, (False, False)),
        (6000, 5000, 8192, (True, False)),  # b's rows start at lines
    ],
)
def test_the_operand_whose_copy_saves_the_most_is_copied(M, K, N, copied):
    a, b = (torch.empty(shape, dtype=torch.float16, device="meta") for shape in ((M, K), (K, N)))
    assert aligned._copied(a, b) == copied


@pytest.mark.parametrize("transposed", [False, True])
def test_what_is_copied_has_rows_that_start_at_lines_and_zeros_beyond_it(transposed):
    x = torch.randn(13, 70).half()
    y = aligned._in_lines(x.t() if transposed else x)
    y = y.t() if transposed else y
    assert y.shape == (16, 72) and y.stride() == (128, 1)
    assert torch.equal(y[:13, :70], x) and not y[13:].any() and not y[:, 70:].any()


@pytest.mark.parametrize("copied", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("columns", [137, 144])
def test_with_each_copy_it_gives_the_product(columns, copied, monkeypatch):
    monkeypatch.setattr(aligned, "_copied", lambda a, b: copied)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, shape, generator=generator).half() for shape in ((140, 72), (72, columns)))
    c = aligned.aligned(a, b)
    assert c.is_contiguous() and torch.equal(c, (a.float() @ b.float()).half())
