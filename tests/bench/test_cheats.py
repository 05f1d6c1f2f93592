"""Kernels that are fast only to the clock: each is refused, with the reason. The honest ones beside them get a
number."""

import gc
import signal
import sys
import threading
import time

import pytest
import torch

from touchstone.conformance.bench import ceilings, inputs, rounds, run, timing
from touchstone.conformance.bench.group import DECLINED, FAILED, MEASURED, REFUSED, Group
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.cases import plain_case
from touchstone.reference.dropout import torch_dropout

ROWS, COLS = 96, 512
_now, _sleep = time.perf_counter, time.sleep


@pytest.fixture(scope="module")
def watch():
    return run.guard()


@pytest.fixture(scope="module")
def roof():
    return ceilings.measure(timing.CpuTimer(), ("float32",), rounds=3)


def timed(fn, watch, ceiling=None, own=False, op="softmax", size=None):
    contract = registry.contract(op)
    size = size or {"rows": ROWS, "cols": COLS}
    case = plain_case(contract, "float32", next(iter(contract.values)), 0, size)
    subject = Subject(op, fn, "cheat", "user@cpu", "cpu", own=own)
    group = Group(contract, Bench(), case, [("", subject)])
    (result,) = run.measure(group, timing.CpuTimer(), watch, ceiling, seconds=0.02)
    return result


def refused(fn, watch, reason, **about):
    result = timed(fn, watch, **about)
    assert result.status == REFUSED, result.status
    assert any(reason in problem for problem in result.problems), result.problems
    assert result.ms is None and result.tflops is None and result.fraction is None and not result.ratios
    return result


def honest(x):
    return torch.softmax(x, -1)


def test_an_honest_kernel_gets_a_number(watch, roof):
    for own in (False, True):
        result = timed(honest, watch, roof, own=own)
        assert result.status == MEASURED and not result.problems, result.problems
        assert 0 < result.ms < 100 and 0 < result.fraction < 1 and result.stats.count >= rounds.LEAST["cpu"]


def test_a_wrong_kernel_is_not_timed(watch):
    result = timed(lambda x: torch.softmax(x, 0), watch)
    assert result.status == FAILED and "before it was timed" in result.problems[0]
    assert result.ms is None and not result.seconds


def test_a_result_cached_by_pointer(watch):
    """Repeated pointers, skipped work."""
    kept = {}

    def cheat(x):
        if kept.setdefault("calls", 0) > 8 and x.data_ptr() in kept:
            return kept[x.data_ptr()].clone()
        kept["calls"] += 1
        kept[x.data_ptr()] = honest(x)
        return kept[x.data_ptr()].clone()

    refused(cheat, watch, "a timed call on values")


@pytest.mark.parametrize("by_seed", [True, False])
def test_a_mask_kept_by_its_seed(watch, by_seed):
    """Each timed call has another seed: to have kept masks by it is of no use, and another seed's mask is wrong."""
    kept, made = {}, []

    def dropout(x, p, seed, offset):
        key = seed if by_seed else "any"
        if key not in kept:
            made.append(seed)
            kept[key] = torch_dropout(torch.ones_like(x), p=p, seed=seed, offset=offset)
        return x * kept[key]

    about = {"op": "dropout", "size": {"trailing": (64, 64)}}
    if by_seed:
        result = timed(dropout, watch, **about)
        assert result.status == MEASURED and len(made) > result.stats.count, result.problems
    else:
        refused(dropout, watch, "a timed call on values", **about)
    assert timed(dropout, watch, own=True, **about).status == MEASURED and len(set(made)) == len(made)


def test_a_result_cached_by_version(watch):
    """A tensor's version counter is no sign of what its memory holds."""
    kept = {}

    def cheat(x):
        key = (x.data_ptr(), x._version)
        kept[key] = kept[key] if len(kept) > 1 and key in kept else honest(x)
        return kept[key].clone()

    result = timed(cheat, watch)
    assert result.status in (REFUSED, FAILED) and result.ms is None


def test_a_result_cached_by_a_few_values(watch):
    """The contents that come again are recognised: those that never came before give it away by the time they take."""
    kept = {}

    def slow(x):
        until = _now() + 0.06
        while _now() < until:
            pass
        return honest(x)

    def cheat(x):
        key = tuple(x[0, :4].tolist())
        if key not in kept:
            kept[key] = slow(x)
        return kept[key].clone()

    refused(cheat, watch, "values never seen before")


def test_the_same_output_object_again(watch):
    kept = []

    def cheat(x):
        if len(kept) < 2:
            kept.append(torch.empty_like(x))
        kept[0].copy_(honest(x))
        return kept[0]

    result = timed(cheat, watch)
    assert result.status in (REFUSED, FAILED) and result.ms is None
    assert "memory of the previous call's output" in result.problems[0]


class Lazy(torch.Tensor):
    """Computes when it is looked at."""


def test_a_lazy_result(watch):
    calls = []

    def cheat(x):
        calls.append(1)
        made = honest(x)
        return made.as_subclass(Lazy) if len(calls) > 8 else made

    refused(cheat, watch, "expected a torch.Tensor, got tests.bench.test_cheats.Lazy")


def test_a_patched_clock(watch, monkeypatch):
    calls = []

    def cheat(x):
        calls.append(1)
        if len(calls) > 8:
            time.perf_counter = lambda: 0.0
        return honest(x)

    refused(cheat, watch, "time.perf_counter")
    assert time.perf_counter is _now


@pytest.mark.parametrize(
    ("owner", "name"),
    [(torch.cuda.Event, "elapsed_time"), (torch.cuda, "synchronize"), (timing.CpuTimer, "time"), (timing, "stats")],
)
def test_a_patched_event_or_synchronize(watch, owner, name):
    before = getattr(owner, name)

    def cheat(x):
        setattr(owner, name, lambda *args, **kwargs: 1e-6)
        return honest(x)

    refused(cheat, watch, f".{name}")
    assert getattr(owner, name) is before


@pytest.mark.parametrize("part", ["__code__", "__defaults__"])
def test_the_same_function_with_other_code_or_defaults(watch, part):
    """The function that reads the clock is still the same object under the same name."""
    calls, time_one = [], timing.CpuTimer.time
    before = getattr(time_one, part)
    other = {"__code__": (lambda self, call, after=None: None).__code__, "__defaults__": (None, lambda: 0.0)}

    def cheat(x):
        calls.append(1)
        if len(calls) > 8:
            setattr(time_one, part, other[part])
        return honest(x)

    refused(cheat, watch, "CpuTimer.time")
    assert timing.CpuTimer.time is time_one and getattr(time_one, part) is before


@pytest.mark.parametrize(
    ("set_up", "put_back", "name"),
    [
        (lambda: sys.setprofile(lambda *_: None), lambda: sys.setprofile(None), "the profile function"),
        (lambda: gc.callbacks.append(print), lambda: gc.callbacks.remove(print), "the garbage collector's callbacks"),
        (lambda: signal.setitimer(signal.ITIMER_PROF, 1e3), lambda: signal.setitimer(signal.ITIMER_PROF, 0), "timers"),
    ],
    ids=["profile", "collector", "timer"],
)
def test_what_is_left_to_run_beside_the_calls(watch, set_up, put_back, name):
    calls = []

    def cheat(x):
        calls.append(1)
        if len(calls) == 9:
            set_up()
        return honest(x)

    try:
        refused(cheat, watch, f"left what runs beside the calls changed: {name}")
    finally:
        put_back()


def test_a_patched_comparison(watch):
    """The judge's own function, and a tensor's method that torch inherits from C."""

    def cheat(x):
        compare.compare = lambda *args: compare.Verdict(0.0)
        torch.Tensor.data_ptr = lambda self: 0
        return torch.empty_like(x)

    before = compare.compare
    result = timed(cheat, watch)
    assert result.status == REFUSED and "touchstone.conformance.spec.compare.compare" in result.problems[0]
    assert compare.compare is before and "data_ptr" not in vars(torch.Tensor)


def test_a_thread_that_does_the_work_later(watch):
    calls = []

    def cheat(x):
        calls.append(1)
        if len(calls) < 9:
            return honest(x)
        y = torch.empty_like(x)

        def later():
            _sleep(0.005)
            y.copy_(honest(x))

        threading.Thread(target=later, name="later").start()
        return y

    refused(cheat, watch, "left a thread running")


def test_part_of_the_output_in_timed_calls(watch):
    calls = []

    def cheat(x):
        calls.append(1)
        if len(calls) < 9:
            return honest(x)
        y = torch.empty_like(x)
        y[: ROWS // 2] = honest(x[: ROWS // 2])
        return y

    refused(cheat, watch, "a timed call on")


def test_the_stale_buffer_of_an_input(watch):
    calls = []

    def cheat(x):
        calls.append(1)
        return x if len(calls) > 8 else honest(x)

    refused(cheat, watch, "shares memory with the input x")


def test_fresh_memory_as_it_was_found(watch):
    """The allocator hands out what the last call freed: nothing of use is left in it."""
    calls = []

    def cheat(x):
        calls.append(1)
        return torch.empty_like(x) if len(calls) > 8 else honest(x)

    refused(cheat, watch, "a timed call on")


def test_what_was_looked_at_is_of_no_use_afterwards(watch):
    """Outputs that a kernel, or the allocator, still has after they were timed hold nothing but NaN."""
    made = []

    def keeping(x):
        made.append(honest(x))
        return made[-1]

    result = timed(keeping, watch)
    assert result.status == MEASURED
    timed_outputs = made[inputs.KNOWN : inputs.KNOWN + result.stats.count]
    assert all(bool(y.isnan().all()) for y in timed_outputs)


def test_less_precision_in_timed_calls(watch):
    calls = []

    def cheat(x):
        calls.append(1)
        return honest(x.half()).float() if len(calls) > 8 else honest(x)

    refused(cheat, watch, "a timed call on")


def test_other_bits_in_timed_calls_of_a_deterministic_variant(watch):
    """Within the budget, but not what was verified."""
    calls = []

    def cheat(x):
        calls.append(1)
        return honest(x) * (1 + 2**-22) if len(calls) > 8 else honest(x)

    refused(cheat, watch, "differs from what the same values gave", own=True)


def test_inputs_made_easier(watch):
    calls = []

    def cheat(x):
        calls.append(1)
        y = honest(x)
        if len(calls) > 8:
            x.data.zero_()
        return y

    refused(cheat, watch, "wrote its input x")


def test_global_state_that_makes_others_slower(watch):
    def cheat(x):
        torch.set_float32_matmul_precision("medium")
        return honest(x)

    refused(cheat, watch, "float32 matmul precision")
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.slow
def test_work_left_out_of_a_single_call_shows_in_many(watch):
    """What one call's time leaves out, on a GPU because another stream does it, a row of calls cannot."""

    class Timer(timing.CpuTimer):
        def time(self, call, after=None):
            return super().time(call, after)._replace(seconds=1e-6, host=1e-6)

    def slow(x):
        _sleep(0.05)
        return honest(x)

    contract = registry.contract("softmax")
    case = plain_case(contract, "float32", "normal", 0, {"rows": 8, "cols": 64})
    group = Group(contract, Bench(), case, [("", Subject("softmax", slow, "cheat", "user@cpu", "cpu"))])
    (result,) = run.measure(group, Timer(), watch, None, seconds=1e-5)
    assert result.status == REFUSED and "calls in a row take" in result.problems[0]


def test_faster_than_the_machine(watch):
    """What the other checks let pass: no kernel beats the ceilings of its run."""
    slow = ceilings.Ceilings("cpu", copy=1e6, read=1e6, write=1e6, products={"float32": 1e9})
    result = refused(honest, watch, "above the roofline", ceiling=slow)
    assert result.roof is not None


def test_a_kernel_that_raises_or_declines_when_timed(watch):
    calls = []

    def cheat(x):
        calls.append(1)
        if len(calls) > 8:
            raise RuntimeError("no more")
        return honest(x)

    result = timed(cheat, watch)
    assert result.status == FAILED and "no more" in result.problems[0] and result.ms is None

    def declining(x):
        raise NotImplementedError("512 columns")

    result = timed(declining, watch)
    assert (result.status, result.problems) == (DECLINED, ["512 columns"])
