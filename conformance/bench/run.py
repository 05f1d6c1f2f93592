"""Verify, time, verify again: the measurement of one group, the variants and baselines that share an op, a case and a
dtype.

A variant is called on inputs whose float64 answer is known, then timed, interleaved with the rest of its group, each
time on values that differ from those the memory held before. Some of its timed outputs, which it cannot foresee, are
compared with the answer, some with what it returned when nothing was timed, bit by bit. A variant against which
anything is found gets no number.
"""

import gc
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from touchstone.conformance.bench import ceilings as ceilings_module
from touchstone.conformance.bench import hooks, inputs, rounds, timing
from touchstone.conformance.bench.ceilings import Ceilings
from touchstone.conformance.bench.conclude import compare_with_baselines, conclude
from touchstone.conformance.bench.contestant import Contestant, contestants, unbound, verify
from touchstone.conformance.bench.group import NOT_RUN, Group, Result
from touchstone.conformance.bench.inputs import Bank
from touchstone.conformance.bench.rounds import judge_timed, time_rounds
from touchstone.conformance.bench.timing import CudaTimer, Guard, Timer
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.spec import budget, compare, outputs

# what of torch is used to time and to judge; torch itself wraps others of its functions when it compiles
TORCH = [
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
]
CUDA = [
    "synchronize",
    "current_stream",
    "stream",
    "Event",
    "Stream",
    "CUDAGraph",
    "_sleep",
    "graph",
    "memory_allocated",
]
TENSOR = [
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
]


def guard() -> Guard:
    """Watches what measures and judges; made before any kernel's file is imported."""
    modules = [time, budget, compare, outputs, probe, timing, inputs, hooks, rounds, ceilings_module]
    classes = [Bank, timing.CpuTimer, CudaTimer, torch.cuda.Event, torch.cuda.Stream, torch.cuda.CUDAGraph]
    return Guard([*modules, *classes], {torch: TORCH, torch.cuda: CUDA, torch.Tensor: TENSOR})


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
    more than `max_call_seconds` seconds for a call is not run.
    """
    if any(baseline.compiles for baseline in group.baselines):
        torch._dynamo.reset()  # what was compiled for earlier groups counts against a limit
    try:
        found = _take_turns(group, timer, watch, seconds, launched, clocks, noise_floor, max_call_seconds)
    except torch.OutOfMemoryError as error:
        results = _not_run(group, timer, noise_floor, str(error).partition(". ")[0])
    else:
        for one in found:
            conclude(one, group, timer, ceilings)
        results = [one.result for one in found]
        compare_with_baselines(results)
        found.clear()
    if timer.device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    return results


def _not_run(group: Group, timer: Timer, noise_floor: bool, why: str) -> list[Result]:
    """Rows without a number: inputs, outputs and answers of the group are more than the GPU's memory holds."""
    results = []
    for one in unbound(group, timer, noise_floor):
        one.status = NOT_RUN
        one.problems.append(f"the group takes more than the memory of the GPU: {why}")
        results.append(one)
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
) -> list[Contestant]:
    """Verify all, time them in turns, judge what was timed; the inputs' memory is released on return."""
    with timer.within():
        bank = Bank(group.contract, group.bench, group.case, timer.device)
        found = contestants(group, bank, timer, noise_floor)
        for one in found:
            verify(one, group, bank, timer, watch, launched, max_call_seconds)
        running = [one for one in found if one.alive]
        time_rounds(running, bank, timer, watch, seconds)
        during = clocks()
        for one in running:
            judge_timed(one, bank, timer, watch)
            one.result.clocks = during
            one.known.clear()
            one.held.clear()
    return found
