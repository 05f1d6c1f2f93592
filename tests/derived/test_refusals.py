"""Functions that no contract can be derived from are refused by the name of what they do, with the way out."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.derived.functions import drawn
from touchstone import Refused, derive
from touchstone.conformance.derived.samples import sampled


def through_numpy(x):
    return torch.from_numpy(np.exp(x.detach().numpy()))


REFUSED = {
    "dropout": (lambda x: F.dropout(x, 0.5), r"draws random numbers: aten\.bernoulli_.*model\.eval\(\), p=0"),
    "randn": (lambda x: x + torch.randn_like(x), r"draws random numbers: aten\.randn_like"),
    "attention's dropout": (
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3),
        "draws random numbers",
    ),
    "complex": (
        lambda x: torch.linalg.inv(torch.complex(x, x) @ torch.complex(x, x).mH).real,
        r"no rule for complex numbers: aten\.linalg_inv_ex\.default; .*by hand",
    ),
    "eigenvalues": (
        lambda x: torch.linalg.eigvals(x @ x.mT).abs(),
        r"no rule for complex numbers: aten\..*eig.*by hand",
    ),
    "sparse": (lambda x: x.to_sparse().to_dense() * 2, "no rule for a sparse tensor"),
    "numpy": (through_numpy, r"leaves torch: Tensor\.numpy\(\) at test_refusals\.py:\d+"),
    "array": (lambda x: torch.from_numpy(np.asarray(x)) * 2, r"leaves torch: Tensor\.__array__\(\) at test_refusals"),
    "list": (lambda x: torch.tensor(x.tolist()), r"leaves torch: Tensor\.tolist"),
    "pointer": (lambda x: x * x.data_ptr(), r"leaves torch: Tensor\.data_ptr"),
    "unique": (lambda x: torch.unique(x.round()), r"which computed values are equal: aten\._unique2"),
    "bits": (lambda x: x.view(torch.int32) >> 3, r"reads the bits of a tensor: aten\.view\.dtype"),
    "next number": (lambda x: torch.nextafter(x, x.flip(0)), r"far apart the numbers of a dtype are: aten\.nextafter"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name):
    function, message = REFUSED[name]
    with pytest.raises(Refused, match=message):
        sampled(function, drawn((12, 40)))
    if name not in ("dropout", "randn", "attention's dropout"):
        with pytest.raises(Refused, match=message):
            derive(function, drawn((12, 40)))


def test_shapes_that_depend_on_computed_values_are_refused():
    def flickering(x):
        y = x - x.mean()
        return torch.zeros(int((y[0, 0] * 2**40).abs() % 997))

    with pytest.raises(Refused, match="shapes of the outputs depend on computed values"):
        sampled(flickering, drawn((12, 40)))


def test_what_draws_nothing_is_not_refused():
    for function in (
        lambda x: F.dropout(x, 0.0),
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: x / x.std().item(),
        lambda x: x[x > 0.5],
        torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.ReLU()).eval(),
    ):
        sampled(function, drawn((12, 40)))


def test_complex_numbers_that_go_in_or_come_out_are_refused():
    (x,) = drawn((12, 40))
    with pytest.raises(Refused, match="complex numbers: an output; return torch.view_as_real of it"):
        derive(torch.fft.rfft, [x])
    with pytest.raises(Refused, match="complex numbers: the operand z; take torch.view_as_real of it"):
        derive(lambda z: z.abs(), [torch.complex(x, x)])


def test_sparse_and_quantised_tensors_that_go_in_are_refused():
    (x,) = drawn((12, 40))
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        with pytest.raises(Refused, match="no contract for a sparse tensor: the operand s; write the contract by hand"):
            derive(lambda s, x: torch.sparse.mm(s, x), [sparse, x.mT])
    with pytest.raises(Refused, match="no contract for a quantised tensor: the operand q; write the contract by hand"):
        derive(lambda q: q.dequantize(), [torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)])
