"""The timed calls of a group, and what they are held to: outputs, threads, samples against each other and the clock."""

import contextlib
import math
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from touchstone.conformance.bench import timing
from touchstone.conformance.bench.contestant import Contestant, look_at_clocks, outputs_of
from touchstone.conformance.bench.group import FAILED, NOT_RUN
from touchstone.conformance.bench.hooks import Hooks
from touchstone.conformance.bench.inputs import FRESH, KNOWN, PLACES, Bank, same_bits, secret, spoil
from touchstone.conformance.bench.timing import GRAPH, WARM, CudaTimer, Guard, Timer
from touchstone.conformance.judging.executor import error_text

RECHECKS = 3  # timed outputs that are judged, beside those on fresh values
LEAST, MOST = {"cuda": 10, "cpu": 5}, {"cuda": 200, "cpu": 15}
PILOTS = 3  # timed calls before the rounds, from which their number follows
SLOW = 0.5  # seconds; slower kernels get the least rounds
# a call on values never seen before may take this many times as long as others, and a call in a row of calls this many
# times less; the slacks are seconds: a process that shares its core waits for some
FRESH_RATIO, FRESH_SLACK = 1.5, {"cuda": 2e-5, "cpu": 2e-2}
BULK_RATIO, BULK_SLACK = 1.6, {"cuda": 1e-4, "cpu": 2e-2}


def time_rounds(running: Sequence[Contestant], bank: Bank, timer: Timer, watch: Guard, seconds: float) -> None:
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


def _timed(one: Contestant, bank: Bank, timer: Timer, turn: int | None, watch: Guard) -> float:
    """One timed call; its outputs are looked at, on the turns that were drawn for it closely."""
    place = secret.randrange(PLACES)
    number = bank.another(place)
    checked = turn is not None and turn in one.when
    if turn is not None and one.when.get(turn, -1) >= KNOWN:
        number = one.when[turn]
    bank.load(place, number)
    threads, hooks = set(threading.enumerate()), Hooks()
    after = partial(_keep, one, bank) if checked else None
    try:
        if timer.cache == WARM and isinstance(timer, CudaTimer):
            one.call(place)
        if timer.cache != GRAPH:
            one.renew(place)
        call = partial(one.call, place)
        timer.hold = one.hold
        sample = timer.time(call, after)
        one.hold = timer.hold
    except Exception as error:
        one.refuse(f"a timed call raised {error_text(error)}", FAILED if one.subject is not None else NOT_RUN)
        return math.inf
    look_at_clocks(one, watch)
    if one.subject is not None:
        if started := [t.name for t in set(threading.enumerate()) - threads if t.is_alive()]:
            one.refuse(f"a timed call left a thread running ({started[0]}): work may come after the clock has stopped")
        if changed := hooks.changes():
            one.refuse(f"a timed call left what runs beside the calls changed: {', '.join(changed)}")
        outputs = outputs_of(one, bank.contract, bank, sample.returned, place)
        if outputs is not None:
            if checked and sample.kept is not None:
                one.checks.append((number, one.params.get(place), sample.kept))
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


def _keep(one: Contestant, bank: Bank, returned: Any) -> dict[str, torch.Tensor]:
    """Of a timed call's outputs what is judged later, taken on the call's own stream right behind it.

    Work that runs elsewhere, or later, is not in it.
    """
    values = bank.contract.by_name(returned, one.subject.outputs if one.subject else None)
    if isinstance(values, str):
        return {}
    return bank.gather({n: t for n, t in values.items() if type(t) is torch.Tensor and t.is_contiguous()})


def judge_timed(one: Contestant, bank: Bank, timer: Timer, watch: Guard) -> None:
    """Judge the timed outputs that were kept, and hold the samples against one another and against the clock."""
    if one.alive and len(one.samples) < LEAST[timer.device] // 2:
        one.result.notes.append("launch overhead could not be hidden: times include launch gaps")
        one.samples += one.exposed
    if not one.alive:
        return
    device = timer.device
    timer.synchronize()
    if one.subject is None and device == "cpu":
        return
    if one.subject is None:
        with contextlib.suppress(Exception):  # a baseline that takes no second call keeps its time
            one.launch = min(each.host for each in _in_a_row(one, timer)[1])
        return
    for number, params, gathered in one.checks:
        _, wrong = bank.judge(gathered, number, one.compute, params)
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
    try:
        count, bulks = _in_a_row(one, timer)
    except Exception as error:
        one.refuse(f"calls one after another raise {error_text(error)}", FAILED)
        return
    bulk, one.launch = min(each.seconds for each in bulks), min(each.host for each in bulks)
    if bulk > BULK_RATIO * max(median, host) + BULK_SLACK[device]:
        one.refuse(
            f"{count} calls in a row take {bulk * 1e3:.3g} ms each by the host's clock, one alone {median * 1e3:.3g} "
            "ms: the time of one leaves work out"
        )
    look_at_clocks(one, watch)


def _in_a_row(one: Contestant, timer: Timer) -> tuple[int, list[timing.Bulk]]:
    """How many calls were made one after another, and what one of them took, in each place."""
    longest = max(timing.stats(one.samples).median, timing.stats(one.hosts).median) * 1e-3
    count = max(1, min(20, int(0.02 / max(longest, 1e-6))))
    return count, [timer.bulk(partial(one.call, place), count) for place in range(PLACES)]


def _usual(one: Contestant, device: str) -> float:
    """Seconds of a call on values seen before: the third quartile; on a CPU that others use too, the longest."""
    others = [seconds for seconds in one.samples if seconds not in one.fresh] or one.samples
    return timing.stats(others).q3 * 1e-3 if device == "cuda" else max(others)
