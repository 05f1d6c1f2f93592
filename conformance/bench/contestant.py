"""The contestants of a group: how each is called, and that its untimed calls return what they must."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from touchstone.conformance.bench import timing
from touchstone.conformance.bench.group import AGAIN, DECLINED, FAILED, MEASURED, NOT_RUN, REFUSED, Group, Result
from touchstone.conformance.bench.inputs import KNOWN, PLACES, Bank
from touchstone.conformance.bench.timing import GRAPH, CudaTimer, Graph, Guard, Timer
from touchstone.conformance.discovery.best import Best
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.call import output_bytes
from touchstone.conformance.judging.executor import error_text
from touchstone.conformance.spec import outputs as output_rules
from touchstone.conformance.spec.baselines import Baseline
from touchstone.conformance.spec.contract import Case, Contract


@dataclass
class Contestant:
    """One of a group, while it is measured."""

    result: Result
    call: Callable[[int], Any]  # of the number of a set of memory
    compute: str | None = None
    subject: Subject | None = None  # None: a baseline
    backend: str = ""
    deterministic: bool = True
    # of untimed outputs what is compared, by the number of the values they were computed from
    known: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    held: list[torch.Tensor] = field(default_factory=list)  # the previous call's outputs
    samples: list[float] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)  # samples with launch gaps in them
    hosts: list[float] = field(default_factory=list)
    launch: float | None = None  # seconds of the host for a call that follows another
    lags: list[float] = field(default_factory=list)
    checks: list[tuple[int, Mapping[str, Any] | None, dict[str, torch.Tensor]]] = field(default_factory=list)
    when: dict[int, int] = field(default_factory=dict)  # round -> number of values, where outputs are judged
    hold: float = timing.HOLD  # seconds for which its calls hold a GPU back
    params: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # of a place's calls, if not the case's own
    renew: Callable[[int], None] = lambda place: None  # gives the next calls in a place another seed

    @property
    def alive(self) -> bool:
        return self.result.status == MEASURED

    def refuse(self, problem: str, status: str = REFUSED) -> None:
        self.result.status = status
        if problem not in self.result.problems:
            self.result.problems.append(problem)


def unbound(group: Group, timer: Timer, noise_floor: bool) -> list[Result]:
    """The rows of a group that nothing is held against yet: variants before baselines; with `noise_floor` every variant
    twice."""
    found = []
    for again in ("", AGAIN) if noise_floor else ("",):
        for _, subject in group.subjects:
            found.append(result_of(group, subject.name + again, subject.target, "variant", timer))
            found[-1].compute = subject.compute
    for baseline in group.baselines:
        found.append(result_of(group, baseline.name, f"baseline@{timer.device}", "baseline", timer))
    return found


def contestants(group: Group, bank: Bank, timer: Timer, noise_floor: bool) -> list[Contestant]:
    """Those of a group, in the order of `unbound`."""
    contract, case = group.contract, group.case
    rows, found = iter(unbound(group, timer, noise_floor)), []
    for _ in range(1 + noise_floor):
        for backend, subject in group.subjects:
            calls = [bound(contract, subject, bank.arguments(place)) for place in range(PLACES)]
            deterministic = subject.deterministic and subject.own
            one = Contestant(
                next(rows), partial(_nth, calls), subject.compute, subject, backend, deterministic=deterministic
            )
            if not subject.own and bank.seeded:
                one.renew = partial(_renew, one, calls, bank)
            found.append(one)
    for baseline, row in zip(group.baselines, rows, strict=True):
        found.append(Contestant(row, partial(_nth, _BaselineCalls(baseline, bank, case)), deterministic=False))
    return found


def result_of(group: Group, name: str, target: str, kind: str, timer: Timer) -> Result:
    """The row of a contestant that nothing is held against yet."""
    case = group.case
    return Result(case.op, name, target, kind, case.dtype, case.size, group.params, group.mode, timer.cache, MEASURED)


def bound(contract: Contract, subject: Subject, arguments: Mapping[str, Any]) -> Callable[[], Any]:
    """The subject's call with its arguments bound, so that binding them is not timed."""
    if subject.arrays != "torch":
        return lambda: subject.call(arguments)

    def bind(*args: Any, **kwargs: Any) -> Callable[[], Any]:
        return partial(subject.fn, *args, **kwargs)

    try:
        bind.__signature__ = inspect.signature(subject.fn)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return lambda: subject.call(arguments)
    return contract.call(bind, arguments, by_name=subject.own)


class _BaselineCalls:
    """A baseline's calls, one for each set of memory, made when first asked for."""

    def __init__(self, baseline: Baseline, bank: Bank, case: Case):
        self._baseline, self._bank, self._calls = baseline, bank, dict[int, Callable[[], Any]]()

    def __getitem__(self, place: int) -> Callable[[], Any]:
        if place not in self._calls:
            if self._baseline.compiles:
                # a pool of compilers has a thread that starts at any time, as if a kernel had started it
                setattr(importlib.import_module("torch._inductor.config"), "compile_threads", 1)  # noqa: B010
            self._calls[place] = self._baseline.make(self._bank.arguments(place))
        return self._calls[place]


def _nth(calls: Any, place: int) -> Any:
    return calls[place]()


def _renew(one: Contestant, calls: list[Callable[[], Any]], bank: Bank, place: int) -> None:
    assert one.subject is not None
    one.params[place] = bank.params()
    calls[place] = bound(bank.contract, one.subject, {**bank.places[place], **one.params[place]})


def verify(
    one: Contestant,
    group: Group,
    bank: Bank,
    timer: Timer,
    watch: Guard,
    launched: Callable[..., Any],
    max_call_seconds: float,
) -> None:
    """Call the contestant on every known set of values, untimed: compiled, warm and judged."""
    state = probe.State(random=False)
    try:
        for number in range(KNOWN if one.subject is not None else PLACES):
            taken = _verify_on(one, group, bank, timer, watch, number)
            if taken is None:
                break
            if number and taken > max_call_seconds:
                one.refuse(f"a call takes {taken:.3g} s, and --max-call-seconds is {max_call_seconds:g}", NOT_RUN)
                break
        if one.alive:
            _examine(one, timer, launched)
            if one.subject is not None and isinstance(one.subject.fn, Best):
                one.result.notes.append(f"takes {one.subject.fn.taken(**bank.arguments(0))}")
    except NotImplementedError as declined:
        one.refuse(str(declined) or "declined", DECLINED)
    except torch.OutOfMemoryError as error:
        one.refuse(f"out of memory: {str(error).partition('.')[0]}", NOT_RUN)
    except Exception as error:
        one.refuse(error_text(error), NOT_RUN if one.subject is None else FAILED)
    finally:
        settings, _ = state.changes()
        if settings and one.subject is not None and one.alive:
            one.refuse(f"global state is left changed: {', '.join(settings)}")
        look_at_clocks(one, watch)


def _verify_on(one: Contestant, group: Group, bank: Bank, timer: Timer, watch: Guard, number: int) -> float | None:
    """One call on the known values `number`: its seconds, or None where there is nothing more to verify.

    A variant that is wrong is refused; a baseline keeps its place, with a note.
    """
    place = number % PLACES
    bank.load(place, number)
    with probe.poison(probe.PATTERNS[number % 2], bank.device, output_bytes(group.contract, group.case)):
        start = timing.now()
        returned = one.call(place)
        timer.synchronize()
        taken = timing.now() - start
    look_at_clocks(one, watch)
    outputs = outputs_of(one, group.contract, bank, returned, place) if one.alive else None
    if outputs is None:
        return None
    gathered = bank.gather(outputs)
    worst, wrong = bank.judge(gathered, number, one.compute)
    one.result.worst = worst if one.result.worst is None else max(one.result.worst, worst)
    if wrong and one.subject is not None:
        one.refuse(f"wrong before it was timed: {wrong[0]}", FAILED)
        return None
    if wrong:
        one.result.notes.append(f"outside the budget: {wrong[0]}")
        return None
    one.known[number] = gathered
    one.held = list(outputs.values())
    return taken


def _examine(one: Contestant, timer: Timer, launched: Callable[..., Any]) -> None:
    """Memory, registers and shared memory of a call, and its CUDA graphs where those are timed."""
    call = partial(one.call, 0)
    one.result.peak_bytes = _peak_memory(call, timer)
    if one.subject is not None:
        one.result.resources = launched(one.backend, call)
    if timer.cache == GRAPH and isinstance(timer, CudaTimer):
        for place in range(PLACES):
            one.renew(place)  # what a graph replays then holds all the work of a seed that is new to it
        calls = [Graph(partial(one.call, place), timer.stream) for place in range(PLACES)]
        one.call, one.held = partial(_nth, calls), []


def outputs_of(
    one: Contestant, contract: Contract, bank: Bank, returned: Any, place: int
) -> dict[str, torch.Tensor] | None:
    """What a call returned, by name; None, and the contestant refused, where it is not what a call must return."""
    if one.subject is None:
        return {n: t.contiguous() for n, t in returned.items() if n in contract.outputs and t is not None}
    values = contract.by_name(returned, one.subject.outputs)
    if isinstance(values, str):
        one.refuse(values)
        return None
    found = {}
    for name, tensor in values.items():
        if tensor is None:
            continue
        wrong = output_rules.problems(contract, bank.case, name, tensor, bank.device, bank.places[place])
        if wrong:
            one.refuse(wrong[0].message)
        elif any(output_rules.overlap(other, tensor) for other in one.held):
            one.refuse(f"{name} lies in the memory of the previous call's output: not computed into memory of its own")
        else:
            found[name] = tensor
    return found if one.alive else None


def _peak_memory(call: Callable[[], Any], timer: Timer) -> int | None:
    """Bytes that torch's allocator held for a call at its highest, outputs included; None on the CPU, and where the
    outputs came from another allocator, which it does not see."""
    if not isinstance(timer, CudaTimer):
        return None
    timer.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    returned = call()
    timer.synchronize()
    del returned
    return torch.cuda.max_memory_allocated() - before or None


def look_at_clocks(one: Contestant, watch: Guard) -> None:
    """Refuse a variant under which what measures or judges was replaced; a baseline gets a note."""
    if changed := watch.changed():
        text = f"what measures or judges was replaced: {', '.join(changed)}"
        if one.subject is None:
            one.result.notes.append(text)
        else:
            one.refuse(text)
