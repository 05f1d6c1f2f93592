"""The contracts of ops written by hand beside contracts derived from the same ops' references in torch."""

import importlib
import inspect
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from touchstone.conformance.derived.axes import Axis
from touchstone.conformance.derived.contract import Found, Options, expect, made_of
from touchstone.conformance.derived.ops import tensors_of, words
from touchstone.conformance.discovery import registry
from touchstone.conformance.faults import Planted
from touchstone.conformance.spec.budget import Expected, budget
from touchstone.conformance.spec.cases import plan
from touchstone.conformance.spec.compare import compare
from touchstone.conformance.spec.contract import Case, Contract, Inputs
from touchstone.conformance.spec.layouts import FAR_LAYOUTS

OPS = sorted(
    words("""
add_layer_norm add_rms_norm attention attention_backward gated_mlp group_norm layer_norm layer_norm_backward matmul mlp
mlp_backward online_softmax rms_norm rms_norm_backward softmax softmax_backward
""")
)
# of the kinds of mutants, those that another thing than an output's values shows
NOT_VALUES = words("""
bounds race unwritten mutation alias contract cache empty shapes state offset alignment strides
""")
WORK = 3e5  # multiply-adds of a case
MANY = 1000  # cases: all that are so small


def cases_of(contract: Contract, most: int) -> list[Case]:
    """Small cases of level default: one of each family and dtype, then others, drawn by chance."""
    every = [
        case
        for case in plan(contract, "default").general
        if case.filled and contract.work(case) <= WORK and not any(kind in FAR_LAYOUTS for _, kind in case.layouts)
    ]
    random.Random(0).shuffle(every)
    first = {(case.values, case.dtype): case for case in reversed(every)}
    return [*first.values(), *(case for case in every if case not in set(first.values()))][:most]


def derived(op: str, inputs: Inputs) -> dict[str, Expected]:
    """What the outputs of a case must be by a contract derived from the op's reference in torch."""
    reference = getattr(importlib.import_module(f"touchstone.reference.{op}"), f"torch_{op}")
    taken = inspect.signature(reference).parameters
    names = [
        name for name in inputs.exact if name in taken
    ]  # a backward may take statistics that the reference computes
    positions = [
        (p, a) for p, n in enumerate(names) if inputs.exact[n] is not None for a in range(inputs.exact[n].ndim)
    ]
    example = tuple(inputs.exact[name] for name in names)
    axes = tuple(
        Axis(f"a{number}", (place,), example[place[0]].shape[place[1]], 0) for number, place in enumerate(positions)
    )

    def function(*values: Any) -> Any:
        return reference(**dict(zip(names, values, strict=True)), **inputs.params)

    with torch.no_grad():
        outputs = tensors_of(function(*example))
    size = {axis.letter: axis.size for axis in axes}
    found = Found(axes, (size,), tuple(("",) * t.ndim for t in outputs), {"given": ""}, {})
    made = made_of(function, names, example, Options(), found)
    contract = registry.contract(op)
    by_hand = contract.expected(inputs)
    present = [name for name in contract.outputs if by_hand[name] is not None]
    dtypes = [
        by_hand[name].dtype or inputs.case.torch_dtype for name in present
    ]  # float32 of an lse, whatever eager has
    made.outputs = {
        name: replace(output, dtype=lambda case, dtype=dtype: dtype)
        for (name, output), dtype in zip(made.outputs.items(), dtypes, strict=True)
    }
    answers = expect(made, inputs.exact, inputs.exact, inputs.case.torch_dtype, None)
    return dict(zip(present, answers.values(), strict=True))


def ratios(op: str, most: int = 60) -> dict[tuple[str, str], float]:
    """Of each output and dtype, the budget by hand over the derived one: the median of the cases, at each of them the
    median of the elements, of which some cases have a hundred times as many as others."""
    contract = registry.contract(op)
    found: dict[tuple[str, str], list[float]] = {}
    for case in cases_of(contract, most):
        inputs = contract.build(case)
        by_hand, other = contract.expected(inputs), derived(op, inputs)
        for name, expected in other.items():
            dtype = by_hand[name].dtype or case.torch_dtype
            if not dtype.is_floating_point or expected.exact or by_hand[name].bitwise:
                continue
            shape = expected.answer.shape
            one, two = budget(by_hand[name], case.torch_dtype).expand(shape), budget(expected, case.torch_dtype)
            there = torch.isfinite(by_hand[name].answer.expand(shape)) & torch.isfinite(one) & (two < torch.inf)
            if there.any():
                found.setdefault((name, case.dtype), []).append(float((one / two)[there].median()))
    return {key: statistics.median(each) for key, each in found.items()}


@dataclass
class Count:
    """What the two reject: names of mutants; and known-good kernels that the derived contract accuses, with where."""

    by_hand: set[str] = field(default_factory=set)
    derived: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)
    accused: dict[str, str] = field(default_factory=dict)
    noted: set[str] = field(default_factory=set)  # known-good kernels that pass with a note


def counted(op: str, most: int = 30) -> Count:
    """Mutants of an op that the two kinds of budget reject, and known-good kernels that the derived ones accuse."""
    contract, found = registry.contract(op), Count()
    tried = []
    for case in cases_of(contract, most):
        inputs = contract.build(case)
        tried.append((case, inputs, contract.expected(inputs), derived(op, inputs)))
    for planted in registry.planted(op):
        if planted.kind in NOT_VALUES or planted.backend is not None:
            continue
        if not planted.is_known_good:
            found.tried.add(planted.name)
        for (case, _, by_hand, other), got in _outputs(planted, contract, tried):
            wrong, note = _judged(got, other, case)
            if planted.is_known_good:
                if wrong:
                    found.accused.setdefault(planted.name, f"{case.id}: {wrong}")
                if note:
                    found.noted.add(planted.name)
                continue
            if wrong:
                found.derived.add(planted.name)
            if _judged(got, by_hand, case)[0]:
                found.by_hand.add(planted.name)
            if planted.name in found.derived & found.by_hand:
                break
    return found


def is_accused(op: str, name: str) -> bool:
    """Whether the derived contract accuses a known-good kernel in any small case."""
    contract = registry.contract(op)
    planted = next(one for one in registry.planted(op) if one.name == name and one.is_known_good)
    for case in cases_of(contract, MANY):
        inputs = contract.build(case)
        for (_, _, expected), got in _outputs(planted, contract, [(case, inputs, derived(op, inputs))]):
            if _judged(got, expected, case)[0]:
                return True
    return False


def _outputs(planted: Planted, contract: Contract, tried: list) -> Iterator[tuple[Any, dict[str, Any] | None]]:
    for one in tried:
        case, inputs = one[:2]
        if case.dtype not in planted.dtypes:
            continue
        try:
            got = contract.by_name(contract.call(planted.make(), inputs.arguments))
        except NotImplementedError:
            continue
        except Exception:
            got = None
        yield one, got if isinstance(got, dict) else None


def _judged(got: dict[str, Any] | None, expected: dict[str, Expected], case: Case) -> tuple[str | None, str]:
    """What is wrong, and the note that the outputs are passed with."""
    if got is None:
        return "it raises, or returns something else", ""
    note = ""
    for name, wanted in expected.items():
        value = got.get(name)
        if wanted is None:
            continue
        if not isinstance(value, torch.Tensor) or value.shape != wanted.answer.expand(value.shape).shape:
            return f"{name} has another shape", ""
        verdict = compare(value, wanted, case.torch_dtype)
        if not verdict.ok:
            return f"{name} is {verdict.fraction:.3g} of the budget", ""
        note = note or verdict.note
    return None, note
