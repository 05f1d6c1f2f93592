"""What a kernel's language leaves undefined: judged as on GPUs, noted, and strictly judged as what shows it."""

import contextlib
import math
from types import SimpleNamespace

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.judgement import FAILED, PASSED, Outcome
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import Case


class Language:
    """A backend with places that are 0 on GPUs and NaN where they are conspicuous."""

    def __init__(self):
        self.blocks = []

    @contextlib.contextmanager
    def undefined(self, device, conspicuous):
        self.blocks.append((conspicuous, found := {}))
        yield found
        self.blocks.pop()

    def read(self, place: str) -> float:
        """What a kernel reads there."""
        conspicuous, found = self.blocks[-1]
        found[place] = "a read of nothing"
        return math.nan if conspicuous is None or place in conspicuous else 0.0


@pytest.fixture
def language(monkeypatch):
    made = Language()
    backend = SimpleNamespace(undefined=made.undefined, reimport=lambda fn, device: False)
    monkeypatch.setattr(registry, "behind", lambda target: ("language",))
    monkeypatch.setattr(registry, "backend", lambda name: backend)
    return made


def softmax(x):
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()


def judged(fn, **about) -> Outcome:
    case = Case("softmax", "float32", (("rows", 5), ("cols", 33)), "normal", (("x", "contiguous"),), (), 0)
    return judge.run(Subject("softmax", fn, "fn", "user@cpu", "cpu", **about), CaseTrial(case, watched=True))


def test_what_is_right_only_with_what_gpus_give_gets_a_note_that_names_the_place(language):
    def fn(x):
        harmless = language.read("k.py:3")
        return softmax(x) + language.read("k.py:7") + (0.0 if math.isnan(harmless) else harmless)

    outcome = judged(fn, strict=False)
    assert outcome.status == PASSED
    (note,) = outcome.findings
    assert (note.check, note.severity) == (Check.PORTABILITY, "note")
    assert note.message.startswith("k.py:7: a read of nothing; the answer is right only with that, else y: 165 of 165")


def test_two_places_that_matter_are_two_notes_and_one_that_does_not_is_none(language):
    outcome = judged(lambda x: softmax(x) + language.read("k.py:1") * language.read("k.py:2"), strict=False)
    assert [note.message[:6] for note in outcome.findings] == ["k.py:1", "k.py:2"]
    assert judged(lambda x: (language.read("k.py:1"), softmax(x))[1], strict=False).findings == []


def test_a_place_is_noted_once_for_a_kernel(language):
    kernel = Subject("softmax", lambda x: softmax(x) + language.read("k.py:1"), "fn", "user@cpu", "cpu", strict=False)
    case = Case("softmax", "float32", (("rows", 5), ("cols", 33)), "normal", (("x", "contiguous"),), (), 0)
    assert [len(judge.run(kernel, CaseTrial(case)).findings) for _ in range(3)] == [1, 0, 0]


def test_what_gpus_give_decides(language):
    """Right with NaN, as where a maximum skips it, and wrong with the 0 of a GPU."""

    def fn(x):
        return softmax(x) * (1.0 if math.isnan(language.read("k.py:7")) else 1.5)

    outcome = judged(fn, strict=False)
    assert [f.check for f in outcome.findings] == [Check.VALUES]
    assert "undefined: k.py:7: a read of nothing\nwith another value there the answer is right" in (
        outcome.findings[0].diagnosis
    )
    strictly = judged(fn, strict=True)
    assert [(f.check, f.severity) for f in strictly.findings] == [(Check.PORTABILITY, "failure")]
    assert strictly.findings[0].requirement == "values"


def test_strictly_it_fails_and_the_place_is_named(language):
    outcome = judged(lambda x: softmax(x) + language.read("k.py:7"), strict=True)
    assert outcome.status == FAILED
    assert [f.check for f in outcome.findings] == [Check.VALUES]
    lines = outcome.findings[0].diagnosis.splitlines()
    assert lines[0].startswith("y: wrong: everything; NaN there")  # what the values look like stays
    assert lines[-2:] == ["undefined: k.py:7: a read of nothing", "with what GPUs give there the answer is right"]


def test_a_failure_of_another_cause_does_not_name_it(language):
    def fn(x):
        language.read("k.py:7")
        return 2 * softmax(x)

    for strict in (False, True):
        assert "undefined" not in judged(fn, strict=strict).findings[0].diagnosis


def test_a_kernel_that_raises_on_what_shows_gets_a_note_too(language):
    def fn(x):
        if math.isnan(language.read("k.py:7")):
            raise IndexError("far away")
        return softmax(x)

    outcome = judged(fn, strict=False)
    assert outcome.status == PASSED
    assert "else IndexError: far away" in outcome.findings[0].message


def test_a_failure_names_a_few_places_and_of_a_kernel_the_first_few_failures_do(language):
    """Of six places the first four; of four failing calls the first three."""

    def fn(x):
        return softmax(x) + sum(language.read(f"k.py:{line}") for line in range(1, 7))

    kernel = Subject("softmax", fn, "fn", "user@cpu", "cpu", strict=True)
    case = Case("softmax", "float32", (("rows", 5), ("cols", 33)), "normal", (("x", "contiguous"),), (), 0)
    told = [judge.run(kernel, CaseTrial(case)).findings[0].diagnosis.splitlines() for _ in range(4)]
    named = [[line for line in lines if line.startswith("undefined: ")] for lines in told]
    assert named[0] == [f"undefined: k.py:{line}: a read of nothing" for line in range(1, 5)]
    assert [len(lines) for lines in named] == [4, 4, 4, 0]


def test_places_beyond_a_few_are_not_tried_one_by_one(language):
    """Each of ten is needed: the first eight are said to be."""
    reads = []

    def fn(x):
        reads.append([language.read(f"k.py:{line}") for line in range(10)])
        return softmax(x) + sum(reads[-1])

    notes = judged(fn, strict=False).findings
    assert [note.message.partition(": ")[0] for note in notes] == [f"k.py:{line}" for line in range(8)]
    assert [sum(map(math.isnan, each)) for each in reads[-9:]] == [10, *[1] * 8]
    assert len({note.id for note in notes}) == 8


def test_a_failure_that_is_another_with_what_gpus_give_names_the_place(language):
    """It is wrong there too, so that nothing is said to be right."""

    def fn(x):
        return softmax(x) * (2 + (0.0 if math.isnan(language.read("k.py:7")) else 1.0))

    for strict in (False, True):
        lines = judged(fn, strict=strict).findings[0].diagnosis.splitlines()
        assert lines[-1] == "undefined: k.py:7: a read of nothing"
