"""What docs/threat-model.md promises of untrusted kernels beside what confines them: seed, cases, findings."""

import pytest
import torch

from touchstone import check
from touchstone.conformance.discovery.importing import FileFunction
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.findings import kept
from touchstone.conformance.judging.judgement import Finding, Outcome
from touchstone.conformance.judging.trials import trials_of
from touchstone.conformance.reporting import session

SOURCE = """
import torch


def softmax(x):
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()
"""


def softmax(x):
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()


def subject(untrusted=True):
    return Subject("softmax", softmax, "softmax", "user@cpu", "cpu", untrusted=untrusted)


def sizes_of(one, seed):
    trials, _ = trials_of(one, "quick", seed)
    return {trial.case.sizes for trial in trials}


def test_some_sizes_follow_from_the_seed_and_are_in_no_plan():
    planned = sizes_of(subject(untrusted=False), 0)
    first, second = sizes_of(subject(), 1), sizes_of(subject(), 2)
    assert planned <= first and planned <= second
    assert first - planned and second - planned and first != second
    assert sizes_of(subject(), 1) == first


def test_a_seed_is_drawn_once_the_kernel_is_loaded(monkeypatch, tmp_path):
    """What a kernel finds while it is imported, it cannot choose by its inputs. One that does not import gets none."""
    drawn = []
    real = session.secrets.randbelow
    monkeypatch.setattr(session.secrets, "randbelow", lambda most: drawn.append(real(most)) or drawn[-1])
    file = tmp_path / "kernel.py"
    about = {"device": "cpu", "level": "quick", "dtypes": ["float32"], "sizes": {"rows": [3]}, "untrusted": True}
    file.write_text("import a_package_that_nobody_has\n" + SOURCE)
    with pytest.raises(ValueError, match="does not import"):
        check("softmax", FileFunction(file, "softmax"), **about)
    assert drawn == []
    file.write_text(SOURCE)
    report = check("softmax", FileFunction(file, "softmax"), **about)
    assert drawn == [report.seed]
    assert f"untrusted: seed {report.seed}, drawn once the function was loaded" in report.notes
    given = check("softmax", FileFunction(file, "softmax"), seed=7, **about)
    assert given.seed == 7 and len(drawn) == 1 and "untrusted: seed 7, given once" in " ".join(given.notes)


@pytest.mark.parametrize("untrusted", [False, True])
def test_findings_of_an_untrusted_kernel_are_not_replayed(untrusted):
    one = subject(untrusted)
    outcome = Outcome.of(trials_of(one, "quick", 0)[0][0])
    outcome.findings.append(Finding("12345678", "failure", "values", outcome.trial, "wrong", 2.0))
    (record,) = kept.records(one, [outcome], "quick", 0)
    if not untrusted:
        assert record["source"]["function"] == "softmax"
        return
    assert set(record["source"]) == {"reason"} and "untrusted" in record["source"]["reason"]
    with pytest.raises(ValueError, match="cannot be replayed: it is untrusted"):
        kept.load(record)
