"""Goals of a file of shapes: what they are held against, and what is said of them."""

import json

import pytest

from touchstone.conformance.bench import goals
from touchstone.conformance.bench.ceilings import Roof
from touchstone.conformance.bench.group import MEASURED, Result
from touchstone.conformance.bench.timing import Stats
from touchstone.conformance.cli import main
from touchstone.conformance.discovery.selection import UsageError


def row(name, ms, target="triton@cuda", kind="variant", cols=64, **about):
    made = Result("softmax", name, target, kind, "bfloat16", {"rows": 8, "cols": cols}, {"eps": None}, "fwd", "cold")
    made.status, made.host_ms, made.roof = MEASURED, 0.03, Roof(1.0, 1.0, "memory")
    made.stats = Stats(ms, ms, ms, ms, 9)
    made.ratios = {"torch eager": 3.0 / ms}
    for name, value in about.items():
        setattr(made, name, value)
    return made


ENTRY = {"op": "softmax", "rows": 8, "cols": 64, "goals": {"triton": {"torch eager": 1.4, "limit": 0.6, "host_us": 29}}}


def test_the_variant_that_comes_nearest_is_held_against_each_goal():
    results = [row("slow", 4.0), row("fast", 2.0), row("fast (again)", 0.1), row("other", 1.0, cols=65)]
    results += [row("cuda", 0.5, target="cupy@cuda"), row("torch eager", 3.0, kind="baseline"), row("failed", 1.0)]
    results[-1].status = "failed"
    found = {each["against"]: each for each in goals.held(goals.of_entries([ENTRY]), results)}
    assert {name: (each["variant"], each["reached"]) for name, each in found.items()} == {
        "torch eager": ("fast", True),
        "limit": ("fast", False),
        "host_us": ("fast", False),  # 30 are more than 29
    }
    assert (found["torch eager"]["found"], found["limit"]["found"]) == (1.5, 0.5)
    text = goals.table(list(found.values())).markdown()
    assert "goals: 1 of 3 reached" in goals.table(list(found.values())).title
    assert "| softmax | bfloat16 rows=8 cols=64 | triton | fast | limit | 0.6 | 0.5 | missed |" in text
    reached = goals.table([each for each in found.values() if each["reached"]])  # a last column without a word
    assert reached.plain(40).splitlines()[0] == "goals: 1 of 1 reached"


def test_a_baseline_that_was_not_timed_reaches_nothing():
    entry = {"op": "softmax", "cols": 64, "goals": {"triton": {"Liger-Kernel": 1.0}}}
    (found,) = goals.held(goals.of_entries([entry]), [row("fast", 2.0)])
    assert (found["found"], found["variant"], found["reached"]) == (None, None, False)
    assert goals.held(goals.of_entries([{"op": "softmax", "goals": {"numba": {"limit": 1}}}]), [row("fast", 2.0)]) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (0.9, "expected an object of backends"),
        ({"triton": 0.9}, "expected an object of backends"),
        ({"tritom": {"limit": 0.9}}, "did you mean 'triton'"),
        ({"triton": {"limit": "0.9"}}, "limit: expected a number above 0, got '0.9'"),
        ({"triton": {"limit": -1}}, "expected a number above 0"),
        ({"triton": {"limit": True}}, "expected a number above 0"),
    ],
)
def test_what_is_no_goal_is_a_usage_error(given, says):
    with pytest.raises(UsageError, match=f"--shapes: goals: .*{says}"):
        goals.of_entries([{"op": "softmax", "goals": given}])


@pytest.mark.slow
@pytest.mark.needs("interpreter")
def test_goals_stand_below_the_timings_and_in_the_record(tmp_path, capsys):
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps([{"op": "softmax", "rows": 4, "cols": 64, "goals": {"triton": {"host_us": 1e9}}}]))
    command = [
        "bench",
        "softmax",
        "--backend",
        "triton",
        "--variant",
        "online",
        "--device",
        "cpu",
        "--dtype",
        "float32",
    ]
    command += ["--shapes", str(shapes), "--seconds", "0.01", "--json", str(tmp_path / "out.json")]
    assert main(command) == 0
    assert "goals: " in capsys.readouterr().out
    (found,) = json.loads((tmp_path / "out.json").read_text())["goals"]
    assert (found["op"], found["backend"], found["against"]) == ("softmax", "triton", "host_us")
