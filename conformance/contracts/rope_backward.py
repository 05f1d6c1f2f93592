"""rope_backward(dq, dk, cos, sin, positions, *, interleaved): the gradients of q and k from those of what rope gave."""

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts._rope import eager, rotation
from touchstone.conformance.spec.baselines import Bench

RETURNED = ("q_gradient", "k_gradient")

contract = rotation("dq", "dk", RETURNED, turn=-1, gradient_of="rope")


def _eager(dq, dk, cos, sin, positions, interleaved):
    return dict(zip(RETURNED, eager(dq, dk, cos, -sin, positions, interleaved), strict=True))


bench = Bench(baselines=common.torch_baselines(_eager), independent_axes=(("B",), ("S",)))
