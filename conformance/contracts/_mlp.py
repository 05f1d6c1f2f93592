"""What the contracts of the MLPs share: activations, how steep they are, and the error of a projection.

All tensors of the bounds are float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts._bounds_dots import accumulated, kept
from touchstone.conformance.spec.budget import EPS, Scalar, T, dot_extra
from touchstone.reference._activations import torch_act_grad

# the activations as torch computes them, for baselines
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
}
LIPSCHITZ = {"gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1, "relu": 1.0}  # largest |act'|, rounded up
CURVATURE = {"gelu": 0.8, "gelu_tanh": 0.83, "silu": 0.5, "relu": 0.0}  # largest |act''|; relu jumps at 0


def slope(z: torch.Tensor, radius: torch.Tensor, activation: str) -> torch.Tensor:
    """The largest |act'| within `radius` of `z`."""
    if activation == "relu":
        return (z + radius > 0).to(z.dtype)
    steepest = torch_act_grad(z, activation).abs() + CURVATURE[activation] * radius
    return steepest.clamp_max(LIPSCHITZ[activation])


@dataclass(frozen=True)
class Projection:
    """z = x·w + b, an intermediate of an MLP, and how far from it a correct kernel's z can be."""

    product: torch.Tensor  # x·w
    z: torch.Tensor
    condition: torch.Tensor  # |x|·|w| + |b|
    rounding: torch.Tensor  # |x·w| + |z| where there is a bias, else |z|: stored before and after adding it
    extra: Scalar  # of a declared precision
    radius: torch.Tensor  # all of these as one absolute error


def projection(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, dtype: torch.dtype, compute: str | None
) -> Projection:
    """x (M, D), w (D, H), b (H,) or None; `compute` as returned by `lossy`."""
    product, condition = x @ w, x.abs() @ w.abs()
    extra = dot_extra(compute, product, x.square() @ w.square())
    z, rounding = product, kept(product, dtype)
    if b is not None:
        z, condition, rounding = product + b, condition + b.abs(), rounding + kept(product + b, dtype)
    radius = accumulated(x.shape[-1], condition) + T * EPS[dtype] * rounding + extra
    return Projection(product, z, condition, rounding, extra, radius)
