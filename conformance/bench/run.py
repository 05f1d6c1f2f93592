"""Verify, time, verify again: the measurement of one group, the variants and baselines that share an op, a case and a
dtype.

A variant is called on inputs whose float64 answer is known, then timed, interleaved with the rest of its group, each
time on values that differ from those the memory held before. Some of its timed outputs, which it cannot foresee, are
compared with the answer, some with what it returned when nothing was timed, bit by bit. A variant against which
anything is found gets no number.
"""

import gc
import importlib
import inspect
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from touchstone.conformance.bench import ceilings as ceilings_module
from touchstone.conformance.bench import inputs as inputs_module
from touchstone.conformance.bench import timing
from touchstone.conformance.bench.ceilings import Ceilings, Roof
from touchstone.conformance.bench.inputs import FRESH, KNOWN, PLACES, Bank, same_bits, secret, spoil
from touchstone.conformance.bench.timing import GRAPH, WARM, CudaTimer, Graph, Guard, Stats, Timer
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.call import error_text, output_bytes
from touchstone.conformance.spec import budget, compare
from touchstone.conformance.spec import outputs as output_rules
from touchstone.conformance.spec.baselines import Baseline, Bench
from touchstone.conformance.spec.contract import Case, Contract

MEASURED, DECLINED, NOT_RUN, REFUSED, FAILED = "measured", "declined", "not run", "refused", "failed"
RECHECKS = 3  # timed outputs that are judged, beside those on fresh values
LEAST, MOST = {"cuda": 10, "cpu": 5}, {"cuda": 200, "cpu": 15}
PILOTS = 3  # timed calls before the rounds, from which their number follows
AGAIN = " (again)"  # how the name of a kernel ends that is timed against itself
SLOW = 0.5  # seconds; slower kernels get the least rounds
# a call on values never seen before may take this many times as long as others
# and a call in a row of calls this many times less; the slacks are seconds: a process that shares its core waits for
# some
FRESH_RATIO, FRESH_SLACK = 1.5, {"cuda": 2e-5, "cpu": 2e-2}
BULK_RATIO, BULK_SLACK = 1.6, {"cuda": 1e-4, "cpu": 2e-2}
# what of torch is used to time and to judge; torch itself wraps others of its functions when it compiles
TORCH = (
    "equal",
    "empty",
    "empty_like",
    "isfinite",
    "randn",
    "rand",
    "where",
    "no_grad",
    "abs",
    "isnan",
    "isinf",
    "sign",
)
CUDA = (
    "synchronize",
    "current_stream",
    "stream",
    "Event",
    "Stream",
    "CUDAGraph",
    "_sleep",
    "graph",
    "memory_allocated",
)
TENSOR = (
    "any",
    "clone",
    "contiguous",
    "copy_",
    "cpu",
    "data_ptr",
    "detach",
    "fill_",
    "index_select",
    "is_contiguous",
    "max",
    "numel",
    "reshape",
    "to",
    "view",
    "__ne__",
    "__le__",
    "__sub__",
)


@dataclass
class Group:
    """Contestants timed together on one op and case."""

    contract: Contract
    bench: Bench
    case: Case
    subjects: Sequence[tuple[str, Subject]]  # (backend, variant)
    baselines: Sequence[Baseline] = ()
    mode: str = "fwd"

    @property
    def title(self) -> str:
        sizes = ", ".join(f"{name}={n}" for name, n in self.case.sizes)
        params = "".join(f", {name}={value}" for name, value in self.params.items() if self.varies(name))
        mode = "" if self.mode == "fwd" else f" {self.mode}"
        return f"{self.case.op}{mode} {self.case.dtype} {sizes}{params}"

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, and the layout of each operand that does not lie as the contract's first has it."""
        layouts = {n: layout for n, layout in self.case.layouts if layout != self.contract.operands[n].layouts[0]}
        return self.case.param | layouts

    def varies(self, name: str) -> bool:
        return name in self.bench.params or name in self.contract.operands


@dataclass
class Result:
    """One contestant's row. `ms` and what follows from it are None unless its status is "measured"."""

    op: str
    name: str
    target: str
    kind: str  # "variant" or "baseline"
    dtype: str
    sizes: dict[str, Any]
    params: dict[str, Any]
    mode: str
    cache: str
    status: str = NOT_RUN
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    compute: str | None = None
    stats: Stats | None = None
    host_ms: float | None = None
    tflops: float | None = None
    gbps: float | None = None
    roof: Roof | None = None
    ratios: dict[str, float] = field(default_factory=dict)  # baseline -> its time over this one's: above 1 is faster
    peak_bytes: int | None = None
    resources: dict[str, int] | None = None
    clocks: dict[str, str] = field(default_factory=dict)
    worst: float | None = None  # error over budget
    seconds: list[float] = field(default_factory=list)  # every sample

    @property
    def ms(self) -> float | None:
        return self.stats.median if self.stats is not None and self.status == MEASURED else None

    @property
    def fraction(self) -> float | None:
        return None if self.roof is None or self.ms is None else self.roof.ms / self.ms


@dataclass
class _Contestant:
    """One of a group, while it is measured."""

    result: Result
    call: Callable[[int], Any]  # of the number of a set of memory
    compute: str | None = None
    subject: Subject | None = None  # None: a baseline
    backend: str = ""
    deterministic: bool = True
    known: dict[int, dict[str, torch.Tensor]] = field(
        default_factory=dict
    )  # of untimed outputs what is compared, by number
    held: list[torch.Tensor] = field(default_factory=list)  # the previous call's outputs
    samples: list[float] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)  # samples with launch gaps in them
    hosts: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    checks: list[tuple[int, dict[str, torch.Tensor]]] = field(default_factory=list)
    when: dict[int, int] = field(default_factory=dict)  # round -> number of values, where outputs are judged
    hold: float = timing.HOLD  # seconds for which its calls hold a GPU back

    @property
    def alive(self) -> bool:
        return self.result.status == MEASURED

    def refuse(self, problem: str, status: str = REFUSED) -> None:
        self.result.status = status
        if problem not in self.result.problems:
            self.result.problems.append(problem)


def guard() -> Guard:
    """Watches what measures and judges; made before any kernel's file is imported."""
    whole = [
        time,
        budget,
        compare,
        output_rules,
        probe,
        timing,
        inputs_module,
        ceilings_module,
        Bank,
        timing.CpuTimer,
        CudaTimer,
        torch.cuda.Event,
    ]
    return Guard(
        [*whole, torch.cuda.Stream, torch.cuda.CUDAGraph], {torch: TORCH, torch.cuda: CUDA, torch.Tensor: TENSOR}
    )


def measure(
    group: Group,
    timer: Timer,
    watch: Guard,
    ceilings: Ceilings | None = None,
    seconds: float = 1.0,
    launched: Callable[[str, Callable[[], Any]], dict[str, int] | None] = lambda backend, call: None,
    clocks: Callable[[], dict[str, str]] = dict,
    noise_floor: bool = False,
    max_call_seconds: float = math.inf,
) -> list[Result]:
    """Measure a group for about `seconds` of calls for each contestant; one result each, in order, variants before
    baselines.

    `launched(backend, call)` gives the registers, spills and shared memory of what a call launches. With `noise_floor`
    every variant takes part a second time under its name and "(again)": the difference is noise. A kernel that needs
    more than
    `max_call_seconds` seconds for a call is not run.
    """
    if any(baseline.compiles for baseline in group.baselines):
        torch._dynamo.reset()  # what was compiled for earlier groups counts against a limit
    contestants = _take_turns(group, timer, watch, seconds, launched, clocks, noise_floor, max_call_seconds)
    for one in contestants:
        _conclude(one, group, timer, ceilings)
    results = [one.result for one in contestants]
    _compare_with_baselines(results)
    contestants.clear()
    if timer.device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    return results


def _take_turns(
    group: Group,
    timer: Timer,
    watch: Guard,
    seconds: float,
    launched: Callable[..., Any],
    clocks: Callable[[], dict[str, str]],
    noise_floor: bool,
    max_call_seconds: float,
) -> list[_Contestant]:
    with timer.within():
        bank = Bank(group.contract, group.bench, group.case, timer.device)
        contestants = _contestants(group, bank, timer, noise_floor)
        for one in contestants:
            _prepare(one, group, bank, timer, watch, launched, max_call_seconds)
        running = [one for one in contestants if one.alive]
        _rounds(running, bank, timer, watch, seconds)
        during = clocks()
        for one in running:
            _judge_timed(one, bank, timer, watch)
            one.result.clocks = during
            one.known.clear()
            one.held.clear()
    return contestants


def _contestants(group: Group, bank: Bank, timer: Timer, noise_floor: bool) -> list[_Contestant]:
    contract, case = group.contract, group.case
    found = []
    for again in ("", AGAIN) if noise_floor else ("",):
        for backend, subject in group.subjects:
            result = _result(group, subject.name + again, subject.target, "variant", timer)
            result.compute = subject.compute
            calls = [_bound(contract, subject, bank.arguments(place)) for place in range(PLACES)]
            deterministic = subject.deterministic and subject.own
            found.append(
                _Contestant(
                    result, partial(_nth, calls), subject.compute, subject, backend, deterministic=deterministic
                )
            )
    for baseline in group.baselines:
        result = _result(group, baseline.name, f"baseline@{timer.device}", "baseline", timer)
        found.append(_Contestant(result, partial(_nth, _BaselineCalls(baseline, bank, case)), deterministic=False))
    return found


def _nth(calls: Any, place: int) -> Any:
    return calls[place]()


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


def _result(group: Group, name: str, target: str, kind: str, timer: Timer) -> Result:
    case = group.case
    return Result(case.op, name, target, kind, case.dtype, case.size, group.params, group.mode, timer.cache, MEASURED)


def _bound(contract: Contract, subject: Subject, arguments: Mapping[str, Any]) -> Callable[[], Any]:
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


def _prepare(
    one: _Contestant,
    group: Group,
    bank: Bank,
    timer: Timer,
    watch: Guard,
    launched: Callable[..., Any],
    max_call_seconds: float,
) -> None:
    """Call the contestant on every known set of values, untimed: compiled, warm and judged."""
    result = one.result
    state = probe.State(random=False)
    try:
        for number in range(KNOWN if one.subject is not None else PLACES):
            place = number % PLACES
            bank.load(place, number)
            with probe.poison(probe.PATTERNS[number % 2], bank.device, output_bytes(group.contract, group.case)):
                start = timing.now()
                returned = one.call(place)
                timer.synchronize()
                taken = timing.now() - start
            _look_at_clocks(one, watch)
            outputs = _outputs(one, group.contract, bank, returned, place) if one.alive else None
            if outputs is None:
                return
            gathered = bank.gather(outputs)
            worst, wrong = bank.judge(gathered, number, one.compute)
            result.worst = worst if result.worst is None else max(result.worst, worst)
            if wrong:
                if one.subject is None:
                    result.notes.append(f"outside the budget: {wrong[0]}")
                    break
                one.refuse(f"wrong before it was timed: {wrong[0]}", FAILED)
                return
            if number and taken > max_call_seconds:
                one.refuse(f"a call takes {taken:.3g} s, and --max-call-seconds is {max_call_seconds:g}", NOT_RUN)
                return
            one.known[number] = gathered
            one.held = list(outputs.values())
        result.peak_bytes = _peak_memory(partial(one.call, 0), timer)
        if one.subject is not None:
            result.resources = launched(one.backend, partial(one.call, 0))
        if timer.cache == GRAPH:
            # type: ignore[union-attr]
            calls = [Graph(partial(one.call, place), timer.stream) for place in range(PLACES)]
            one.call, one.held = partial(_nth, calls), []
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
        _look_at_clocks(one, watch)


def _outputs(
    one: _Contestant, contract: Contract, bank: Bank, returned: Any, place: int
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


def _rounds(running: Sequence[_Contestant], bank: Bank, timer: Timer, watch: Guard, seconds: float) -> None:
    """Time the contestants interleaved (A/B/A/B), so that drift affects all of them equally."""
    plans = {}
    for one in running:
        pilot = min(_timed(one, bank, timer, None, watch) for _ in range(PILOTS if one.alive else 1))
        rounds = int(seconds / max(pilot, one.hold, 1e-4))
        plans[id(one)] = RECHECKS + FRESH if pilot > SLOW else max(LEAST[timer.device], min(MOST[timer.device], rounds))
        if one.subject is not None:
            some = secret.sample(range(plans[id(one)]), RECHECKS + FRESH)
            one.when = {r: KNOWN + i if i < FRESH else -1 for i, r in enumerate(some)}
        one.samples, one.exposed, one.hosts, one.lags = [], [], [], []
    for turn in range(max(plans.values(), default=0)):
        for one in running if turn % 2 == 0 else reversed(running):
            if one.alive and turn < plans[id(one)]:
                _timed(one, bank, timer, turn, watch)


def _timed(one: _Contestant, bank: Bank, timer: Timer, turn: int | None, watch: Guard) -> float:
    """One timed call; its outputs are looked at, on the turns that were drawn for it closely."""
    place = secret.randrange(PLACES)
    number = bank.another(place)
    checked = turn is not None and turn in one.when
    if turn is not None and one.when.get(turn, -1) >= KNOWN:
        number = one.when[turn]
    bank.load(place, number)
    call = partial(one.call, place)
    threads = set(threading.enumerate())
    after = partial(_keep, one, bank) if checked else None
    try:
        if timer.cache == WARM and isinstance(timer, CudaTimer):
            call()
        timer.hold = one.hold
        sample = timer.time(call, after)
        one.hold = timer.hold
    except Exception as error:
        one.refuse(f"a timed call raised {error_text(error)}", FAILED if one.subject is not None else NOT_RUN)
        return math.inf
    _look_at_clocks(one, watch)
    if one.subject is not None:
        if started := [t.name for t in set(threading.enumerate()) - threads if t.is_alive()]:
            one.refuse(f"a timed call left a thread running ({started[0]}): work may come after the clock has stopped")
        outputs = _outputs(one, bank.contract, bank, sample.returned, place)
        if outputs is not None:
            if checked and sample.kept is not None:
                one.checks.append((number, sample.kept))
            if timer.cache != GRAPH:
                one.held = list(outputs.values())
            for tensor in outputs.values():
                spoil(tensor)
        if turn is not None and bank.altered(place):
            one.refuse(f"a timed call wrote its input {bank.altered(place)[0]}")
    if sample.exposed:
        one.exposed.append(sample.seconds)
    else:
        one.samples.append(sample.seconds)
        if number >= KNOWN:
            one.fresh.append(sample.seconds)
    one.hosts.append(sample.host)
    one.lags.append(sample.lag)
    return sample.seconds


def _keep(one: _Contestant, bank: Bank, returned: Any) -> dict[str, torch.Tensor]:
    """Of a timed call's outputs what is judged later, taken on the call's own stream right behind it.

    Work that runs elsewhere, or later, is not in it.
    """
    values = bank.contract.by_name(returned, one.subject.outputs if one.subject else None)
    if isinstance(values, str):
        return {}
    return bank.gather({n: t for n, t in values.items() if type(t) is torch.Tensor and t.is_contiguous()})


def _judge_timed(one: _Contestant, bank: Bank, timer: Timer, watch: Guard) -> None:
    """Judge the timed outputs that were kept, and hold the samples against one another and against the clock."""
    if one.alive and len(one.samples) < LEAST[timer.device] // 2:
        one.result.notes.append("launch overhead could not be hidden: times include launch gaps")
        one.samples += one.exposed
    if one.subject is None or not one.alive:
        return
    device = timer.device
    timer.synchronize()
    for number, gathered in one.checks:
        _, wrong = bank.judge(gathered, number, one.compute)
        if wrong or not gathered:
            which = "values it had not seen before" if number >= KNOWN else "values it was right on before"
            one.refuse(f"a timed call on {which} is wrong: {(wrong or ['nothing came back'])[0]}")
        elif one.deterministic and not all(
            same_bits(t, one.known[number][n]) for n, t in gathered.items() if number < KNOWN
        ):
            one.refuse("a timed output differs from what the same values gave when nothing was timed")
    median = timing.stats(one.samples).median * 1e-3
    usual, fresh = _usual(one, device), min(one.fresh, default=0.0)
    if fresh > FRESH_RATIO * usual + FRESH_SLACK[device]:
        one.refuse(f"calls on values never seen before take {fresh * 1e3:.3g} ms, others {usual * 1e3:.3g} ms")
    lag = timing.stats(one.lags).median * 1e-3
    if lag > timing.LAG + 0.2 * median:
        one.refuse(f"the GPU works on for {lag * 1e3:.3g} ms after the call's own stream is done")
    if not one.alive:
        return
    host = timing.stats(one.hosts).median * 1e-3
    count = max(1, min(20, int(0.02 / max(median, host, 1e-6))))
    try:
        bulk = min(timer.bulk(partial(one.call, place), count) for place in range(PLACES))
    except Exception as error:
        one.refuse(f"calls one after another raise {error_text(error)}", FAILED)
        return
    if bulk > BULK_RATIO * max(median, host) + BULK_SLACK[device]:
        one.refuse(
            f"{count} calls in a row take {bulk * 1e3:.3g} ms each by the host's clock, one alone "
            f"{median * 1e3:.3g} ms: "
            f"the time of one leaves work out"
        )
    _look_at_clocks(one, watch)


def _usual(one: _Contestant, device: str) -> float:
    """Seconds of a call on values seen before: the third quartile; on a CPU that others use too, the longest."""
    others = [seconds for seconds in one.samples if seconds not in one.fresh] or one.samples
    return timing.stats(others).q3 * 1e-3 if device == "cuda" else max(others)


def _look_at_clocks(one: _Contestant, watch: Guard) -> None:
    if changed := watch.changed():
        text = f"what measures or judges was replaced: {', '.join(changed)}"
        if one.subject is None:
            one.result.notes.append(text)
        else:
            one.refuse(text)


def _conclude(one: _Contestant, group: Group, timer: Timer, ceilings: Ceilings | None) -> None:
    """From samples to numbers; none for whoever was refused, nor for what is faster than the machine can be."""
    result, contract, case = one.result, group.contract, group.case
    if not one.alive or not one.samples:
        if one.alive:
            one.refuse("not timed", NOT_RUN)
        return
    taken = timing.stats(one.samples)
    flops = contract.flops(case.size, case.param)
    moved = contract.bytes(case.size, case.param, case.torch_dtype.itemsize)
    if ceilings is not None:
        written = sum(
            math.prod(contract.shape(output.axes, case.size)) * (output.dtype or case.torch_dtype).itemsize
            for output in contract.outputs.values()
        )
        roof = ceilings.roof(flops, moved, written, case.dtype, one.compute, timer.cache != WARM)
        result.roof = roof
        if roof is not None and taken.median < roof.limit:
            text = f"{taken.median:.4g} ms is above the roofline: {roof.limit:.4g} ms is the least this machine takes"
            if one.subject is not None:
                one.refuse(text)
                return
            result.notes.append(text)
    result.stats, result.seconds = taken, list(one.samples)
    result.host_ms = timing.stats(one.hosts).median if timer.device == "cuda" else None
    result.tflops, result.gbps = flops / taken.median * 1e-9, moved / taken.median * 1e-6


def _compare_with_baselines(results: Sequence[Result]) -> None:
    baselines = {result.name: result.ms for result in results if result.kind == "baseline" and result.ms is not None}
    for result in results:
        if result.ms is not None:
            result.ratios = {name: ms / result.ms for name, ms in baselines.items() if name != result.name}
        again = next((r for r in results if r.name == result.name + AGAIN and r.target == result.target), None)
        if again is not None and result.ms is not None and again.ms is not None:
            result.ratios["itself"] = again.ms / result.ms
