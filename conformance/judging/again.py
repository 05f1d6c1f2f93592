"""Cases that a kernel declined, drawn again with options that it takes.

Which dtypes, sizes, layouts and parameters a kernel takes shows in the cases of a plan: those that it computed, and
those that it declined. A kernel that takes one dtype, head dimension and layout of many computes a tenth of them, and
is hardly judged on the values and sizes that it might get wrong. So an option that only declined cases had is tried in
place of another in a case that was computed; then each declined case is called again, with what the kernel does not
take replaced by what it takes.
"""

import math
import random
import re
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging.call import expected_of
from touchstone.conformance.judging.trials import (
    CaseTrial,
    Compiled,
    ManyCalls,
    OnStream,
    PropertyTrial,
    Trial,
    in_turn,
)
from touchstone.conformance.spec.cases import variants
from touchstone.conformance.spec.contract import Case, Contract
from touchstone.conformance.spec.layouts import FAR_LAYOUTS

NEAREST = 48  # cases that were computed, among which the one most like a declined one is looked for
PROBES = 2  # cases in which an option is tried
ONE_MORE = 4  # options that are exchanged one by one in a case
ANY = 200  # cases that are tried where none of a plan's was taken
FEW = 1e5  # multiply-adds, and elements, that a case of other sizes may have in any case
MULTIPLES = (16, 128)  # of elements, to which sizes are rounded
Axis = tuple[str, str]
Option = tuple[Axis, Any]


def options_of(case: Case) -> dict[Axis, Any]:
    """What a kernel may take or decline of a case, by axis: all but the values, which it cannot know."""
    found: dict[Axis, Any] = {("dtype", ""): case.dtype, ("dtypes", ""): case.dtypes}
    found |= {("size", name): value for name, value in case.sizes}
    found |= {("layout", name): value for name, value in case.layouts}
    return found | {("param", name): value for name, value in case.params}


def with_options(case: Case, options: Mapping[Axis, Any]) -> Case:
    """The case with these options in place of its own."""

    def chosen(kind: str, pairs: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
        return tuple((name, options.get((kind, name), value)) for name, value in pairs)

    return replace(
        case,
        dtype=options.get(("dtype", ""), case.dtype),
        dtypes=options.get(("dtypes", ""), case.dtypes),
        sizes=chosen("size", case.sizes),
        layouts=chosen("layout", case.layouts),
        params=chosen("param", case.params),
    )


def in_words(case: Case) -> dict[str, str]:
    """A case as a record of JSON has it: `of_words` finds it again."""
    return {"values": case.values} | {" ".join(axis): repr(value) for axis, value in options_of(case).items()}


def of_words(words: Mapping[str, str], cases: Sequence[Case]) -> Case | None:
    """The case of those words, whose options but for sizes are some of those of `cases`; None where one is no option
    any more."""
    pool = {(" ".join(axis), repr(value)): (axis, value) for case in cases for axis, value in options_of(case).items()}
    options: dict[Axis, Any] = {}
    for name, text in words.items():
        kind, _, axis = name.partition(" ")
        found = pool.get((name, text))
        if found is None and kind == "size" and re.fullmatch(r"\d+|\((\d+, ?)*\d*\)", text):
            found = (kind, axis), literal_eval(text)
        if name != "values" and found is None:
            return None
        options |= dict([found] if found else [])
    like = next((case for case in cases if case.values == words.get("values")), None)
    return None if like is None else with_options(like, options)


def on_case(contract: Contract, trial: Trial, case: Case, allowed: Callable[[Case], bool]) -> Trial:
    """The trial on another case, of those that are allowed."""
    if isinstance(trial, ManyCalls) and trial.in_turn:
        return replace(in_turn(contract, case, allowed), sized=True)
    if isinstance(trial, ManyCalls):
        return replace(trial, case=case, others=tuple(filter(allowed, variants(contract, case))), sized=True)
    if isinstance(trial, Compiled):
        return replace(trial, case=case, cases=(case,))
    return replace(trial, case=case, single=True) if isinstance(trial, CaseTrial) else replace(trial, case=case)


def drawn_again(
    subject: Subject, taken: Sequence[Trial], declined: Sequence[Trial], allowed: Callable[[Case], bool]
) -> Generator[Trial, bool, None]:
    """Trials in place of `declined`, one after another; `send` says whether the kernel took the last one.

    `taken`: those of the plan that it computed. `allowed`: whether a case may be called at all.
    """
    planned = [trial.case for trial in (*taken, *declined) if isinstance(trial, CaseTrial)]
    if planned and declined:
        cases = [trial.case for trial in taken if isinstance(trial, CaseTrial)]
        yield from _Drawing(subject, planned, cases, allowed).again(declined)


class _Drawing:
    """What is known of a kernel's options, and the cases that were called."""

    def __init__(self, subject: Subject, planned: list[Case], taken: list[Case], allowed: Callable[[Case], bool]):
        self.contract, self.compute, self.allowed = subject.contract, subject.compute, allowed
        self.planned, self.called = planned, set(planned)
        self.takes = {option for case in taken for option in options_of(case).items()}
        self.sizes = {case.sizes for case in planned}
        self.taken = [case for case in taken if not self.contract.is_beyond_grid(case)]
        self.tried: Counter[Axis] = Counter()  # options that were exchanged alone, and those that a kernel took then
        self.helped: Counter[Axis] = Counter()
        self.declined: Counter[tuple[str, int]] = Counter()  # sizes rounded up to a multiple, by the axis and that

    def again(self, declined: Sequence[Trial]) -> Generator[Trial, bool, None]:
        cases = [trial for trial in declined if isinstance(trial, CaseTrial)]
        if not self.taken and cases:
            yield from self._try(cases[0], self._any())
        if not self.taken:
            return
        few = [trial for trial in cases if not self.contract.is_beyond_grid(trial.case)]
        unknown = Counter(o for trial in few for o in options_of(trial.case).items() if o not in self.takes)
        for option, _ in unknown.most_common():
            if option not in self.takes and option[1] not in FAR_LAYOUTS:
                beside = next(trial for trial in few if option in options_of(trial.case).items())
                yield from self._try(beside, self._with_option(option, beside.case))
        for trial in cases:
            yield from self._try(trial, self._in_place_of(trial.case))
        for other in declined:
            if isinstance(other, ManyCalls | OnStream | Compiled) or (
                isinstance(other, PropertyTrial) and other.prop.anywhere
            ):
                yield from self._other(other)

    def _try(self, trial: CaseTrial, cases: Iterable[Case]) -> Generator[Trial, bool, None]:
        """Trials like that one of these cases, until one is taken."""
        for case in cases:
            if case in self.called or not self._may_be_called(case, max(2 * self._amount(trial.case), FEW)):
                continue
            self.called.add(case)
            if (yield on_case(self.contract, trial, case, self.allowed)):
                self.taken += [case] if not self.contract.is_beyond_grid(case) else []
                self.takes.update(options_of(case).items())
                return

    def _any(self) -> list[Case]:
        """Plain cases of options by chance, for a kernel that took none."""
        draw = random.Random(0)
        filled = [case for case in self.planned if case.filled and not self.contract.is_beyond_grid(case)]
        return [self._plain_of(draw, filled) for _ in range(ANY)] if filled else []

    def _plain_of(self, draw: random.Random, cases: Sequence[Case]) -> Case:
        """A contiguous case of finite values, with options of any of these."""
        size, dtype, given = (draw.choice(cases) for _ in range(3))
        layouts = {("layout", n): one if one == "none" else "contiguous" for n, one in given.layouts}
        params = {("param", name): dict(draw.choice(cases).params)[name] for name, _ in given.params}
        plain = replace(size, values=next(iter(self.contract.values)), dtype=dtype.dtype, dtypes=dtype.dtypes)
        return with_options(plain, layouts | params)

    def _with_option(self, option: Option, beside: Case) -> Iterator[Case]:
        """Cases that were taken, those most like one that was not before others, with an option of that."""
        for case in self._nearest(beside)[:PROBES]:
            yield with_options(case, dict([option]))

    def _in_place_of(self, case: Case) -> Iterator[Case]:
        """The case with what the kernel takes; then its values and sizes in a case that was taken; then its values."""
        kept = self._kept(case)
        nearest = self._nearest(case)
        for like in nearest[:PROBES]:
            theirs = options_of(like)
            lacking = [axis for axis, value in options_of(case).items() if (axis, value) not in self.takes]
            replaced = {axis: theirs[axis] for axis in lacking if axis in theirs} | kept
            if not kept:
                yield from self._rounded(case, replaced, [axis for axis in lacking if axis[0] == "size"])
            yield with_options(case, replaced)
            yield from self._one_more(with_options(case, replaced), theirs, kept)
            if not kept:
                yield with_options(case, replaced | {axis: v for axis, v in theirs.items() if axis[0] == "size"})
            yield with_options(case, {axis: value for axis, value in theirs.items() if axis[0] != "size"} | kept)
        yield from (replace(like, values=case.values) for like in nearest if case.values in self.contract.values)

    def _one_more(self, case: Case, theirs: Mapping[Axis, Any], kept: Collection[Axis]) -> Iterator[Case]:
        """The case with one more option of the other, of which each is taken and all together are not: as many heads of
        keys as of queries, say. First those that have helped most, then those that were tried the least."""
        if case not in self.called:  # it is none of the op
            return
        axes = [
            axis for axis, value in options_of(case).items() if value != theirs.get(axis, value) and axis not in kept
        ]
        for axis in sorted(axes, key=lambda axis: (-self.helped[axis], self.tried[axis]))[:ONE_MORE]:
            made = with_options(case, {axis: theirs[axis]})
            if made in self.called:
                continue
            self.tried[axis] += 1
            self.helped[axis] += 1  # no more cases are asked for where it is taken
            yield made
            self.helped[axis] -= 1

    def _rounded(self, case: Case, replaced: Mapping[Axis, Any], axes: Sequence[Axis]) -> Iterator[Case]:
        """The case with the sizes that are not taken rounded up to a multiple that vectors and tiles have, as long as
        that may be what a kernel asks for."""
        own = options_of(case)
        for multiple in MULTIPLES:
            able = [
                axis
                for axis in axes
                if isinstance(own[axis], int) and own[axis] % multiple and self.declined[axis[1], multiple] < PROBES
            ]
            if not able:
                continue
            rounded = {axis: -(-own[axis] // multiple) * multiple for axis in able}
            made = with_options(case, {**replaced, **rounded})
            if made in self.called:
                continue
            yield made  # no more cases are asked for where it is taken
            for axis in able if made in self.called else ():
                self.declined[axis[1], multiple] += 1

    def _kept(self, case: Case) -> dict[Axis, Any]:
        """The options without which a case would show nothing, or accuse a right kernel: the sizes beyond what a grid
        holds; the layout of offsets beyond 2^31 elements, which is one at its sizes alone; and of a single case, whose
        values are made for that, all but the layouts."""
        options = options_of(case)
        far = {axis: layout for axis, layout in options.items() if layout in FAR_LAYOUTS}
        kinds = {"size"} if far or self.contract.is_beyond_grid(case) else set()
        if case.values not in self.contract.values:
            kinds = {"size", "param", "dtype", "dtypes"}
        return far | {axis: value for axis, value in options.items() if axis[0] in kinds}

    def _other(self, trial: ManyCalls | OnStream | Compiled | PropertyTrial) -> Generator[Trial, bool, None]:
        """The trial on the plainest case that was taken, a property in its dtype."""
        prop = trial.prop if isinstance(trial, PropertyTrial) else None
        values = next(iter(self.contract.values)) if prop is None else prop.values
        taken = [case for case in self.taken if prop is None or case.dtype == trial.case.dtype]
        found = dict.fromkeys(replace(case, values=values) for case in taken if case.filled and case.contiguous)
        plain = sorted(found, key=lambda case: (1 in dict(case.sizes).values(), self.contract.work(case)))
        if prop is not None and prop.elsewhere is not None:
            plain = [case for case in plain if self.allowed(prop.elsewhere(case))]
        case = next((case for case in plain if self._may_be_called(case, math.inf)), None)
        made = None if case is None else on_case(self.contract, trial, case, self.allowed)
        if made is not None and not (isinstance(made, ManyCalls) and not made.count):
            yield made

    def _nearest(self, case: Case) -> list[Case]:
        """Cases that were taken, those with the most options of another first."""
        known = options_of(case)
        some = self.taken if len(self.taken) <= NEAREST else self.taken[:: len(self.taken) // NEAREST + 1]
        return sorted(some, key=lambda one: sum(known.get(axis) != value for axis, value in options_of(one).items()))

    def _amount(self, case: Case) -> float:
        """The work of a case, or the elements of its operands, of which a cache has more than are read."""
        elements = sum(math.prod(self.contract.operand_shape(name, case)) for name in self.contract.operands)
        return max(self.contract.work(case), elements)

    def _may_be_called(self, case: Case, amount: float) -> bool:
        """Whether a case is one of the op, and not of more than that where its sizes are no plan's."""
        if not self.allowed(case):
            return False
        try:
            if not self.contract.valid(case) or (case.sizes not in self.sizes and self._amount(case) > amount):
                return False
            answers = expected_of(self.contract, case, self.compute)  # which are kept for the call
        except Exception:  # what does not go together
            return False
        shapes = {name: self.contract.output_shape(name, case) for name in answers}
        return all(tuple(one.answer.shape) == shapes[name] for name, one in answers.items() if one is not None)
