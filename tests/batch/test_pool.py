"""Processes that judge: what happens to a candidate whose judge dies, hangs or raises, and to the others."""

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from touchstone.conformance.batch import pool
from touchstone.conformance.batch.attempt import PREFIX, Judged
from touchstone.conformance.batch.candidates import Candidate, Settings, Text
from touchstone.conformance.discovery.selection import CannotRun
from touchstone.conformance.reporting.status import Status

PASSED = Judged(Status.PASSED)
ELSEWHERE = Settings("cuda")  # this process, which has other tests to run, is not set up for the CPU


def candidate(identifier: str) -> Candidate:
    return Candidate(identifier, "softmax", Text("candidate.py", identifier), "softmax")


def results_of(judge, *identifiers: str, jobs: int = 2, limit: float = 60.0) -> dict[str, list[Judged]]:
    found: dict[str, list[Judged]] = {}
    slots = [None] * jobs
    with contextlib.closing(pool.judged(judge, [*map(candidate, identifiers)], ELSEWHERE, slots, limit)) as answers:
        for answer in answers:
            if answer is not None:
                found.setdefault(answer[0].id, []).append(answer[1])
    return found


@pytest.fixture
def log(tmp_path):
    """A function that counts how often it was called with a name, in any process."""

    def called(name: str) -> int:
        with open(tmp_path / "log", "a") as file:
            file.write(f"{name}\n")
        return (tmp_path / "log").read_text().splitlines().count(name)

    return called


def test_each_has_one_result_and_a_process_of_its_own(log):
    def judge(candidate, settings, folder):
        assert log(str(os.getpid())) == 1 and folder.is_dir()
        return Judged(Status.PASSED, reason=candidate.source.text)

    names = [str(n) for n in range(7)]
    found = results_of(judge, *names, jobs=3)
    assert {name: [each.reason for each in those] for name, those in found.items()} == {n: [n] for n in names}


def test_a_judge_that_is_killed_is_replaced_once(log):
    def judge(candidate, settings, folder):
        if candidate.id == "always" or (candidate.id == "once" and log("once") == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return PASSED

    found = results_of(judge, "always", "once", "other")
    assert found["once"] == found["other"] == [PASSED]
    (lost,) = found["always"]
    assert lost.status is Status.NOT_RUN
    assert lost.reason.startswith("the process that judged it ended: killed by SIGKILL")


def test_a_judge_that_takes_too_long_is_replaced_once(log):
    def judge(candidate, settings, folder):
        if candidate.id == "slow":
            log("slow")
            time.sleep(60)
        return PASSED

    found = results_of(judge, "slow", "other", limit=0.6)
    assert found["other"] == [PASSED]
    assert [(each.status, each.reason) for each in found["slow"]] == [
        (Status.NOT_RUN, "it was not judged within 0.6 s")
    ]
    assert log("slow") == 3


def test_an_error_of_the_judge_is_no_verdict():
    def judge(candidate, settings, folder):
        raise ZeroDivisionError("spilt ink")

    ((found,),) = results_of(judge, "a").values()
    assert (found.status, found.reason) == (Status.NOT_RUN, "the judge raised ZeroDivisionError: spilt ink")


def test_without_a_folder_for_temporary_files_nothing_is_judged(monkeypatch, tmp_path):
    def none():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(CannotRun, match="there is no folder for temporary files: No usable"):
        results_of(lambda candidate, settings, folder: PASSED, "a")


def test_each_has_a_gpu_of_its_own():
    def judge(candidate, settings, folder):
        time.sleep(0.2)
        return Judged(Status.PASSED, reason=os.environ["CUDA_VISIBLE_DEVICES"])

    answers = pool.judged(judge, [candidate("a"), candidate("b")], ELSEWHERE, ["3", "5"], 60)
    assert {answer[1].reason for answer in answers if answer} == {"3", "5"}


@pytest.mark.parametrize("deaf", [False, True])
def test_nothing_is_left_of_a_run_that_is_stopped(deaf, monkeypatch, tmp_path):
    """Neither a process nor a folder, also of a judge that does not listen."""

    def judge(candidate, settings, folder):
        if deaf:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        (tmp_path / candidate.id).touch()
        time.sleep(60)
        return PASSED

    monkeypatch.setattr("touchstone.conformance.batch.attempt.GRACE_SECONDS", 0.3)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(psutil.Process().children())
    answers = pool.judged(judge, [candidate("a"), candidate("b"), candidate("c")], ELSEWHERE, [None] * 2, 60)
    while not (Path(tmp_path, "a").exists() and Path(tmp_path, "b").exists()):
        assert next(answers) is None
    assert len(set(psutil.Process().children()) - before) == 2
    answers.close()
    assert set(psutil.Process().children()) <= before
    assert not list(tmp_path.glob(f"{PREFIX}*"))
