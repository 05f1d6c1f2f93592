"""What the contracts of the gated linear unit and of its gradient share."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from touchstone.conformance.contracts import _activations as acts
from touchstone.conformance.spec.contract import Also, Case, Invalid, Property

ACTIVATIONS = ("silu", *(name for name in acts.NAMES if name != "silu"))
INVALID: Sequence[Invalid] = [
    Invalid("unknown activation", lambda a: {**a, "activation": "tanh"}, ValueError, r"\bactivation\b.*tanh")
]
# a gate in rows of twice its length, as a joined projection leaves it, whose other halves are not up
JOINED = {"gate_of_a_joined": Also({"rows": 3, "cols": 33}, layouts={"gate": "interleaved"})}


def halves_of_one() -> Property:
    """gate and up as the halves of one projection, in either order, give what they give in memory of their own with the
    same strides. Left out where interleaved operands are."""

    def check(call, arguments, outputs, case):
        for names in (("gate", "up"), ("up", "gate")):
            joined = torch.cat([arguments[name] for name in names], -1)
            halves = dict(zip(names, joined.chunk(2, -1), strict=True))
            apart = {name: torch.cat([half, half], -1)[..., : half.shape[-1]] for name, half in halves.items()}
            there, here = (call(**{**arguments, **given}) for given in (halves, apart))
            for one, other in zip(there, here, strict=True):
                number = other.isfinite()
                off = (one.double() - other.double()).abs()[number]
                if off.numel() and not bool((off <= other.double()[number].abs().max() / 64).all()):
                    return f"{names[0]} and {names[1]} as the halves of one tensor give another answer than in two"
        return None

    def interleaved(case: Case) -> Case:
        inside = tuple((name, "interleaved" if name in ("gate", "up") else layout) for name, layout in case.layouts)
        return replace(case, layouts=inside)

    return Property("halves of one tensor", check, elsewhere=interleaved)


def is_exact(case: Case) -> bool:
    """Whether integers stay integers, where the case has integers."""
    return case.values != "integers" or case.param["activation"] in acts.EXACT
