"""Which numbers of an operand an output is wrong for: zeros, negative ones, infinities, without which it is right, all
else being equal."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from touchstone.conformance.judging import edges
from touchstone.conformance.judging.special import NUMBER
from touchstone.conformance.spec.contract import Case, Contract, Draw

SECONDS, OF_A_KERNEL = 2.0, 4.0  # for each output that is wrong, and all of those of a kernel
WORK_LIMIT = 1e6  # work of a case above which nothing is tried

Call = Callable[[Case, Contract], Mapping[str, Any] | None]  # what the kernel gives on a case of a contract
Kind = Callable[[torch.Tensor], torch.Tensor]  # where numbers of a kind stand

# And what takes their place; a kind that others are of stands behind them.
KINDS: dict[str, tuple[Kind, Callable[[torch.Tensor], torch.Tensor]]] = {
    "NaN": (torch.isnan, lambda x: torch.full_like(x, NUMBER)),
    "inf": (lambda x: x == math.inf, lambda x: torch.full_like(x, NUMBER)),
    "-inf": (lambda x: x == -math.inf, lambda x: torch.full_like(x, NUMBER)),
    "-0": (lambda x: (x == 0) & torch.signbit(x), torch.zeros_like),
    "0": (lambda x: x == 0, lambda x: torch.full_like(x, NUMBER)),
    "numbers next to 0": (lambda x: (x != 0) & (x.abs() < torch.finfo(x.dtype).tiny), lambda x: x.sign() * NUMBER),
    "negative numbers": (lambda x: x < 0, torch.neg),
    "positive numbers": (lambda x: x > 0, torch.neg),
}


def of_output(contract: Contract, case: Case, output: str, call: Call, seconds: float) -> str | None:
    """The kind of numbers, and the operands, without which an output is right, in words: the first of KINDS. None: it
    is right with other values of the family, or wrong without any of them."""
    if contract.work(case) > WORK_LIMIT:
        return None
    end = time.monotonic() + seconds
    cases = [case, *(replace(case, seed=case.seed + more, drawn_as=case.drawn_as or case.id) for more in edges.SEEDS)]

    def wrong(changed: Contract, one: Case) -> bool | None:
        late = time.monotonic() > end
        return None if late else edges.is_wrong(changed, one, output, lambda other: call(other, changed))

    if any(wrong(contract, one) is not True for one in cases):
        return None
    found = _first(contract, cases, wrong)
    return found and f"right {found}, all else being equal"


def _first(contract: Contract, cases: Sequence[Case], wrong: Callable[[Contract, Case], bool | None]) -> str | None:
    """The first of KINDS without which none of the cases is wrong, in one operand, or in all that have it."""
    exact = contract.build(cases[0]).exact
    for kind, (where, _) in KINDS.items():
        names = [
            name
            for name, value in exact.items()
            if value is not None
            and not contract.operands[name].derived
            and contract.operand_dtype(name, cases[0]).is_floating_point
            and bool(where(value.to(contract.operand_dtype(name, cases[0]))).any())
        ]
        several = [tuple(names)] if len(names) > 1 else []
        for some in [*((name,) for name in names), *several]:
            if all(wrong(_changed(contract, cases[0], some, kind), one) is False for one in cases):
                return f"without {kind} in {' and '.join(some)}"
    return None


def _changed(contract: Contract, case: Case, names: Sequence[str], kind: str) -> Contract:
    """The contract whose family of the case's values has numbers of a kind no more in some operands."""
    family, (where, instead) = contract.family(case.values), KINDS[kind]

    def without(draw: Draw) -> dict[str, torch.Tensor | None]:
        drawn = dict(family(draw))
        for name in names:
            value = drawn[name]
            if value is not None:
                value = value.to(contract.operand_dtype(name, case))
                drawn[name] = torch.where(where(value), instead(value), value)
        return drawn

    return replace(contract, values={**contract.values, case.values: without})
