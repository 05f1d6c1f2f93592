"""What the contracts of the gated linear unit and of its gradient share."""

from collections.abc import Sequence

from touchstone.conformance.contracts import _activations as acts
from touchstone.conformance.spec.contract import Also, Case, Invalid

ACTIVATIONS = ("silu", *(name for name in acts.NAMES if name != "silu"))
INVALID: Sequence[Invalid] = [
    Invalid("unknown activation", lambda a: {**a, "activation": "tanh"}, ValueError, r"\bactivation\b.*tanh")
]
# a gate in rows of twice its length, as a joined projection leaves it, whose other halves are not up
JOINED = {"gate_of_a_joined": Also({"rows": 3, "cols": 33}, layouts={"gate": "interleaved"})}


def is_exact(case: Case) -> bool:
    """Whether integers stay integers, where the case has integers."""
    return case.values != "integers" or case.param["activation"] in acts.EXACT
