"""A user's kernel timed in a process of its own, whose clock, inputs and judging are in this one; on the CPU.

Baselines are called in another process, which has none of the kernel's code, in the same way and in turns with it: so
what either takes beside the calls is the same, and a kernel can slow down nobody else. What a batch of calls that do
nothing takes is measured among them and taken off. Every call gets values that were never there before, each output of
every timed call is judged, at places drawn once the process stands still.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from touchstone.conformance.bench.calls import LATER, NOTHING, serve_baselines, serve_kernel
from touchstone.conformance.bench.ceilings import Ceilings
from touchstone.conformance.bench.conclude import compare_with_baselines, conclude
from touchstone.conformance.bench.contestant import Contestant, result_of
from touchstone.conformance.bench.group import AGAIN, DECLINED, FAILED, NOT_RUN, REFUSED, Group, Result
from touchstone.conformance.bench.inputs import SEED, Values
from touchstone.conformance.bench.rounds import LEAST, MOST
from touchstone.conformance.bench.stopwatch import Cheat, NotTimed, Stopwatch, Taken, orphans
from touchstone.conformance.bench.timing import CpuTimer, stats
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation.child import CallingChild, forked, shared_memory
from touchstone.conformance.isolation.confined import confined
from touchstone.conformance.isolation.fork import fork
from touchstone.conformance.isolation.limits import Limits, Watch

BATCH_SECONDS = 5e-3  # of calls that one reading of the clock is of, where they are shorter
CALLS = 32  # of a batch at most
BYTES = 1 << 26  # and of all operands and outputs of a batch, unless one call has more
PILOTS = 3  # calls before the rounds, from which the number of calls of a batch follows
SLOW = 0.5  # seconds of a call from which there are the least rounds
SHORTEST = 1e-8  # seconds of a call, where the clock cannot tell it from nothing
AGAIN_IF_LOST = 2  # times that is measured again what took no longer than nothing: other work may have come between
THREADS = 1.5  # processor seconds in a second from which a kernel is said to work in several threads

_Drawn = dict[str, torch.Tensor | None]


@dataclass
class _Turns:
    """One contestant in its process."""

    one: Contestant
    watch: Stopwatch
    name: str
    count: int = 1  # calls of a batch
    rounds: int = 0
    taken: list[Taken] = field(default_factory=list)


def is_emulated(subject: Subject, group: Group) -> bool:
    """Whether an interpreter or emulator runs the kernels of a user's function here, as its process says. Raises
    ValueError where its file does not import, or the function is not one of the op."""
    with orphans(), _kernel(subject, group, Limits()) as watch, contextlib.suppress(NotTimed):
        watch.ask()
        return watch.emulated
    return False


def measure(
    group: Group,
    ceilings: Ceilings | None = None,
    seconds: float = 1.0,
    *,
    limits: Limits,
    noise_floor: bool = False,
    max_call_seconds: float = math.inf,
) -> list[Result]:
    """As `run.measure`, of a group whose variants are users' functions on the CPU, each in a process of its own that
    `limits` hold for: seconds of a batch of calls, and bytes that its memory may grow by."""
    found: list[_Turns] = []
    threads = torch.get_num_threads()
    with orphans() as left, contextlib.ExitStack() as stack:
        torch.set_num_threads(1)  # threads that wait for more work would take a core from what is timed
        stack.callback(torch.set_num_threads, threads)
        values = Values(group.contract, group.bench, group.case, "cpu")
        found, nothing = _enter(stack, group, limits, noise_floor)
        example = values.draw()
        for each in found:
            _attempt(each, partial(_pilot, each, values, example, seconds, max_call_seconds))
        empty = _in_turns(found, nothing, values, example)
        for _ in range(AGAIN_IF_LOST):
            lost = [each for each in found if _is_lost(each, empty.get(each.count))]
            for each in lost:
                each.taken.clear()
            empty |= _in_turns(lost, nothing, values, example)
    for each in found:
        if left and each.one.subject is not None:
            each.one.refuse(f"processes outlived its own: {len(left)}")
        _conclude(each, group, empty, ceilings)
    results = [each.one.result for each in found]
    compare_with_baselines(results)
    return results


def _enter(
    stack: contextlib.ExitStack, group: Group, limits: Limits, noise_floor: bool
) -> tuple[list[_Turns], Stopwatch]:
    """The contestants, variants before baselines, and the process of baselines."""
    timer, found = CpuTimer(), []
    for again in ("", AGAIN) if noise_floor else ("",):
        for _, subject in group.subjects:
            result = result_of(group, subject.name + again, subject.target, "variant", timer)
            result.compute = subject.compute
            one = Contestant(result, _not_here, subject.compute, subject, deterministic=False)
            found.append(_Turns(one, stack.enter_context(_kernel(subject, group, limits)), subject.name))
    baselines = stack.enter_context(_baselines(group, limits))
    for baseline in group.baselines:
        result = result_of(group, baseline.name, "baseline@cpu", "baseline", timer)
        found.append(_Turns(Contestant(result, _not_here, deterministic=False), baselines, baseline.name))
    return found, baselines


def _not_here(place: int) -> Any:
    raise AssertionError("a call that another process makes was asked for here")


@contextlib.contextmanager
def _kernel(subject: Subject, group: Group, limits: Limits) -> Iterator[Stopwatch]:
    child: CallingChild = forked(
        subject, [], lambda connection, shared, each: serve_kernel(connection, shared, each, group.contract, group.case)
    )
    with _stopwatch(child, limits) as watch:
        yield watch


@contextlib.contextmanager
def _baselines(group: Group, limits: Limits) -> Iterator[Stopwatch]:
    shared = shared_memory()
    subject = group.subjects[0][1]  # none of its code is there; where it is confined, this is too, which takes time

    def body(connection: Connection) -> None:
        serve_baselines(connection, shared, group.baselines, group.contract, group.case)

    process = confined(subject, shared, body) if subject.untrusted else fork(body)
    child = CallingChild(process, shared, subject, [])
    child.remote.ready(limits.seconds)
    with _stopwatch(child, limits) as watch:
        yield watch


@contextlib.contextmanager
def _stopwatch(child: CallingChild, limits: Limits) -> Iterator[Stopwatch]:
    watch = Stopwatch(child.process, child.shared, Watch(child.process), limits)
    try:
        yield watch
    finally:
        watch.close()


def _attempt(each: _Turns, step: Any) -> None:
    """Do a step of a contestant; what ends its process, or shows that it cheats, is its result."""
    if not each.one.alive:
        return
    status = FAILED if each.one.subject is not None else NOT_RUN
    try:
        step()
    except NotTimed as error:
        each.one.refuse(f"not timed: {error}", status)
    except Cheat as error:
        each.one.refuse(str(error))


def _pilot(each: _Turns, values: Values, example: _Drawn, seconds: float, max_call_seconds: float) -> None:
    """Calls that are judged and not counted: compiled, warm; how many calls a batch has follows from their time."""
    took = math.inf
    for number in range(PILOTS):
        taken = _batch(each, values, example, untimed=True)
        if taken is None:
            return
        took = min(took, max(taken.wall, taken.processor)) if number else math.inf
        if number and took > max_call_seconds:
            each.one.refuse(f"a call takes {took:.3g} s, and --max-call-seconds is {max_call_seconds:g}", NOT_RUN)
            return
    size = sum(t.nbytes for t in example.values() if t is not None)
    size += sum(math.prod(shape) * dtype.itemsize for shape, dtype in _sizes(values))
    each.count = max(1, min(CALLS, round(BATCH_SECONDS / took), BYTES // max(size, 1)))
    rounds = int(seconds / (each.count * took))
    each.rounds = LEAST["cpu"] if took > SLOW else max(LEAST["cpu"], min(MOST["cpu"], rounds))
    if each.count > 1:
        _batch(each, values, example, untimed=True)  # touches the memory of a batch


def _in_turns(found: Sequence[_Turns], nothing: Stopwatch, values: Values, example: _Drawn) -> dict[int, Taken]:
    """Batches of the contestants in turns, there and back; what batches of nothing took, by their number of calls."""
    empty: dict[int, list[Taken]] = {each.count: [] for each in found}
    for turn in range(max((each.rounds for each in found), default=0)):
        for each in found if turn % 2 == 0 else reversed(found):
            if turn < each.rounds:
                _attempt(each, partial(_timed, each, values, example))
        for count, taken in empty.items():
            with contextlib.suppress(NotTimed, Cheat):
                nothing.lay_out(example, [values.case.param] * count)
                nothing.prepare(NOTHING)
                nothing.put([example] * count)
                taken.append(nothing.time())
    for each in found:
        if each.one.subject is not None:
            _attempt(each, each.watch.ask)
    return {count: _middle(taken) for count, taken in empty.items() if taken}


def _middle(taken: Sequence[Taken]) -> Taken:
    wall, processor = (stats([getattr(each, name) for each in taken]).median for name in ("wall", "processor"))
    return Taken(wall * 1e-3, processor * 1e-3, {})


def _seconds(taken: Taken, nothing: Taken) -> float:
    """Of a batch: the larger of its time and its processor time, less what calls that do nothing take."""
    return max(taken.wall - nothing.wall, taken.processor - nothing.processor)


def _is_lost(each: _Turns, nothing: Taken | None) -> bool:
    """Whether the clock could not tell a contestant from nothing."""
    if not each.one.alive or nothing is None or not each.taken:
        return False
    return stats([_seconds(taken, nothing) for taken in each.taken]).median <= 0


def _timed(each: _Turns, values: Values, example: _Drawn) -> None:
    taken = _batch(each, values, example)
    if taken is not None:
        each.taken.append(taken)


def _batch(each: _Turns, values: Values, example: _Drawn, untimed: bool = False) -> Taken | None:
    """One batch of calls, judged; None where something is held against the contestant."""
    one, watch, kernel = each.one, each.watch, each.one.subject is not None
    params = [values.params() if kernel else values.case.param for _ in range(each.count)]  # of a baseline, its own
    drawn = [values.draw(given) for given in params] if kernel else [example] * each.count
    if kernel and values.draws_seeds:
        watch.lay_out(example, [{**given, SEED: LATER} for given in params], [given[SEED] for given in params])
    else:
        watch.lay_out(example, params)
    if not kernel:
        watch.put(drawn)  # some baselines work on their operands beforehand
    answer = watch.prepare(each.name, alone=kernel and not untimed)
    if "raised" in answer:
        one.refuse(str(answer["raised"]), FAILED if kernel else NOT_RUN)
        return None
    watch.put(drawn)  # a kernel sees them now, when the clock starts
    taken = watch.time(alone=kernel and not untimed)
    if not _returned(one, taken.answer):
        return None
    if kernel or untimed:
        _judge(each, values, drawn, params, taken.answer, untimed)
    return taken if one.alive else None


def _returned(one: Contestant, answer: dict[str, Any]) -> bool:
    """Whether the calls returned what calls must return, as far as their process says."""
    if "outputs" in answer:
        return True
    if "declined" in answer:
        one.refuse(str(answer["declined"]) or "declined", DECLINED)
    else:
        said = str(answer.get("raised") or f"{answer.get('ended')} would have ended the process")
        one.refuse(said, FAILED if one.subject is not None else NOT_RUN)
    return False


def _judge(
    each: _Turns,
    values: Values,
    drawn: Sequence[_Drawn],
    params: Sequence[Mapping[str, Any]],
    answer: dict[str, Any],
    untimed: bool,
) -> None:
    """Hold the outputs of a batch against the float64 answers, and its inputs against what was put there."""
    one, names = each.one, list(values.contract.outputs)
    rows = each.watch.outputs(answer["outputs"], _sizes(values))
    kernel = one.subject is not None
    owed = [name for name in names if one.subject is not None and name in (one.subject.outputs or names)]
    for row, given, param in zip(rows, drawn, params, strict=True):
        values.choose()
        outputs = {name: tensor for name, tensor in zip(names, row, strict=True) if tensor is not None}
        worst, wrong = values.judged(outputs, given, one.compute, owed, param)
        one.result.worst = worst if one.result.worst is None else max(one.result.worst, worst)
        if wrong and not kernel:
            one.result.notes[:] = one.result.notes or [f"outside the budget: {wrong[0]}"]
            return
        if wrong:
            each.watch.ask()  # which says more, if it is not for their values alone
            wrong = [each.watch.wrong, *wrong] if each.watch.wrong else wrong
            when = "wrong before it was timed" if untimed else "a timed call on values it had not seen before is wrong"
            one.refuse(f"{when}: {wrong[0]}", FAILED if untimed else REFUSED)
            return
    if kernel and (altered := each.watch.altered(drawn)):
        one.refuse(f"a call wrote its input {altered[0]}")


def _sizes(values: Values) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of each output."""
    contract, case = values.contract, values.case
    return [(contract.output_shape(name, case), contract.output_dtype(name, case)) for name in contract.outputs]


def _conclude(each: _Turns, group: Group, empty: dict[int, Taken], ceilings: Ceilings | None) -> None:
    """From readings of the clock to seconds of a call: the larger of its time and its processor time."""
    one, nothing = each.one, empty.get(each.count)
    if one.subject is not None and each.watch.changed:
        one.refuse(f"what runs beside the calls is left changed: {', '.join(dict.fromkeys(each.watch.changed))}")
    if one.subject is not None and one.alive and each.watch.wrong:
        one.refuse(each.watch.wrong)
    if one.alive and nothing is None:
        one.refuse("not timed: what calls that do nothing take could not be measured", NOT_RUN)
    if one.alive and nothing is not None:
        for taken in each.taken:
            one.samples.append(max(_seconds(taken, nothing), SHORTEST * each.count) / each.count)
        one.hosts = list(one.samples)
        worked, went = (sum(getattr(taken, name) for taken in each.taken) for name in ("processor", "wall"))
        if one.subject is not None and worked > THREADS * went:
            one.result.notes.append(
                f"works in several threads, {worked / went:.1f} processor seconds a second: those are its time here"
            )
    one.backend = "emulated" if each.watch.emulated else ""
    conclude(one, group, CpuTimer(), ceilings)
