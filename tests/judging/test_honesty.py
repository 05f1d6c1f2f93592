"""What one call shows of whether an untrusted kernel does the work itself: what is asked, what is held against it."""

from dataclasses import replace

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import honesty
from touchstone.conformance.judging.executor import Observed, Raised
from touchstone.conformance.judging.judgement import FAILED, PASSED, Judgement
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.cases import plain_case


def judgement(op="softmax", size=None, **about):
    contract = registry.contract(op)
    about = {"untrusted": True, "device": "cpu", **about}
    case = plain_case(contract, "float32", "normal", size=size)
    return Judgement(Subject(op, lambda *given: None, "fn", "user@cpu", **about), CaseTrial(case), executor=object())


def told(seen, asked=None, j=None):
    j = judgement() if j is None else j
    honesty.check(j, seen, asked)
    return [finding.message for finding in j.outcome.findings]


def returned(**about):
    return Observed(values={"y": torch.ones(2, 3)}, **{"launched": ["interpreter"], "watched": True, **about})


NOTHING = "no kernel of a GPU language was launched: something else did the work"
NOBODY = "y[1, 2] was written by no kernel, nor copied from what one wrote"
ASKED = ("y", (1, 2))


def test_a_call_that_a_kernel_made_has_nothing_against_it():
    assert told(returned(writer="program 0"), ASKED) == []
    assert told(returned(watched=False), ASKED) == []  # nobody could have seen it
    assert told(returned(), ("lse", (0,))) == []  # an output that did not come


def test_work_that_no_kernel_did():
    assert told(returned(launched=[])) == [NOTHING]
    assert told(returned(launched=[]), ASKED) == [NOTHING]
    assert told(returned(), ASKED) == [NOBODY]


@pytest.mark.parametrize("op", ["softmax", "online_softmax"])
def test_the_element_that_is_asked_about_follows_from_the_case_alone(op):
    found, j = set(), judgement(op, dict(rows=50, cols=70))
    for seed in range(3):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found.add(honesty.element(j))
        assert torch.equal(torch.get_rng_state(), before)
    assert len(found) == 1


@pytest.mark.parametrize("about", [dict(untrusted=False), dict(allow_library=True), dict(device="cuda")])
def test_who_is_not_asked(about):
    assert told(returned(launched=[]), None, judgement(**about)) == []
    assert honesty.element(judgement(**about)) is None


def test_what_is_not_there_was_written_by_nobody():
    for values in ({"y": None}, {"y": torch.ones(0, 3)}, "returned 3 values", {"y": 5}):
        assert told(Observed(values=values)) == []
    failed = Observed(raised=Raised("raises", ("ValueError",), "no", "ValueError: no"), values={"y": torch.ones(2)})
    assert told(failed) == []


def test_a_fill_is_all_that_operands_without_elements_ask_for():
    j = judgement("reduce_rows", size={"rows": 3, "cols": 0})
    assert told(Observed(values={"y": torch.zeros(3)}), None, j) == []
    assert told(Observed(values={"y": torch.zeros(3)})) == [NOTHING]


def test_memory_that_changed_behind_the_librarys_back():
    j = judgement()
    assert told(returned(writer="program 0", unexplained={"y": "was changed"}), ASKED, j) == ["y was changed"]
    assert j.outcome.findings[0].about == "y"


def test_what_the_process_notes_counts_whatever_the_library_may_do():
    seen = returned(cheats=["starts a thread", "opens a port"])
    j = judgement(allow_library=True, device="cuda")
    assert told(seen, None, j) == ["the kernel starts a thread", "the kernel opens a port"]
    assert told(seen, None, j) == ["the kernel starts a thread", "the kernel opens a port"]  # once each
    assert told(seen, None, judgement(untrusted=False)) == []


@pytest.mark.parametrize(
    ("library", "about", "work"),
    [
        (["clone", "mm", "_local_scalar_dense", "sum"], {}, "mm, sum"),
        (["clone", "copy_", "_to_copy", "_local_scalar_dense"], {}, None),
        ([], {}, None),
        (["mm"], dict(allow_library=True), None),
        (["mm"], dict(untrusted=False), None),
    ],
)
def test_what_the_library_does_is_work_or_help(library, about, work):
    j = judgement(**about)
    honesty.check_library(j, Observed(library=library))
    said = f"the library does work: {work}; allowed are allocation, fills, views and copies"
    assert [finding.message for finding in j.outcome.findings] == ([] if work is None else [said])
    assert j.outcome.status == (PASSED if work is None else FAILED)


def test_an_element_is_drawn_among_all():
    j = judgement("online_softmax", size={"rows": 2, "cols": 3})
    asked = {honesty.element(Judgement(j.subject, CaseTrial(case))) for case in with_seeds(j.case, 60)}
    assert {name for name, _ in asked} == {"y", "lse"}
    assert {index for name, index in asked if name == "y"} == {(i, k) for i in range(2) for k in range(3)}
    assert {index for name, index in asked if name == "lse"} == {(0,), (1,)}
    some = judgement("online_softmax", outputs=("lse",))
    assert {honesty.element(Judgement(some.subject, CaseTrial(c)))[0] for c in with_seeds(some.case, 20)} == {"lse"}
    assert honesty.element(judgement(size={"rows": 0, "cols": 3})) is None


def with_seeds(case, count):
    return [replace(case, seed=seed) for seed in range(count)]
