"""The wrong kernels in conformance/faults/numba are rejected, and for their fault: without it the same kernel is right."""

import contextlib
import functools
import importlib
import inspect
import os
import re
from dataclasses import replace

import pytest
import torch

from backends import emulator, numba
from conformance import judge, registry, selection
from conformance.faults import KINDS

if numba.why_not("cpu") or numba.simulated():
    pytest.skip(numba.why_not("cpu") or "NUMBA_ENABLE_CUDASIM is set", allow_module_level=True)
numba.prepare("cpu")

FOLDER = registry.ROOT / "conformance" / "faults" / "numba"
OPS = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
PLANTED = {(op, one.name): one for op in OPS for one in registry.planted_kernels("numba", op)}
FAULTS = [key for key, one in PLANTED.items() if not one.is_control]
LAUNCHER = re.compile(r'^def (\w+)\([^)]*fault: str = "none"', re.MULTILINE)
SOUND = [(op, name) for op in OPS for name in LAUNCHER.findall((FOLDER / f"{op}.py").read_text())]
SIZES = 5  # the smallest of a contract that a schedule or the race detector sees
WORK = 2e5  # of a case, in the contract's units; above it a kernel without a fault is not judged here
SEEDS = range(int(os.environ.get("TOUCHSTONE_SCHEDULES", "3")))
# The rungs of all ops take minutes: nightly, which asks for more seeds than three.
RUNGS = [
    (op, name)
    for op in (registry.kernel_ops("numba") if len(SEEDS) > 3 else ["softmax"])
    for name in registry.variants("numba", op)
]

# By what is found first; everything else gives wrong values in a plain call.
FOUND = {
    "OutOfBounds": {
        "matmul": ["tile_overrun", "negative_index", "store_unguarded"],
        "softmax": ["offset_int32", "shared_memory_of_elements", "store_unguarded"],
        "online_softmax": ["pairs_overrun"],
        "rms_norm": ["negative_column", "tail_unguarded", "weight_stride_ignored"],
        "layer_norm_backward": ["part_too_many"],
    },
    "UninitialisedShared": {
        "matmul": ["no_barrier_before_use", "barrier_in_branch", "tile_unfilled"],
        "softmax": ["no_barrier_in_reduction", "partials_of_absent_warps"],
        "online_softmax": ["no_barrier_before_pairs", "no_barrier_before_result"],
        "rms_norm": ["sum_not_zeroed", "no_barrier_after_zero", "no_barrier_before_factor"],
        "group_norm": ["totals_not_zeroed"],
    },
    "DivergentBarrier": {"matmul": ["early_return"], "softmax": ["early_return"], "rms_norm": ["barrier_in_loop"]},
    "InactiveLanes": {
        "softmax": ["ragged_warp", "launch_order"],
        "online_softmax": ["lanes_left_out", "mask_of_half"],
        "group_norm": ["ballot_of_some"],
    },
    "RaceCondition": {
        "matmul": ["splits_add_without_atomic"],
        "softmax": ["reduction_buffer_reused", "syncwarp_for_syncthreads"],
        "rms_norm": ["sum_without_atomic"],
        "group_norm": ["no_barrier_after_zero", "totals_without_atomic"],
        "layer_norm_backward": ["sums_without_atomic", "reduction_buffer_reused", "no_threadfence"],
    },
    "under threads in reverse": {
        "group_norm": ["no_barrier_before_mean"],
        "layer_norm_backward": ["ticket_of_each_thread"],
    },
    "repeat": {"layer_norm_backward": ["sums_kept"]},
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
    subject = judge.Subject(op, fn, fn.__name__, "numba@cpu", "cpu", deterministic=deterministic, diagnosed=False)
    for trial in found:
        if trial.law is not None and trial.law.bitwise and not deterministic:
            continue
        for finding in judge.run(subject, trial).findings:
            if finding.severity == "failure":
                return f"{finding.check}: {finding.message}"
    return None


def sound(op, name):
    """A launcher as a function of the op's signature, with no fault switched on."""
    launcher = getattr(importlib.import_module(f"conformance.faults.numba.{op}"), name)
    order = [operand for operand, made in registry.contract(op).operands.items() if made.positional]
    plain = {
        parameter.name: parameter.default if parameter.default is not parameter.empty else None
        for parameter in inspect.signature(launcher).parameters.values()
    }

    def fn(*args, **rest):
        return launcher(**{**plain, **dict(zip(order, args, strict=False)), **rest})

    return fn


def test_enough_is_planted_and_every_line_is_read():
    assert len(FAULTS) >= 70 and len(OPS) >= 6
    assert sum(one.is_control for one in PLANTED.values()) >= 8
    assert set(OPS) <= set(registry.ops())
    assert set(EXPECTED) <= set(FAULTS)
    for one in PLANTED.values():
        assert one.kind in {*KINDS, "control"} and re.fullmatch(r"[^A-Z\n].*[^.]", one.about), one.about


@pytest.mark.parametrize("op", OPS)
def test_every_switch_of_a_kernel_is_a_fault(op):
    text = (FOLDER / f"{op}.py").read_text()
    first, *switches = importlib.import_module(f"conformance.faults.numba.{op}").Fault.__members__
    assert first == "none"
    for name in switches:
        assert text.count(f'"{name}")') == 1 and re.search(rf"\bfault [!=]= Fault\.{name}\b", text), name


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


@pytest.mark.parametrize(("op", "name"), RUNGS)
def test_a_rung_is_right_in_any_order(op, name):
    fn = registry.variants("numba", op)[name]
    wide = [trial for trial in trials(op) if trial.law is None and not trial.calls and trial.case.filled]
    wide = [trial for trial in wide if registry.contract(op).work(trial.case) > 100]
    subject, judged = selection.rung(op, "numba", name, fn, "cpu"), 0
    for trial in wide:
        for within in (emulator.races(), *(emulator.schedule("shuffled", seed) for seed in SEEDS)):
            with within:
                outcome = judge.run(subject, replace(trial, watched=False, instrumented=False))
            if outcome.status == judge.DECLINED:
                break
            assert outcome.status == judge.PASSED, outcome.findings
        else:
            judged += 1
        if judged == (1 if len(SEEDS) <= 3 else SIZES):
            break
    assert judged


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
    with pytest.raises(emulator.RaceCondition, match=r"matmul\.py:(\d+)\).* at matmul\.py:\1, "), emulator.races():
        fn(a, b)


def test_an_index_below_zero_reads_another_element_in_silence_on_a_gpu():
    """Where k is whole tiles there is none, and the kernel is right."""
    fn = PLANTED["matmul", "negative_index"].make()
    a, b = torch.ones(3, 32), torch.ones(32, 2)
    assert torch.equal(fn(a, b), a @ b)
    with pytest.raises(emulator.OutOfBounds, match=r"uses index -12 in axis 1 of a, .*count it from the end"):
        fn(a[:, :20], b[:20])
