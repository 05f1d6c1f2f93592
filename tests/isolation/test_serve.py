"""What a fresh process receives, and what of a kernel's ends is held against it."""

import dataclasses
from types import SimpleNamespace

import cloudpickle
import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import serve
from touchstone.conformance.isolation.processes import Death
from touchstone.conformance.isolation.remote import Died, Ended
from touchstone.conformance.judging.judgement import FAILED, PASSED
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.checks import Check

TRIAL = CaseTrial(plain_case(registry.contract("softmax"), "float32", "normal"))


def subject(fn):
    return Subject("softmax", fn, "fn", "user@cpu", "cpu")


def raises(error):
    def fn(x):
        raise error

    return fn


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SystemExit(3), "sys.exit(3) would have ended the process"),
        (Ended("sys.exit(4)"), "sys.exit(4) would have ended the process"),
        (GeneratorExit("x"), "GeneratorExit: x (test_serve.py:"),
        (KeyboardInterrupt("x"), "KeyboardInterrupt: x (test_serve.py:"),
    ],
)
def test_what_would_end_the_process_is_held_against_the_kernel(error, said):
    outcome = serve.outcome_of(subject(raises(error)), TRIAL)
    (finding,) = outcome.findings
    assert outcome.status == FAILED and finding.check == Check.CRASH and finding.message.startswith(said)
    assert outcome.requirements == ["values"] and finding.requirement is not None


def test_an_interruption_here_is_the_users():
    with pytest.raises(KeyboardInterrupt):
        serve.outcome_of(subject(raises(KeyboardInterrupt())), TRIAL, here=True)
    assert serve.outcome_of(subject(raises(SystemExit(3))), TRIAL, here=True).status == FAILED


def test_a_death_is_passed_on_and_so_are_errors_of_the_judge():
    with pytest.raises(Died):
        serve.outcome_of(subject(raises(Died(Death(Check.HANG, "no answer")))), TRIAL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve.judge, "run", lambda *given, **named: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            serve.outcome_of(subject(torch.clone), TRIAL)
    assert serve.outcome_of(subject(lambda x: torch.softmax(x, -1)), TRIAL).status == PASSED


def test_a_subject_arrives_with_its_function_and_backends_that_are_set_up(monkeypatch, tmp_path):
    done = []

    def backend(name, why=None):
        return SimpleNamespace(
            why_not=lambda device: why,
            prepare=lambda device: done.append(("prepared", name, device)),
            adopt=lambda fn, device: done.append(("adopted", name, device)),
        )

    offered = {"one": backend("one"), "other": backend("other", "no compiler")}
    monkeypatch.setattr(registry, "backends", lambda: tuple(offered))
    monkeypatch.setattr(registry, "backend", offered.__getitem__)
    monkeypatch.setattr(serve, "load_op", lambda path: done.append(("op", path)))
    without = dataclasses.replace(subject(torch.clone), fn=None)
    packed = cloudpickle.dumps((without, [TRIAL]))
    found, trials = serve.receive(tmp_path, ("pickle", cloudpickle.dumps(lambda x: x + 1)), packed)
    assert found.fn(1) == 2 and found.op == "softmax" and trials == [TRIAL]
    adopted = [("adopted", name, "cpu") for name in offered]
    assert done == [("op", tmp_path), ("prepared", "one", "cpu"), *adopted]
    done.clear()
    serve.receive(None, ("pickle", cloudpickle.dumps(abs)), packed)
    assert ("op", None) not in done and done[0] == ("prepared", "one", "cpu")


def test_a_file_that_is_imported_is_answered_as_by_the_gpu_that_is_asked_for(monkeypatch):
    """And what it asks is counted."""

    def arrived(way):
        major, _ = torch.cuda.get_device_capability()
        return lambda x: major

    monkeypatch.setattr(serve.travel, "arrived", arrived)
    monkeypatch.setattr(registry, "backends", lambda: ())
    sent = dataclasses.replace(subject(None), arch="sm_90")
    got, _ = serve.receive(None, ("file", "mine.py", "fn"), cloudpickle.dumps((sent, [])))
    assert got.fn(None) == 9 and sum(got.asked.values()) > 0
