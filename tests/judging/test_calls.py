"""Judging by further calls: what each shows, by calls that are scripted where a kernel would need a GPU or luck."""

import contextlib
import itertools
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from touchstone import backends
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import call, calls, judge, trials
from touchstone.conformance.judging.executor import CANNOT, DECLINES, PLAIN, RAISES, InProcess, Manner, Observed, Raised
from touchstone.conformance.judging.judgement import DECLINED, FAILED, NOT_RUN, PASSED, Judgement
from touchstone.conformance.judging.trials import CaseTrial, Int64Index, InvalidCall, ManyCalls
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.cases import plain_case, variants
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import Contract, Invalid, Operand, Output
from touchstone.conformance.spec.contract import Int64Index as Beyond
from touchstone.reference.rms_norm_backward import torch_rms_norm_backward

SOFTMAX = registry.contract("softmax")


def softmax(x):
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()


def case_of(op="softmax", dtype="float32", seed=0, **size):
    contract = registry.contract(op)
    return plain_case(contract, dtype, next(iter(contract.values)), seed, size or None)


def subject(fn=softmax, op="softmax", **about):
    return Subject(op, fn, "fn", "user@cpu", "cpu", **about)


class Scripted(InProcess):
    """Makes calls, of which some are answered from a script: what was seen, or changes of it."""

    def __init__(self, subject, *script, device="cpu"):
        super().__init__(subject)
        self.script, self.manners, self.device = list(script), [], device

    def call(self, arguments, manner=PLAIN, placed=None, debug=False):
        self.manners.append(manner)
        answer = self.script.pop(0) if self.script else None
        if isinstance(answer, Observed):
            return answer
        seen = super().call(arguments, manner, placed, debug)
        if answer is not None:
            answer(seen)
        return seen


def raised(kind, text="no"):
    return Observed(raised=Raised(kind, ("SomeError", "Exception"), text, f"SomeError: {text}"))


def judgement(*script, trial=None, fn=softmax, **about):
    of = subject(fn, **about)
    return Judgement(of, trial or CaseTrial(case_of(rows=3, cols=7)), executor=Scripted(of, *script))


def messages(j, check=None):
    return [finding.message for finding in j.outcome.findings if check is None or finding.check == check]


def first_call(j):
    """A call whose values are right; then as `call_again` has it."""
    inputs = j.contract.build(j.case)
    seen = j.executor.call(inputs.arguments, placed=inputs.placed)
    return inputs, call.snapshots(inputs), seen.values


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (raised(RAISES), "a second call with the same inputs: raised"),
        (raised(DECLINES, "not today"), "a second call with the same inputs: not today"),
        (raised(CANNOT, "not here"), "a second call with the same inputs: not here"),
        (Observed(values="returned 2 values; expected 1"), "returned 2 values; expected 1"),
        (Observed(values={"y": None}), "y: a second call returns something else"),
        (Observed(values={"y": torch.zeros(3)}), "y: a second call returns something else"),
    ],
)
def test_a_second_call_that_gives_something_else(second, said):
    j = judgement()
    inputs, before, values = first_call(j)
    j.executor.script.append(second)
    calls.call_again(j, inputs, before, values)
    assert any(said in message for message in messages(j, Check.REPEAT)) and j.outcome.status == FAILED


def test_what_a_second_call_leaves_changed_fails_the_trial():
    j = judgement()
    inputs, before, values = first_call(j)
    j.executor.script.append(lambda seen: seen.settings.append("the default dtype"))
    calls.call_again(j, inputs, before, values)
    assert any("the default dtype" in message for message in messages(j)) and j.outcome.status == FAILED


def test_a_second_call_that_is_right():
    j = judgement()
    calls.call_again(j, *first_call(j))
    assert not j.outcome.findings and j.outcome.instruments == ["library calls", "repeat", "held outputs"]
    assert [manner.watched for manner in j.executor.manners] == [False, True]
    assert [manner.poison for manner in j.executor.manners] == [None, calls.probe.PATTERNS[1]]


def test_what_differs_where_it_is_watched_is_judged_without():
    """A mode can make a call fail, or compute otherwise."""
    wrong = lambda seen: seen.values.update(y=2 * seen.values["y"])  # noqa: E731
    j = judgement()
    inputs, before, values = first_call(j)
    j.executor.script.append(wrong)
    calls.call_again(j, inputs, before, values)
    assert not j.outcome.findings and [m.watched for m in j.executor.manners] == [False, True, False]
    unwatched = lambda seen: wrong(seen) or setattr(seen, "watched", False)  # noqa: E731
    j = judgement()
    inputs, before, values = first_call(j)
    j.executor.script.append(unwatched)
    calls.call_again(j, inputs, before, values)
    assert len(j.executor.manners) == 2 and [f.check for f in j.outcome.findings] == [Check.REPEAT]
    assert "y, on a second call with the same inputs: " in messages(j)[0] and j.outcome.findings[0].error > 1


def test_what_a_second_call_does_to_inputs_and_earlier_outputs():
    kept = []

    def writes(x):
        kept.append(softmax(x))
        if len(kept) > 1:
            x[0, 0] = 5
            kept[0][0, 0] = 5
        return kept[-1]

    j = judgement(fn=writes)
    calls.call_again(j, *first_call(j))
    assert "x was written in a second call" in messages(j, Check.INPUTS)
    assert messages(j, Check.HELD) == ["y: a later call changed what an earlier one had returned"]
    held = {}
    j = judgement(fn=lambda x: held.setdefault(1, softmax(x)))
    calls.call_again(j, *first_call(j))
    assert messages(j, Check.ALIAS) == ["y: two calls return the same memory"]


def test_what_a_watched_call_saw_is_found():
    j = judgement(own=True)
    seen = Observed(values={"y": torch.ones(1)}, broken=["8 bytes"], library=["mm", "sum"], guarded=True)
    calls._check_watched(j, seen)
    assert messages(j, Check.BOUNDS) == ["8 bytes"] and j.outcome.library == ["mm", "sum"]
    assert messages(j, Check.LIBRARY)[0].startswith("the launcher calls the library: mm, sum; allowed are ")
    assert j.outcome.instruments == ["library calls", "output guards"]
    users = judgement()
    calls._check_watched(users, replace(seen, broken=[], guarded=False))
    assert not users.outcome.findings and users.outcome.instruments == ["library calls"]
    failed = judgement(own=True)
    calls._check_watched(failed, raised(RAISES))
    assert not failed.outcome.findings and not failed.outcome.instruments
    sentence = judgement()
    calls._check_watched(sentence, Observed(values="returned 2 values"))
    assert not sentence.outcome.instruments


@pytest.mark.parametrize(
    ("about", "severity"), [(dict(own=True), "failure"), ({}, "note"), (dict(own=True, deterministic=False), None)]
)
def test_bits_that_differ_within_the_budget(about, severity):
    j = judgement(**about)
    inputs = j.contract.build(j.case)
    right = softmax(inputs.arguments["x"])
    calls._check_repeat(j, inputs, "y", torch.nextafter(right, torch.tensor(9.0)))
    assert [finding.severity for finding in j.outcome.findings] == ([] if severity is None else [severity])
    calls._check_repeat(j, inputs, "y", torch.zeros(3, 7, dtype=torch.complex64))
    assert j.outcome.findings[-1].message.endswith("dtype torch.complex64") and j.outcome.findings[-1].error is None


def test_which_tensors_have_the_same_bits():
    a = torch.tensor([1.0, float("nan"), 0.0])
    others = (a.clone(), -a, a[:2], a.double(), None, 3.0, a[:])
    assert calls._same_bits([(a, other) for other in others]) == [True, *[False] * 5, True]
    assert calls._same_bits([(torch.zeros(2), torch.zeros(2).neg())]) == [False]
    assert calls._same_bits([]) == []


def varied(count, op="layer_norm"):
    case = case_of(op)
    return ManyCalls(case, count, variants(registry.contract(op), case))


def layer_norm(x, weight, bias, *, eps=1e-5):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def test_findings_of_a_call_among_many_are_its_own():
    """A note of an earlier call stays as it was."""
    count = itertools.count(1)

    def fn(x, weight, bias, *, eps=1e-5):
        number = next(count)
        y = layer_norm(x, weight, bias, eps=eps).contiguous()
        if number in (6, 7):  # within a strided call: strides are passed on, which is no more than a note
            return y.t().contiguous().t()
        return y * 2 if number == 12 else y

    outcome = judge.run(Subject("layer_norm", fn, "fn", "user@cpu", "cpu", diagnosed=False), varied(20))
    assert outcome.status == FAILED and len(outcome.findings) >= 2
    assert all(finding.message.count(" of 20") == 1 for finding in outcome.findings)
    numbers = [int(finding.message.split()[1]) for finding in outcome.findings]
    assert numbers[0] in (6, 7) and numbers[-1] == 12
    assert outcome.findings[0].severity == "note" and outcome.findings[-1].severity == "failure"
    assert outcome.findings[-1].requirement == "determinism"


def test_many_calls_go_on_in_the_buffers_of_the_call_before():
    addresses, gradients, sizes = [], [], []

    def fn(x):
        addresses.append(x.data_ptr())
        gradients.append(torch.is_grad_enabled())
        sizes.append(x.untyped_storage().nbytes())
        return softmax(x)

    kept = []
    outcome = judge.run(subject(lambda x: kept.append(x) or fn(x)), ManyCalls(case_of(rows=3, cols=7), 8))
    assert outcome.status == PASSED and "8 calls with distinct inputs" in outcome.instruments
    assert addresses[0::2] == addresses[1::2] and len(set(addresses)) == 4
    assert gradients == [True, True, False, False] * 2
    assert len(outcome.instruments) == len(set(outcome.instruments))


@pytest.mark.parametrize(
    ("error", "status"), [(ImportError("no compiler"), NOT_RUN), (NotImplementedError("no more"), DECLINED)]
)
def test_a_call_that_is_taken_no_longer_ends_many(error, status):
    """Calls that differ from one before in their values alone: the trial is then what the call is."""
    count = itertools.count(1)

    def fn(x):
        if next(count) == 3:
            raise error
        return softmax(x)

    outcome = judge.run(subject(fn), ManyCalls(case_of(rows=3, cols=7), 5))
    assert outcome.status == status and "call 3 of 5, though it took call 1: " in outcome.reason
    assert str(error) in outcome.reason
    count = itertools.count(3)
    assert judge.run(subject(fn), ManyCalls(case_of(rows=3, cols=7), 5)).status == status


def test_which_of_many_calls_are_wrong_is_looked_for_after_the_first(monkeypatch):
    """By their inputs: what is looked for besides calls the kernel too."""
    monkeypatch.setattr(calls, "FURTHER", 60.0)
    trial = ManyCalls(case_of(rows=3, cols=7), 12)
    made = calls.cases_of(trial, SOFTMAX)
    bad = [SOFTMAX.build(case).arguments["x"] for number, case in enumerate(made, 1) if number % 3 == 0]
    outcome = judge.run(subject(lambda x: softmax(x) * (2 if any(torch.equal(x, b) for b in bad) else 1)), trial)
    (finding,) = [finding for finding in outcome.findings if finding.check == Check.VALUES]
    assert finding.message.startswith("call 3 of 12")
    assert finding.diagnosis.splitlines()[0] == "every 3th call is wrong: 3, 6, 9, 12"


def test_further_calls_that_take_too_long_say_nothing(monkeypatch):
    monkeypatch.setattr(calls, "FURTHER", 0.1)
    count = itertools.count(1)

    def fn(x):
        if (number := next(count)) > 3:
            time.sleep(0.2)
        return softmax(x) * (2 if number % 3 == 0 else 1)

    outcome = judge.run(subject(fn), ManyCalls(case_of(rows=3, cols=7), 12))
    assert not any("th call is wrong" in (finding.diagnosis or "") for finding in outcome.findings)


def test_the_cases_of_many_calls():
    trial = varied(16)
    made = calls.cases_of(trial, registry.contract("layer_norm"))
    assert len(made) == 16 and calls.cases_of(CaseTrial(trial.case), None) == [trial.case]
    plain = trial.case
    for number, case in enumerate(made, 1):
        place = (number - 1) % 8
        if place in (4, 6):
            assert case.layouts != plain.layouts and case.params == plain.params
        elif place % 2 == 0:
            assert (case.layouts, case.params, case.mirrored, case.altered) == (plain.layouts, plain.params, None, None)
        if place % 2:
            before = made[number - 2]
            assert (case.seed, case.layouts) == (before.seed, before.layouts)
            changed = [case.mirrored is not None, case.altered is not None, case.params != before.params]
            assert changed == [place in (1, 5), place == 7, place == 3]
            assert case.drawn_as == (before.id if place == 3 else None)
        else:
            assert case.seed == plain.seed + 1000 * number
    assert made[1].mirrored != made[5].mirrored and made[7].altered != made[15].altered
    sorted_ones = replace(registry.contract("layer_norm"), mirrors=False)
    assert not any(case.mirrored or case.altered for case in calls.cases_of(trial, sorted_ones))
    alone = calls.cases_of(ManyCalls(plain, 16), registry.contract("layer_norm"))
    assert {case.layouts for case in alone} == {plain.layouts} and {case.params for case in alone} == {plain.params}


def test_what_is_special_about_a_call():
    plain = case_of("layer_norm")
    mirrored, altered = replace(plain, mirrored="x"), replace(plain, altered="bias")
    other = replace(plain, params=(("eps", 0.5),))
    strided = replace(plain, layouts=(("x", "sliced"), *plain.layouts[1:]), seed=7)
    cases = [plain, mirrored, altered, other, strided, replace(strided, mirrored="weight"), replace(plain, seed=9)]
    assert [calls._about(cases, number) for number in range(1, 8)] == [
        "",
        " (as call 1, but x mirrored inside)",
        " (as call 2, but one element of bias altered)",
        " (as call 3, but eps=0.5)",
        " (x sliced)",
        " (as call 5, but weight mirrored inside; x sliced)",
        "",
    ]


def test_a_case_with_many_rows_is_made_smaller():
    case = replace(case_of(), sizes=(("rows", 70000), ("cols", 33), ("trailing", (2, 3))))
    assert calls.a_64th(case).sizes == (("rows", 1094), ("cols", 33), ("trailing", (2, 3)))
    both = replace(case_of(), sizes=(("B", 400), ("H", 100), ("D", 99)))
    assert calls.a_64th(both).sizes == (("B", 7), ("H", 100), ("D", 99))
    assert calls.a_64th(replace(both, sizes=(("B", 400), ("H", 101), ("D", 99)))).size == {"B": 7, "H": 2, "D": 99}


@pytest.mark.parametrize(("seconds", "long"), [(0.0, False), (10 / 64, False), (0.5, True)])
def test_whether_many_rows_take_long(monkeypatch, seconds, long):
    clock = [0.0]
    monkeypatch.setattr(calls.time, "monotonic", lambda: clock[0])

    def slow(x):
        clock[0] += seconds if len(x) < 7000 else 0
        return softmax(x)

    j = judgement(fn=slow, trial=CaseTrial(case_of(rows=64 * 100, cols=2)))
    assert calls.takes_long(j) is long
    assert len(j.executor.manners) == 2  # the first of which compiles
    if long:
        assert messages(j) == [
            "not called with them: float32-100x2-normal took 0.5 s here, and 64 times as many rows would take 32 s"
        ]
        assert j.outcome.findings[0].severity == "note" and j.outcome.status == PASSED
    else:
        assert not j.outcome.findings


def test_a_smaller_case_that_fails_counts():
    wrong = judgement(fn=lambda x: 2 * softmax(x), trial=CaseTrial(case_of(rows=6400, cols=2)))
    assert calls.takes_long(wrong) is False and not wrong.outcome.findings  # it is called with all of them
    raises = judgement(fn=lambda x: 1 / 0, trial=CaseTrial(case_of(rows=6400, cols=2)))
    assert calls.takes_long(raises) is True and [f.check for f in raises.outcome.findings] == [Check.RAISED]


@pytest.mark.parametrize(
    ("seen", "own", "said", "severity"),
    [
        (None, True, None, None),
        (raised(RAISES, "stream"), True, "cannot be captured as a CUDA graph: SomeError: stream", "failure"),
        (raised(RAISES, "stream"), False, "cannot be captured as a CUDA graph: SomeError: stream", "note"),
        (
            lambda seen: seen.values["y"].zero_(),
            True,
            "replayed from a CUDA graph: y: 21 of 21 elements wrong",
            "failure",
        ),
        (
            lambda seen: seen.values["y"].zero_(),
            False,
            "replayed from a CUDA graph: y: 21 of 21 elements wrong",
            "note",
        ),
    ],
)
def test_a_call_that_is_captured_as_a_graph(monkeypatch, seen, own, said, severity):
    monkeypatch.setattr(InProcess, "_replayed", lambda self, arguments: self.subject.call(arguments))
    j = judgement(*([] if seen is None else [seen]), own=own)
    calls.as_graph(j)
    assert j.executor.manners[0].replayed and "graph capture" in j.outcome.instruments
    if said is None:
        assert not j.outcome.findings
    else:
        (finding,) = j.outcome.findings
        assert finding.message.startswith(said) and (finding.check, finding.severity) == (Check.GRAPH, severity)


@pytest.mark.parametrize(("kind", "status"), [(DECLINES, DECLINED), (CANNOT, NOT_RUN)])
def test_a_capture_that_is_declined(kind, status):
    j = judgement(raised(kind, "not today"), own=True)
    calls.as_graph(j)
    assert (j.outcome.status, j.outcome.reason) == (status, "not today") and not j.outcome.findings
    assert "graph capture" not in j.outcome.instruments


def test_an_invalid_call_is_spoilt_and_refused():
    spoilt = []
    invalid = Invalid("x", lambda arguments: spoilt.append(1) or {**arguments, "x": None}, TypeError, "x: expected")

    def fn(x):
        raise TypeError("x: expected a tensor" if x is None else "who knows")

    trial = InvalidCall(case_of(rows=3, cols=7), invalid)
    assert judge.run(subject(fn, own=True), trial).status == PASSED and spoilt == [1]

    def other(x):
        raise TypeError("none given")

    (finding,) = judge.run(subject(other, own=True), trial).findings
    assert finding.message == "expected TypeError whose message matches 'x: expected', got TypeError: none given"


ROWS, COLUMNS = 40, 8


@pytest.fixture
def beyond(monkeypatch):
    """An op, and a size of it that stands for one beyond 2^31 elements."""

    def expect(inputs, params, *, dtype, compute=None):
        x = inputs["x"]
        return {"y": Expected(2 * x * inputs["w"], parts=[(1, 1.0)]), "s": Expected(x.sum(0), parts=[(99, 99.0)])}

    contract = Contract(
        operands={"x": Operand("rows cols"), "w": Operand("cols")},
        outputs={"y": Output("rows cols"), "s": Output("cols", torch.float32)},
        sizes=[dict(rows=2, cols=3)],
        values={"normal": lambda d: {n: d.normal(d.shape(n)) for n in "xw"}},
        expect=expect,
        int64_index=Beyond(dict(rows=ROWS, cols=COLUMNS), {"x": 0}, "float32"),
        name="doubled",
    )
    monkeypatch.setattr(registry, "contract", lambda op: contract)
    return contract


def of_beyond(contract, fn, **about):
    case = plain_case(contract, "float32", "normal", size=contract.int64_index.size)
    of = Subject("doubled", fn, "fn", "user@cpu", "cpu", **about)
    j = Judgement(of, Int64Index(case), executor=InProcess(of))
    calls.int64_index_output(j)
    return j


def doubled(x, w):
    return 2 * x * w, x.sum(0)


def wrong_at(row):
    def fn(x, w):
        y, s = doubled(x, w)
        y[row] += 1
        return y, s

    return fn


@pytest.mark.parametrize(("row", "seen"), [(0, True), (1, True), (-1, True), (-2, True), (5, False), (20, False)])
def test_some_rows_of_a_huge_output_are_compared(beyond, row, seen):
    j = of_beyond(beyond, wrong_at(row))
    assert (j.outcome.status == FAILED) == seen and set(j.outcome.fractions) == {"y"}
    if seen:
        assert messages(j)[0].startswith(f"y, rows [0, 1, {ROWS - 2}, {ROWS - 1}] of {ROWS}: 8 of 32 elements wrong")
        assert j.outcome.findings[0].error > 1 and j.outcome.findings[0].about == "y"


def test_of_a_huge_output_form_counts_and_sums_do_not(beyond):
    assert of_beyond(beyond, doubled).outcome.status == PASSED
    assert of_beyond(beyond, lambda x, w: (2 * x * w, torch.zeros(COLUMNS))).outcome.status == PASSED
    assert messages(of_beyond(beyond, lambda x, w: (x[:1], x.sum(0))), Check.SHAPE)
    some = of_beyond(beyond, lambda x, w: (x, x.sum(0)), outputs=("s",))
    assert some.outcome.status == PASSED and not some.outcome.fractions
    assert messages(of_beyond(beyond, lambda x, w: (x, x, x)), Check.RETURNS) == ["returned 3 values; expected 2"]
    assert messages(of_beyond(beyond, lambda x, w: 1 / 0), Check.RAISED)


def test_no_room_for_a_huge_output_declines(beyond):
    def fn(x, w):
        raise AssertionError

    def none(*given, **named):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", none)
        j = of_beyond(beyond, fn)
    assert (j.outcome.status, j.outcome.reason) == (DECLINED, "not run: CUDA out of memory")


def test_the_manner_of_a_call_that_is_observed():
    j = judgement(trial=ManyCalls(case_of(rows=3, cols=7), 4))
    inputs = j.contract.build(j.case)
    call.observe_call(j, inputs, 0x7B, usual=True)
    case = judgement()
    call.observe_call(case, inputs, watched=True, late=False)
    assert j.executor.manners == [
        Manner(0x7B, (84,), state=True, generators=False, usual=True, conspicuous=j.conspicuous)
    ]
    assert case.executor.manners == [
        Manner(calls.probe.PATTERNS[0], (84,), watched=True, state=True, conspicuous=case.conspicuous)
    ]
    assert case.outcome.instruments == ["allocator poison", "global state"]


def test_what_a_call_changes_of_the_process():
    for own, severity in ((True, "failure"), (False, "note")):
        j = judgement(own=own)
        call._check_state(j, Observed(settings=["a from 1 to 2", "b from 3 to 4"], consumed=["the state of c"]))
        assert messages(j, Check.STATE) == [
            "global state is left changed: a from 1 to 2, b from 3 to 4",
            "the call changes the state of c",
        ]
        assert [finding.severity for finding in j.outcome.findings] == ["failure", severity]
    j = judgement()
    call._check_state(j, Observed())
    assert not j.outcome.findings


@pytest.mark.parametrize(("kind", "status"), [(DECLINES, DECLINED), (CANNOT, NOT_RUN), (RAISES, FAILED)])
def test_what_was_raised(kind, status):
    j = judgement()
    call.note_raised(j, Raised(kind, ("SomeError",), "not today", "SomeError: not today"))
    assert j.outcome.status == status and j.outcome.reason == (None if status == FAILED else "not today")
    assert [(f.check, f.message, f.raised) for f in j.outcome.findings] == (
        [(Check.RAISED, "SomeError: not today", "SomeError")] if status == FAILED else []
    )
    silent = judgement()
    call.note_raised(silent, Raised(kind, ("SomeError",), "", "SomeError: no message"))
    assert silent.outcome.reason == (None if status == FAILED else "SomeError")


def test_strides_that_are_passed_on():
    strided = replace(case_of(rows=3, cols=7), layouts=(("x", "transposed"),))
    passed_on = torch.zeros(7, 3).t()
    for case, own, got, severity in (
        (strided, False, passed_on, "note"),
        (strided, True, passed_on, "failure"),
        (case_of(rows=3, cols=7), False, passed_on, "failure"),
        (strided, False, torch.zeros(3, 1).expand(3, 7), "failure"),
    ):
        j = judgement(own=own)
        assert call._severity_of_strides(j, SOFTMAX.build(case), "y", got) == severity


def test_the_sizes_of_outputs_in_bytes():
    contract = registry.contract("online_softmax")
    assert call.output_bytes(contract, case_of("online_softmax", "float16", rows=3, cols=7)) == (42, 12)


def test_trouble_on_a_case_is_its_first_failure():
    def trouble(fn, **about):
        j = judgement(fn=fn, **about)
        _, found = call.trouble_on(j, j.contract.build(j.case), conspicuous=())
        assert not j.outcome.findings  # it is nothing of the trial's own
        return None if found is None else found.check

    assert trouble(softmax) is None and trouble(lambda x: 2 * softmax(x)) == Check.VALUES
    assert trouble(lambda x: 1 / 0) == Check.RAISED and trouble(lambda x: (x, x)) == Check.RETURNS
    declines = lambda x: (_ for _ in ()).throw(NotImplementedError("no"))  # noqa: E731
    assert trouble(declines) is None
    assert trouble(lambda x: softmax(x).double()) == Check.DTYPE


def in_tf32(a, b):
    a, b = (((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) for t in (a, b))
    return a @ b


@pytest.mark.parametrize(("fn", "passes"), [(in_tf32, "tf32"), (lambda a, b: (a @ b) * 1.01, None)])
def test_the_precision_in_which_it_would_be_right(fn, passes):
    case = case_of("matmul", M=40, K=300, N=30)
    j = Judgement(subject(fn, "matmul"), CaseTrial(case))
    inputs = j.contract.build(case)
    got = j.call(inputs.arguments).values
    expected = j.contract.expected(inputs)
    verdicts = {"c": calls.compare.compare(got["c"], expected["c"], torch.float32)}
    assert not verdicts["c"].ok
    assert call._passes_as(j, inputs, got, verdicts, again=True) == passes
    assert call._passes_as(j, inputs, got, verdicts, again=False) == passes
    with_right = {**verdicts, "right": calls.compare.Verdict(0.5)}
    assert call._passes_as(j, inputs, got, with_right, again=True) == passes
    declared = Judgement(subject(fn, "matmul", compute="tf32"), CaseTrial(case))
    assert call._passes_as(declared, inputs, got, verdicts, again=True) is None
    assert ("beyond tf32" in j.subject.compared) == (passes is None)


def test_what_is_rounded_once_is_in_no_lower_precision(monkeypatch):
    """Large products alone are rounded: all others are those of float64."""
    case = case_of("matmul", M=40, K=300, N=30)
    j = Judgement(
        subject(lambda a, b: in_tf32(a, b) if len(a) == 40 else (a.double() @ b.double()).float(), "matmul"),
        CaseTrial(case),
    )
    inputs = j.contract.build(case)
    got, expected = j.call(inputs.arguments).values, j.contract.expected(inputs)
    verdicts = {"c": calls.compare.compare(got["c"], expected["c"], torch.float32)}
    monkeypatch.setattr(call.causes, "is_right", lambda j, one, *given: one.size["M"] == 40)
    assert call._passes_as(j, inputs, got, verdicts, again=True) is None
    right = expected["c"].answer
    assert call._is_rounded_once(right.float(), expected["c"])
    for other in (right.float() * (1 + 2.0**-22), right.float()[:1], None):
        assert not call._is_rounded_once(other, expected["c"])


def test_a_precision_that_explains_no_other_trial_is_not_tried_again(monkeypatch):
    case, asked = case_of("matmul", M=40, K=300, N=30), []
    j = Judgement(subject(lambda a, b: (a @ b) * 1.01, "matmul"), CaseTrial(case))
    inputs = j.contract.build(case)
    got = j.call(inputs.arguments).values
    verdicts = {"c": calls.compare.compare(got["c"], j.contract.expected(inputs)["c"], torch.float32)}
    whole = type(j.contract).expected
    monkeypatch.setattr(
        type(j.contract),
        "expected",
        lambda self, inputs, compute=None: asked.append(compute) or whole(self, inputs, compute),
    )
    assert call._passes_as(j, inputs, got, verdicts, again=True) is None and "tf32" in asked
    asked.clear()
    assert call._passes_as(j, inputs, got, verdicts, again=True) is None and not asked


def test_answers_are_kept_for_many_kernels(monkeypatch):
    asked = []
    whole = SOFTMAX.expect

    def expect(*given, **named):
        asked.append(1)
        return whole(*given, **named)

    monkeypatch.setattr(SOFTMAX, "expect", expect)
    cases = [case_of(rows=3, cols=7, seed=seed) for seed in (101, 102)]
    call.keep_answers(SOFTMAX, cases)
    assert len(asked) == 2
    first = call.expected_of(SOFTMAX, cases[0], None)
    assert call.expected_of(SOFTMAX, cases[0], None) is first and len(asked) == 2
    call.expected_of(SOFTMAX, cases[0], "tf32")
    assert len(asked) == 3  # of another precision
    call.keep_answers(SOFTMAX, [])
    again = call.expected_of(SOFTMAX, cases[0], None)
    assert len(asked) == 4 and call.expected_of(SOFTMAX, cases[0], None) is again and len(asked) == 4


def test_many_calls_of_an_output_that_is_not_asked_for():
    """None in the place of a tensor is held as little as it is compared."""
    unasked = replace(SOFTMAX, expect=lambda *given, **named: {"y": None})
    j = judgement(trial=ManyCalls(case_of(rows=3, cols=7), 4), fn=lambda x: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "contract", lambda op: unasked)
        assert j.contract is unasked
        calls.many_calls(j, j.trial)
    assert j.passes and not j.outcome.findings and "held outputs" in j.outcome.instruments


def test_layouts_and_operands_take_turns_among_many_calls():
    """Two layouts and two mirrored operands in each eight calls, one altered operand and one parameter, all in turn."""
    contract = registry.contract("layer_norm")
    case = case_of("layer_norm")
    others = tuple(
        replace(case, layouts=(("x", kind), *case.layouts[1:]), params=(("eps", eps),))
        for kind, eps in (("sliced", 0.25), ("transposed", 0.5), ("offset", 0.75))
    )
    made = calls.cases_of(ManyCalls(case, 40, others), contract)

    def taken(*places, of):
        return [of(one) for number, one in enumerate(made) if number % 8 in places]

    assert taken(4, 6, of=lambda one: dict(one.layouts)["x"]) == (["sliced", "transposed", "offset"] * 4)[:10]
    assert taken(1, 5, of=lambda one: one.mirrored) == (["x", "weight", "bias"] * 4)[:10]
    assert taken(7, of=lambda one: one.altered) == ["x", "weight", "bias", "x", "weight"]
    assert taken(3, of=lambda one: one.param["eps"]) == [0.25, 0.5, 0.75, 0.25, 0.5]


@pytest.mark.parametrize("compute", ["tf32", "tf32x3"])
def test_a_lower_precision_is_tried_with_other_values(monkeypatch, compute):
    """Three other draws, and as many as asked for of the families that are exact; in tf32 the first size is wrong."""
    case, asked, of_first = case_of("matmul", seed=7, M=4, K=5, N=6), [], case_of("matmul").sizes
    j = Judgement(subject(torch.matmul, "matmul"), CaseTrial(case))
    monkeypatch.setattr(call.causes, "on_case", lambda j, case: asked.append(case) or {"c": None})
    monkeypatch.setattr(call.causes, "is_right", lambda j, case, name, got, answer: case.sizes != of_first)
    assert call._right_with_others(j, case, ["c"], compute, 2)
    first, *others = asked
    assert first == case_of("matmul", seed=7)
    families = [name for name, of in j.contract.exact.items() if "c" in of]
    assert families and [(other.values, other.seed) for other in others] == [
        *((case.values, seed) for seed in (8, 9, 10)),
        *((family, seed) for family in families for seed in (7, 8)),
    ]
    assert {other.sizes for other in others} == {case.sizes}


@pytest.mark.parametrize(
    ("wrong", "said", "raised"),
    [
        (lambda x: 2 * softmax(x), "y: ", None),
        (lambda x: 1 / 0, "ZeroDivisionError: division by zero", "ZeroDivisionError"),
        (lambda x: (x, x), "returned 2 values; expected 1", None),
    ],
)
def test_what_is_wrong_under_an_instrument_is_its_finding(monkeypatch, wrong, said, raised):
    within, tried = [], []

    @contextlib.contextmanager
    def instrument(name):
        tried.append(name)
        within.append(name)
        yield
        within.clear()

    def fn(x):
        with backends.running():
            return wrong(x) if "races" in within else softmax(x)

    offered = {name: lambda name=name: instrument(name) for name in ("order", "races", "bounds")}
    monkeypatch.setattr(registry, "behind", lambda target: ("paper",))
    backend = SimpleNamespace(ENGINE="interpreter", instruments=lambda device: offered)
    monkeypatch.setattr(registry, "backend", lambda name: backend)
    j = judgement(fn=fn)
    calls.call_under_instruments(j, j.contract.build(j.case), ["interpreter"])
    (finding,) = j.outcome.findings
    assert finding.check == Check.UNDER.of("races") and finding.message.startswith(said)
    assert finding.raised == raised and (finding.error is None) == (said != "y: ")
    assert tried == ["order", "races"] and j.outcome.instruments == ["order"]  # nothing is asked after a failure


@pytest.mark.parametrize(
    ("engines", "tried"),
    [
        ([], []),
        (["interpreter"], ["tiles"]),
        (["emulator"], ["threads"]),
        (["emulator", "interpreter"], ["threads", "tiles"]),
        (["press"], []),
    ],
)
def test_kernels_are_called_under_the_instruments_of_their_engine_once(monkeypatch, engines, tried):
    """Two languages on the emulator offer the same; the first of them cannot run here; another offers none."""
    entered = []

    def offers(engine, *names):
        made = {name: lambda name=name: entered.append(name) or contextlib.nullcontext() for name in names}
        return SimpleNamespace(ENGINE=engine, instruments=lambda device: made)

    languages = {
        "slate": offers("emulator"),
        "chalk": offers("emulator", "threads"),
        "crayon": offers("emulator", "threads"),
        "paper": offers("interpreter", "tiles"),
        "blank": SimpleNamespace(),
    }
    monkeypatch.setattr(registry, "behind", lambda target: tuple(languages))
    monkeypatch.setattr(registry, "backend", languages.__getitem__)

    def fn(x):
        for engine in engines:
            with backends.running(engine=engine):
                pass
        return softmax(x)

    j = judgement(fn=fn)
    inputs = j.contract.build(j.case)
    seen = j.call(inputs.arguments)
    assert seen.launched == sorted(engines)
    calls.call_under_instruments(j, inputs, seen.launched)
    assert entered == j.outcome.instruments == tried


def test_an_instrument_under_which_nothing_was_launched_has_not_reached_the_kernel(monkeypatch):
    offered = {"tiles": contextlib.nullcontext}
    backend = SimpleNamespace(ENGINE="interpreter", instruments=lambda device: offered)
    monkeypatch.setattr(registry, "behind", lambda target: ("paper",))
    monkeypatch.setattr(registry, "backend", lambda name: backend)
    j = judgement(fn=softmax)
    calls.call_under_instruments(j, j.contract.build(j.case), ["interpreter"])
    assert j.passes and j.outcome.instruments == []


def test_two_calls_that_share_their_buffers_have_one_layout():
    """Whatever else could change in the second of a pair, or nothing."""
    case = case_of("layer_norm")
    others = (replace(case, layouts=(("x", "sliced"), *case.layouts[1:])),)
    nothing_drawn = replace(registry.contract("layer_norm"), mirrors=False)
    made = calls.cases_of(ManyCalls(case, 16, others), nothing_drawn)
    assert [dict(one.layouts)["x"] for one in made] == (["contiguous"] * 4 + ["sliced"] * 4) * 2
    assert [one.seed - case.seed for one in made] == [1000 * number for number in range(1, 17)]


def test_a_parameter_that_changes_the_shape_of_an_operand_has_buffers_of_its_own():
    """`dloss` of the second call of a pair is one number, that of the first one for each row."""
    contract, case = registry.contract("cross_entropy_backward"), case_of("cross_entropy_backward", rows=3, V=5)
    each = replace(case, params=tuple({**case.param, "reduction": "none"}.items()))
    trial, shapes = ManyCalls(case, 4, (each,)), []

    class Recorder(InProcess):
        def call(self, arguments, *given, **named):
            shapes.append(tuple(arguments["dloss"].shape))
            return Observed(values={"dlogits": None})

    of = subject(None, "cross_entropy_backward", outputs=())
    calls.many_calls(Judgement(of, trial, executor=Recorder(of)), trial)
    assert [one.param["reduction"] for one in calls.cases_of(trial, contract)] == ["mean"] * 3 + ["none"]
    assert shapes == [(), (), (), (3,)]


def test_a_call_that_is_declined_is_not_among_the_earlier_ones():
    """Nothing of it can have been kept."""

    def fn(x):
        if not x.is_contiguous():
            raise NotImplementedError("not these strides")
        return softmax(x)

    case = case_of(rows=3, cols=7)
    trial = ManyCalls(case, 9, (replace(case, layouts=(("x", "transposed"),)),))
    j = judgement(trial=trial, fn=fn)
    calls.many_calls(j, trial)
    cases = calls.cases_of(trial, SOFTMAX)
    assert j.passes and j.earlier == [(f"call {number}", cases[number - 1]) for number in (1, 2, 3, 4, 9)]


def test_memory_that_two_calls_return_is_a_finding_of_its_own():
    """Its id is another than that of an output that lies in an operand's memory, and the same wherever it shows."""
    kept = torch.zeros(3, 7)
    for trial, further in ((ManyCalls(case_of(rows=3, cols=7), 2), calls.many_calls), (None, None)):
        j = judgement(trial=trial, fn=lambda x: kept.copy_(softmax(x)))
        if further is None:
            calls.call_again(j, *first_call(j))
        else:
            further(j, trial)
        (finding,) = [finding for finding in j.outcome.findings if finding.check == Check.ALIAS]
        for detail, alike in (("twice", True), ("", False), ("x", False)):
            other = j.again(debug=False)
            other.find(Check.ALIAS, "", about="y", detail=detail)
            assert (other.outcome.findings[0].id == finding.id) == alike


def test_a_call_gives_outputs_to_go_on_with_where_each_has_its_form(monkeypatch):
    j = judgement()
    inputs, before, values = first_call(j)
    assert call.check_returned(j, inputs, before, values) is values and not messages(j)
    assert call.check_returned(j, inputs, before, {"y": torch.zeros(3)}) == {} and len(messages(j)) == 1
    assert call.check_returned(j, inputs, before, "returned nothing") == {}
    monkeypatch.setattr(call, "expected_of", lambda *_: {"y": None})  # as a gradient of an operand that is not given
    j, none = judgement(), {"y": None}
    assert call.check_returned(j, inputs, before, none) is none and not messages(j)


def test_outputs_that_were_copied_are_compared_by_their_copies(monkeypatch):
    """As those of a GPU are, which is waited for once for all of them and for what was done to the operands."""
    j = judgement()
    inputs, before, values = first_call(j)
    assert call._of_the_right_form(j, inputs, values) == {}  # nothing is on a GPU
    monkeypatch.setattr(call, "_of_the_right_form", lambda j, inputs, values: values)
    copies, compared = [values["y"].clone()], []
    monkeypatch.setattr(call.layouts, "changed_beside", lambda placed, before, others: (["x"], copies))
    compare = call.compare.compare
    monkeypatch.setattr(call.compare, "compare", lambda got, *rest: compared.append(got) or compare(got, *rest))
    assert call.check_returned(j, inputs, before, values) is values
    assert len(compared) == 1 and compared[0] is copies[0]
    assert len(messages(j)) == 1 and "x was written" in messages(j)[0]


@pytest.mark.parametrize("again", [True, False])
def test_what_a_diagnosis_may_call(monkeypatch, again):
    """The kernel on other cases, with the longest sums, with other NaN; once all of that costs too much, nothing."""
    j, given = judgement(), {}
    j.subject.compared["answers"] = 0 if again else 3
    monkeypatch.setattr(call.diagnosis, "diagnose", lambda *args, **named: given.update(named) or {})
    monkeypatch.setattr(call.causes, "of_call", lambda *args: {})
    for module, name in (
        (call, "_longest"),
        (call.causes, "let_through"),
        (call.causes, "on_case"),
        (call.causes, "kept_from_first"),
    ):
        monkeypatch.setattr(module, name, lambda *args, name=name: (name, *args))
    inputs = j.contract.build(j.case)
    expected = j.contract.expected(inputs)
    got = {"y": 2 * expected["y"].answer.float()}
    verdicts = {"y": calls.compare.compare(got["y"], expected["y"], torch.float32)}
    call._explain(j, inputs, got, expected, verdicts)
    bad, other = verdicts["y"].bad, case_of(rows=5, cols=9)
    told = given["longer"]("y"), given["idle"]("y", bad), given["call"](other), given["kept"](), given["mutants"]
    assert told == (
        (
            ("_longest", j, "y"),
            ("let_through", j, j.case, "y", got["y"], bad, expected["y"]),
            ("on_case", j, other),
            ("kept_from_first", j, j.case),
            True,
        )
        if again
        else (None, None, None, None, False)
    )
    assert j.subject.compared["answers"] == (1 if again else 4)


@pytest.mark.parametrize(
    ("values", "before", "thoroughly", "after"),
    [
        ("normal", {"answers of no numbers": 3}, True, {"answers of no numbers": 3, "answers": 1}),
        ("normal", {"answers": 3}, False, {"answers": 4}),
        ("one_nan", {"answers": 3}, True, {"answers": 3, "answers of no numbers": 1}),
        ("one_nan", {"answers of no numbers": 3}, False, {"answers of no numbers": 4}),
    ],
)
def test_failures_on_numbers_and_on_nan_are_looked_into_apart(monkeypatch, values, before, thoroughly, after):
    j, given = judgement(), {}
    j.subject.compared.update(before)
    monkeypatch.setattr(call.diagnosis, "diagnose", lambda *args, **named: given.update(named) or {})
    monkeypatch.setattr(call.causes, "of_call", lambda *args: {})
    inputs = j.contract.build(replace(j.case, values=values))
    expected = j.contract.expected(inputs)
    got = {"y": 2 * expected["y"].answer.float() + 1}
    call._explain(j, inputs, got, expected, {"y": calls.compare.compare(got["y"], expected["y"], torch.float32)})
    assert given["mutants"] is thoroughly
    assert {name: count for name, count in j.subject.compared.items() if name.startswith("answers")} == after


def test_a_failure_that_is_not_called_again_leaves_others_to_be_looked_into(monkeypatch):
    j = judgement()
    monkeypatch.setattr(call.diagnosis, "diagnose", lambda *args, **named: {})
    monkeypatch.setattr(call.causes, "of_call", lambda *args: {})
    monkeypatch.setattr(type(j.contract), "is_beyond_grid", lambda *args: True)
    inputs = j.contract.build(j.case)
    expected = j.contract.expected(inputs)
    got = {"y": 2 * expected["y"].answer.float()}
    call._explain(j, inputs, got, expected, {"y": calls.compare.compare(got["y"], expected["y"], torch.float32)})
    assert not j.subject.compared["answers"]


@pytest.mark.parametrize(("empty", "asked"), [(True, True), (False, False)])
def test_where_nan_comes_from_is_asked_of_any_case_of_size_0(monkeypatch, empty, asked):
    """Of which there are few; of others, of the first failures alone."""
    j, given = judgement(), {}
    j.subject.compared["answers"] = 3
    monkeypatch.setattr(type(j.case), "filled", not empty)
    monkeypatch.setattr(call.diagnosis, "diagnose", lambda *args, **named: given.update(named) or {})
    monkeypatch.setattr(call.causes, "let_through", lambda *args: "NaN that is read")
    expected = j.contract.expected(inputs := j.contract.build(j.case))
    got = {"y": 2 * expected["y"].answer.float()}
    verdicts = {"y": calls.compare.compare(got["y"], expected["y"], torch.float32)}
    call._explain(j, inputs, got, expected, verdicts)
    assert (given["idle"]("y", verdicts["y"].bad) == "NaN that is read") == asked and not given["mutants"]


def test_the_longest_sums_of_a_contract(monkeypatch):
    """Of its sizes that have elements and are valid; of the values that the kernel gives there."""
    sizes = [dict(M=2, K=k, N=3) for k in (5, 0, 70, 9, 300)]
    monkeypatch.setattr(registry.contract("matmul"), "sizes", sizes)
    monkeypatch.setattr(registry.contract("matmul"), "valid", lambda case: case.size["K"] < 300)
    asked = []

    def longest(fn):
        j = Judgement(
            subject(lambda a, b: asked.append(a.shape[1]) or fn(a, b), "matmul"), CaseTrial(case_of("matmul"))
        )
        return call._longest(j, "c")

    got, expected = longest(torch.matmul)
    assert asked == [70] and got.shape == (2, 3) == expected.answer.shape
    assert torch.allclose(got.double(), expected.answer, atol=1e-4)
    assert longest(lambda a, b: 1 / 0) is None and longest(lambda a, b: (a, b)) is None
    assert longest(lambda a, b: None) is None and longest(lambda a, b: (a @ b)[:1]) is None
    monkeypatch.setattr(registry.contract("matmul"), "sizes", sizes[1:2])
    assert longest(torch.matmul) is None
    monkeypatch.setattr(
        registry.contract("rms_norm_backward"), "sizes", [dict(rows=2, cols=999), dict(rows=99, cols=5)]
    )
    case, rows = case_of("rms_norm_backward", "float16", rows=2, cols=5), []

    def off(x, weight, dy, rstd=None, *, eps=1e-6):
        rows.append(len(x))
        dx, dweight = torch_rms_norm_backward(x.double(), weight.double(), dy.double(), rstd=rstd, eps=eps)
        return dx.half(), (dweight + (len(x) > 2)).half()

    found = call._longest(Judgement(subject(off, "rms_norm_backward"), CaseTrial(case)), "dweight")
    assert sorted(rows) == [2, 99] and found[0].shape == (5,)  # by the budget's terms a sum of 2 would be the longest
    monkeypatch.setattr(registry.contract("transpose"), "sizes", [dict(rows=2, cols=3)])
    moved = Judgement(
        subject(lambda x: x.t().contiguous(), "transpose"), CaseTrial(case_of("transpose", rows=2, cols=3))
    )
    assert call._longest(moved, "y") is None  # nothing is summed


def test_an_answer_that_is_right_in_another_way_is_noted():
    """As the literature has it otherwise; a note, by whose id it is told from wrong values."""
    case = case_of(rows=3, cols=7)
    right = SOFTMAX.expected(SOFTMAX.build(case))["y"]
    other = replace(right, answer=2 * right.answer, note="twice the answer, as some have it")
    either = replace(right, alternatives=[other])
    found = []
    for factor, count in ((1, 0), (2, 1), (3, 1)):
        j = judgement()
        verdict = call.check_output(j, j.contract.build(case), "y", factor * right.answer.float(), either)
        assert len(j.outcome.findings) == count and j.outcome.fractions == {"y": verdict.fraction}
        assert verdict.ok == j.passes == (factor < 3)
        found += j.outcome.findings
    note, wrong = found
    assert (note.severity, note.check, note.about) == ("note", Check.VALUES, "y") and note.id != wrong.id
    assert note.message == "y: twice the answer, as some have it" and wrong.severity == "failure"
    assert wrong.error == verdict.fraction > 1 and note.error is None


def test_after_each_of_many_calls_the_latest_outputs_are_looked_at_and_at_the_end_all():
    looked = []
    j = judgement(trial=ManyCalls(case_of(rows=3, cols=7), 10))
    j.executor.reread = lambda tensors: looked.append(len(tensors))
    calls.many_calls(j, j.trial)
    assert j.passes and looked == [*range(1, 6), *[6] * (10 - 6), 10]
    assert j.outcome.instruments[:4] == ["allocator poison", "global state", "input guards", "inputs unchanged"]


@pytest.mark.parametrize(("compute", "right"), [("tf32", False), ("tf32x3", True), ("bf16", True)])
def test_in_the_first_size_only_tf32_is_beyond_the_budget_of_float32(monkeypatch, compute, right):
    j = Judgement(subject(torch.matmul, "matmul"), CaseTrial(case_of("matmul", M=4, K=5, N=6)))
    monkeypatch.setattr(call.causes, "on_case", lambda j, case: {"c": None})
    monkeypatch.setattr(call.causes, "is_right", lambda j, case, name, got, answer: True)
    assert call._right_with_others(j, j.case, ["c"], compute, 2) is right


def test_families_that_a_size_has_not_are_no_reason_against_a_precision(monkeypatch):
    case, asked, of_first = case_of("matmul", M=4, K=5, N=6), [], case_of("matmul").sizes
    j = Judgement(subject(torch.matmul, "matmul"), CaseTrial(case))
    monkeypatch.setattr(j.contract, "valid", lambda case: case.values not in j.contract.exact)
    monkeypatch.setattr(call.causes, "on_case", lambda j, case: asked.append(case) or {"c": None})
    monkeypatch.setattr(call.causes, "is_right", lambda j, case, name, got, answer: case.sizes != of_first)
    assert call._right_with_others(j, case, ["c"], "tf32", 2) and len(asked) == 4
    monkeypatch.setattr(call.causes, "on_case", lambda j, case: None)
    assert not call._right_with_others(j, case, ["c"], "tf32", 2)  # it gives nothing to compare


@pytest.mark.parametrize(
    ("manner", "seen", "left"),
    [
        (PLAIN, Observed(settings=["a", "b"]), ["a", "b"]),
        (Manner(state=True), Observed(settings=["a", "b"]), []),  # a finding of its own
        (PLAIN, replace(raised(RAISES), settings=["a"]), []),
    ],
)
def test_settings_that_a_call_leaves_changed_are_kept_for_the_end(manner, seen, left):
    j = judgement(seen)
    assert j.call(j.contract.build(j.case).arguments, manner) is seen
    assert list(j.left) == left


@pytest.mark.parametrize(
    ("number", "found", "asked"), [(float("nan"), {}, 1), (float("nan"), {"o": "known"}, 0), (7.0, {}, 0), (0.0, {}, 0)]
)
def test_numbers_are_put_in_the_place_of_nan_where_that_hides_what_is_wrong(number, found, asked):
    """In what no answer depends on; for outputs whose wrong elements are NaN, and of which nothing is known."""
    contract, case, made = registry.contract("attention_decode"), case_of("attention_decode"), []

    def fn(*operands, **params):
        made.append(1)
        raise RuntimeError("not again")

    j = Judgement(subject(fn, "attention_decode"), CaseTrial(case))
    expected = contract.expected(contract.build(case))
    got = {"o": expected["o"].answer.float() + number}
    verdicts = {"o": calls.compare.compare(got["o"], expected["o"], torch.float32)}
    assert verdicts["o"].ok == (number == 0)
    assert call._with_numbers(j, case, got, verdicts, found) == {} and len(made) == asked


@pytest.mark.parametrize(
    ("by", "count", "precision"),
    [(2e-6, 64, "tf32x3"), (1e-4, 64, "tf32"), (1e-2, 64, None), (2e-6, 24, "tf32x3"), (2e-6, 23, None)],
)
def test_the_highest_precision_in_which_enough_elements_would_be_right(by, count, precision):
    """Where the kernel may not be called again."""
    case = case_of("matmul", M=8, K=1, N=8)
    j = Judgement(subject(torch.matmul, "matmul"), CaseTrial(case))
    inputs = j.contract.build(case)
    expected = j.contract.expected(inputs)
    got = expected["c"].answer.float()
    got.view(-1)[:count] *= 1 + by
    verdicts = {"c": calls.compare.compare(got, expected["c"], torch.float32)}
    assert int(verdicts["c"].bad.sum()) == count
    assert call._passes_as(j, inputs, {"c": got}, verdicts, again=False) == precision


def test_a_plan_that_is_kept_without_one_length():
    """Whether rows are cut into whole parts is asked in the first call of so many rows."""
    plans = {}

    def fn(x):
        whole = plans.setdefault(x.shape[0], x.shape[1] % 32 == 0)
        return softmax(x[:, : x.shape[1] // 32 * 32] if whole and x.shape[1] > 32 else x, x.shape)

    def softmax(x, shape):
        return torch.nn.functional.pad(torch.softmax(x, -1), (0, shape[1] - x.shape[1]))

    trial = trials.in_turn(registry.contract("softmax"), case_of())
    outcome = judge.run(subject(fn), trial)
    assert outcome.status == FAILED
    assert outcome.findings[0].message.startswith("call 5 of 6 (rows=11; cols=50): y: ")
    assert outcome.findings[0].requirement == "determinism"
    plans.clear()
    assert judge.run(subject(fn), replace(trial, others=trial.others[:4], count=4)).status == PASSED

    def declines(x):
        if x.shape[1] == 50:
            raise NotImplementedError("50")
        return torch.softmax(x, -1)

    def refuses(x):
        if x.shape[1] == 50:
            raise ValueError("cols: 50; expected whole tiles")
        return torch.softmax(x, -1)

    for fn in (declines, refuses):
        assert judge.run(subject(fn), trial).status == PASSED


def test_what_is_wrong_alone_too_is_explained_as_a_call_by_itself():
    trial = trials.in_turn(registry.contract("softmax"), case_of())
    wrong = lambda x: torch.softmax(x, -1) + (x.shape[1] > 60) * (37 * x).cos() / 9  # noqa: E731
    outcome = judge.run(subject(wrong), trial)
    assert "right with cols 60, wrong with cols 61, all else being equal" in outcome.findings[0].diagnosis
