"""Why a call's values are wrong, where that shows in other calls: values of an earlier call, memory around an operand,
another answer each time.

A cause is a sentence about one output. It is given only where it explains at least 95 % of the wrong elements.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from touchstone.conformance.judging import diagnosis
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.executor import Manner
from touchstone.conformance.judging.judgement import Judgement
from touchstone.conformance.spec import compare, layouts
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.contract import Case, Inputs

AGAIN = 3  # further calls on the same inputs
RECENT = 8  # earlier calls whose answers are looked for
AROUND = 0x00  # what lies around an operand in another call: zeros
SMALL = 2**24  # bytes of an operand's buffer of which that is tried

Wrong = dict[str, torch.Tensor]  # by output, which elements are wrong


def of_call(
    j: Judgement,
    inputs: Inputs,
    values: Mapping[str, Any],
    expected: Mapping[str, Expected | None],
    verdicts: Mapping[str, compare.Verdict],
    blocks: tuple[int, ...],
    again: bool,
) -> dict[str, str]:
    """The causes of what is wrong in one call, by output. `again`: the kernel may be called again."""
    wrong = {n: v.bad for n, v in verdicts.items() if v.bad is not None}
    found = _of_earlier_calls(j, inputs.case, values, wrong)
    if not again or found.keys() == wrong.keys():
        return found
    kept = {name: values[name].clone() for name in wrong}
    others = [_values(j, inputs, blocks) for _ in range(AGAIN)]
    seen = [other for other in others if other is not None]
    if len(seen) < AGAIN:
        return found
    for name, bad in wrong.items():
        if name in found:
            continue
        right = [is_right(j, inputs.case, name, other[name], expected[name]) for other in seen]
        if all(right):
            found[name] = (
                "right in further calls with the same inputs: only the first of these sizes is wrong, as where a kernel "
                "is tuned on its own output"
            )
        elif all(_differs(kept[name], other[name], bad) for other in seen):
            found[name] = "other values in each call with the same inputs: a race, or memory that nothing wrote"
        elif not any(_differs(kept[name], other[name], bad, most=False) for other in seen):
            operands = _read_around(j, inputs.case, name, kept[name], bad, blocks)
            if operands:
                found[name] = (
                    f"they depend on memory outside the view of {' and '.join(operands)}: what lies around it or in "
                    "its gaps is read"
                )
    return found


def _of_earlier_calls(j: Judgement, case: Case, values: Mapping[str, Any], wrong: Wrong) -> dict[str, str]:
    found: dict[str, str] = {}
    for label, other in reversed(j.earlier[-RECENT:]):
        if (other.sizes, other.dtype, other.values, other.params, other.seed) == (
            case.sizes,
            case.dtype,
            case.values,
            case.params,
            case.seed,
        ):
            continue
        answers: Mapping[str, Expected | None] | None = None
        for name, bad in wrong.items():
            if name in found or j.contract.output_shape(name, other) != values[name].shape or other.dtype != case.dtype:
                continue
            if answers is None:
                answers = j.contract.expected(j.contract.build(other), j.subject.compute)
            answer = answers[name]
            if answer is not None and diagnosis.explains(answer, values[name], bad, case.torch_dtype):
                found[name] = f"the answer of an earlier call, {label}"
    return found


def _values(j: Judgement, inputs: Inputs, blocks: tuple[int, ...]) -> Mapping[str, Any] | None:
    """What another call gives; None where it gives nothing that can be compared."""
    again = j.again(debug=False)
    seen = again.call(inputs.arguments, Manner(probe.PATTERNS[0], blocks), inputs.placed)
    return seen.values if seen.returned and isinstance(seen.values, dict) else None


def is_right(j: Judgement, case: Case, name: str, got: Any, expected: Expected | None) -> bool:
    """Whether an output of another call is what it has to be."""
    if expected is None or not isinstance(got, torch.Tensor):
        return expected is got
    if got.shape != expected.answer.shape:
        return False
    return compare.compare(got, expected, case.torch_dtype, diagnosis.exact(j.contract, case, name)).ok


def _differs(one: torch.Tensor, other: Any, where: torch.Tensor, most: bool = True) -> bool:
    """Whether most of the elements `where`, or any, differ in their bits."""
    if not isinstance(other, torch.Tensor) or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    bits = compare.bits(one.cpu()) != compare.bits(other.cpu())
    return diagnosis.most(bits[where.cpu()]) if most else bool(bits[where.cpu()].any())


def _read_around(
    j: Judgement, case: Case, name: str, got: torch.Tensor, bad: torch.Tensor, blocks: tuple[int, ...]
) -> list[str]:
    """The operands around which other memory gives other values in place of the wrong ones."""
    found = []
    for operand, about in j.contract.operands.items():
        inputs = j.contract.build(case, j.executor.device)
        placed = inputs.placed[operand]
        if placed is None or about.own_dtype or placed.buffer.numel() > SMALL:
            continue
        if not layouts.surround(placed, AROUND):
            continue
        other = _values(j, inputs, blocks)
        if other is not None and _differs(got, other[name], bad):
            found.append(operand)
    return found


def of_many(count: int, first: int, wrong: Sequence[int]) -> str | None:
    """Which of `count` calls are wrong, `first` of them the first and `wrong` all, in words; None: no rule."""
    later = list(range(first, count + 1))
    if list(wrong) == later and len(later) > 4:
        return f"right in the first {first - 1} calls, wrong from call {first} on"
    if len(wrong) > 1 and list(wrong) == list(range(first, count + 1, first)):
        return f"every {first}th call is wrong: {', '.join(map(str, wrong[:4]))}{', ...' if len(wrong) > 4 else ''}"
    if list(wrong) == [first] and len(later) > 4:
        return f"only call {first} of {count} is wrong"
    return None
