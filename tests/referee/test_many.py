"""Many candidates through `judge`: every verdict is that of a single `check`. tests/referee/many.py makes more."""

import json

import pytest

from tests.night import NIGHT
from tests.processes import fork_touchstone
from tests.referee import agree, many
from touchstone.conformance.batch.candidates import read
from touchstone.conformance.check import check
from touchstone.conformance.discovery.importing import FileFunction

SAMPLE = 60 if NIGHT else 6  # of each kind


def every(lines: list[dict], count: int) -> list[dict]:
    return lines[:: len(lines) // count][:count]


def single(candidate, folder, **options) -> str:
    """The verdict of `check`."""
    folder.mkdir(exist_ok=True)
    fn = FileFunction(candidate.source.placed(folder), candidate.function)
    return check(candidate.op, fn, device="cpu", level="quick", **candidate.options, **options).verdict


@pytest.mark.slow
@pytest.mark.needs("triton")
@pytest.mark.parametrize(
    "trusted", [pytest.param(False, marks=pytest.mark.level("default")), True], ids=["confined", "trusted"]
)
def test_verdicts_are_those_of_single_checks(trusted, tmp_path):
    made = many.planted() if trusted else many.kernels()
    lines = every([each.line for each in made], SAMPLE)
    path = tmp_path / "candidates.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["judge", str(path), "--device=cpu", "--seed=0", "--jobs=2", "--timeout=10", "--out=results.jsonl"]
    done = fork_touchstone([*arguments, *(["--trusted"] if trusted else [])], tmp_path)
    assert done.wait(300) == 1, done.err.read_text()
    records = [json.loads(text) for text in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [record["reason"] for record in records] == [None] * len(lines)  # each could be called
    found = {record["candidate"]["id"]: record["verdict"] for record in records}
    candidates = read([str(path)], "quick")
    assert found == {
        each.id: single(each, tmp_path / "single", untrusted=not trusted, seed=0, timeout=10.0) for each in candidates
    }
    assert {"passed", "failed"} <= set(found.values())


@pytest.mark.level("default")
def test_there_are_two_thousand():
    assert sum(1 for made in (many.kernels(), many.planted()) for _ in made) >= 2000


@pytest.mark.slow
@pytest.mark.needs("triton")
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("layer_norm_backward/_partials/none/float32", {"rows": [0]}),
        ("online_softmax/_online/none/float32", {"cols": [0]}),
    ],
)
def test_a_right_kernel_may_fill_what_has_no_operands(name, sizes, tmp_path):
    line = next(made.line for made in many.kernels() if made.line["id"] == name)
    (tmp_path / "candidates.jsonl").write_text(json.dumps(line | {"sizes": sizes}) + "\n")
    (candidate,) = read([str(tmp_path / "candidates.jsonl")], "quick")
    assert single(candidate, tmp_path / "single", untrusted=True, seed=0) == "passed"


def test_what_was_not_owed_is_told():
    owes = {"o/f/float32": "failed", "o/f/float16": "failed", "o/g/float32": "failed", "o/k": "passed", "o/d": "passed"}
    same = {name: {"a": "passed", "b": "passed"} for name in owes}
    found = {**same, "o/f/float16": {"a": "failed"}, "o/k": {"a": "passed", "b": "failed"}, "o/d": {"a": "partial"}}
    told = list(agree.owed(found, owes))
    assert told == ["o/k: owes passed, and is failed, passed", "o/g: owes to fail, and passes"]
