"""Gradients of norms with rows on their way to shared memory: rows of several pieces, and of more rows than stages."""

import pytest
import torch

from touchstone.backends.triton import layer_norm_backward, rms_norm_backward
from touchstone.reference.layer_norm_backward import torch_layer_norm_backward
from touchstone.reference.rms_norm_backward import torch_rms_norm_backward


def operands(rows, cols, dtype):
    generator = torch.Generator().manual_seed(cols)
    x, dy = (torch.randn((rows, cols), generator=generator) for _ in range(2))
    x += 40 * torch.randn((rows, 1), generator=generator)  # means far from 0, of which elements keep few bits
    return x.to(dtype), torch.randn(cols, generator=generator).to(dtype), dy.to(dtype)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    ("cols", "dtype"), [(8, torch.float16), (3080, torch.float16), (12288, torch.bfloat16), (2044, torch.float32)]
)
def test_rows_of_one_to_four_pieces(cols, dtype, given):
    x, weight, dy = operands(11, cols, dtype)
    centred = x.double() - x.double().mean(1, keepdim=True)
    mean, rstd = x.double().mean(1), (centred.square().mean(1) + 1e-5).rsqrt()
    statistics = dict(mean=mean.float(), rstd=rstd.float()) if given else {}
    found = layer_norm_backward.staged(x, weight, dy, **statistics)
    expected = torch_layer_norm_backward(x.double(), weight.double(), dy.double(), eps=1e-5)
    for gradient, answer in zip(found, expected, strict=True):
        assert torch.allclose(gradient.double(), answer, rtol=0.01, atol=0.01)

    _check_rms_norm(x, weight, dy, given)


@pytest.mark.parametrize("given", [False, True])
def test_a_row_that_is_replaced_piece_by_piece(given):
    _check_rms_norm(*operands(11, 12292, torch.float32), given)


def _check_rms_norm(x, weight, dy, given):
    rstd = (x.double().square().mean(1) + 1e-6).rsqrt()
    found = rms_norm_backward.staged(x, weight, dy, **(dict(rstd=rstd.float()) if given else {}))
    expected = torch_rms_norm_backward(x.double(), weight.double(), dy.double(), eps=1e-6)
    for gradient, answer in zip(found, expected, strict=True):
        assert torch.allclose(gradient.double(), answer, rtol=0.01, atol=0.01)
