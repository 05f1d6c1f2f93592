"""A derived contract judged: right forms of the reference must pass it, and mutants of the reference must not."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from touchstone.conformance.derived import families
from touchstone.conformance.derived.contract import DerivedContract, Strength
from touchstone.conformance.derived.forms import KINDS, Form
from touchstone.conformance.derived.mutants import Altered, Mutant, mutants_of, spread
from touchstone.conformance.derived.ops import tensors_of
from touchstone.conformance.derived.refusals import Refused
from touchstone.conformance.derived.samples import cast, doubled
from touchstone.conformance.spec.budget import Expected, budget
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.compare import compare
from touchstone.conformance.spec.contract import Case
from touchstone.conformance.spec.onednn import without_onednn

MUTANTS = 24  # of a function, as different in kind as they come
NARROW_FAMILIES = 2  # of a 16-bit dtype; in float32 all are tried
EQUIVALENT = 0.02  # of the budget: a mutant that in float64 changes nothing beyond is none
ALWAYS_WRONG = "one pass"  # in float64 it changes nothing, and in float32 it is wrong all the same


@dataclass
class SelfTest:
    """What was tried: every mutant that is none of the reference in disguise, with whether it was rejected, and the
    right forms that were `accused`."""

    mutants: list[tuple[Mutant, bool]] = field(default_factory=list)
    accused: list[str] = field(default_factory=list)
    forms: int = 0  # runs of right forms
    elements: dict[str, tuple[int, int]] = field(default_factory=dict)  # output -> those compared, and those judged

    @property
    def strength(self) -> Strength:
        survivors = tuple(str(mutant) for mutant, rejected in self.mutants if not rejected)
        return Strength(len(self.mutants) - len(survivors), len(self.mutants), survivors)


@dataclass
class Tried:
    """A case with its values in float64, as the reference takes them, and what its outputs must be."""

    case: Case
    values: list[Any]
    expected: dict[str, Expected]

    def plain(self) -> "Tried":
        """The same without further answers, which are looked for where an output is wrong: it takes seconds."""
        return replace(self, expected={name: replace(one, otherwise=None) for name, one in self.expected.items()})

    def wrong(self, got: Sequence[torch.Tensor]) -> str | None:
        """The first output that is not right, with its error; None where all are. `got` may be of any dtype."""
        for (name, expected), value in zip(self.expected.items(), got, strict=True):
            if value.shape != expected.answer.shape:
                return f"{name} has the shape {tuple(value.shape)}"
            verdict = compare(value.to(expected.dtype or self.case.torch_dtype), expected, self.case.torch_dtype)
            if not verdict.ok:
                return f"{name} is {verdict.fraction:.3g} of the budget"
        return None


def tried_cases(contract: DerivedContract, narrow_families: int = NARROW_FAMILIES) -> Iterator[Tried]:
    """The plain case of each family in float32, of the first `narrow_families` in each 16-bit dtype, and in float32 of
    the smallest size, where no sum averages errors out."""
    every = [name for name in contract.values if not families.is_special(name)]
    for dtype in contract.dtypes:
        several = every if dtype == "float32" else every[:narrow_families]
        cases = [plain_case(contract, dtype, family) for family in several]
        if dtype == "float32":
            sizes = (plain_case(contract, dtype, every[:2][-1], size=size) for size in contract.sizes)
            smallest = min((case for case in sizes if case.filled), key=contract.work, default=cases[0])
            cases += [smallest] if smallest not in cases else []
        for case in cases:
            inputs = contract.build(case)
            yield Tried(case, contract.values_of(inputs.exact, inputs.params), contract.expected(inputs))


def examine(contract: DerivedContract, mutants: int = MUTANTS) -> SelfTest:
    """Run right forms in every dtype and `mutants` in float32, on the plain cases of each family."""
    tried = list(tried_cases(contract))
    found = SelfTest()
    for one in tried:
        for name, expected in one.expected.items():
            compared, judged = found.elements.get(name, (0, 0))
            number = expected.answer.numel()
            excused = int(expected.excused.sum()) if isinstance(expected.excused, torch.Tensor) else 0
            found.elements[name] = compared + number, judged + number - excused
        for kind in KINDS:
            try:
                got = as_form(contract, one, kind)
            except torch.linalg.LinAlgError:
                continue  # there is no answer either, or rounding makes a matrix singular
            found.forms += 1
            if wrong := one.wrong(got):
                found.accused.append(f"{wrong} of the form {kind!r} in {one.case.id}")
    wide = [one.plain() for one in tried if one.case.dtype == "float32"]
    for mutant in spread(mutants_of(contract.function, wide[0].values), mutants) if wide else ():
        rejected = is_rejected(contract, mutant, wide)
        if rejected is not None:
            found.mutants.append((mutant, rejected))
    return found


def as_form(contract: DerivedContract, one: Tried, kind: str) -> list[torch.Tensor]:
    """The outputs of a right form of the reference, computed in float32."""
    with torch.no_grad(), nullcontext() if kind == "eager" else without_onednn(), Form(kind):
        return tensors_of(contract.function(*cast(one.values, torch.float32)))


def demand_trust(found: SelfTest) -> None:
    """Raise Refused where a right form of the reference was accused: the contract withdraws itself."""
    if found.accused:
        raise Refused(
            f"the budget is not to be trusted: it accuses right forms of the reference itself: {found.accused[0]}"
            f"{f', and {len(found.accused) - 1} more' if len(found.accused) > 1 else ''}; write the contract by hand "
            "(docs/your-kernel.md)"
        )


def is_rejected(contract: DerivedContract, mutant: Mutant, tried: Sequence[Tried]) -> bool | None:
    """Whether a mutant is rejected in one of these cases, which are of float32; None where it is equivalent to the
    reference on all of them."""
    real = ALWAYS_WRONG in mutant.kind
    for one in tried:
        try:
            with torch.no_grad(), without_onednn():
                with Altered(mutant):
                    got = tensors_of(contract.function(*cast(one.values, torch.float32)))
                with Altered(mutant):
                    changed = tensors_of(contract.function(*doubled(one.values)))
        except Exception:
            continue  # a wrong version that does not run on these values
        real = real or any(
            _changes(expected, exact) for expected, exact in zip(one.expected.values(), changed, strict=True)
        )
        if real and one.wrong(got):
            return True
    return False if real else None


def _changes(expected: Expected, exact: torch.Tensor) -> bool:
    """Whether the exact result of a mutant is another than the answer, measured by the budget."""
    if exact.shape != expected.answer.shape:
        return True
    far = (exact.to(torch.float64) - expected.answer).abs() > EQUIVALENT * budget(expected, torch.float32)
    return bool((far | (torch.isnan(exact) != torch.isnan(expected.answer))).any())
