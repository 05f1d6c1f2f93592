"""Activations by number, as activations.cuh has them: `gelu` is the exact form with erf, `relu` lets NaN through."""

_NUMBERS = {"gelu": 1, "gelu_tanh": 2, "silu": 3, "relu": 4}
NONE = 0


def number(activation: str) -> int:
    """The number of an activation. Raises ValueError unless `activation` names one."""
    if activation not in _NUMBERS:
        raise ValueError(f"activation: expected one of {', '.join(_NUMBERS)}, got {activation!r}")
    return _NUMBERS[activation]
