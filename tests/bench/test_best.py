"""`tune --best`: which rows of a record become points, what is written, and a run that measures."""

import json

import pytest

from tests import targets
from touchstone.conformance.bench import best, records
from touchstone.conformance.bench.run import guard
from touchstone.conformance.cli import main
from touchstone.conformance.discovery import measured, registry, selection

HEAD = {
    "report": "bench",
    "format": 1,
    "date": "2001-02-03",
    "command": "bench softmax",
    "commit": "c0ffee",
    "changed": False,
    "versions": {"torch": "1"},
    "machine": {"device": "cuda", "gpu": "a GPU", "capability": "9.0"},
}


@pytest.fixture
def world(tmp_path, monkeypatch):
    with targets.pretend(tmp_path, monkeypatch):
        yield tmp_path


def row(name, ms, cols=8, **about):
    made = {
        "op": "softmax", "mode": "fwd", "target": "paper@cuda", "name": name, "kind": "variant", "dtype": "float32",
        "sizes": {"rows": 4, "cols": cols}, "params": {}, "cache": "cold", "ms": ms, "q1": ms, "q3": ms,
        "status": "measured" if ms else "declined",
    }  # fmt: skip
    return made | about


def points(*rows, **head):
    found = best.of_record({**HEAD, **head, "results": list(rows)}, "r.json", ["softmax"], ["paper", "chalk"])
    return {kind: [(each.sizes["cols"], dict(each.ms)) for each in table.points] for kind, table in found.items()}


def test_the_rows_of_a_case_are_a_point(world):
    rows = [row("plain", 2.0), row("folded", 1.0), row("plain", 3.0, 9), row("gilded", 4.0, 9)]
    assert points(*rows) == {
        ("softmax", "paper"): [(8, {"folded": 1.0, "plain": 2.0}), (9, {"plain": 3.0, "gilded": 4.0})]
    }
    ((table,),) = [list(best.of_record({**HEAD, "results": rows}, "r.json", ["softmax"], ["paper"]).values())]
    assert (table.arch, [each.record for each in table.points]) == ("sm_90", [0, 0])
    assert table.records == [
        {
            "gpu": "a GPU",
            "date": "2001-02-03",
            "command": "bench softmax",
            "commit": "c0ffee",
            "versions": {"torch": "1"},
        }
    ]


@pytest.mark.parametrize(
    "other",
    [
        row("folded", 1.0, kind="baseline"),
        row("folded", 1.0, mode="fwd_bwd"),
        row("folded", 1.0, cache="graph"),
        row("folded", 1.0, target="chalk@cuda"),
        row("folded", 1.0, op="matmul"),
        row("folded", 1.0, dtype="bfloat16"),
        row("folded", 1.0, params={"x": "transposed"}),
        row("folded (again)", 1.0),
        row("torn", 1.0),
        row("folded", None, status="refused"),
    ],
    ids=lambda row: f"{row['kind']}-{row['name']}",
)
def test_what_was_not_timed_in_turns_with_it_makes_no_point(world, other):
    assert points(row("plain", 2.0), other) == {}


def test_a_variant_that_alone_takes_a_case_is_a_point(world):
    rows = [row("plain", 2.0), row("folded", None), row("gilded", None, status="not run")]
    assert points(*rows) == {("softmax", "paper"): [(8, {"plain": 2.0})]}
    assert points(*rows[:2]) == {}, "nothing is known of the third"


def test_layouts_are_told_from_parameters(world):
    rows = [row(name, 1.0, params={"x": "transposed"}) for name in ("plain", "folded")]
    (table,) = best.of_record({**HEAD, "results": rows}, "r.json", ["softmax"], ["paper"]).values()
    assert (table.points[0].params, table.points[0].layouts) == ({}, {"x": "transposed"})


def tune(*arguments):
    return main(["tune", "softmax", "--best", *map(str, arguments)])


def test_records_become_tables(world, capsys):
    (world / "r.json").write_text(json.dumps({**HEAD, "results": [row("plain", 2.0), row("folded", 1.0)]}))
    newer = {**HEAD, "date": "2002-01-01", "results": [row("plain", 1.5), row("folded", 2.5), row("plain", 9.0, 9)]}
    (world / "s.json").write_text(json.dumps(newer))
    path = measured.path_of("softmax", "paper", "sm_90")
    assert tune("--from", world / "r.json", "--dry-run") == 0 and not path.exists()
    assert tune("--from", world / "s.json", world / "r.json", "--json", world / "t.json") == 0
    found = measured.table("softmax", "paper", "sm_90")
    assert [dict(each.ms) for each in found.points] == [{"plain": 1.5, "folded": 2.5}]
    assert [about["date"] for about in found.records] == ["2002-01-01"]
    assert "softmax  paper    sm_90  1       1" in capsys.readouterr().out
    assert json.loads((world / "t.json").read_text())["pinned"] == [
        {"op": "softmax", "backend": "paper", "arch": "sm_90", "points": 1, "new": 1,
         "file": "backends/paper/best/sm_90/softmax.json"}
    ]  # fmt: skip
    text = path.read_text()
    assert tune("--from", world / "r.json") == 0 and path.read_text() == text, "an older record changes nothing"
    path.write_text("{")
    assert tune("--from", world / "r.json") == 0
    assert "written anew: backends/paper/best/sm_90/softmax.json is no table" in capsys.readouterr().out
    assert [dict(each.ms) for each in measured.table("softmax", "paper", "sm_90").points] == [
        {"folded": 1.0, "plain": 2.0}
    ]


def test_wrong_usage(world, capsys):
    def told(*arguments):
        assert main(["tune", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    (world / "cpu.json").write_text(json.dumps({**HEAD, "machine": {"device": "cpu"}, "results": []}))
    (world / "list.json").write_text(json.dumps({**HEAD, "results": [{"op": "softmax"}]}))
    (world / "odd.json").write_text(json.dumps({**HEAD, "results": [], "machine": {"device": "cuda", "capability": 9}}))
    assert "--from: goes with --best" in told("softmax", "--from", "r.json")
    assert "--shapes: goes with --best" in told("softmax", "--shapes", "large")
    assert "--variant: goes without --best" in told("--best", "--variant", "plain", "--from", "r.json")
    assert "--from and --shapes: give one of the two" in told("--best", "--from", "r.json", "--shapes", "large")
    assert "--from: r.json: No such file" in told("--best", "--from", "r.json")
    assert "cpu.json: expected a record of a GPU, got one of cpu" in told("--best", "--from", world / "cpu.json")
    assert "list.json: field" in told("--best", "--from", world / "list.json")
    assert "odd.json: a field is of another form" in told("--best", "--from", world / "odd.json")
    assert "op: 'softmaks' is not one of" in told("softmaks", "--best", "--from", world / "cpu.json")
    assert "backend: 'papre' is not one of" in told("--best", "--backend", "papre", "--from", world / "cpu.json")


def test_a_run_measures_whole_ladders_and_its_record_becomes_a_table(world, monkeypatch):
    """On the CPU in place of a GPU: only the cache is another."""
    monkeypatch.setattr(best, "SECONDS", 0.01)
    chosen = selection.select("paper", "cpu", op="softmax,matmul")
    watch = guard()
    chosen.prepare()
    found, other = best.measure(chosen, "small", HEAD, watch)
    assert {each["op"] for each in other["results"]} == {"matmul"}
    assert {(each["name"], each["dtype"], each["status"], each["kind"]) for each in found["results"]} == {
        (name, dtype, "measured", "variant") for name in ("plain", "folded") for dtype in ("bfloat16", "float32")
    }
    for each in found["results"]:
        each["cache"] = "cold"
    ((kind, table),) = best.of_record(found, "this run", chosen.ops, chosen.backends).items()
    assert kind == ("softmax", "paper") and [each.dtype for each in table.points] == ["bfloat16", "float32"]
    assert all(set(each.ms) == {"plain", "folded"} for each in table.points)
    with pytest.raises(selection.UsageError, match="no GPU in this story"):
        selection.select("paper", "cuda", op="softmax", on_gpu="tuning")


def test_best_is_timed_like_a_variant_and_says_what_it_took(world, capsys):
    command = "bench softmax --backend paper --variant plain,best --device cpu --seconds 0.01 --json"
    assert main([*command.split(), str(world / "b.json")]) == 0
    found = {each["name"]: each for each in json.loads((world / "b.json").read_text())["results"]}
    assert {name: each["status"] for name, each in found.items()} == {"plain": "measured", "best": "measured"}
    assert found["best"]["notes"] == ["takes plain"] and found["plain"]["notes"] == []
    assert "softmax paper@cpu best float32: takes plain" in capsys.readouterr().out


@pytest.mark.parametrize(
    "path", sorted(registry.ROOT.glob("backends/*/best/*/*.json")), ids=lambda path: "-".join(path.parts[-4:])
)
def test_shipped_tables_are_as_tune_writes_them(path):
    backend, _, arch, _ = path.parts[-4:]
    table = measured.table(path.stem, backend, arch)
    assert table.text() == path.read_text()
    assert path.stem in registry.kernel_ops(backend) and table.points
    assert all(set(point.layouts) <= set(registry.contract(path.stem).operands) for point in table.points)


def test_figures_are_those_of_the_record():
    path = registry.ROOT / "docs/results/h200-softmax-ladder.json"
    found = records.read(path)
    tables = best.of_record(found, path.name, registry.ops(), registry.backends())
    assert {op for op, _ in tables} == {"softmax", "online_softmax"}
    rows = {(each["op"], each["target"], each["name"], each["sizes"]["cols"]): each["ms"] for each in found["results"]}
    times = [
        (ms, rows[op, f"{backend}@cuda", name, point.sizes["cols"]])
        for (op, backend), table in tables.items()
        for point in table.points
        for name, ms in point.ms.items()
    ]
    assert len(times) > 50 and all(ms == pytest.approx(row, rel=1e-4) for ms, row in times)
