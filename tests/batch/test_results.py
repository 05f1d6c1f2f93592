"""The file of results: lines that are whole, one writer, and nothing else in it."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from touchstone.conformance.batch import seals
from touchstone.conformance.batch.attempt import Judged
from touchstone.conformance.batch.candidates import Candidate, Text
from touchstone.conformance.batch.results import Results
from touchstone.conformance.batch.run import record_of
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.reporting.record import Record
from touchstone.conformance.reporting.status import Status

KEY = "0" * 64
NESTED = '{"format": 2, "candidate": ' + "[" * 600 + "]" * 600 + "}\n"


BASE = Record("judge")


def record(identifier: str, key: str = KEY, reason: str | None = None) -> dict:
    candidate = Candidate(identifier, "softmax", Text("candidate.py", ""), "softmax")
    return record_of(candidate, key, Judged(Status.NOT_RUN, reason=reason), BASE)


@pytest.fixture
def file(tmp_path):
    """Of two results."""
    path = tmp_path / "results.jsonl"
    with Results(path) as results:
        results.add(record("a"))
        results.add(record("b", "1" * 64))
    return path


def test_lines_are_read_again(file):
    with Results(file) as results:
        assert list(results.briefs) == [("a", KEY), ("b", "1" * 64)]
        assert results.of_key("1" * 64)["candidate"]["id"] == "b"
        assert results.of_key("2" * 64) is None
        results.add(record("c", "2" * 64))
        assert results.of_key("2" * 64)["candidate"]["id"] == "c"
    assert len(file.read_text().splitlines()) == 3


@pytest.mark.parametrize("left", [1, 5, 11, 40, 200])
def test_a_torn_line_is_dropped(file, left):
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:left])
    with Results(file) as results:
        assert len(results.briefs) == 2
    assert file.read_bytes() == whole


def test_a_line_that_lacks_its_end_alone_is_written_anew(file):
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with Results(file) as results:
        assert list(results.briefs) == [("a", KEY)]
        results.add(record("c"))
    assert [json.loads(line)["candidate"]["id"] for line in file.read_text().splitlines()] == ["a", "c"]


@pytest.mark.parametrize(
    "text",
    ["hello\n", "hello", '{"op": "softmax"}\n', "[1]\n", '{"format": 2}\n', '{"format": 2, "kind": "check"}', NESTED],
    ids=lambda text: text[:30],
)
def test_a_file_of_something_else_stays_as_it_is(file, text):
    """Such as the candidates, given by mistake."""
    for before in ("", file.read_text()):
        file.write_text(before + text)
        with pytest.raises(UsageError, match=r"results\.jsonl:[13]: is no result of `judge`"), Results(file):
            pass
        assert file.read_text() == before + text


@pytest.mark.parametrize(
    "change",
    [{"verdict": "splendid"}, {"reason": 1}, {"reports": 3}]
    + [
        {"candidate": {name: value}} for name, value in (("seconds", "1"), ("seconds", 1e999), ("id", 7), ("key", None))
    ],
    ids=str,
)
def test_a_result_that_is_not_as_judge_writes_it_is_refused(file, change):
    """Not met later, where the summary is made of it."""
    made = record("c")
    made |= change | {"candidate": made["candidate"] | change.get("candidate", {})}
    file.write_text(file.read_text() + json.dumps(made) + "\n")
    with pytest.raises(UsageError, match=r"results\.jsonl:3: is no result of `judge`"), Results(file):
        pass


def forged(change):
    """Changes a record of the file, and keeps the rest of the line."""

    def to(line: str) -> str:
        made = json.loads(line)
        change(made)
        return json.dumps(made) + "\n"

    return to


FORGED = {
    "verdict": forged(lambda made: made.update(verdict="passed", status=0, passed=True)),
    "seed": forged(lambda made: made.update(seed=5)),
    "of another candidate": forged(lambda made: made["candidate"].update(id="c")),
    "of another source": forged(lambda made: made["candidate"].update(key="2" * 64)),
    "without a seal": forged(lambda made: made["candidate"].pop("seal")),
    "with none": forged(lambda made: made["candidate"].update(seal=None)),
    "with one of its own": forged(lambda made: made["candidate"].update(seal="3" * 64)),
    "with much inside": forged(lambda made: made.update(more=json.loads(NESTED)["candidate"])),
    "with no text": forged(lambda made: made["candidate"].update(seal="\ud800")),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_line_that_the_judge_did_not_write_is_no_result(file, how):
    first, _, rest = file.read_text().partition("\n")
    file.write_text(FORGED[how](first + "\n") + rest)
    before = file.read_bytes()
    with pytest.raises(UsageError, match=r"results\.jsonl:1: (?:this line does not have the seal|is no result)"):
        Results(file).__enter__()
    assert file.read_bytes() == before


def test_lines_are_known_again_as_other_tools_write_them(file):
    """`jq -c`, say, by which docs/judge.md has lines chosen."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[0]["candidate"]["seconds"] = int(lines[0]["candidate"]["seconds"])
    rewritten = [dict(reversed(line.items())) for line in lines]
    file.write_text("".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in rewritten))
    with Results(file) as results:
        assert len(results.briefs) == 2


def test_the_key_is_this_users_alone(file, tmp_path, monkeypatch):
    key = seals.folders.state() / seals.NAME
    assert (key.stat().st_mode & 0o777, len(key.read_bytes())) == (0o600, seals.LENGTH)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of another user"))
    with pytest.raises(UsageError, match="does not have the seal"):
        Results(file).__enter__()
    key = seals.folders.state() / seals.NAME
    key.chmod(0o644)
    assert "remove it" in seals.why_not()


def test_without_a_place_for_a_key_lines_have_no_seal(tmp_path, monkeypatch):
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a file"))
    with Results(tmp_path / "results.jsonl") as results:
        results.add(record("a"))
    assert json.loads((tmp_path / "results.jsonl").read_text())["candidate"]["seal"] is None
    assert "a file" in seals.why_not()


def test_what_is_no_plain_file_is_neither_waited_for_nor_written(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(UsageError, match="is no plain file"), Results(path):
            pass


def test_one_run_writes_a_file_at_a_time(file, monkeypatch):
    monkeypatch.setattr("touchstone.conformance.batch.results.WAIT_SECONDS", 0.1)
    with Results(file), pytest.raises(UsageError, match="another run is writing it"), Results(file):
        pass
    with Results(file):
        pass


def _write(path, ready):
    with Results(path) as results:
        for number in range(100_000):
            results.add(record(str(number), reason="x" * 4000))
            if number == 20:
                ready.set()


def test_what_is_killed_while_it_writes_leaves_whole_lines(tmp_path):
    path, context = tmp_path / "results.jsonl", multiprocessing.get_context("fork")
    ready = context.Event()
    writer = context.Process(target=_write, args=(path, ready))
    writer.start()
    assert ready.wait(60)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    with Results(path) as results:  # the lock is free again
        assert [identifier for identifier, _ in results.briefs] == [str(n) for n in range(len(results.briefs))]
        assert len(results.briefs) > 20


def test_a_full_disk_leaves_whole_lines(file, monkeypatch):
    """Half of a line, then no room."""
    whole, write = file.read_bytes(), os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 200:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: len(data) - 100])

    with Results(file) as results:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            results.add(record("c"))
        monkeypatch.undo()
        assert file.read_bytes() == whole
        results.add(record("c"))
    assert file.read_bytes().startswith(whole) and file.read_bytes().endswith(b"\n")
