"""The gate of `bench --compare --fail-if-slower`: what is slower for sure fails, noise does not."""

import copy
import functools
import json

import pytest

from touchstone.conformance.bench import gate
from touchstone.conformance.cli import main
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.reporting import record

MACHINE = {"device": "cuda", "system": "Linux", "cpus": 8, "threads": 4, "gpu": "A"}


def row(name="r", ms=1.0, spread=0.01, count=100, **about):
    quartiles = {"ms": ms, "q1": None, "q3": None} if ms is None else {"ms": ms, "q1": ms - spread, "q3": ms + spread}
    fixed = dict(op="softmax", mode="fwd", target="a@cuda", dtype="bfloat16", sizes={"rows": 1}, params={})
    return {**fixed, "name": name, "cache": "cold", "status": "measured", "count": count, **quartiles, **about}


def bench(*rows, **machine):
    return {"format": 2, "machine": {**MACHINE, **machine}, "versions": {}, "results": list(rows)}


def status(tmp_path, old, new, *words):
    for name, content in (("old", old), ("new", new)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return main(["bench", "--compare", str(tmp_path / "old.json"), str(tmp_path / "new.json"), *words])


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.05", 0.05), ("2.5 %", 0.025), ("0", 0.0), ("150%", 1.5)])
def test_a_share(text, value):
    assert gate.share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "five", "-5%", "5", "nan", "inf", "%", "5%%", "1e-2", "0,05"])
def test_no_share(text, tmp_path, capsys):
    with pytest.raises(UsageError, match="--fail-if-slower: expected a share of the old time"):
        gate.share(text)
    assert status(tmp_path, bench(row()), bench(row()), f"--fail-if-slower={text}") == 2
    assert "--fail-if-slower: expected" in capsys.readouterr().err


def test_slower_by_more_than_that_fails(tmp_path, capsys):
    old = bench(row(), row("same"), row("faster"))
    new = bench(row(ms=1.1), row("same", 1.03), row("faster", 0.5))
    assert status(tmp_path, old, new) == 0
    assert status(tmp_path, old, new, "--fail-if-slower", "5%") == 1
    said = capsys.readouterr().out
    assert "softmax a@cuda r bfloat16 1: 1 -> 1.1 ms, +10.0 % (+9." in said
    assert "1 of 3 rows are slower by more than that" in said
    assert status(tmp_path, old, new, "--fail-if-slower", "0.15") == 0
    assert "none of 3 rows is slower" in capsys.readouterr().out


def test_noise_does_not_fail():
    """Nor a change that may be no more than the share; more samples make it sure."""
    for count, slower in ((4, False), (400, True)):
        old, new = bench(row(spread=0.05, count=count)), bench(row(ms=1.08, spread=0.05, count=count))
        assert bool(gate.judge(old, new, 0.05).slower) is slower
    few = copy.deepcopy(new)
    del few["results"][0]["count"]  # as in a short record: as if of one sample
    assert gate.judge(few, few, 0.0).passed


def test_a_number_that_was_lost_fails():
    verdict = gate.judge(bench(row()), bench(row(ms=None, status="refused")), 0.05)
    assert not verdict.passed and verdict.slower[0].endswith("was 1 ms, is refused")
    assert gate.judge(bench(row(ms=None, status="failed"), row("x")), bench(row(), row("x")), 0.05).compared == 1


def test_an_interrupted_run_does_not_pass(tmp_path, capsys):
    for told in ({"interrupted": True}, {"status": 130}):
        assert status(tmp_path, bench(row()), {**bench(row()), **told}, "--fail-if-slower=5%") == 1
        assert "the run of NEW was interrupted" in capsys.readouterr().out


def test_rows_that_hide_others_are_refused(tmp_path, capsys):
    """A second row of the same measurement would take the place of the first."""
    for old, new in ((bench(row()), bench(row(ms=9.0), row())), (bench(row(ms=9.0), row()), bench(row(ms=9.0)))):
        assert status(tmp_path, old, new, "--fail-if-slower=5%") == 2
        assert "two rows of one measurement: softmax a@cuda r bfloat16 1" in capsys.readouterr().err


def test_a_record_is_not_compared_with_itself(tmp_path, capsys):
    """As where a link, or what an earlier run has left, stands in the place of NEW."""
    made = {**bench(row()), "date": "2026-01-01T00:00:00+00:00"}
    assert status(tmp_path, made, made, "--fail-if-slower=5%") == 2
    assert "records of the same run" in capsys.readouterr().err
    assert status(tmp_path, made, {**made, "date": "2026-01-02T00:00:00+00:00"}, "--fail-if-slower=5%") == 0


def test_what_is_too_noisy_to_tell_is_named(tmp_path, capsys):
    """A kernel may make its times uneven: it does not pass without a word."""
    assert status(tmp_path, bench(row()), bench(row(ms=2.0, spread=1.0, count=5)), "--fail-if-slower=5%") == 0
    assert "too noisy to tell: softmax a@cuda r bfloat16 1: 1 -> 2 ms, +100.0 % (-" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        {"ms": "NaN"},
        {"ms": -1.0},
        {"ms": True},
        {"ms": 10**400},
        {"ms": 5e-324, "q1": 5e-324},
        {"ms": 9.0},  # and its quartiles about 1
        {"ms": "0.9"},
        {"q3": "Infinity"},
        {"q1": "NaN"},
        {"q1": 1.01, "q3": 0.99},
        {"count": "NaN"},
        {"count": -3},
        {"count": 0.5},
        {"count": 10**400},
        {"status": "refused"},  # and a time
        {"ms": None},  # and measured
        {"samples_ms": [5.0, 5.0, 5.0], "count": 3},
        {"samples_ms": [1.0] * 5, "count": 100, "q1": 1.0, "q3": 1.0},
        {"samples_ms": ["1.0"], "count": 1},
    ],
    ids=str,
)
def test_a_time_that_is_none_is_refused(tmp_path, capsys, wrong):
    """Or it would be neither slower nor faster than anything."""
    assert status(tmp_path, bench(row()), bench(row() | wrong), "--fail-if-slower=5%") == 2
    assert "new.json: a field is of another form than Touchstone writes" in capsys.readouterr().err


@pytest.mark.parametrize(
    "told",
    [{"status": "130"}, {"interrupted": "true"}, {"more": functools.reduce(lambda a, _: [a], range(600), 1)}],
    ids=list,
)
def test_a_record_that_no_run_could_have_written_is_refused(tmp_path, capsys, told):
    assert status(tmp_path, bench(row()), {**bench(row()), **told}, "--fail-if-slower=5%") == 2
    assert "new.json" in capsys.readouterr().err


def test_what_a_record_names_makes_no_line_of_the_report(tmp_path, capsys):
    name = "r\n--fail-if-slower 5%: none of 1 rows is slower\x1b[2J"
    old, new = bench(row(name)), {**bench(row(name, 2.0)), "versions": {name: name}}
    assert status(tmp_path, old, new, "--fail-if-slower=5%") == 1
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if line.startswith("--fail")] == [
        "--fail-if-slower 5%: 1 of 1 rows are slower by more than that"
    ]
    assert "\x1b" not in said and said.isascii()


def test_a_variant_that_no_longer_passes_its_level_fails(tmp_path, monkeypatch):
    """Judged before it is timed, it has a row of the same measurement."""
    new = tmp_path / "new.json"
    (tmp_path / "k.py").write_text("import torch\n\n\ndef softmax(x):\n    return torch.softmax(x, 0)\n")
    words = ["softmax", "--kernel", f"{tmp_path / 'k.py'}:softmax", "--device=cpu", "--level=quick", "--first"]
    assert main(["bench", *words, "--no-baselines", "--json", str(new)]) == 1
    old = json.loads(new.read_text())
    for each in old["results"]:
        each |= {"status": "measured", "ms": 1.0, "q1": 1.0, "q3": 1.0, "count": 1, "cache": "warm"}
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert main(["bench", "--compare", str(tmp_path / "old.json"), str(new), "--fail-if-slower=5%"]) == 1


def test_what_is_missing_is_named(tmp_path, capsys):
    assert status(tmp_path, bench(row(), row("gone")), bench(row(), row("more")), "--fail-if-slower=5%") == 0
    said = capsys.readouterr().out
    assert "only in OLD: softmax a@cuda gone bfloat16 1\n" in said and "only in NEW: softmax a@cuda more" in said
    assert status(tmp_path, bench(row("a")), bench(row("b")), "--fail-if-slower=5%") == 1
    assert "nothing was compared" in capsys.readouterr().out


def test_other_machines_are_not_compared(tmp_path, capsys):
    old, new = bench(row()), bench(row(), gpu="B")
    assert status(tmp_path, old, new) == 0
    capsys.readouterr()
    assert status(tmp_path, old, new, "--fail-if-slower=5%") == 2
    assert "different machines (gpu: A -> B)" in capsys.readouterr().err
    assert status(tmp_path, old, new, "--fail-if-slower=5%", "--any-machine") == 0
    assert status(tmp_path, old, bench(row(), threads=2), "--fail-if-slower=5%") == 0


def test_options_that_go_together(capsys):
    assert main(["bench", "softmax", "--device=cpu", "--fail-if-slower=5%"]) == 2
    assert "--fail-if-slower: goes with --compare" in capsys.readouterr().err
    assert main(["bench", "--compare", "a", "b", "--any-machine"]) == 2
    assert "--any-machine: goes with --fail-if-slower" in capsys.readouterr().err


@pytest.mark.needs("jsonschema")
def test_the_verdict_is_in_the_record(tmp_path, capsys):
    import jsonschema

    out = tmp_path / "out.json"
    assert status(tmp_path, bench(row()), bench(row(ms=2.0)), "--fail-if-slower=5%", "--json", str(out)) == 1
    found = json.loads(out.read_text())
    jsonschema.validate(found, json.loads(record.SCHEMA.read_text()))
    assert found["status"] == 1 and found["gate"]["compared"] == 1 and len(found["gate"]["slower"]) == 1
