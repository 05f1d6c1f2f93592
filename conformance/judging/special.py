"""Which operands of a call hold NaN or infinities, and the same call without them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import Case, Contract, Inputs

DRAWN_WORK = 1e6  # work of a case up to which its values are drawn to see what they hold
NUMBER = 1.0  # in place of NaN and infinities: not 0, which hides what is multiplied by it


@dataclass(frozen=True)
class Special:
    """The operands of a case with NaN or infinities: those that its family draws so, and those in which they are for
    another reason: in elements that no answer depends on, or as what follows from numbers (the lse of no key)."""

    drawn: frozenset[str] = frozenset()
    besides: frozenset[str] = frozenset()

    @property
    def operands(self) -> frozenset[str]:
        return self.drawn | self.besides


def of_inputs(contract: Contract, inputs: Inputs) -> Special:
    """Those of a case that has been drawn, before the kernel has had it."""
    exact = {name: values for name, values in inputs.exact.items() if values is not None}
    strange = {name for name, values in exact.items() if not bool(torch.isfinite(values).all())}
    drawn = {name for name in strange if not contract.operands[name].derived}
    views = {name: placed.view for name, placed in inputs.placed.items() if placed is not None}
    unused = {name: view for name, view in views.items() if contract.operands[name].garbage is not None}
    spoilt = zip(unused, layouts.fetched([view.isnan().any() for view in unused.values()]), strict=True)
    besides = strange | {name for name, found in spoilt if bool(found)}
    return Special(frozenset(drawn), frozenset(besides - drawn))


@lru_cache(maxsize=1024)
def of_case(contract: Contract, case: Case) -> Special:
    """Those of a case that has not been drawn: where it is large, of the one of least work with the same family."""
    if case.values in contract.values and contract.work(case) > DRAWN_WORK:
        plain = [plain_case(contract, case.dtype, case.values, size=size) for size in contract.sizes]
        plain = [one for one in plain if one.filled and contract.valid(one)]
        if not plain:
            return Special()
        case = min(plain, key=contract.work)
    return of_inputs(contract, contract.build(case))


def of_arguments(arguments: Mapping[str, Any]) -> set[str]:
    """The arguments of a call that hold NaN or infinities."""
    tensors = {name: one for name, one in arguments.items() if isinstance(one, torch.Tensor)}
    finite = layouts.fetched([torch.isfinite(tensor).all() for tensor in tensors.values()])
    return {name for name, every in zip(tensors, finite, strict=True) if not bool(every)}


def with_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor, in the same strides, with a number in place of all NaN and infinities; itself where it has none."""
    strange = ~torch.isfinite(tensor)
    if not bool(strange.any()):
        return tensor
    other = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return other.copy_(tensor.masked_fill(strange, NUMBER))


def take_away(inputs: Inputs) -> bool:
    """Put a number in place of all NaN and infinities of operands that are contiguous; whether there were any."""
    found = False
    for name, placed in inputs.placed.items():
        exact = inputs.exact[name]
        if placed is None or exact is None:
            continue
        for values in (placed.view, exact):
            strange = ~torch.isfinite(values)
            if bool(strange.any()):
                values[strange] = NUMBER
                found = True
    return found
