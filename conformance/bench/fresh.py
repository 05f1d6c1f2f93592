"""A user's kernel on a GPU, timed in a fresh process: its crash, hang or memory is a result, and its file is imported
there alone.

That process has the GPU, draws the inputs, calls the baselines and judges, as `run.measure` does, and what watches
over it there is in the kernel's reach. This one holds it to a limit of time, takes results as JSON of one shape, and
compares what is claimed for a call with what rows of calls take by its own clock.
"""

import contextlib
import json
import math
import pickle
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch

from touchstone.backends.storage import files
from touchstone.conformance.bench import timing
from touchstone.conformance.bench.baselines import declared
from touchstone.conformance.bench.ceilings import Ceilings, Roof
from touchstone.conformance.bench.contestant import bound, result_of
from touchstone.conformance.bench.group import DECLINED, FAILED, MEASURED, NOT_RUN, REFUSED, Group, Result
from touchstone.conformance.bench.inputs import Values
from touchstone.conformance.bench.rounds import BULK_RATIO, BULK_SLACK
from touchstone.conformance.bench.run import guard
from touchstone.conformance.bench.run import measure as measure_here
from touchstone.conformance.bench.timing import Guard, Timer
from touchstone.conformance.discovery import registry
from touchstone.conformance.isolation import processes, serve
from touchstone.conformance.isolation.limits import Limits, Watch
from touchstone.conformance.isolation.processes import Child, flush
from touchstone.conformance.isolation.spawn import spawn
from touchstone.conformance.isolation.travel import ways
from touchstone.conformance.judging.executor import error_text

COMPILING = 600.0  # seconds that baselines which compile may take longer
MOST = 1 << 26  # bytes of a message
SAID = 4096  # characters of a text
ALIVE = {"alive": True}
STATUSES = (MEASURED, DECLINED, NOT_RUN, REFUSED, FAILED)
_now = time.perf_counter


def measure(
    group: Group,
    timer: Timer,
    ceilings: Ceilings | None,
    seconds: float,
    *,
    limits: Limits,
    clocks: Callable[[], dict[str, str]] = dict,
    noise_floor: bool = False,
    max_call_seconds: float = math.inf,
) -> list[Result]:
    """As `run.measure`, of one user's kernel and the baselines, in a fresh process that gives a sign of life within
    `limits.seconds`."""
    ((_, subject),) = group.subjects
    names = [baseline.name for baseline in group.baselines]
    about = dict(case=group.case, mode=group.mode, baselines=names, ceilings=ceilings, device=timer.device)
    about |= dict(cache=timer.cache, seconds=seconds, noise_floor=noise_floor, most=max_call_seconds)
    patience = limits.seconds + (COMPILING if any(baseline.compiles for baseline in group.baselines) else 0.0)
    child = spawn("touchstone.conformance.bench.fresh")
    try:
        watch = Watch(child)
        way = next(ways(subject.fn, True))
        without = replace(subject, fn=None)  # type: ignore[arg-type]
        request = (registry.op_file(subject.op), way, cloudpickle.dumps((without, about)))
        _send(child, pickle.dumps(request))
        told = _answer(child, watch, replace(limits, seconds=patience))
        results = [_result_from(each, group, timer) for each in told["results"]]
        _check_claim(results, child, watch, limits, timer.device)
        during = clocks()
        for result in results:
            result.clocks = during
        return results
    except _NotTimed as error:
        result = result_of(group, subject.name, subject.target, "variant", timer)
        result.status, result.problems = FAILED, [f"not timed: {error}"]
        return [result]
    finally:
        child.close()


class _NotTimed(Exception):
    """The process gave no results; the message says why."""


def _send(child: Child, message: bytes) -> None:
    try:
        child.connection.send_bytes(message)
    except OSError:
        raise _NotTimed(child.death().message) from None


def _answer(child: Child, watch: Watch, limits: Limits) -> dict[str, Any]:
    """The next answer that is more than a sign of life."""
    while True:
        try:
            death = watch.wait(limits)
            if death is not None:
                raise _NotTimed(death.message)
            found = files.parsed(child.connection.recv_bytes(MOST))
        except (EOFError, OSError):
            raise _NotTimed(child.death().message) from None
        except ValueError:
            raise _NotTimed("its process broke the protocol of the judge: an answer that is no JSON") from None
        if not isinstance(found, dict) or "failed" in found:
            raise _NotTimed(str(found["failed"])[:SAID] if isinstance(found, dict) else "an answer that is no object")
        if found != ALIVE:
            return found


def _check_claim(results: list[Result], child: Child, watch: Watch, limits: Limits, device: str) -> None:
    """Hold the time of a call against what rows of calls take by this process's clock: what more calls take longer."""
    result = results[0]
    if result.ms is None:
        return
    claimed = max(result.ms, result.host_ms or 0.0) * 1e-3
    count = max(2, min(20, int(0.02 / max(claimed, 1e-6))))
    took = []
    for calls in (count, 2 * count):
        begin = _now()
        _send(child, json.dumps({"calls": calls}).encode())
        _answer(child, watch, limits)
        took.append(_now() - begin)
    each = (took[1] - took[0]) / count
    if each > BULK_RATIO * claimed + BULK_SLACK[device]:
        result.status = REFUSED
        result.problems.append(
            f"calls in a row take {each * 1e3:.3g} ms each by the judge's clock, and {claimed * 1e3:.3g} ms are claimed"
        )


def _result_from(told: Any, group: Group, timer: Timer) -> Result:
    """A result as another process tells it, every field of the type that it must have. Raises _NotTimed."""
    try:
        found = result_of(group, str(told["name"])[:SAID], str(told["target"])[:SAID], "variant", timer)
        found.kind = "baseline" if told["kind"] == "baseline" else "variant"
        found.status = told["status"] if told["status"] in STATUSES else FAILED
        for name in ("problems", "notes"):
            setattr(found, name, [str(each)[:SAID] for each in told[name]])
        for name in ("host_ms", "tflops", "gbps", "worst"):
            setattr(found, name, None if told[name] is None else float(told[name]))
        found.compute = None if told["compute"] is None else str(told["compute"])[:SAID]
        found.peak_bytes = None if told["peak_bytes"] is None else int(told["peak_bytes"])
        found.ratios = {str(name): float(each) for name, each in told["ratios"].items()}
        found.seconds = [float(each) for each in told["seconds"]]
        found.stats = timing.stats(found.seconds) if found.seconds and told["stats"] is not None else None
        roof = told["roof"]
        found.roof = None if roof is None else Roof(float(roof["ms"]), float(roof["limit"]), str(roof["bound"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _NotTimed(f"its process broke the protocol of the judge: {type(error).__name__}") from None
    return found


# the other process


class _Beating(Guard):
    """A guard that tells the judge each time it is asked: after every call."""

    def __init__(self, watch: Guard, connection: Connection) -> None:
        self._watch, self._connection = watch, connection

    def changed(self, restore: bool = True) -> list[str]:
        self._connection.send_bytes(json.dumps(ALIVE).encode())
        return self._watch.changed(restore)


def main(connection: Connection) -> None:
    """In the fresh process: one request for a measurement, then requests for rows of calls."""
    watch = _Beating(guard(), connection)  # before the kernel's file is imported
    try:
        subject, about = serve.receive(*processes.request(connection))
        results, call, timer = _measured(subject, about, watch)
    except Exception as error:
        flush()
        connection.send_bytes(json.dumps({"failed": error_text(error)}).encode())
        return
    flush()
    connection.send_bytes(json.dumps({"results": [asdict(result) for result in results]}).encode())
    with contextlib.suppress(EOFError, OSError), timer.within():
        while True:
            calls = json.loads(connection.recv_bytes())["calls"]
            timer.synchronize()
            for _ in range(calls):
                call()
            timer.synchronize()
            connection.send_bytes(json.dumps({"done": calls}).encode())


def _measured(subject: Any, about: Any, watch: Guard) -> tuple[list[Result], Callable[[], Any], Timer]:
    """The results of a group, a call of the kernel on other values, and the timer."""
    contract, bench, case = registry.contract(subject.op), declared(subject.op), about["case"]
    baselines = [each for each in bench.baselines if each.name in about["baselines"]]
    group = Group(contract, bench, case, [("", subject)], baselines, about["mode"])
    timer = timing.timer(about["device"], about["cache"])
    results = measure_here(
        group,
        timer,
        watch,
        about["ceilings"],
        about["seconds"],
        noise_floor=about["noise_floor"],
        max_call_seconds=about["most"],
    )
    values = Values(contract, bench, case, about["device"])
    call: Callable[[], Any] = partial(torch.empty, 0)
    if results[0].status == MEASURED:
        call = bound(contract, subject, {**values.memory_of(values.draw()), **case.param})
        with timer.within():
            call()
    return results, call, timer
