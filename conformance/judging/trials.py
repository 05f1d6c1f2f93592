"""What a kernel is held to: the trials of a subject, and their kinds."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from touchstone.conformance.discovery import importing, registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.spec.cases import Plan, goes_together, lengths_in_turn, plain_case, plan, variants
from touchstone.conformance.spec.contract import Case, Contract, Invalid, Property, size_text
from touchstone.conformance.spec.narrowing import EVERYTHING, Narrowing
from touchstone.conformance.spec.sharing import Share

CALLS, SHARED_CALLS = 50, 17  # of a trial of many calls; where variants share the work: two turns of `cases_of`
FEWEST_CALLS = 4
CALLS_WORTH = 20  # in cases at the target's ceiling of work, what a trial of many calls may take
DRAWN, DRAWN_TRIES, DRAWN_WORK = 2, 60, 2e5  # sizes drawn by chance for each dtype, attempts, the most work of one
WATCHED_SIZES = 4  # of one of our variants on the CPU
INSTRUMENTED_SIZES, SHARED_SIZES = 6, 3  # where variants share the work
INSTRUMENTED_WORK = 3e5  # at most, of one size more
COMPILED_CASES = 24  # on which is recorded what a user's function launches
COMPILED_WORK = 1e7  # at most, of those that are there for a large size


class Kind(StrEnum):
    """What a trial is; records have it beside a trial's id."""

    CASE = "case"
    PROPERTY = "property"
    INVALID = "invalid"
    CALLS = "calls"
    STREAM = "stream"
    GRAPH = "graph"
    INT64_INDEX = "int64_index"
    COMPILED = "compiled"


@dataclass(frozen=True)
class CaseTrial:
    """One call on a case, whose outputs are compared with the float64 answer; with what is asked for, further calls."""

    kind: ClassVar[Kind] = Kind.CASE
    case: Case
    watched: bool = False  # a second call, between guard bands
    instrumented: bool = False  # further calls under the instruments of the backend
    single: bool = False  # one of the contract's single cases, which a launcher may refuse

    @property
    def id(self) -> str:
        return self.case.id


@dataclass(frozen=True)
class PropertyTrial:
    """A property of the op, which calls the kernel on inputs of its own, after a call on a case."""

    kind: ClassVar[Kind] = Kind.PROPERTY
    case: Case
    prop: Property

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.prop.name.replace(' ', '_')}-{self.case.dtype}"


@dataclass(frozen=True)
class InvalidCall:
    """A call with a case's arguments made invalid: an error must come before anything is launched."""

    kind: ClassVar[Kind] = Kind.INVALID
    case: Case
    invalid: Invalid

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.invalid.name.replace(' ', '_')}"


@dataclass(frozen=True)
class ManyCalls:
    """So many calls with distinct inputs, some of them with the layouts or the parameters of `others`; or those on
    `others`, which differ in their sizes, alone."""

    kind: ClassVar[Kind] = Kind.CALLS
    case: Case
    count: int
    others: tuple[Case, ...] = ()
    sized: bool = False  # in other sizes than the contract's first
    in_turn: bool = False  # on `others` alone

    @property
    def id(self) -> str:
        what = f"{self.kind}-of_other_lengths" if self.in_turn else str(self.kind)
        return f"{what}-{self.case.dtype}{f'-{size_text(self.case.sizes)}' if self.sized else ''}"


@dataclass(frozen=True)
class OnStream:
    """A call on a stream of its own, whose inputs arrive late."""

    kind: ClassVar[Kind] = Kind.STREAM
    case: Case

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.case.dtype}"


@dataclass(frozen=True)
class AsGraph:
    """A call captured as a CUDA graph, of which the replay is judged: it neither waits for the device nor works on a
    stream or in memory that the capture does not see."""

    kind: ClassVar[Kind] = Kind.GRAPH
    case: Case

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.case.dtype}"


@dataclass(frozen=True)
class Int64Index:
    """A call whose output has more than 2^31 elements, of which some rows are compared."""

    kind: ClassVar[Kind] = Kind.INT64_INDEX
    case: Case

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.case.id}"


@dataclass(frozen=True)
class Compiled:
    """What a call launches on each of `cases`, put through the compiler of `backend`, whose kernels are interpreted in
    all other trials."""

    kind: ClassVar[Kind] = Kind.COMPILED
    case: Case  # the first of
    cases: tuple[Case, ...]
    backend: str

    @property
    def id(self) -> str:
        return f"{self.kind}-by-{self.backend}"


Trial = CaseTrial | PropertyTrial | InvalidCall | ManyCalls | OnStream | AsGraph | Int64Index | Compiled


def with_few_calls(trial: Trial) -> Trial:
    """The same, with no more than SHARED_CALLS calls where it is one of many."""
    if not isinstance(trial, ManyCalls) or trial.in_turn:
        return trial
    return replace(trial, count=min(trial.count, SHARED_CALLS))


def in_turn(contract: Contract, case: Case, allowed: Callable[[Case], bool] = lambda one: True) -> ManyCalls:
    """Calls with other lengths of one axis after another, those that are allowed."""
    others = tuple(filter(allowed, lengths_in_turn(contract, case)))
    return ManyCalls(case, len(others), others, case.size != contract.sizes[0], in_turn=True)


def called_once(trial: Trial) -> Trial:
    """The trial without the further calls that a case can be given."""
    return CaseTrial(trial.case, single=trial.single) if isinstance(trial, CaseTrial) else trial


def trials_of(
    subject: Subject,
    level: str,
    seed: int = 0,
    ceiling: float | None = None,
    share: Share | None = None,
    narrowing: Narrowing = EVERYTHING,
) -> tuple[list[Trial], Plan]:
    """All trials of a subject: cases under the target's ceiling of work, properties in every dtype, invalid calls for
    our variants.

    Our variants take general cases, and at level quick are judged on those alone. With `share`, the cases of that, and
    the properties and the many calls in its dtypes. The many calls, the calls on a stream and what is compiled
    are made of what `narrowing` leaves, where it leaves a case for them; all else it is `narrow` that leaves out.
    """
    contract = subject.contract
    made = plan(contract, level, seed)
    cases = cases_of(subject, made, level, ceiling)
    over = len(cases_of(subject, made, level)) - len(cases)
    dtypes = [dtype for dtype in contract.dtypes if share is None or dtype in share.dtypes]
    own = [case for case in cases if share is None or case in share.cases]
    made = replace(made, cases=own, over_ceiling=over, elsewhere=len(cases) - len(own))
    cases = list(own)
    if subject.untrusted:
        cases += _of_drawn_sizes(contract, [case for case in made.cases if case not in made.also], seed)
    short = [case for case in cases if not contract.is_beyond_grid(case) and case not in made.also]
    watched, instrumented = _watched(subject, short), _instrumented(subject, short, share is not None)
    if level != "quick":  # a second case of each size: a race may show in one launch of three
        rest = [case for case in short if case not in instrumented]
        instrumented |= _instrumented(subject, rest, share is not None)
    instrumented |= _over_tiles(contract, cases)
    found: list[Trial] = [CaseTrial(case, case in watched, case in instrumented, case in made.also) for case in cases]
    for prop in contract.properties:
        if prop.bitwise and not subject.deterministic:
            continue
        found += [PropertyTrial(plain_case(contract, dtype, prop.values, seed), prop) for dtype in dtypes]
    plain = [_plainest(contract, dtype, seed, ceiling, narrowing) for dtype in dtypes]
    first = next((case for case in plain if not narrowing.leaves_out(case)), plain[0])
    for case in [first] if level == "quick" else plain:
        most = CALLS if share is None else SHARED_CALLS
        affordable = most if ceiling is None else CALLS_WORTH * ceiling / max(1.0, contract.work(case))
        calls = int(max(FEWEST_CALLS, min(most, affordable)))
        found.append(ManyCalls(case, calls, variants(contract, case), case.size != contract.sizes[0]))
        if share is None and not (subject.own and (level == "quick" or case.dtype != first.dtype)):
            turned = in_turn(contract, case, lambda one: ceiling is None or contract.work(one) <= ceiling)
            found += [turned] if turned.count > 1 else []
    if subject.device == "cuda":
        found.append(OnStream(first))
        if level == "thorough" and subject.captures:
            found.append(AsGraph(first))
        if level == "thorough" and contract.int64_index is not None:
            beyond = plain_case(
                contract, contract.int64_index.dtype, next(iter(contract.values)), seed, contract.int64_index.size
            )
            found.append(Int64Index(beyond))
    if chosen := _of_each_choice(contract, made.general, narrowing):
        found += [Compiled(chosen[0], chosen, backend) for backend in _compiled_by(subject)]
    if subject.own:
        valid = plain_case(contract, contract.dtypes[0], next(iter(contract.values)), seed)
        found += [InvalidCall(valid, invalid) for invalid in contract.invalid]
    return found, made


def _compiled_by(subject: Subject) -> list[str]:
    """The backends that interpret kernels of a user's function here, and can say whether they compile."""
    if subject.own or subject.device != "cpu" or subject.arrays != "torch":
        return []
    return [name for name in registry.backends() if importing.interpreted_by(name, subject.fn)]


def _of_each_choice(contract: Contract, cases: Sequence[Case], narrowing: Narrowing) -> tuple[Case, ...]:
    """The case of least work of each dtype and choice of parameters, each of which may launch another kernel, and in
    each dtype the one with the largest of each size, which may be that of a tile; of those that a narrowing leaves."""
    found: dict[Any, Case] = {}
    every = [case.plainly_laid(case.absent) for case in cases if case.filled]
    every = sorted((case for case in every if not narrowing.leaves_out(case)), key=contract.work)
    for case in every:
        found.setdefault((case.dtype, case.params, case.absent), case)
    return tuple(dict.fromkeys([*list(found.values())[:COMPILED_CASES], *_of_largest(contract, narrowing)]))


def _of_largest(contract: Contract, narrowing: Narrowing) -> Iterable[Case]:
    """In each dtype the plain cases with the largest of each size, of those of little work."""
    found: dict[tuple[str, str], Case] = {}
    values = next(iter(contract.values))
    for dtype, size in itertools.product(contract.dtypes, contract.sizes):
        case = plain_case(contract, dtype, values, size=size)
        if not case.filled or not contract.valid(case) or contract.work(case) > COMPILED_WORK:
            continue
        for name, n in () if narrowing.leaves_out(case) else case.sizes:
            known = found.get((dtype, name))
            if isinstance(n, int) and (known is None or n > known.size[name]):
                found[dtype, name] = case
    return found.values()


def _plainest(contract: Contract, dtype: str, seed: int, ceiling: float | None, narrowing: Narrowing) -> Case:
    """The plain case of a dtype in the contract's first sizes, or in those of least work that a narrowing leaves."""
    every = [plain_case(contract, dtype, next(iter(contract.values)), seed, size) for size in contract.sizes]
    if not narrowing.leaves_out(every[0]):
        return every[0]
    kept = [case for case in every if case.filled and contract.valid(case) and not narrowing.leaves_out(case)]
    found = min(kept, key=contract.work, default=every[0])
    return every[0] if ceiling is not None and contract.work(found) > ceiling else found


def cases_of(subject: Subject, made: Plan, level: str, ceiling: float | None = None) -> list[Case]:
    """Those of a plan that a subject is judged on, each with no more work than `ceiling`."""
    offered = made.general if subject.own and level == "quick" else made.cases
    return [case for case in offered if ceiling is None or subject.contract.work(case) <= ceiling]


def _of_drawn_sizes(contract: Contract, planned: Sequence[Case], seed: int) -> list[Case]:
    """Cases of sizes that no plan has, drawn by `seed` around those of `planned`: a kernel cannot be made for them."""
    draw = random.Random(seed)
    bases = [case for case in planned if case.filled and case.contiguous and not contract.is_beyond_grid(case)]
    found: dict[str, list[Case]] = {dtype: [] for dtype in contract.dtypes}
    for _ in range(DRAWN_TRIES if bases else 0):
        dtype = min(found, key=lambda name: len(found[name]))
        if len(found[dtype]) == DRAWN:
            break
        base = draw.choice(bases)
        size = {name: _other(value, draw) if draw.random() < 0.5 else value for name, value in base.sizes}
        case = plain_case(contract, dtype, next(iter(contract.values)), seed, size)
        if case.sizes != base.sizes and contract.work(case) <= DRAWN_WORK and goes_together(contract, case):
            found[dtype].append(case)
    return [case for cases in found.values() for case in cases]


def _other(value: Any, draw: random.Random) -> Any:
    return tuple(_other(n, draw) for n in value) if isinstance(value, tuple) else draw.randint(1, 2 * value + 1)


def narrow(trials: Sequence[Trial], narrowing: Narrowing) -> tuple[list[Trial], dict[str, int]]:
    """The trials that a narrowing leaves, and how many it leaves out by what."""
    kept: list[Trial] = []
    left_out: dict[str, int] = {}
    for trial in trials:
        if by := next(filter(None, map(narrowing.leaves_out, _called_on(trial))), None):
            left_out[f"left out by {by}"] = left_out.get(f"left out by {by}", 0) + 1
        elif isinstance(trial, ManyCalls):
            others = tuple(c for c in trial.others if not narrowing.leaves_out(c))
            if trial.in_turn and len(others) < 2:  # of one call nothing is kept for another
                by = next(filter(None, map(narrowing.leaves_out, trial.others)))
                left_out[f"left out by {by}"] = left_out.get(f"left out by {by}", 0) + 1
                continue
            kept.append(replace(trial, others=others, count=len(others) if trial.in_turn else trial.count))
        else:
            kept.append(trial)
    return kept, left_out


def _called_on(trial: Trial) -> list[Case]:
    """The cases on which a trial cannot but call the kernel."""
    if isinstance(trial, PropertyTrial) and trial.prop.elsewhere is not None:
        return [trial.case, trial.prop.elsewhere(trial.case)]
    return [trial.case]


def _watched(subject: Subject, cases: list[Case]) -> set[Case]:
    """The cases that are called a second time, watched: all of a user's function, of our variants the first of each
    size.

    On the CPU, where an interpreter or emulator checks the bounds of each access itself, only the sizes of least work.
    """
    if not subject.own:
        return set(cases)
    return _first_of_sizes(subject, cases, WATCHED_SIZES if subject.device == "cpu" else None)


def _instrumented(subject: Subject, cases: list[Case], shared: bool) -> set[Case]:
    """The cases that run under a target's own instruments too: sizes of least work, and that of the longest rows.

    There a row is longer than a block, and its threads come round again; with many rows an interpreter takes minutes.
    """
    moderate = [case for case in cases if subject.contract.work(case) <= INSTRUMENTED_WORK]
    longest = max(_first_of_sizes(subject, moderate, None), key=_row, default=None)
    sizes = _first_of_sizes(subject, cases, SHARED_SIZES if shared else INSTRUMENTED_SIZES)
    return sizes | ({longest} if longest is not None else set())


def _over_tiles(contract: Contract, cases: list[Case]) -> set[Case]:
    """Of the cases of several tiles the first of each choice of parameters, where they are not much work: blocks that
    share a result race, and another parameter may be another kernel."""
    found: dict[Any, Case] = {}
    for case in cases:
        if case.size == contract.over_tiles and contract.work(case) <= INSTRUMENTED_WORK:
            found.setdefault(case.params, case)
    return set(found.values())


def _row(case: Case) -> int:
    """The length of the last axis of a case's sizes."""
    last = case.sizes[-1][1]
    return last if isinstance(last, int) else max(last, default=1)


def _first_of_sizes(subject: Subject, cases: list[Case], count: int | None) -> set[Case]:
    """A case of each size without a 0, of the `count` sizes of least work: the first of those whose dtype and
    parameters have been taken the fewest times, since another parameter may be another kernel."""
    of_size: dict[Any, list[Case]] = {}
    for case in cases:
        if case.filled:
            of_size.setdefault(case.sizes, []).append(case)
    least = sorted(of_size.values(), key=lambda those: subject.contract.work(those[0]))[:count]
    taken: Counter[Any] = Counter()
    found: set[Case] = set()
    for those in least:
        case = min(those, key=lambda one: sum(taken[value] for value in (one.dtype, *one.params)))
        taken.update((case.dtype, *case.params))
        found.add(case)
    return found
