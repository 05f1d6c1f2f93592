"""The probe's instruments: each catches a kernel that passes once that instrument alone is taken away."""

import contextlib
import itertools
import os
import platform
import re
import sys
import warnings
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.night import some
from tests.processes import in_a_fork, output_of
from touchstone import backends, check
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.launching import compiled
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import calls, judge
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.judgement import DECLINED, FAILED, PASSED
from touchstone.conformance.judging.trials import CALLS, CaseTrial, Kind, ManyCalls
from touchstone.conformance.spec import compare, layouts
from touchstone.conformance.spec.cases import plain_case, variants
from touchstone.conformance.spec.checks import Check

SIZE = {"rows": 6, "cols": 40}


def right(x):
    return torch.softmax(x.float(), -1).to(x.dtype)


def subject(fn, **about):
    return Subject("softmax", fn, "probed", "user@cpu", "cpu", **about)


def trial(dtype="float32", watched=True):
    return CaseTrial(plain_case(registry.contract("softmax"), dtype, "normal", 0, SIZE), watched)


def many(count):
    return ManyCalls(trial().case, count)


def checks(outcome):
    return {finding.check for finding in outcome.findings}


def zeroes_its_input(x):
    y = right(x)
    x.zero_()
    return y


def writes_before_its_input(x):
    x.as_strided((1,), (1,), x.storage_offset() - 1).fill_(1)
    return right(x)


def adds_to_fresh_memory(x):
    """Right as long as the memory was zero before, as pages fresh from the kernel are: malloc maps what exceeds 32 MiB
    and every free block of its heap."""
    return torch.empty(100_000_000)[: x.numel()].view(x.shape).add_(right(x))


def reads_past_its_input(x):
    beyond = x.as_strided((1,), (1,), x.storage_offset() + x.numel())
    return right(x) + 0 * beyond


def leaves_the_default_dtype(x):
    torch.set_default_dtype(torch.float64)
    return right(x)


def writes_past_its_output(x):
    y = torch.empty_like(x)
    y.copy_(right(x))
    if y.untyped_storage().nbytes() > y.numel() * y.element_size():  # else the heap would break
        y.as_strided((1,), (1,), y.storage_offset() + y.numel()).fill_(1)
    return y


def on_a_static_buffer():
    held = {}

    def fn(x):
        return held.setdefault((x.shape, x.dtype), torch.empty_like(x)).copy_(right(x))

    return fn


def wrong_the_second_time():
    count = itertools.count()
    return lambda x: right(x) * (1.01 if next(count) else 1.0)


def wrong_on_the_30th_call():
    count = itertools.count(1)
    return lambda x: right(x) * (1.01 if next(count) == 30 else 1.0)


def never(*args, **kwargs):
    return []


def none_changed(placed, before, others):
    return [], list(others)


@contextlib.contextmanager
def no_poison(*args):
    yield


WITHOUT = {
    "inputs": (zeroes_its_input, layouts, "changed_beside", none_changed),
    "guards around inputs": (writes_before_its_input, layouts, "changed_beside", none_changed),
    "allocator poison": (adds_to_fresh_memory, probe, "poison", no_poison),
    "poison around inputs": (reads_past_its_input, layouts, "POISON", {}),
    "global state": (leaves_the_default_dtype, probe.State, "changes", lambda self: ([], [])),
    "guards around outputs": (writes_past_its_output, probe.Watch, "broken", never),
}


@pytest.fixture(autouse=True)
def default_dtype_put_back():
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", WITHOUT)
def test_only_this_instrument_catches_it(name, monkeypatch):
    fn, owner, attribute, blind = WITHOUT[name]
    once = trial(watched=name == "guards around outputs")
    assert judge.run(subject(fn), once).status == FAILED
    monkeypatch.setattr(owner, attribute, blind)
    assert judge.run(subject(fn), once).status == PASSED


def test_a_second_call_shows_a_static_buffer():
    assert checks(judge.run(subject(on_a_static_buffer()), trial())) == {Check.ALIAS}
    assert judge.run(subject(on_a_static_buffer()), trial(watched=False)).status == PASSED


def test_a_second_call_shows_what_only_the_first_gets_right():
    assert checks(judge.run(subject(wrong_the_second_time()), trial())) == {Check.REPEAT}
    assert judge.run(subject(wrong_the_second_time()), trial(watched=False)).status == PASSED


def test_many_calls_show_a_rare_error():
    outcome = judge.run(subject(wrong_on_the_30th_call()), many(50))
    assert outcome.findings[0].message.startswith("call 30 of 50 (as call 29, but x mirrored inside): y: ")
    assert judge.run(subject(wrong_on_the_30th_call()), many(20)).status == PASSED


def test_many_calls_show_that_an_earlier_output_changed():
    assert checks(judge.run(subject(on_a_static_buffer()), many(5))) == {Check.ALIAS, Check.HELD}


def test_many_calls_show_a_result_kept_by_address():
    held = {}
    outcome = judge.run(subject(lambda x: held.setdefault(x.data_ptr(), right(x)).clone()), many(50))
    assert outcome.status == FAILED and "call 2 of 50" in outcome.findings[0].message


KEYS = {
    "first and last element": lambda x: (x.shape, x[0, 0].item(), x[-1, -1].item()),
    "border": lambda x: str([x[0].tolist(), x[-1].tolist(), x[:, 0].tolist(), x[:, -1].tolist()]),
    "sum": lambda x: x.sum().item(),
    "a third of the elements": lambda x: str(x.flatten()[::3].tolist()),
    "elements without their order": lambda x: str(x.flatten().sort().values.tolist()),
    "rounded mean": lambda x: round(x.mean().item(), 6),
    "largest element": lambda x: x.max().item(),
    "address": lambda x: x.data_ptr(),
    "object": id,
    "object and version": lambda x: (id(x), x._version),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_many_calls_show_a_cache_keyed_by_less_than_the_input(key):
    held = {}
    outcome = judge.run(subject(lambda x: held.setdefault(key(x), right(x)).clone()), many(CALLS))
    assert checks(outcome) == {Check.VALUES}


def border(tensor: torch.Tensor) -> str:
    return str(tensor.flatten()[[0, -1]].tolist())


@pytest.mark.slow
@pytest.mark.parametrize("op", registry.ops())
def test_a_cache_of_what_is_derived_from_one_operand_shows(op):
    """What is kept by the border of one operand goes wrong where that operand alone has changed inside."""
    contract = registry.contract(op)
    known_good = next(one for one in registry.planted(op) if one.is_known_good and "float32" in one.dtypes).make()
    case = plain_case(contract, "float32", next(iter(contract.values)))
    assert judge.run(Subject(op, known_good, "right", "user@cpu", "cpu"), ManyCalls(case, 10)).status == PASSED
    operands = [
        name
        for name, about in contract.operands.items()
        if not (about.derived or about.fixed) and about.counts and contract.operand_shape(name, case) != ()
    ]
    for operand in some(operands, 3):
        held = {}

        def stale(*given, held=held, operand=operand, **rest):
            names = [name for name, about in contract.operands.items() if about.positional]
            arguments = {**dict(zip(names, given, strict=True)), **rest}
            tensor = arguments[operand]
            arguments[operand] = held.setdefault(border(tensor), tensor.clone())
            return contract.call(known_good, arguments)

        outcome = judge.run(Subject(op, stale, "stale", "user@cpu", "cpu", diagnosed=False), ManyCalls(case, CALLS))
        assert outcome.status == FAILED, operand
        drawn = {border(contract.build(replace(case, seed=seed)).arguments[operand]) for seed in range(3)}
        if len(drawn) < 3:  # few values are possible there: what another draw left is taken for this one's
            continue
        # A sum stays as it is when its terms are mirrored; one of them altered shows.
        assert re.search(
            rf"but ({operand} mirrored inside|one element of {operand} altered)\)", str(outcome.findings[0])
        )


def varied(op="layer_norm", calls=CALLS):
    contract = registry.contract(op)
    case = plain_case(contract, "float32", next(iter(contract.values)))
    return ManyCalls(case, calls, variants(contract, case))


def layer_norm(x, weight, bias, *, eps=1e-5):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps).contiguous()


def judged_on_varied_calls(fn):
    return judge.run(Subject("layer_norm", fn, "fn", "user@cpu", "cpu", diagnosed=False), varied())


def test_many_calls_show_a_cache_without_the_parameters():
    held = {}

    def kept(x, weight, bias, *, eps=1e-5):
        key = str([t if t is None else t.tolist() for t in (x, weight, bias)])
        return held.setdefault(key, layer_norm(x, weight, bias, eps=eps)).clone()

    assert judged_on_varied_calls(layer_norm).status == PASSED
    outcome = judged_on_varied_calls(kept)
    assert outcome.findings[0].message.startswith("call 4 of 50 (as call 3, but eps=")


def test_many_calls_show_a_copy_of_a_strided_operand_that_is_kept():
    held = {}

    def kept(x, weight, bias, *, eps=1e-5):
        if not x.is_contiguous():
            x = held.setdefault((x.data_ptr(), x.stride()), x.contiguous())
        return layer_norm(x, weight, bias, eps=eps)

    message = judged_on_varied_calls(kept).findings[0].message
    assert "mirrored inside; x " in message or "altered; x " in message or "(x " in message


def test_what_follows_a_declined_call_is_judged():
    """The first call in another layout is declined, and the eleventh in this one wrong."""
    count = itertools.count(1)

    def declines(x, weight, bias, *, eps=1e-5):
        if not x.is_contiguous():
            raise NotImplementedError("contiguous rows only")
        return layer_norm(x, weight, bias, eps=eps) * (2 if next(count) == 11 else 1)

    outcome = judged_on_varied_calls(declines)
    assert outcome.status == FAILED
    assert int(outcome.findings[0].message.split()[1]) > 11


def test_a_first_call_that_is_declined_is_the_only_one():
    count = itertools.count()

    def declines(x, weight, bias, *, eps=1e-5):
        next(count)
        raise NotImplementedError("not today")

    outcome = judged_on_varied_calls(declines)
    assert (outcome.status, outcome.reason, next(count)) == (DECLINED, "not today", 1)
    assert not any("calls" in name for name in outcome.instruments)


def test_declining_some_of_many_calls_is_no_fault():
    def declines(x, weight, bias, *, eps=1e-5):
        if not x.is_contiguous() or eps != 1e-5:
            raise NotImplementedError("contiguous rows only")
        return layer_norm(x, weight, bias, eps=eps)

    outcome = judged_on_varied_calls(declines)
    assert (outcome.status, outcome.reason) == (PASSED, None)
    assert f"{CALLS} calls with distinct inputs" in outcome.instruments


OF_A_PROCESS = {
    "the standard streams from 0, 1, 2 to 0, 1": lambda: os.close(2),
    "the warnings that are errors from 0 to 1": lambda: warnings.simplefilter("error"),
    "the priority of its process from 0 to 3": lambda: os.setpriority(os.PRIO_PROCESS, 0, 3),
    "the processors that it may use from [0, 1] to [0]": lambda: os.sched_setaffinity(0, [0]),
    "environment variables MINE": lambda: os.environ.pop("MINE"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="others have not all of it")
@pytest.mark.parametrize("told", OF_A_PROCESS)
def test_what_is_changed_of_a_process_is_noted(told, tmp_path, monkeypatch):
    monkeypatch.setenv("MINE", "1")

    def changes():
        warnings.resetwarnings()
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        given = iter([{1, 0}, {0}])
        os.sched_getaffinity, os.sched_setaffinity = lambda pid: next(given, {0}), lambda pid, to: None
        if not told.startswith("the processors"):
            os.sched_getaffinity = lambda pid: {0, 1}
        state = probe.State(random=False)
        OF_A_PROCESS[told]()
        return state.changes()

    assert in_a_fork(changes, tmp_path) == [[], [told]]


def test_a_call_that_is_declined_for_its_values_declines_the_trial():
    """Else a kernel that keeps results would decline wherever another one is due."""
    count = itertools.count(1)

    def declines(x, weight, bias, *, eps=1e-5):
        if next(count) > 12:
            raise NotImplementedError("enough")
        return layer_norm(x, weight, bias, eps=eps)

    outcome = judged_on_varied_calls(declines)
    assert outcome.status == DECLINED
    assert re.fullmatch(r"call \d+ of \d+, though it took call \d+: enough", outcome.reason)
    assert not any("calls" in name for name in outcome.instruments)


def test_many_calls_stay_within_where():
    def narrow(x, weight, bias, *, eps=1e-5):
        if not x.is_contiguous() or eps != 1e-5:
            raise RuntimeError("outside of `where`")
        return layer_norm(x, weight, bias, eps=eps)

    plain = varied().case
    report = check(
        "layer_norm",
        narrow,
        device="cpu",
        where=lambda case: case.layouts == plain.layouts and case.params == plain.params,
    )
    assert report.passed and any(outcome.kind is Kind.CALLS for outcome in report.outcomes)


@pytest.mark.parametrize("op", registry.ops())
def test_many_calls_vary_every_layout_and_parameter(op):
    contract = registry.contract(op)
    cases = calls.cases_of(varied(op), contract)
    assert len(cases) == CALLS and all(map(contract.valid, cases))
    for name, operand in contract.operands.items():
        tried = {case.layout[name] for case in cases} - {"none"}
        assert tried >= set(operand.layouts) - {"none"}, name
        if operand.counts and not operand.derived and not operand.fixed:
            assert sum(case.mirrored == name for case in cases) >= 2, name
    plain, others = varied(op).case, varied(op).others
    if op == "elementwise":  # a kernel may take the strides of one operand for the other's
        assert {("transposed", "contiguous"), ("contiguous", "transposed")} <= {
            (case.layout["a"], case.layout["b"]) for case in cases
        }
    for name, options in contract.params.items():
        for option in options:
            case = replace(plain, params=tuple({**dict(plain.params), name: option}.items()))
            assert case in (plain, *others) or not contract.valid(case), (name, option)
    if contract.mirrors:
        assert sum(case.altered is not None for case in cases) >= 5


def test_an_altered_case_differs_in_one_element():
    case = plain_case(registry.contract("matmul"), "float32", "normal")
    for seed in range(5):
        plain = replace(case, seed=seed)
        before, after = (registry.contract("matmul").build(c).exact for c in (plain, replace(plain, altered="b")))
        assert torch.equal(before["a"], after["a"])
        assert int((before["b"] != after["b"]).sum()) == 1


def test_the_canary_sees_a_comparison_that_was_tampered_with(monkeypatch):
    def tampers(x):
        monkeypatch.setattr(compare, "compare", lambda *args, **kwargs: compare.Verdict(0.0))
        return torch.zeros_like(x)

    assert checks(judge.run(subject(tampers), trial())) == {Check.CANARY}


def of_the_first_element(got, about, *rest):
    near = abs(got.flatten()[0] - about.answer.flatten()[0]) < 1e-3
    return compare.Verdict(0.0, None if near else "wrong")


TAMPERED = {
    "rejects everything": lambda *given: compare.Verdict(2.0, "wrong"),
    "looks at the first element": of_the_first_element,
}


@pytest.mark.parametrize("tampered", TAMPERED.values(), ids=TAMPERED)
def test_the_canary_sees_a_comparison_that_sees_too_much_or_too_little(tampered, monkeypatch):
    def tampers(x):
        monkeypatch.setattr(compare, "compare", tampered)
        return right(x)

    assert Check.CANARY in checks(judge.run(subject(tampers), trial()))


def test_unequal_repeats_within_the_budget_are_a_note_for_a_user_and_a_failure_for_a_variant():
    count = itertools.count()

    def jitters(x):
        y = right(x)
        return torch.nextafter(y, torch.tensor(1.0)) if next(count) else y

    noted = judge.run(subject(jitters), trial())
    assert noted.status == PASSED and [f.severity for f in noted.findings] == ["note"]
    count = itertools.count()
    failures = [f for f in judge.run(subject(jitters, own=True), trial()).findings if f.severity == "failure"]
    assert Check.REPEAT in {f.check for f in failures}
    count = itertools.count()
    declared = judge.run(subject(jitters, own=True, deterministic=False), trial())
    assert Check.REPEAT not in checks(declared)


def test_a_library_call_fails_a_variant_and_is_listed_for_a_user():
    assert Check.LIBRARY in checks(judge.run(subject(right, own=True), trial()))
    outcome = judge.run(subject(right), trial())
    assert outcome.status == PASSED and "_softmax" in outcome.library


def test_reading_an_element_back_is_a_library_call():
    with probe.Watch() as watch:
        torch.ones(3)[1].item()
    assert watch.library == {"_local_scalar_dense": 1}


def test_allocation_fills_and_views_are_no_library_calls():
    with probe.Watch() as watch:
        x = torch.zeros(4, 6)
        y = torch.empty_like(x).fill_(1).t()[1:].unsqueeze(0).select(1, 0).expand(3, 4)
        torch.ones(3).zero_()
    assert watch.library == {} and y.sum() == 12


def _in(shape, strides, offset=0):
    return torch.arange(4000.0).as_strided(shape, strides, offset)


X, BY_COLUMNS, ONE_ROW = _in((3, 5), (5, 1)), _in((3, 5), (1, 3)), _in((1, 5), (5, 1))
STRIDED, SAME_ROWS = _in((3, 5), (20, 2)), _in((3, 5), (0, 1))
# name -> the operand, and what the library copies, from and to
MOVED = {
    "the transpose": (X, X.t(), torch.empty(5, 3)),
    "into the transpose": (X, X, torch.empty(5, 3).t()),
    "with more axes": (X, X.view(3, 1, 5), torch.empty(5, 1, 3).permute(2, 1, 0)),
    "a column": (X, X[:, 2], torch.empty(3)),
    "into a column": (X, X[1], torch.empty(5, 3)[:, 1]),
    "a diagonal": (X, X.diagonal(), torch.empty(5, 3).diagonal()),
    "a column by two axes": (X, _in((2, 2), (10, 5)), torch.empty(2, 2)),
    "of a kernel's": (X, torch.ones(3, 5).t(), torch.empty(5, 3)),
    "a parameter": (X, torch.nn.Parameter(X.t()), torch.empty(5, 3)),
}
LEFT = {
    "the operand": (X, X, torch.empty(3, 5)),
    "an operand by columns": (BY_COLUMNS, BY_COLUMNS, torch.empty(3, 5)),
    "as it lies": (BY_COLUMNS, BY_COLUMNS, torch.empty(5, 3).t()),
    "every second of the operand": (STRIDED, STRIDED, torch.empty(3, 5)),
    "one row to all": (SAME_ROWS, SAME_ROWS, torch.empty(3, 5)),
    "into the corner of what is larger": (BY_COLUMNS, BY_COLUMNS, torch.empty(8, 8)[:3, :5]),
    "the corner of what is larger": (X, torch.ones(8, 8)[:5, :3], torch.empty(5, 3)),
    "a row": (X, X[1], torch.empty(5)),
    "one number": (X, X[0, 0], torch.empty(())),
    "one number to all": (X, torch.ones(()), torch.empty(5, 3)),
    "the same number in each row": (X, torch.ones(1, 5), torch.empty(3, 5)),
    "of one row, which has no other order": (ONE_ROW, ONE_ROW.t(), torch.empty(5, 8)[:, :1]),
}


@pytest.mark.parametrize(("operand", "source", "to"), MOVED.values(), ids=MOVED)
def test_a_copy_in_another_order_is_told(operand, source, to):
    assert probe.Moving([operand]).does(to, source)


@pytest.mark.parametrize(("operand", "source", "to"), LEFT.values(), ids=LEFT)
def test_a_copy_that_leaves_the_order_is_none(operand, source, to):
    assert not probe.Moving([operand]).does(to, source)


def test_elements_that_are_copied_one_by_one_are_counted():
    moving = probe.Moving([X])
    told = [moving.does(torch.empty(1), X[0, :1]) for _ in range(probe.ALONE + 1)]
    assert told == [False] * probe.ALONE + [True]


def test_what_a_copy_s_class_makes_of_it_is_not_asked():
    asked = []

    class Asked(torch.Tensor):
        def data_ptr(self):
            asked.append(self)
            return y.data_ptr()

    with probe.Watch() as watch:
        y = torch.empty(3)
        torch.empty(3).as_subclass(Asked).copy_(torch.ones(3))
        with backends.running():
            y.fill_(1)
    y.fill_(2)
    assert watch.unexplained(y).startswith("was changed after the last kernel") and not asked


def test_copies_of_an_op_that_only_moves_are_listed_by_their_order():
    with probe.Watch(probe.Moving([X])) as watch:
        X.clone()
        X.t().contiguous()
        torch.empty(5, 3).t().copy_(X)
    assert watch.library == {"clone": 1, "clone in another order": 1, "copy_ in another order": 1}
    with probe.Watch() as watch:
        X.t().contiguous()
    assert watch.library == {"clone": 1}


def test_a_running_kernel_is_not_watched():
    with probe.Watch() as watch, backends.running():
        torch.empty(3) + 1
    assert watch.library == {}
    assert not backends.kernel_running()


def test_a_kernel_that_draws_is_noted_and_not_given_the_same_numbers_again():
    before = torch.get_rng_state()
    outcome = judge.run(subject(lambda x: right(x) + 0 * torch.rand(())), trial(watched=False))
    assert outcome.status == PASSED and [finding.severity for finding in outcome.findings] == ["note"]
    assert not torch.equal(torch.get_rng_state(), before)


def test_guards_stand_aside_for_a_buffer_that_is_resized():
    with probe.Watch() as watch:
        torch.empty(2).resize_(400).fill_(1)
    assert watch.broken() == []


def test_a_write_past_a_buffer_is_told_with_its_shape():
    with probe.Watch() as watch:
        y = torch.empty(3, 5)
        y.as_strided((2,), (1,), y.storage_offset() + 15).fill_(0)
    assert watch.broken() == ["8 bytes past the end of an allocation of (3, 5) float32 were written"]


@pytest.mark.parametrize("at", [-512, -257, -1, 40, 100, 40 + 511])
def test_every_byte_of_the_bands_around_an_output_is_looked_at(at):
    """512 on either side; an allocation is padded to a multiple of as many, which belongs to the band behind it."""
    with probe.Watch() as watch:
        y = torch.empty(40, dtype=torch.uint8)
        y.as_strided((1,), (1,), y.storage_offset() + at).fill_(0)
    where = "before an" if at < 0 else "past the end of an"
    assert watch.broken() == [f"1 bytes {where} allocation of (40,) uint8 were written"]


def test_instruments_are_those_that_reached_the_kernel():
    through_torch = judge.run(subject(lambda x: torch.softmax(x, -1)), trial())
    allocates = judge.run(subject(lambda x: torch.empty_like(x).copy_(right(x))), trial())
    assert "output guards" not in through_torch.instruments
    assert {"output guards", "allocator poison", "repeat", "library calls"} <= set(allocates.instruments)


@pytest.mark.parametrize(("launches", "reached"), [(True, ["races", "order"]), (False, [])])
def test_every_instrument_of_a_backend_is_tried_where_its_kernels_are_behind_the_function(
    launches, reached, monkeypatch
):
    tried = []

    def fn(x):
        if not launches:
            return right(x)
        with backends.running():
            return right(x)

    @contextlib.contextmanager
    def within(name):
        tried.append(name)
        yield

    offered = {name: lambda name=name: within(name) for name in ("races", "order")}
    backend = SimpleNamespace(ENGINE="interpreter", instruments=lambda device: offered)
    monkeypatch.setattr(registry, "behind", lambda target: ("paper",))
    monkeypatch.setattr(registry, "backend", lambda name: backend)
    outcome = judge.run(subject(fn), replace(trial(watched=False), instrumented=True))
    assert outcome.status == PASSED
    assert [name for name in outcome.instruments if name in offered] == reached
    assert tried == reached


def test_what_a_declined_call_would_have_shown_is_looked_at_on_the_next_case_of_its_sizes(monkeypatch):
    """Kernels for 16-bit operands decline the case that is to be called under instruments, where that is float32."""
    tried = []

    def fn(x):
        if x.dtype is torch.float32:
            raise backends.Unsupported("float32")
        with backends.running():
            return right(x)

    @contextlib.contextmanager
    def within():
        tried.append("races")
        yield

    monkeypatch.setattr(registry, "behind", lambda target: ("paper",))
    backend = SimpleNamespace(ENGINE="interpreter", instruments=lambda device: {"races": within})
    monkeypatch.setattr(registry, "backend", lambda name: backend)
    mine = subject(fn)
    outcomes = [
        judge.run(mine, replace(trial(dtype, watched=False), instrumented=dtype == "float32"))
        for dtype in ("bfloat16", "float32", "float16", "bfloat16")
    ]
    assert [outcome.status for outcome in outcomes] == [PASSED, DECLINED, PASSED, PASSED]
    assert ["races" in outcome.instruments for outcome in outcomes] == [False, False, True, False]
    assert tried == ["races"]


def test_a_compiled_function_is_not_watched():
    def fn(x):
        return right(x)

    fn._torchdynamo_orig_callable = right
    assert compiled(fn) and compiled(lambda x: fn(x)) and not compiled(right)
    assert "library calls" not in judge.run(subject(fn), trial()).instruments


FRAGMENTED = """
import ctypes, torch
from touchstone.conformance.judging.instruments import poison

library = ctypes.CDLL(None)
library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
blocks = [library.malloc(104) for _ in range(120)]
for block in blocks[1::2]:  # free blocks between used ones, which malloc keeps as they are
    ctypes.memset(block, 0, 104)
    library.free(block)
taken = [library.malloc(104) for _ in range(7)]  # all that the thread's cache holds of the size
with poison(0xFF, "cpu", [4]):
    fresh = [torch.empty((1, 1)) for _ in range(60)]  # kept: a block that is freed and taken again is not fresh
    print(sum(x.isnan().item() for x in fresh))
"""


def test_poison_reaches_memory_that_malloc_would_hand_out_as_it_is():
    reached = int(output_of(FRAGMENTED))
    version = [int(part) for part in platform.libc_ver()[1].split(".") if part]
    # from 2.38 on an aligned block that other code has just freed is handed out as it is
    assert reached >= (40 if version >= [2, 38] else 60)


def test_what_poison_takes_of_malloc_it_gives_back(monkeypatch):
    malloc, aligned_alloc, free = probe._malloc()
    taken = Counter()

    def noted(take, *sizes):
        taken[address := take(*sizes)] += 1
        return address

    def freed(address):
        taken[address] -= 1
        free(address)

    replaced = (lambda n: noted(malloc, n), lambda *sizes: noted(aligned_alloc, *sizes), freed)
    monkeypatch.setattr(probe, "_malloc", lambda: replaced)
    with probe.poison(0xFF, "cpu", [4, 300]):
        assert sum(taken.values()) > 0  # so that the kernel is not given these
    assert set(taken.values()) == {0}


@pytest.mark.parametrize("byte", probe.PATTERNS)
@pytest.mark.parametrize("count", [300, 1000, 30_000, 3_000_000])
def test_poison_reaches_fresh_memory(byte, count):
    with probe.poison(byte, "cpu", [4 * count]):
        fresh = torch.empty(count)
    raw = fresh.view(torch.uint8)
    # glibc keeps its own links in the first 16 bytes of a freed block
    assert bool((raw[16:] == byte).all())


class Fills(TorchDispatchMode):
    """Gathers what is filled with what: (elements, value)."""

    def __init__(self):
        super().__init__()
        self.filled = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name == "aten::fill_":
            self.filled.append((args[0].numel(), args[1]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("byte", probe.PATTERNS)
def test_blocks_of_the_outputs_sizes_are_poisoned_before_the_call(byte):
    """They are what a caching allocator hands out next, that of a GPU above all."""
    with Fills() as mode, probe.poison(byte, "cpu", [0, 6000, 2**20, 2**25, 6000]):
        pass
    assert Counter(mode.filled) == {(6000, byte): 32, (2**20, byte): 16, (2**25, byte): 1}


@pytest.mark.parametrize("name", ["x"])
@pytest.mark.parametrize("axis", [0, 1])
def test_far_offsets_exceed_32_bits_and_are_cheap(name, axis):
    values = torch.arange(6 * 40, dtype=torch.float16).reshape(6, 40)
    placed = layouts.place(values, layouts.FAR_LAYOUTS[axis], "cpu")
    furthest = sum((n - 1) * s for n, s in zip(placed.view.shape, placed.view.stride(), strict=True))
    assert furthest > 2**31 - 1 and max(placed.view.stride()) < 2**31
    assert torch.equal(placed.view, values)
    snapshot = placed.snapshot()
    assert snapshot.numel() < 50_000 and layouts.changed({"x": placed}, {"x": snapshot}) == []
    placed.view[-1, -1] += 1
    assert layouts.changed({"x": placed}, {"x": snapshot}) == ["x"]


def test_what_lies_where_a_wrapped_offset_points_is_not_the_operand():
    placed = layouts.place(torch.ones(6, 40, dtype=torch.float16), "far0", "cpu")
    row = placed.view.stride(0)
    wrapped = 5 * row - 2**32
    assert placed.view.as_strided((1,), (1,), placed.view.storage_offset() + wrapped).item() == 0


def test_an_axis_too_short_for_a_far_layout_is_refused():
    with pytest.raises(ValueError, match="far0: expected at least 3 elements along axis 0"):
        layouts.place(torch.ones(2, 40), "far0", "cpu")


def test_no_room_for_a_layout_declines_the_trial(monkeypatch):
    def refuse(*args):
        raise layouts.NoRoom("8.0 GiB of address space cannot be mapped here: refused")

    monkeypatch.setattr(layouts, "_mapped", refuse)
    case = plain_case(registry.contract("softmax"), "float16", "normal", 0, SIZE)
    far = CaseTrial(type(case)(case.op, case.dtype, case.sizes, case.values, (("x", "far0"),), case.params, case.seed))
    outcome = judge.run(subject(right), far)
    assert outcome.status == DECLINED and outcome.reason.startswith("not run: 8.0 GiB")


@pytest.mark.parametrize("key", ["CPU", "CompositeExplicitAutograd"])
def test_a_mode_sees_into_operators_that_are_python(key):
    """Which are no work of the library's by themselves."""
    named = f"test_instruments_{key}"
    library = torch.library.Library(named, "FRAGMENT")
    library.define("moved(Tensor x) -> Tensor")
    library.impl("moved", lambda x: torch.empty(x.shape).copy_(x), key)
    library.define("worked.out(Tensor x) -> Tensor")
    library.impl("worked.out", lambda x: torch.exp(x), key)
    operators = getattr(torch.ops, named)
    with probe.Watch() as watch:
        moved = operators.moved(torch.ones(3))
    assert watch.library == {"copy_": 1} and watch.reached(moved)
    with probe.Watch() as watch:
        operators.worked.out(torch.ones(3))
        torch.ones(3).sin()
    assert watch.library == {"exp": 1, "sin": 1}
    with probe.Watch() as watch, backends.running():
        operators.worked.out(torch.ones(3))
    assert watch.library == {}


def test_memory_that_neither_a_kernel_nor_the_library_has_changed():
    """What Python writes after a kernel has ended, by way of another library."""
    with probe.Watch() as watch:
        y, other, later = torch.empty(4, 5), torch.empty(3), torch.empty(6)
        with backends.running():
            y.fill_(1)
        assert watch.unexplained(y) is None
        later.fill_(2)  # by the library, which is seen
        assert watch.unexplained(later) is None and watch.unexplained(y[1:]) is None
        other.numpy()[1] = 5
        y.numpy()[2, 3] = 5
    assert (
        watch.unexplained(y) == "was changed after the last kernel had ended, by no call of the library that was seen"
    )
    assert watch.unexplained(other) == watch.unexplained(y)
    foreign = torch.arange(3.0)
    assert watch.unexplained(foreign) == "lies in memory that no call of torch's that was seen has allocated"


def test_what_the_library_has_copied_is_explained_by_what_it_was_copied_from():
    foreign = torch.arange(6.0)
    with probe.Watch() as watch:
        made, into = foreign.clone(), torch.empty(6)
        into.copy_(foreign)
        cast = foreign.to(torch.float64)
    assert [(to.data_ptr(), of.data_ptr()) for to, of in watch.copies] == [
        (each.data_ptr(), foreign.data_ptr()) for each in (made, into, cast)
    ]
    assert watch.unexplained(made) is watch.unexplained(into) is watch.unexplained(into.view(2, 3)) is None


def test_a_part_that_the_library_has_copied_explains_the_whole():
    with probe.Watch() as watch:
        y = torch.empty(6)
        with backends.running():
            y.fill_(1)
        y[2:].copy_(torch.ones(4) * 3)
    assert watch.unexplained(y) is None


def test_without_a_launch_nothing_was_changed_after_one():
    with probe.Watch() as watch:
        y = torch.empty(4)
        y.numpy()[1] = 5
    assert watch.unexplained(y) is None


def test_a_launch_begins_the_looking_anew():
    with probe.Watch() as watch:
        y = torch.empty(4)
        with backends.running():
            y.fill_(1)
        y.fill_(2)
        with backends.running():
            pass
        assert watch.unexplained(y) is None
        y.numpy()[1] = 5
    assert watch.unexplained(y) is not None


ALLOCATED = {
    "zeros": lambda: torch.zeros(3, 4),
    "ones": lambda: torch.ones(3, dtype=torch.int8),
    "full": lambda: torch.full((2, 2), 7, dtype=torch.float64),
    "in other strides": lambda: torch.empty_strided((3, 4), (1, 3)).fill_(5),
    "like another": lambda: torch.zeros_like(torch.ones(4, 3).t()),
    "of another": lambda: torch.ones(2).new_full((3,), 2.5),
    "permuted": lambda: torch.empty_permuted((2, 3, 4), (0, 2, 1)).fill_(1),
    "a number": lambda: torch.zeros(()),
}


@pytest.mark.parametrize("make", ALLOCATED.values(), ids=ALLOCATED)
def test_what_is_allocated_between_bands_is_as_it_was_asked_for(make):
    plain = make()
    with probe.Watch() as watch:
        made = make()
    assert (made.shape, made.stride(), made.dtype) == (plain.shape, plain.stride(), plain.dtype)
    assert torch.equal(made, plain) and watch.reached(made) and watch.broken() == []
    assert made.untyped_storage().nbytes() % probe.GUARD_BYTES == 0
    assert not watch.reached(plain)


def test_fresh_memory_between_bands_is_poisoned():
    with probe.Watch():
        made = torch.empty(5)
    assert bool((made.view(torch.uint8) == probe.PATTERNS[1]).all())


def test_what_has_no_memory_to_guard_is_left_alone():
    with probe.Watch() as watch:
        made = [torch.empty(0), torch.empty(3, device="meta"), torch.zeros(2, 2, layout=torch.sparse_coo)]
    assert not watch.reached(made[0]) and made[1].device.type == "meta" and made[2].layout is torch.sparse_coo


@pytest.mark.parametrize("count", [1, 7, 512, 513])
def test_how_many_bytes_beside_an_allocation_were_written(count):
    with probe.Watch() as watch:
        y = torch.zeros(40, dtype=torch.uint8)
        y.as_strided((512 + 7 - 40 % 7,), (1,), y.storage_offset() + 40)[:count].fill_(1)
        z = torch.zeros(2, dtype=torch.uint8)
        z.as_strided((3,), (1,), z.storage_offset() - 3).fill_(1)
    room = 512 + 512 - 40  # behind it: a band, and what the body leaves of a multiple of one
    assert watch.broken() == [
        f"{min(count, room)} bytes past the end of an allocation of (40,) uint8 were written",
        "3 bytes before an allocation of (2,) uint8 were written",
    ]


def test_tensors_by_their_bytes():
    x = torch.tensor([[1.0, -0.0], [2.0, 3.0]])
    assert probe.raw(x.t()).tolist() == probe.raw(torch.tensor([1.0, 2.0, -0.0, 3.0])).tolist()
    assert probe.raw(torch.empty(0, 3)).numel() == 0 and probe.raw(torch.ones((), dtype=torch.float16)).numel() == 2
    assert not torch.equal(probe.raw(torch.tensor([0.0])), probe.raw(torch.tensor([-0.0])))
    grad = torch.ones(2, requires_grad=True)
    assert not probe.raw(grad).requires_grad


def test_which_generators_are_the_same():
    import random as of_python

    import numpy as np

    before = np.random.get_state()
    assert probe._same(before, np.random.get_state()) and probe._same(torch.ones(2), torch.ones(2))
    moved = (*before[:2], before[2] + 1, *before[3:])
    assert not probe._same(before, moved) and not probe._same(torch.ones(2), torch.zeros(2))
    assert probe._same(of_python.getstate(), of_python.getstate()) and not probe._same((1, 2), (1, 3))


def test_poison_of_nothing_and_of_every_byte():
    """The complement of 0 would switch the filling off."""
    for byte in (0x00, 0xFF, 0x7B):
        with probe.poison(byte, "cpu", [0, 1200]):
            fresh = torch.empty(300).view(torch.uint8)
        assert bool((fresh[16:] == byte).all()), byte


def test_of_a_gpus_memory_nothing_is_read_after_a_launch():
    """What lies there a kernel may still be writing."""
    with probe.Watch() as watch:
        own = torch.zeros(3)
        watch._buffers.append((SimpleNamespace(is_cuda=True, data_ptr=lambda: 7), 4, "(1,) int32"))
        with backends.running():
            pass
        assert len(watch._digests) == 1 and 7 not in watch._digests and watch.reached(own)
        watch._buffers.pop()
