"""Activations by number, as activations.cuh has them: `gelu` is the exact form with erf, `relu` lets NaN through."""

from touchstone.backends.signatures._activations import ACTIVATIONS, check_activation

NONE = 0


def number(activation: str) -> int:
    """The number of an activation. Raises ValueError unless `activation` names one."""
    return 1 + ACTIVATIONS.index(check_activation(activation))
