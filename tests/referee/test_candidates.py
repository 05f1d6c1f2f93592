"""Hostile candidates, judged by `check`: none passes without honest work, none keeps the judge from judging."""

import shutil

import pytest

from tests.night import some
from tests.referee import harness
from tests.referee.harness import Candidate, Judge, complaints

FAULTS = "faults"
EVERY = 12
ATTACKS = [candidate for candidate in harness.candidates() if candidate.kind != FAULTS]
FORMS = sorted(path for path in harness.FORMS.glob("*.py") if path.stem != "__init__")
HONEST = [Candidate(harness.HEAD, op, "an honest kernel", "contained", op=op) for op in harness.NARROWED]


def mode_of(judge: Judge, candidate: Candidate) -> bool:
    """Whether a candidate is judged in untrusted mode."""
    if candidate.untrusted and not judge.knows_untrusted:
        pytest.skip("only `check --untrusted` refuses it, and this `check` has no such option")
    return judge.knows_untrusted


@pytest.mark.slow
@pytest.mark.parametrize("candidate", some(ATTACKS, EVERY), ids=lambda candidate: candidate.id)
def test_an_attack(candidate, judge):
    untrusted = mode_of(judge, candidate)
    ended = judge.judged(candidate, untrusted)
    assert complaints(candidate, ended, untrusted) == [], candidate.says


@pytest.mark.slow
@pytest.mark.parametrize("candidate", some(harness.candidates(FAULTS), EVERY), ids=lambda candidate: candidate.name)
def test_a_fault(candidate, judge):
    untrusted = mode_of(judge, candidate)
    ended = judge.judged(candidate, untrusted)
    assert complaints(candidate, ended, untrusted) == [], candidate.says


@pytest.mark.slow
@pytest.mark.parametrize("untrusted", [False, True], ids=["plain", "untrusted"])
@pytest.mark.parametrize("candidate", HONEST, ids=lambda candidate: candidate.op)
def test_an_honest_kernel_passes(candidate, untrusted, judge):
    if untrusted and not judge.knows_untrusted:
        pytest.skip("this `check` has no option --untrusted")
    ended = judge.judged(candidate, untrusted)
    assert (ended.status, ended.verdict, ended.left, ended.files) == (0, "PASSED", [], []), ended.stdout + ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("path", some(FORMS, 4), ids=lambda path: path.stem)
def test_an_honest_kernel_of_another_form_passes(path, judge):
    ended = judge.form(path)
    assert (ended.status, ended.verdict, ended.left, ended.files) == (0, "PASSED", [], []), ended.stdout + ended.stderr


def test_there_are_enough_of_them():
    assert len(ATTACKS) >= 60
    assert len(harness.candidates(FAULTS)) >= 40
    names = [candidate.id for candidate in harness.candidates()]
    assert len(set(names)) == len(names)


MISTAKEN = '''"""Attacks with mistakes."""


def misspelt(x):
    """Calls what there is not.

    {demand}
    """
    return sofmax(x)


def lacking(x):
    """Imports what there is not.

    {demand}
    """
    import a_package_that_nobody_has

    return a_package_that_nobody_has.softmax(x)
'''


@pytest.mark.slow
def test_an_attack_that_ends_by_its_own_mistake_is_broken(judge, tmp_path):
    kinds = {
        demand: tmp_path / name for name, demand in (("bare", "refused"), ("told", "refused: NameError|nobody_has"))
    }
    for demand, folder in kinds.items():
        folder.mkdir()
        (folder / "mistaken.py").write_text(MISTAKEN.format(demand=demand))
        shutil.copy(harness.CANDIDATES / f"{harness.HEAD}.py", folder)
    bare, told = (harness.candidates(folder=folder) for folder in kinds.values())
    assert [candidate.name for candidate in bare] == ["misspelt", "lacking"]
    for candidate, expected in zip(bare, told, strict=True):
        ended = judge.judged(candidate, judge.knows_untrusted)
        assert ended.status != 0
        (complaint,) = complaints(candidate, ended, judge.knows_untrusted)
        assert complaint.startswith("broken attack, it ends by an error of its own: ")
        assert complaints(expected, ended, judge.knows_untrusted) == []
