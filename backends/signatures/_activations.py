"""The names of activations that the MLPs take."""

ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "relu")


def check_activation(activation: str) -> str:
    """`activation` itself. Raises ValueError unless it names one."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation: expected one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    return activation
