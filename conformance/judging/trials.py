"""What a kernel is held to: the trials of a subject, and their kinds."""

from dataclasses import dataclass

from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.spec.cases import Plan, plain_case, plan, variants
from touchstone.conformance.spec.contract import Case, Invalid, Property

CALLS = 50  # of a trial of many calls
FEWEST_CALLS = 4
CALLS_WORTH = 20  # in cases at the target's ceiling of work, what a trial of many calls may take
NOT_CASES = (
    "property-",
    "invalid-",
    "calls-",
    "stream-",
    "int64_index-",
)  # how the ids of trials that are no cases begin
WATCHED_SIZES = 4  # of one of our variants on the CPU
INSTRUMENTED_SIZES = 6
INSTRUMENTED_WORK = 3e5  # at most, of one size more


@dataclass(frozen=True)
class Trial:
    case: Case
    prop: Property | None = None
    invalid: Invalid | None = None
    calls: int = 0  # so many calls with distinct inputs
    others: tuple[Case, ...] = ()  # of many calls some have the layouts or the parameters of these
    stream: bool = False  # on a stream of its own
    int64_index: bool = False  # an output beyond 2^31 elements, of which some rows are compared
    instrumented: bool = False  # further calls under the instruments of the backend
    watched: bool = False  # a second call, between guard bands

    @property
    def id(self) -> str:
        if self.calls:
            return f"calls-{self.case.dtype}"
        if self.int64_index:
            return f"huge-{self.case.id}"
        if self.stream:
            return f"stream-{self.case.dtype}"
        if self.prop:
            return f"property-{self.prop.name.replace(' ', '_')}-{self.case.dtype}"
        if self.invalid:
            return f"invalid-{self.invalid.name.replace(' ', '_')}"
        return self.case.id


def trials_of(subject: Subject, level: str, seed: int = 0, ceiling: float | None = None) -> tuple[list[Trial], Plan]:
    """All trials of a subject: cases under the target's ceiling of work, properties in every dtype, invalid calls for
    our variants."""
    contract = subject.contract
    made = plan(contract, level, seed)
    cases = [case for case in made.cases if ceiling is None or contract.work(case) <= ceiling]
    made = Plan(cases, made.infeasible, made.sampled_out, len(made.cases) - len(cases))
    watched, instrumented = _watched(subject, cases), _instrumented(subject, cases)
    found = [Trial(case, watched=case in watched, instrumented=case in instrumented) for case in cases]
    for prop in contract.properties:
        if prop.bitwise and not subject.deterministic:
            continue
        found += [Trial(plain_case(contract, dtype, prop.values, seed), prop=prop) for dtype in contract.dtypes]
    plain = [plain_case(contract, dtype, next(iter(contract.values)), seed) for dtype in contract.dtypes]
    some = plain[:1] if level == "quick" else plain
    for case in some:
        affordable = CALLS if ceiling is None else CALLS_WORTH * ceiling / max(1.0, contract.work(case))
        calls = int(max(FEWEST_CALLS, min(CALLS, affordable)))
        found.append(Trial(case, calls=calls, others=variants(contract, case)))
    if subject.device == "cuda":
        found.append(Trial(plain[0], stream=True))
        if level == "thorough" and contract.int64_index is not None:
            int64_index = plain_case(
                contract, contract.int64_index.dtype, next(iter(contract.values)), seed, contract.int64_index.size
            )
            found.append(Trial(int64_index, int64_index=True))
    if subject.own:
        found += [Trial(plain[0], invalid=invalid) for invalid in contract.invalid]
    return found, made


def _watched(subject: Subject, cases: list[Case]) -> set[Case]:
    """The cases that are called a second time, watched: all of a user's function, of our variants the first of each
    size.

    On the CPU, where an interpreter or emulator checks the bounds of each access itself, only the sizes of least work.
    """
    if not subject.own:
        return set(cases)
    return _first_of_sizes(subject, cases, WATCHED_SIZES if subject.device == "cpu" else None)


def _instrumented(subject: Subject, cases: list[Case]) -> set[Case]:
    """The cases that run under a target's own instruments too: sizes of least work, and that of the longest rows.

    There a row is longer than a block, and its threads come round again; with many rows an interpreter takes minutes.
    """
    moderate = [case for case in cases if subject.contract.work(case) <= INSTRUMENTED_WORK]
    longest = max(_first_of_sizes(subject, moderate, None), key=_row, default=None)
    return _first_of_sizes(subject, cases, INSTRUMENTED_SIZES) | ({longest} if longest is not None else set())


def _row(case: Case) -> int:
    """The length of the last axis of a case's sizes."""
    last = case.sizes[-1][1]
    return last if isinstance(last, int) else max(last, default=1)


def _first_of_sizes(subject: Subject, cases: list[Case], count: int | None) -> set[Case]:
    """The first case of each size without a 0; of the `count` sizes of least work."""
    first = {case.sizes: case for case in reversed(cases) if case.filled}
    return set(sorted(first.values(), key=subject.contract.work)[:count])
