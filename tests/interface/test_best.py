"""`list --for`: which variant `best` takes for a call, and why; and `best` judged like any variant."""

import json
import re

import pytest

import touchstone
from tests import targets
from tests.processes import run_touchstone
from touchstone.conformance.cli import main
from touchstone.conformance.discovery import best, registry
from touchstone.conformance.discovery.measured import Point, Table
from touchstone.conformance.spec.narrowing import case_of

RECORDING = """
import contextlib

@contextlib.contextmanager
def recording(arch):
    assert arch == "sm_90"
    yield []
"""
ABOUT = {"gpu": "a GPU", "date": "2001-02-03T04:05:06", "command": "bench", "commit": None, "versions": {}}
LADDER = {
    "plain": ("", ""),
    "narrow": ("", "if x.shape[1] > 64: raise Unsupported('over 64 columns')"),
    "late": ('@variant(needs="sm_100")', ""),
}
SOFTMAX = targets._op_file(
    "".join(
        f"\n\n{decorator}\ndef {name}(x):\n    shapes('rows cols', x=x)\n    {declines}\n    return x.clone()\n"
        for name, (decorator, declines) in LADDER.items()
    ),
    *LADDER,
)


@pytest.fixture
def world(tmp_path, monkeypatch):
    with targets.pretend(tmp_path, monkeypatch, {"paper": ({}, (), {}, {"softmax": SOFTMAX})}):
        monkeypatch.setattr(best, "this_arch", lambda: None)
        (tmp_path / "backends/paper/runtime/compiling.py").write_text(RECORDING)
        point = Point("bfloat16", {"rows": 8, "cols": 32}, {}, {}, {"narrow": 1.0, "plain": 2.5}, 0)
        Table("softmax", "paper", "sm_90", [ABOUT], [point]).write()
        yield tmp_path


@pytest.fixture
def told(world, capsys):
    def call(text, *arguments):
        assert main(["list", "softmax", "--for", text, *arguments, "--json", str(world / "list.json")]) == 0
        record = json.loads((world / "list.json").read_text())
        assert record["ladders"] == {"softmax": {"paper": list(LADDER)}}
        assert f"best of softmax for {text} on " in capsys.readouterr().out
        return record["best"]["paper"]

    return call


def test_the_measured_point_is_the_reason(told):
    assert told("rows=8 cols=30", "--arch", "sm_90") == {
        "variant": "narrow",
        "why": "1 ms, 2.50 times as fast as plain; nearest measured: bfloat16 rows=8 cols=32 (a GPU, 2001-02-03)",
        "declined": {},
    }


def test_what_declines_is_passed_over_and_named(told):
    found = told("rows=8 cols=65", "--arch", "sm_90")
    assert found["variant"] == "plain" and found["why"].startswith("2.5 ms; nearest measured: ")
    assert found["declined"] == {"narrow": "over 64 columns"}


def test_without_a_table_the_ladder_is_the_reason(told):
    why = "no table for the CPU; the ladder's last that takes it"
    assert told("rows=8 cols=32")["why"] == why
    assert told("rows=8 cols=32") == {"variant": "narrow", "why": why, "declined": {}}
    other = told("rows=8 cols=32 dtype=float32", "--arch", "sm_90")
    assert other["variant"] == "narrow" and "nearest measured: bfloat16 rows=8 cols=32 (a GPU" in other["why"]


def test_the_architecture_decides_what_can_run(world, monkeypatch, told):
    path = world / "backends/paper/runtime/compiling.py"
    path.write_text(RECORDING.replace("sm_90", "sm_120"))
    assert told("rows=8 cols=32", "--arch", "sm_120")["variant"] == "late"
    monkeypatch.setattr(best, "this_arch", lambda: "sm_120")
    assert told("rows=8 cols=32")["why"] == "no table for sm_120; the ladder's last that takes it"


def test_a_backend_that_cannot_tell_says_why(world, told):
    (world / "backends/paper/runtime/compiling.py").write_text("import parchment_and_nothing_else")
    found = told("rows=8 cols=32")
    assert found["variant"] is None and found["why"].startswith("cannot be told here: No module named 'parchment")


def test_nor_in_a_process_that_interprets(world, told):
    text = RECORDING.replace('assert arch == "sm_90"', 'raise RuntimeError("this process interprets")')
    (world / "backends/paper/runtime/compiling.py").write_text(text)
    assert told("rows=8 cols=32")["why"] == "cannot be told here: this process interprets"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["softmax", "--for", "rows=8"], "--for: expected every size of softmax, rows, cols; cols lacks"),
        (["softmax", "--for", "rows=8 cols=9 heads=3"], "--for: 'heads' is not one of rows, cols; other names are"),
        (["softmax", "--for", "rows=8 cols=nine"], "--for: expected whole numbers"),
        (["softmax", "--for", "rows 8"], "--for: expected NAME=VALUE and so on, such as 'cols=33 dtype=bfloat16'"),
        (["softmax", "--for", "rows=8 rows=9"], "--for: rows: given twice"),
        (["softmax", "--for", "rows=8 cols=9 dtype=float64"], "--for: dtype: 'float64' is not one of float32"),
        (["softmax", "--for", "rows=8 cols=9 x=diagonal"], "--for: x: 'diagonal' is not one of contiguous"),
        (["--for", "rows=8 cols=9"], "--for: goes with the name of one op"),
        (["softmax", "--arch", "sm_90"], "--arch: goes with --for"),
        (["softmax", "--for", "rows=8 cols=9", "--arch", "sm_9"], "--arch: expected one of sm_80"),
    ],
)
def test_wrong_usage(world, capsys, arguments, error):
    assert main(["list", *arguments]) == 2
    assert error in capsys.readouterr().err


def test_a_case_in_words():
    case = case_of("S=300, B=2 Hq=8 Hkv=2 D=64; causal=true k=transposed scale=0.5", registry.contract("attention"))
    assert case.size == {"B": 2, "Hq": 8, "Hkv": 2, "Sq": 300, "Sk": 300, "D": 64} and case.dtype == "bfloat16"
    assert case.param == {"causal": True, "scale": 0.5} and case.layout["k"] == "transposed"
    assert case.layout["q"] == "contiguous"
    assert case_of("trailing=4x5 p=0.25", registry.contract("dropout")).size == {"trailing": (4, 5)}
    with pytest.raises(ValueError, match="causal: expected one such as False, True, got 'maybe'"):
        case_of("S=3 B=2 Hq=8 Hkv=2 D=64 causal=maybe", registry.contract("attention"))


@pytest.mark.slow
@pytest.mark.needs("triton")
def test_launchers_are_asked_without_a_gpu():
    """Each for its own reasons, at a size that no point has."""
    command = ["-m", "touchstone", "list", "softmax", "--for", "rows=8192 cols=36000", "--arch", "sm_90", "--json", "-"]
    found = json.loads(run_touchstone(command).stdout)["best"]["triton"]
    assert found["variant"] in ("looped", "online")
    assert found["declined"] and all("36000 columns" in reason for reason in found["declined"].values())
    assert re.search(r"ms, .* times as fast as .*; nearest measured: bfloat16 rows=\d+ cols=\d+ \(NVIDIA", found["why"])


def test_it_is_offered_by_the_package():
    assert touchstone.best is best.best
