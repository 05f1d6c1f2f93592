"""rope(q, k, cos, sin, positions, *, interleaved): pairs of dimensions of each head turned by its token's position."""

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts._rope import eager, rotation
from touchstone.conformance.spec.baselines import Bench

RETURNED = ("q_turned", "k_turned")

contract = rotation("q", "k", RETURNED, turn=1)


def _eager(q, k, cos, sin, positions, interleaved):
    return dict(zip(RETURNED, eager(q, k, cos, sin, positions, interleaved), strict=True))


bench = Bench(baselines=common.torch_baselines(_eager), independent_axes=(("B",), ("S",)))
