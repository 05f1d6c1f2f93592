"""Many candidates through `judge`: every verdict is that of a single `check`. tests/referee/many.py makes more."""

import json

import pytest

from tests.night import NIGHT
from tests.processes import run_touchstone
from tests.referee import many
from touchstone.conformance.batch.candidates import read
from touchstone.conformance.check import check
from touchstone.conformance.discovery.importing import FileFunction

SAMPLE = 60 if NIGHT else 10  # of each kind


def every(lines: list[dict], count: int) -> list[dict]:
    return lines[:: len(lines) // count][:count]


def single(candidate, folder, **options) -> str:
    """The verdict of `check`."""
    folder.mkdir(exist_ok=True)
    fn = FileFunction(candidate.source.placed(folder), candidate.function)
    return check(candidate.op, fn, device="cpu", level="quick", **candidate.options, **options).verdict


@pytest.mark.slow
@pytest.mark.needs("triton")
@pytest.mark.parametrize("trusted", [False, True], ids=["confined", "trusted"])
def test_verdicts_are_those_of_single_checks(trusted, tmp_path):
    lines = every(list(many.planted() if trusted else many.kernels()), SAMPLE)
    path = tmp_path / "candidates.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["judge", str(path), "--device=cpu", "--seed=0", "--jobs=2", "--timeout=10", "--out=results.jsonl"]
    done = run_touchstone(["-m", "touchstone", *arguments, *(["--trusted"] if trusted else [])], tmp_path)
    assert done.returncode == 1, done.stderr
    records = [json.loads(text) for text in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [record["reason"] for record in records] == [None] * len(lines)  # each could be called
    found = {record["candidate"]["id"]: record["verdict"] for record in records}
    candidates = read([str(path)], "quick")
    assert found == {
        each.id: single(each, tmp_path / "single", untrusted=not trusted, seed=0, timeout=10.0) for each in candidates
    }
    assert {"passed", "failed"} <= set(found.values())


def test_there_are_two_thousand():
    assert sum(1 for lines in (many.kernels(), many.planted()) for _ in lines) >= 2000
