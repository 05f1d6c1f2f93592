"""The names of activations, in the order of their numbers."""

ACTIVATIONS = (
    "gelu",
    "gelu_tanh",
    "silu",
    "relu",
    "sigmoid",
    "quick_gelu",
    "mish",
    "elu",
    "hardswish",
    "hardshrink",
    "identity",
)


def check_activation(activation: str) -> str:
    """`activation` itself. Raises ValueError unless it names one."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation: expected one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    return activation
