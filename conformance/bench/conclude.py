"""From samples to numbers: medians, rates, the roofline, and ratios to the baselines."""

import math
from collections.abc import Sequence

from touchstone.conformance.bench import timing
from touchstone.conformance.bench.ceilings import Ceilings
from touchstone.conformance.bench.contestant import Contestant
from touchstone.conformance.bench.group import AGAIN, NOT_RUN, Group, Result
from touchstone.conformance.bench.timing import WARM, Timer


def conclude(one: Contestant, group: Group, timer: Timer, ceilings: Ceilings | None) -> None:
    """From samples to numbers; none for whoever was refused, nor for what is faster than the machine can be."""
    result, contract, case = one.result, group.contract, group.case
    if not one.alive or not one.samples:
        if one.alive:
            one.refuse("not timed", NOT_RUN)
        return
    taken = timing.stats(one.samples)
    flops = contract.flops(case.size, case.param)
    moved = contract.bytes(case.size, case.param, case.torch_dtype.itemsize)
    emulated = timer.device == "cpu" and one.backend != ""  # its rates are no share of this machine's
    if ceilings is not None and not emulated:
        written = sum(
            math.prod(contract.output_shape(name, case)) * contract.output_dtype(name, case).itemsize
            for name in contract.outputs
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
    if timer.device == "cuda":
        result.host_ms = timing.stats(one.hosts).median if one.launch is None else 1e3 * one.launch
    result.tflops, result.gbps = flops / taken.median * 1e-9, moved / taken.median * 1e-6


def compare_with_baselines(results: Sequence[Result]) -> None:
    baselines = {result.name: result.ms for result in results if result.kind == "baseline" and result.ms is not None}
    for result in results:
        if result.ms is not None:
            result.ratios = {name: ms / result.ms for name, ms in baselines.items() if name != result.name}
        again = next((r for r in results if r.name == result.name + AGAIN and r.target == result.target), None)
        if again is not None and result.ms is not None and again.ms is not None:
            result.ratios["itself"] = again.ms / result.ms
