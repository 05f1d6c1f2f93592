"""The wrong kernels in conformance/faults/cupy are rejected, and for their fault: without it the same kernel is right."""

import contextlib
import functools
import inspect
import os
import re
from dataclasses import replace

import pytest
import torch

from backends import emulator
from conformance import judge, registry
from conformance.faults import KINDS
from conformance.faults.cupy import _module

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

FOLDER = registry.ROOT / "conformance" / "faults" / "cupy"
OPS = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
PLANTED = {(op, one.name): one for op in OPS for one in registry.planted_kernels("cupy", op)}
FAULTS = [key for key, one in PLANTED.items() if not one.is_control]
LAUNCHER = re.compile(r'^def (\w+)\([^)]*fault: str = "none"', re.MULTILINE)
SOUND = [(op, name) for op in OPS for name in LAUNCHER.findall((FOLDER / f"{op}.py").read_text())]
SIZES = 5  # the smallest of a contract that a schedule or the race detector sees
WORK = 3e6  # of a case, in the contract's units; above it a kernel without a fault is not judged here
SEEDS = range(int(os.environ.get("TOUCHSTONE_SCHEDULES", "3")))

# By what is found first; everything else gives wrong values in a plain call.
FOUND = {
    "OutOfBounds": {
        "matmul": ["tile_row_overrun", "load_unguarded", "store_unguarded", "offset_int"],
        "softmax": ["offset_int", "store_unguarded"],
        "softmax_backward": ["load_unguarded"],
        "online_softmax": ["warps_overrun"],
        "rms_norm": ["shared_memory_of_elements", "partials_overrun", "run_too_many", "weight_stride_ignored"],
        "layer_norm_backward": ["part_too_many"],
        "attention": ["load_unguarded", "offset_int", "strides_of_k", "tile_overrun"],
        "group_norm": ["load_unguarded"],
    },
    "Misaligned": {"rms_norm": ["pointer_unaligned", "row_stride_unaligned"]},
    "UninitialisedShared": {
        "matmul": ["no_barrier_before_use", "unfilled_tile", "absent_lanes_summed"],
        "softmax": ["no_barrier_in_reduction", "partials_of_absent_warps"],
        "online_softmax": ["no_barrier_before_result"],
        "rms_norm": ["no_barrier_before_rstd", "no_barrier_before_partials"],
        "attention": ["no_barrier_before_use", "keys_unfilled"],
        "group_norm": ["totals_not_zeroed"],
    },
    "DivergentBarrier": {
        "matmul": ["early_return", "barrier_in_branches"],
        "attention": ["early_return"],
        "group_norm": ["barrier_in_loop"],
    },
    "InactiveLanes": {
        "matmul": ["lanes_left_out"],
        "softmax": ["ragged_warp"],
        "softmax_backward": ["mask_of_lower_half", "mask_of_all", "step_across"],
        "online_softmax": ["lanes_left_out"],
        "group_norm": ["ballot_of_some"],
    },
    "RaceCondition": {
        "matmul": ["splits_add_without_atomic"],
        "softmax": ["reduction_buffer_reused", "warp_synchronous"],
        "layer_norm_backward": ["no_threadfence", "reduction_buffer_reused"],
        "group_norm": ["no_barrier_after_zero", "totals_without_atomic"],
    },
    "under threads in reverse": {
        "layer_norm_backward": ["ticket_of_each_thread"],
        "group_norm": ["no_barrier_before_mean"],
    },
    "ValueError": {"matmul": ["elements_along_y"], "softmax": ["block_of_all_columns"]},
    "repeat": {"matmul": ["sums_kept"], "layer_norm_backward": ["tickets_kept"]},
}
EXPECTED = {(op, name): what for what, ops in FOUND.items() for op, names in ops.items() for name in names}


@functools.cache
def trials(op, level="quick"):
    """The least work first."""
    subject = judge.Subject(op, judge.not_called, "planted", "planted@cpu", "cpu")
    found = judge.trials(subject, level)[0]
    if level == "quick":
        judge.keep_answers(found)
    return sorted(found, key=lambda trial: registry.contract(op).work(trial.case))


def failure(op, fn, found, deterministic=False):
    """The first finding that is a failure, as text; None if there is none."""
    subject = judge.Subject(op, fn, fn.__name__, "cupy@cpu", "cpu", deterministic=deterministic, diagnosed=False)
    for trial in found:
        for finding in judge.run(subject, trial).findings:
            if finding.severity == "failure":
                return f"{finding.check}: {finding.message}"
    return None


def sound(op, name):
    """A launcher as a function of the op's signature, with no fault switched on."""
    launcher = getattr(inspect.getmodule(PLANTED[next(key for key in FAULTS if key[0] == op)].make()), name)
    order = [operand for operand, made in registry.contract(op).operands.items() if made.positional]
    plain = {
        parameter.name: parameter.default if parameter.default is not parameter.empty else None
        for parameter in inspect.signature(launcher).parameters.values()
    }

    def fn(*args, **rest):
        return launcher(**{**plain, **dict(zip(order, args, strict=False)), **rest})

    return fn


def test_enough_is_planted_and_every_line_is_read():
    assert len(FAULTS) >= 90 and len(OPS) >= 8
    assert set(OPS) <= set(registry.ops())
    assert set(EXPECTED) <= set(FAULTS)
    for one in PLANTED.values():
        assert one.kind in {*KINDS, "control"} and re.fullmatch(r"[^A-Z\n].*[^.]", one.about), one.about


@pytest.mark.parametrize("op", OPS)
def test_every_switch_of_a_kernel_is_a_fault(op):
    text = (FOLDER / f"{op}.py").read_text()
    source = (FOLDER / f"{op}.cu").read_text()
    first, *switches = _module.Faulty(str(FOLDER / f"{op}.py"), f"{op}.cu").faults
    assert first == "none"
    for name in switches:
        assert f'"{name}")' in text and len(re.findall(rf"\bfault [!=]= {name}\b", source)) >= 1, name


@pytest.mark.parametrize(("op", "name"), SOUND)
def test_the_kernel_without_a_fault_is_right(op, name):
    cases = [trial for trial in trials(op) if trial.law is None and not trial.calls]
    cases = [trial for trial in cases if registry.contract(op).work(trial.case) < WORK]
    assert failure(op, sound(op, name), [replace(trial, watched=False) for trial in cases]) is None


@pytest.mark.parametrize(("op", "name"), SOUND)
def test_the_kernel_without_a_fault_is_right_in_any_order(op, name):
    small = [trial for trial in trials(op) if trial.case.filled and trial.case.dtype == "float32"][:SIZES]
    small = [replace(trial, watched=False, instrumented=False) for trial in small]
    for within in (emulator.races(), *(emulator.schedule("shuffled", seed) for seed in SEEDS)):
        with within:
            assert failure(op, sound(op, name), small) is None


@pytest.mark.parametrize(("op", "name"), FAULTS)
def test_the_fault_is_rejected(op, name):
    """At level quick; a case of level default has to do where no size and layout that it needs is among those."""
    one = PLANTED[op, name]
    levels = (
        [trial for trial in trials(op, level) if trial.case.dtype in one.dtypes] for level in ("quick", "default")
    )
    found = next(filter(None, (failure(op, one.make(), mine, one.deterministic) for mine in levels)), None)
    assert found is not None
    assert EXPECTED.get((op, name), "values: ") in found


def test_a_race_may_give_the_right_answer_in_any_order():
    """What only the race detector sees, with both lines."""
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, 37, generator=draw), torch.randn(37, 7, generator=draw)
    fn = PLANTED["matmul", "splits_add_without_atomic"].make()
    for order in (contextlib.nullcontext(), emulator.schedule("reverse"), emulator.schedule("shuffled", 1)):
        with order:
            assert (fn(a, b) - a @ b).abs().max() < 1e-4
    with pytest.raises(emulator.RaceCondition, match=r"matmul\.cu:(\d+)\).* at matmul\.cu:\1, "), emulator.races():
        fn(a, b)
