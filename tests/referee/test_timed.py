"""Hostile candidates, timed by `bench`: none gets a number below the work that it owes, none keeps the bench from
ending."""

import pytest

from tests.night import some
from tests.referee import harness
from tests.referee.harness import TIMED, Candidate, timing_complaints
from tests.referee.timed.honest import OWED

EVERY = 5
ATTACKS = harness.candidates(folder=TIMED)
HONEST = Candidate(harness.HEAD, "softmax", "an honest kernel", "contained", folder=TIMED)


@pytest.mark.slow
@pytest.mark.parametrize("candidate", some(ATTACKS, EVERY), ids=lambda candidate: candidate.id)
def test_an_attack(candidate, judge):
    ended = judge.timed(candidate)
    assert timing_complaints(candidate, ended, OWED) == [], candidate.says


@pytest.mark.slow
def test_an_honest_kernel_is_timed(judge):
    ended = judge.timed(HONEST)
    assert timing_complaints(HONEST, ended, OWED) == [] and ended.status == 0, ended.stdout + ended.stderr
    (row,) = ended.record["results"]
    assert row["problems"] == row["notes"] == [] and row["ms"] < 5e4 * OWED  # this machine may be busy


def test_there_are_enough_of_them():
    assert len(ATTACKS) >= 50
    assert {"refused", "contained"} == {candidate.demand for candidate in ATTACKS}
    names = [candidate.id for candidate in ATTACKS]
    assert len(set(names)) == len(names)
