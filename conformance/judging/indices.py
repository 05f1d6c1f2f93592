"""Whether an output that is wrong is right where an operand of indices counts up by one: a kernel that looks one of
them up, and takes the next to lie behind it, is right with tables in order."""

from typing import Any

import torch

from touchstone.conformance.judging import reading
from touchstone.conformance.judging.influence import Calls
from touchstone.conformance.spec import compare, layouts
from touchstone.conformance.spec.contract import Case, Contract, Inputs


def in_order(contract: Contract, case: Case, output: str, device: Any, call: Calls) -> str | None:
    """The operand of indices, of two axes or more, that makes an output right by counting up along its last axis, in
    words; None: there is none, or the output is right with the case's plain values too."""
    for plain in reading.plainly(contract, case)[-1:]:
        if contract.work(plain) > reading.WORK_LIMIT or not _is_wrong(
            contract, contract.build(plain, device), output, call
        ):
            return None
        for name, exact in contract.build(plain).exact.items():
            if exact is None or not contract.operands[name].indexes or not _may_count(exact):
                continue
            inputs = contract.build(plain, device)
            _count_up(inputs, name)
            if _is_wrong(contract, inputs, output, call) is False:
                return f"right where {name} counts up by one, as if what its entries stand for lay one behind another"
    return None


def _may_count(exact: torch.Tensor) -> bool:
    """Whether indices can count up from 0 along the last axis, but do not."""
    if exact.ndim < 2 or exact.shape[-1] < 2:
        return False
    return exact.shape[-1] <= int(exact.max()) + 1 and not bool((exact.diff(dim=-1) == 1).all())


def _count_up(inputs: Inputs, name: str) -> None:
    """Have indices count up, and numbers wherever nothing was to be read before."""
    for other, placed in inputs.placed.items():
        exact = inputs.exact[other]
        if placed is None or exact is None:
            continue
        if other == name:
            exact.copy_(torch.arange(exact.shape[-1]).expand(exact.shape))
        once = layouts.once(placed.view)
        once.copy_(exact[tuple(slice(0, n) for n in once.shape)])


def _is_wrong(contract: Contract, inputs: Inputs, output: str, call: Calls) -> bool | None:
    """Whether an output is wrong on inputs; None: it cannot be compared."""
    try:
        right = contract.expected(inputs)[output]
    except Exception:  # what an index stands for may not be there
        return None
    got = (call(inputs) or {}).get(output)
    if right is None or not isinstance(got, torch.Tensor) or got.shape != right.answer.shape:
        return None
    return not compare.compare(got, right, inputs.case.torch_dtype).ok
