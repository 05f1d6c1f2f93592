"""A run: identical candidates are judged once, known ones not again; what is told of them."""

import io
from dataclasses import replace

import pytest

from tests.batch.lines import RIGHT, WRONG, line, listing, numbered
from touchstone.conformance.batch import run, telling
from touchstone.conformance.batch.attempt import Judged
from touchstone.conformance.batch.candidates import Settings, read
from touchstone.conformance.batch.results import Brief, Results
from touchstone.conformance.reporting.record import Record
from touchstone.conformance.reporting.status import Status

QUICK = Settings()


@pytest.fixture
def judging(tmp_path):
    """Runs over lines; which candidates it judged, and the results."""

    def go(lines: list, settings: Settings = QUICK) -> tuple[list[str], dict[str, dict]]:
        found, asked = read([str(listing(tmp_path, lines))], "quick"), []

        def judged(left):
            for candidate in left:
                asked.append(candidate.id)
                yield candidate, Judged(Status.NOT_RUN, reason=candidate.source.text, seconds=1.0)
                yield None

        with Results(tmp_path / "results.jsonl") as results:
            briefs = run.run(found, settings, judged, results, Record("judge"), lambda briefs, known: None)
            records = {each.id: results.of_key(each.key(settings)) for each in found}
        assert sorted(brief.id for brief in briefs) == sorted(each.id for each in found)
        return asked, records

    return go


def test_identical_candidates_are_judged_once(judging, tmp_path):
    same = [line(RIGHT, id="a"), line(RIGHT, id="b", language="torch"), line(WRONG, id="c")]
    asked, _ = judging(same)
    assert asked == ["a", "c"]
    with Results(tmp_path / "results.jsonl") as results:
        found = {identifier: brief for (identifier, _), brief in results.briefs.items()}
    assert {name: brief.repeated for name, brief in found.items()} == {"a": False, "b": True, "c": False}
    assert found["a"].causes == found["b"].causes != found["c"].causes


def test_what_is_known_is_not_judged_again(judging, tmp_path):
    lines = [line(numbered(RIGHT, number), id=str(number)) for number in range(3)]
    assert judging(lines[:2])[0] == ["0", "1"]
    assert judging(lines)[0] == ["2"]
    assert judging(lines)[0] == []
    assert judging([*lines, line(numbered(RIGHT, 1), id="twin")])[0] == []
    assert judging([line(WRONG, id="0")])[0] == ["0"]  # another source under the same id
    assert judging(lines, Settings(seed=5))[0] == ["0", "1", "2"]
    rows = (tmp_path / "results.jsonl").read_text().splitlines()
    assert len(rows) == 3 + 1 + 1 + 3
    assert '"same_as": "1"' in rows[3] and '"id": "twin"' in rows[3]


BRIEFS = [
    Brief("a", "passed", 1.0),
    Brief("b", "failed", 9.0, {"11111111": "values: y is wrong", "22222222": "race: two threads"}),
    Brief("c", "failed", 2.0, {"11111111": "values: y is wrong"}),
    Brief("d", "failed", 2.0, {"11111111": "values: y is wrong"}, repeated=True),
    Brief("e", "not run", 0.5, {"": "no compiler"}),
]


def test_the_summary_counts_verdicts_and_causes():
    out = io.StringIO()
    telling.summary(BRIEFS, 1, 8.0, out)
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert (
        ["failed", "3", "60.0%"] in lines
        and ["passed", "1", "20.0%"] in lines
        and ["not", "run", "1", "20.0%"] in lines
    )
    assert (
        lines.index(["9.0", "b", "failed"]) < lines.index(["2.0", "c", "failed"]) < lines.index(["1.0", "a", "passed"])
    )
    assert ["2.0", "d", "failed"] not in lines
    assert ["3", "11111111", "b", "values:", "y", "is", "wrong"] in lines and ["1", "-", "e", "no", "compiler"] in lines
    assert (
        "4 results in 8 s (30.0 a minute); 1 were there before, 1 are those of identical candidates" in out.getvalue()
    )


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        (["passed"], Status.PASSED),
        (["passed", "partial"], Status.PARTIAL),
        (["passed", "partial", "not run"], Status.NOT_RUN),
        (["passed", "partial", "not run", "failed"], Status.FAILED),
    ],
)
def test_the_status_of_many(verdicts, status):
    assert telling.status([replace(BRIEFS[0], verdict=verdict) for verdict in verdicts]) is status


def test_progress_tells_rate_and_time_left():
    assert telling.told(
        BRIEFS, 1, 205, 2.0
    ) == "judge: 5 of 205, 3 failed, 1 not run; 2.0 a second, 100 s left".replace("100 s", "2 min")
    assert telling.told(BRIEFS, 5, 205, 2.0) == "judge: 5 of 205, 3 failed, 1 not run; none ended yet"
    assert telling.told(BRIEFS, 0, 5000, 50.0).endswith("; 6.0 a minute, 13.9 h left")


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self):
        return True


def test_progress_renews_a_line_in_a_terminal_and_is_quiet_in_a_file(monkeypatch):
    monkeypatch.setattr(telling, "OFTEN_SECONDS", 0.0)
    for stream, lines in ((Terminal(), 0), (io.StringIO(), 0)):
        progress = telling.Progress(9, stream)
        progress(BRIEFS, 0)
        progress.end()
        assert stream.getvalue().count("\n") == lines
        assert stream.getvalue().startswith("\r\x1b[Kjudge: 5 of 9") == stream.isatty()
    monkeypatch.setattr(telling, "QUIET_SECONDS", 0.0)
    stream = io.StringIO()
    telling.Progress(9, stream)(BRIEFS, 0)
    assert stream.getvalue().startswith("judge: 5 of 9") and stream.getvalue().endswith("left\n")
