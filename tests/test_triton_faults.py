"""The wrong kernels in conformance/faults/triton are rejected, and for their fault: without it the same kernel is right."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from conformance import registry
from conformance.faults import KINDS
from tests.test_triton_interpreter import interpret

if not importlib.util.find_spec("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

SCRIPT = Path(__file__).with_name("planted_kernels.py")
FOLDER = registry.ROOT / "conformance" / "faults" / "triton"
OPS = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
FAULT = re.compile(r'^@fault\("(\w+)"[^\n]*\)\ndef (\w+)\([^\n]*\):\n    """([^\n]*)"""$', re.MULTILINE)
LAUNCHER = re.compile(r'^def (\w+)\([^)]*fault: str = "none"', re.MULTILINE)
FAULTS = [(op, *found) for op in OPS for found in FAULT.findall((FOLDER / f"{op}.py").read_text())]
SOUND = [(op, name) for op in OPS for name in LAUNCHER.findall((FOLDER / f"{op}.py").read_text())]


@pytest.fixture(scope="module")
def outcomes():
    found: dict[str, dict] = {}

    def judged(op: str) -> dict:
        if op not in found:
            done = interpret(str(SCRIPT), op)
            assert done.returncode == 0, done.stderr[-3000:]
            found.update(json.loads(done.stdout))
        return found[op]

    return judged


def test_enough_is_planted_and_every_line_is_read():
    assert len(FAULTS) >= 60 and len(OPS) >= 10
    assert set(OPS) <= set(registry.ops())
    for op in OPS:
        assert (FOLDER / f"{op}.py").read_text().count("@fault(") == sum(found[0] == op for found in FAULTS)
    for _, kind, _, about in FAULTS:
        assert kind in KINDS and re.fullmatch(r"[^A-Z\n].*[^.]", about)


@pytest.mark.parametrize(("op", "launcher"), SOUND)
def test_the_kernel_without_a_fault_is_right(outcomes, op, launcher):
    outcome = outcomes(op)[launcher]
    assert outcome["cases"] is None
    assert set(outcome["instruments"].values()) == {None}


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, kind, name, _ in FAULTS if kind != "race"])
def test_the_fault_is_rejected(outcomes, op, name):
    assert outcomes(op)[name]["cases"] is not None


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, kind, name, _ in FAULTS if kind == "race"])
def test_the_race_is_seen(outcomes, op, name):
    assert outcomes(op)[name]["instruments"]["races"].startswith("RaceCondition")


def test_some_races_give_the_right_answer_and_one_only_in_order(outcomes):
    for op, name in [("matmul", "splits_load_and_store"), ("layer_norm_backward", "sums_load_and_store")]:
        found = outcomes(op)[name]["instruments"]
        assert found.pop("races") is not None and set(found.values()) == {None}
    first = outcomes("matmul")["first_split_stores"]["instruments"]
    assert first["in order"] is None and first["programs in reverse"].startswith("c: ")
