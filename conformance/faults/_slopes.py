"""Wrong derivatives of activations: `derivative(z, name)`, float32 in, float32 out."""

import torch

from touchstone.conformance.faults import _activations as acts
from touchstone.conformance.faults._rows import F16, F32, Flaw


def instead(name: str, function) -> acts.Act:
    """The derivatives with `function` in the place of that of the one called `name`."""
    return lambda z, chosen: function(z) if chosen == name else acts.derivative(z, chosen)


def _tanh_without_cube(z: torch.Tensor) -> torch.Tensor:
    t = torch.tanh(0.7978845608 * (z + 0.044715 * z**3))
    return (1 + t) / 2 + z * (1 - t * t) * 0.7978845608 / 2


def _sigmoid_slope(z: torch.Tensor) -> torch.Tensor:
    s = torch.sigmoid(z)
    return s * (1 - s)


# of all activations that a gate has
SLOPE_FLAWS = {
    "silu_without_its_term": Flaw(
        "formula", "silu' is the sigmoid: x·(1 - sigmoid) is missing", instead("silu", torch.sigmoid)
    ),
    "derivative_of_the_activated": Flaw(
        "formula", "act' is taken at act(x)", lambda z, name: acts.derivative(acts.activate(z, name), name)
    ),
    "relu_slope_at_0": Flaw("formula", "relu' is 1 at 0", instead("relu", lambda z: (z >= 0).float())),
    "sigmoid_slope_for_silu": Flaw("formula", "silu' is that of the sigmoid", instead("silu", _sigmoid_slope)),
    "gelu_without_density": Flaw(
        "formula", "gelu' is the normal distribution alone", instead("gelu", torch.special.ndtr)
    ),
    "tanh_slope_without_cube": Flaw(
        "formula", "the cube in gelu_tanh is left out of its derivative", instead("gelu_tanh", _tanh_without_cube)
    ),
    "gelu_slope_by_tanh": Flaw(
        "formula",
        "gelu' is that of the tanh form",
        instead("gelu", lambda z: acts.derivative(z, "gelu_tanh")),
        F32 + F16,
    ),
}
# of the others
MORE_SLOPE_FLAWS = {
    "elu_slope_is_1": Flaw("formula", "elu' is 1 below 0 too", instead("elu", torch.ones_like)),
    "hardswish_slope_unclipped": Flaw(
        "formula", "hardswish' is x/3 + 1/2 everywhere", instead("hardswish", lambda z: z / 3 + 0.5)
    ),
    "hardswish_slope_at_3": Flaw(
        "formula",
        "hardswish' is 3/2 at 3: > for >=",
        instead("hardswish", lambda z: torch.where(z > 3, 1.0, torch.where(z <= -3, 0.0, z / 3 + 0.5))),
    ),
    "hardswish_slope_at_minus_3": Flaw(
        "formula",
        "hardswish' is -1/2 at -3: < for <=",
        instead("hardswish", lambda z: torch.where(z >= 3, 1.0, torch.where(z < -3, 0.0, z / 3 + 0.5))),
    ),
    "hardshrink_slope_is_1": Flaw(
        "formula", "hardshrink' is 1 within ±0.5 too", instead("hardshrink", torch.ones_like)
    ),
    "quick_slope_without_factor": Flaw(
        "scale",
        "quick_gelu' lacks the inner factor 1.702",
        instead("quick_gelu", lambda z: torch.sigmoid(1.702 * z) + z * _sigmoid_slope(1.702 * z)),
    ),
    "mish_slope_without_sigmoid": Flaw(
        "formula",
        "mish' takes softplus' for 1",
        instead(
            "mish", lambda z: torch.tanh(torch.nn.functional.softplus(z)) * (1 + 0 * z) + z / torch.cosh(z).square()
        ),
    ),
}
