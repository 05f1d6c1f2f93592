"""What the mutants and known-good kernels of the gated linear unit and of its gradient share."""

from touchstone.conformance.faults import _activations as acts
from touchstone.conformance.faults._rows import F16, F32, Flaw

# wrong activations, built into the op
ACT_FLAWS = {
    "gelu_by_tanh": Flaw(
        "formula", "gelu is its tanh form, up to 5e-4 away", acts.replaced("gelu", "gelu_tanh"), F32 + F16
    ),
    "tanh_form_by_erf": Flaw(
        "formula", "gelu_tanh is the exact gelu, up to 5e-4 away", acts.replaced("gelu_tanh", "gelu"), F32 + F16
    ),
    "square_for_cube": Flaw("formula", "the cube in gelu_tanh is a square", acts.square_for_cube),
    "sigmoid_by_exponential": Flaw("overflow", "silu is e^x / (1 + e^x), NaN for large x", acts.sigmoid_by_exp),
    "silu_is_a_sigmoid": Flaw("formula", "silu is the sigmoid alone", acts.replaced("silu", "sigmoid")),
    "sigmoid_is_silu": Flaw("formula", "the sigmoid is multiplied by its argument", acts.replaced("sigmoid", "silu")),
    "leaky_relu": Flaw("formula", "relu leaves a hundredth of what is below 0", acts.leaky_relu),
    "quick_gelu": Flaw("formula", "gelu is x·sigmoid(1.702x)", acts.quick_gelu),
    "identity": Flaw("formula", "there is no activation", acts.identity),
}
