"""Which process judges a trial, and what a death in it means: with children that answer from a script."""

import sys

import pytest

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import runner
from touchstone.conformance.isolation.limits import DEFAULT_LIMITS, Limits
from touchstone.conformance.isolation.processes import Death
from touchstone.conformance.isolation.runner import Runner
from touchstone.conformance.isolation.travel import CannotTravel
from touchstone.conformance.judging.judgement import FAILED, Finding, Outcome
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.checks import Check

CONTRACT = registry.contract("softmax")
TRIALS = [CaseTrial(plain_case(CONTRACT, "float32", "normal", seed)) for seed in range(6)]
PASSES = "passes"
CRASH, HANG = Death(Check.CRASH, "segmentation fault"), Death(Check.HANG, "no answer after 60 s")
EARLY = Death(Check.HANG, "no answer and no processor time for 5 s", early=True)


def subject(**about):
    return Subject("softmax", lambda x: x, "fn", "user@cpu", **{"device": "cpu", **about})


def raised_of_fork():
    outcome = Outcome.of(TRIALS[0])
    text = "RuntimeError: Cannot re-initialize CUDA in forked subprocess"
    outcome.findings.append(Finding("0", "failure", Check.RAISED, "case", text))
    return outcome


def displaced():
    outcome = Outcome.of(TRIALS[0])
    outcome.displaced = True
    return outcome


class Child:
    """Answers trials from a script; `died`: its status, where it has died since."""

    def __init__(self, where, answers, died=None):
        self.where, self.answers, self.died = where, list(answers), died
        self.judged, self.asked, self.closed, self.spent, self.notes = [], [], False, False, []
        self.process = self

    def judge(self, index, limits, idle=None):
        assert not self.closed
        self.asked.append((index, limits, idle))
        answer = self.answers.pop(0)
        if answer == PASSES:
            answer = Outcome.of(TRIALS[index])
        if not isinstance(answer, Death):
            self.judged.append(index)
        return answer

    def exited(self):
        return self.died

    def place(self):
        return " at mine.py:3, in fn"

    def close(self):
        self.closed = True


@pytest.fixture
def starting(monkeypatch):
    """Has children start in turn, each with a script; where each was to be."""
    started, waiting = [], []

    def start(where):
        def made(subject, trials, *fresh_import):
            script = waiting.pop(0)
            if isinstance(script, Exception):
                raise script
            child = script if isinstance(script, Child) else Child(where, script)
            child.where, child.fresh = where, fresh_import
            started.append(child)
            return child

        return made

    monkeypatch.setattr(runner, "forked", start("fork"))
    monkeypatch.setattr(runner, "spawned", start("spawn"))

    def scripts(*given):
        waiting[:] = given
        return started

    return scripts


def checks(outcome):
    return [finding.check for finding in outcome.findings]


@pytest.mark.parametrize(
    ("about", "fresh_import", "mode"),
    [
        ({}, False, "fork"),
        ({}, True, "spawn"),
        (dict(device="cuda"), False, "spawn"),
        (dict(device="cuda", untrusted=True), False, "fork"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
def test_where_trials_are_judged(starting, about, fresh_import, mode):
    started = starting([])
    with Runner(subject(**about), TRIALS, fresh_import=fresh_import) as made:
        assert made.mode == mode and not made.notes and made.stopped is None
        assert made.how == f"isolation: {'forked child' if mode == 'fork' else 'fresh process'}"
    assert started[0].closed and started[0].fresh == (() if mode == "fork" else (fresh_import,))


def test_modes_that_do_not_go():
    with pytest.raises(ValueError, match="mode: expected one of 'auto', 'fork', 'spawn', 'none', got 'thread'"):
        Runner(subject(), TRIALS, "thread")
    with pytest.raises(ValueError, match="'fork' does not work with device 'cuda'"):
        Runner(subject(device="cuda"), TRIALS, "fork")


def test_what_cannot_be_sent_is_judged_here_where_nothing_else_was_asked_for(starting):
    starting(CannotTravel("fn: a lambda"))
    with Runner(subject(), TRIALS, fresh_import=True) as made:
        assert made.mode == "none" and made.how == "isolation: none"
        assert made.notes == ["not isolated, judged in the calling process: fn: a lambda"]
    starting(CannotTravel("fn: a lambda"))
    with pytest.raises(CannotTravel):
        Runner(subject(), TRIALS, "spawn")


def test_trials_are_judged_in_one_child_after_another(starting):
    started = starting([PASSES, PASSES, CRASH], [PASSES])
    limits = Limits(seconds=3)
    with Runner(subject(), TRIALS, "fork", limits=limits, confirm=False) as made:
        assert not made.outcome(0).findings and not made.outcome(1).findings
        dead = made.outcome(2)
        assert (dead.status, checks(dead), dead.findings[0].message) == (FAILED, [Check.CRASH], "segmentation fault")
        assert started[0].closed and len(started) == 1
        assert not made.outcome(3).findings and len(started) == 2
        assert made.how == "isolation: forked child" and dead.requirements == ["values"]
    assert started[0].asked == [(index, limits, None) for index in range(3)]
    assert started[1].closed


def test_a_death_in_a_fork_is_asked_of_a_fresh_process(starting):
    """With the trials that came before it, which may be what leads to it."""
    started = starting([PASSES, CRASH], [PASSES, CRASH], [PASSES])
    with Runner(subject(), TRIALS, "fork") as made:
        made.outcome(0)
        assert checks(made.outcome(1)) == [Check.CRASH] and not made.notes
        assert [child.where for child in started] == ["fork", "spawn"] and all(child.closed for child in started)
        assert [index for index, *_ in started[1].asked] == [0, 1]
        assert not made.outcome(2).findings and started[2].where == "fork"  # which is trusted from now on
    assert started[0].asked[0] == (0, DEFAULT_LIMITS, 5.0) and started[2].asked == [(2, DEFAULT_LIMITS, None)]


def test_what_only_a_fork_does_is_a_note_and_goes_on_in_a_fresh_process(starting):
    started = starting([PASSES, CRASH], [PASSES, PASSES, PASSES])
    with Runner(subject(), TRIALS, "fork") as made:
        made.outcome(0)
        assert not made.outcome(1).findings
        assert made.notes[0].startswith(f"segmentation fault: so in a forked child in {TRIALS[1].id}, not in a fresh")
        assert not made.outcome(2).findings and len(started) == 2 and started[0].closed and not started[1].closed
        assert made.mode == "spawn" and made.how == "isolation: forked child, then fresh process"
    assert started[1].closed


def test_an_error_that_blames_the_fork_is_asked_of_a_fresh_process(starting):
    started = starting([raised_of_fork()], [PASSES])
    with Runner(subject(), TRIALS, "fork") as made:
        assert not made.outcome(0).findings and "Cannot re-initialize CUDA" in made.notes[0]
        assert [index for index, *_ in started[1].asked] == [0]
    started = starting([raised_of_fork(), PASSES], [raised_of_fork()])
    with Runner(subject(), TRIALS, "fork") as made:
        assert checks(made.outcome(0)) == [Check.RAISED] and not made.notes  # it is so everywhere
        assert not made.outcome(1).findings and made.mode == "fork"
    assert not runner._blames_fork(Outcome.of(TRIALS[0]))


def test_a_death_before_the_last_trial_says_nothing_of_the_fork(starting):
    starting([PASSES, CRASH], [CRASH])
    with Runner(subject(), TRIALS, "fork") as made:
        made.outcome(0)
        assert checks(made.outcome(1)) == [Check.CRASH] and not made.notes


def test_a_wait_that_ended_early_gets_its_whole_time_where_no_process_can_be_asked(starting):
    started = starting([EARLY], CannotTravel("fn: a lambda"), [HANG], [PASSES])
    with Runner(subject(), TRIALS, "fork") as made:
        (finding,) = made.outcome(0).findings
        assert finding.message == f"no answer after 60 s{runner._DOUBT}"
        assert started[1].asked == [(0, DEFAULT_LIMITS, None)]
    started = starting([HANG], CannotTravel("fn: a lambda"), [PASSES])
    with Runner(subject(), TRIALS, "fork") as made:
        assert made.outcome(0).findings[0].message.endswith(runner._DOUBT) and len(started) > 2
    starting([EARLY], [PASSES, PASSES])
    with Runner(subject(), TRIALS, "fork") as made:
        assert not made.outcome(0).findings and made.mode == "spawn"


def test_after_three_hangs_or_twenty_crashes_the_rest_is_not_run(starting):
    starting(*[[HANG]] * 3)
    with Runner(subject(), TRIALS, "fork", confirm=False) as made:
        for index in range(3):
            assert made.stopped is None
            made.outcome(index)
        assert made.stopped == "after 3 hangs"
        with pytest.raises(RuntimeError, match="fn is not judged any further: after 3 hangs"):
            made.outcome(3)
    starting(*[[CRASH]] * 25)
    with Runner(subject(), TRIALS * 5, "spawn") as made:
        for index in range(20):
            assert made.stopped is None
            made.outcome(index)
        assert made.stopped == "after 20 crashes"
    starting(*[[CRASH]] * 25)
    with Runner(subject(), TRIALS * 5, "fork", confirm=False) as made:  # which costs next to nothing to start
        for index in range(24):
            made.outcome(index)
        assert made.stopped is None


def test_a_death_between_two_trials_is_the_next_ones(starting):
    started = starting([PASSES], [PASSES, PASSES])
    with Runner(subject(), TRIALS, "fork", confirm=False) as made:
        made.outcome(0)
        started[0].died = -11
        outcome = made.outcome(1)
        assert checks(outcome) == [Check.CRASH] and started[0].closed
        said = f"segmentation fault at mine.py:3, in fn, after {TRIALS[0].id} had been judged"
        assert outcome.findings[0].message == said
        assert not made.outcome(2).findings
    started = starting(Child("fork", [PASSES], died=1), [PASSES])
    with Runner(subject(), TRIALS, "fork", confirm=False) as made:
        assert not made.outcome(0).findings  # it has judged none


def test_kernels_that_were_set_up_for_another_device_are_imported_anew(starting):
    started = starting([displaced()], [PASSES, PASSES])
    with Runner(subject(), TRIALS, "fork") as made:
        assert not made.outcome(0).displaced and made.mode == "spawn" and started[0].closed
        assert started[1].fresh == (True,)
        made.outcome(1)
    started = starting([displaced(), displaced()], ValueError("fn: no file"))
    with Runner(subject(), TRIALS, "fork") as made:
        assert made.outcome(0).displaced and made.outcome(1).displaced
        assert made.notes == ["kernels were set up for another device before, and fn: no file"]
    for about, fresh in ((dict(untrusted=True), False), ({}, True)):
        starting([displaced()])
        with Runner(subject(**about), TRIALS, "fork", fresh_import=fresh) as made:
            assert made.outcome(0).displaced


def test_a_child_that_lost_its_device_is_replaced_and_counts(starting):
    lost = Child("spawn", [PASSES])
    lost.spent = True
    started = starting(lost, [PASSES])
    with Runner(subject(device="cuda"), TRIALS) as made:
        made.outcome(0)
        assert lost.closed and made._crashes == 1
        made.outcome(1)
        assert len(started) == 2


def test_what_a_child_notes_is_noted_once(starting):
    first = Child("fork", [CRASH])
    first.notes = ["sandbox without a network namespace"]
    second = Child("fork", [PASSES])
    second.notes = ["sandbox without a network namespace", "killed after 3 s"]
    starting(first, second)
    with Runner(subject(), TRIALS, "fork", confirm=False) as made:
        made.outcome(0)
        made.outcome(1)
    assert made.notes == ["sandbox without a network namespace", "killed after 3 s"]


def test_errors_of_the_judge_close_the_fresh_process(starting):
    def fails(index, limits, idle=None):
        raise RuntimeError("the judge")

    broken = Child("spawn", [])
    broken.judge = fails
    starting([CRASH], broken)
    with Runner(subject(), TRIALS, "fork") as made:
        with pytest.raises(RuntimeError, match="the judge"):
            made.outcome(0)
        assert broken.closed


def test_whether_a_function_starts(starting):
    started = starting([])
    runner.try_start(subject())
    assert started[0].closed
    starting(ValueError("fn: no file"))
    with pytest.raises(ValueError, match="no file"):
        runner.try_start(subject())
