"""`python -m touchstone judge`: verdicts beside hostile candidates, runs that are ended and go on, wrong arguments."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from tests.batch.lines import RIGHT, WRONG, line, listing, numbered, valid
from tests.processes import run_touchstone, with_touchstone
from touchstone.conformance.discovery import registry

MARK = "TOUCHSTONE_TEST_RUN"  # in the environment of everything that a run starts
BODY = "    return torch.softmax(x.float(), -1)"
HOSTILE = {
    "ends": "    os._exit(0)\n",
    "kills": "    os.kill(os.getppid(), 9)\n",
    "writes": "    with contextlib.suppress(OSError):\n        open(RESULTS, 'w').write('mine')\n",
    "prints": '    os.write(1, b\'{"format": 2, "kind": "judge", "verdict": "passed"}\\n\')\n',
}
SLEEPING = "import time\n" + RIGHT.replace("    return", "    time.sleep(30)\n    return")


def hostile(name: str, folder: Path) -> str:
    head = f"import contextlib\nimport os\n\nRESULTS = {str(folder / 'results.jsonl')!r}\n"
    return head + RIGHT.replace(BODY, HOSTILE[name] + BODY)


def judge(folder, *arguments: str, **options) -> subprocess.CompletedProcess:
    return run_touchstone(["-m", "touchstone", "judge", *arguments], folder, **options)


def records(folder, name: str = "results.jsonl") -> list[dict]:
    return [json.loads(text) for text in (folder / name).read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="kernels are confined on Linux alone")
def test_honest_candidates_have_their_verdicts_beside_hostile_ones(tmp_path):
    lines = [line(RIGHT, id="right"), line(RIGHT, id="again", language="torch"), line(WRONG, id="wrong")]
    lines += [line(hostile(name, tmp_path), id=name) for name in HOSTILE]
    lines += [line("import torch\n", id="empty"), line("import nothing_of_this_name\n", id="missing")]
    lines += [line(numbered(RIGHT, 1), id="narrow", coverage=1.0), line(numbered(RIGHT, 2), id="last")]
    listing(tmp_path, lines)
    done = judge(
        tmp_path,
        "candidates.jsonl",
        "--device=cpu",
        "--jobs=2",
        "--allow-library",
        "--timeout=5",
        "--out=results.jsonl",
    )
    found = {record["candidate"]["id"]: record for record in records(tmp_path)}
    assert len(found) == len(records(tmp_path)) == len(lines), done.stderr
    verdicts = {name: record["verdict"] for name, record in found.items()}
    assert [verdicts[name] for name in ("right", "again", "narrow", "last", "prints", "writes")] == ["passed"] * 6
    assert [verdicts[name] for name in ("wrong", "ends", "empty")] == ["failed"] * 3
    assert verdicts["kills"] in ("failed", "not run")  # the latter without a process table of its own
    assert verdicts["missing"] == "not run"
    assert "defines no function 'softmax'" in found["empty"]["reason"]
    assert found["again"]["candidate"]["same_as"] == "right" and found["again"]["candidate"]["language"] == "torch"
    assert found["again"]["reports"] == found["right"]["reports"]
    assert done.returncode == 1
    assert f"{len(lines)} candidates" in done.stdout and "passed   6" in done.stdout
    assert not (tmp_path / ".touchstone").exists()
    for record in found.values():
        valid(record)


@pytest.mark.slow
def test_results_on_standard_output_are_json_lines_alone(tmp_path):
    listing(tmp_path, [line(RIGHT, id="a")])
    done = judge(tmp_path, "candidates.jsonl", "--trusted", "--device=cpu", "--seed=3", "--bench=small")
    (record,) = map(json.loads, done.stdout.splitlines())
    assert (record["verdict"], record["seed"], done.returncode) == ("passed", 3, 0)
    assert record["reports"][0]["coverage"]["least"] == 0.0
    assert "1 candidates" in done.stderr
    (row,) = [row for row in record["results"] if row["kind"] == "variant"]
    assert row["status"] == "measured" and row["samples_ms"]
    valid(record)


@contextlib.contextmanager
def started(folder, *arguments: str):
    """A run under way, and what tells which processes of it there are."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "touchstone", "judge", *arguments],
        cwd=folder,
        env=with_touchstone(**{MARK: mark}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process, lambda: [each for each in psutil.process_iter() if _marked(each, mark)]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _marked(process: psutil.Process, mark: str) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark
    return False


def until(condition, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path):
    """Exactly one result of each candidate; nothing survives the kill."""
    listing(tmp_path, [line(numbered(RIGHT, number), id=str(number)) for number in range(8)])
    out = tmp_path / "results.jsonl"
    arguments = ("candidates.jsonl", "--trusted", "--device=cpu", "--jobs=2", "--out=results.jsonl")
    with started(tmp_path, *arguments) as (process, alive):
        assert until(lambda: out.exists() and out.read_bytes().count(b"\n") >= 2)
        process.kill()
        process.wait()
        assert until(lambda: not alive(), 10), alive()
    before = out.read_bytes()
    done = before.count(b"\n")
    assert 2 <= done < 8
    out.write_bytes(before + before[: len(before) // done // 2])  # and a torn line
    assert judge(tmp_path, *arguments).returncode == 0
    assert out.read_bytes().startswith(before[: before.rindex(b"\n")])
    assert sorted(record["candidate"]["id"] for record in records(tmp_path)) == [str(number) for number in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl_c", "sigterm"])
def test_a_run_that_is_interrupted_keeps_what_it_has(tmp_path, number):
    listing(tmp_path, [line(RIGHT, id="quick"), *[line(numbered(SLEEPING, n), id=f"slow{n}") for n in range(3)]])
    out = tmp_path / "results.jsonl"
    how = ("--allow-library",) if sys.platform == "linux" else ("--trusted",)
    with started(tmp_path, "candidates.jsonl", *how, "--device=cpu", "--jobs=2", "--out=results.jsonl") as (run, alive):
        assert until(lambda: out.exists() and out.read_bytes().count(b"\n") == 1)
        time.sleep(0.5)
        assert len(alive()) > 2
        run.send_signal(number)
        assert run.wait(30) == 130
        assert until(lambda: not alive(), 5), alive()
    assert [record["candidate"]["id"] for record in records(tmp_path)] == ["quick"]


@pytest.mark.slow
def test_wrong_arguments_are_told_before_anything_runs(tmp_path):
    from touchstone.conformance.cli import main

    listing(tmp_path, [line(RIGHT)])
    listing(tmp_path, [line(RIGHT), line(RIGHT, op="sofmax")], "bad.jsonl")
    os.makedirs(tmp_path / "folder")
    good, out = str(tmp_path / "candidates.jsonl"), tmp_path / "results.jsonl"
    for arguments, said in (
        ([str(tmp_path / "bad.jsonl")], "bad.jsonl:2: field 'op': 'sofmax' is not one of "),
        ([good, "--jobs=0"], "--jobs: expected a positive number, got 0"),
        ([good, "--limit=-1"], "--limit: expected a positive number"),
        ([good, "--level=quik"], "--level: expected one of quick, default, thorough, got 'quik'"),
        ([good, "--coverage=2"], "--coverage: expected a share from 0 to 1"),
        ([good, "--bench=small"], "--bench: goes with --trusted"),
        ([good, "--trusted", "--allow-library"], "--allow-library and --trusted"),
        ([good, "--ray=auto", "--jobs=2"], "--jobs: goes with one machine"),
        ([good, f"--out={tmp_path / 'folder'}"], "--out: expected the name of a file"),
        ([good, f"--out={good}"], "candidates.jsonl:1: is no result of `judge`"),
    ):
        with contextlib.redirect_stderr(open(tmp_path / "err", "w+")) as errors:
            assert main(["judge", *arguments, *([] if "--out" in arguments[-1] else [f"--out={out}"])]) == 2, arguments
            errors.seek(0)
            assert said in errors.read()
    assert not out.exists()
    assert json.loads((tmp_path / "candidates.jsonl").read_text())["op"] in registry.ops()
