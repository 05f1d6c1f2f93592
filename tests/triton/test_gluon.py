"""Kernels in Gluon give what they define on the CPU, and faults planted in them are found: the programs of
gluon_programs.py."""

import importlib.util
import json
import re

import pytest

from tests.processes import interpret, run_touchstone
from tests.programs import PROGRAMS
from touchstone.backends.devices import capability_lacks, cuda_unavailable

if not importlib.util.find_spec("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

SCRIPT = PROGRAMS / "gluon_programs.py"
NAMES = {kind: re.findall(rf"^@{kind}\ndef (\w+)", SCRIPT.read_text(), re.MULTILINE) for kind in ("value", "fault")}


@pytest.fixture(scope="module")
def outcomes():
    done = interpret(str(SCRIPT), timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [*NAMES["value"], *NAMES["fault"]])
def test_program_holds(outcomes, name):
    assert set(outcomes) == {*NAMES["value"], *NAMES["fault"]}
    assert outcomes[name] is None


@pytest.mark.level("default")
def test_the_compiler_takes_them_for_sm_90():
    done = run_touchstone([str(SCRIPT), "compile"], environment={"TRITON_INTERPRET": "0"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert {name: error for name, error in json.loads(done.stdout).items() if error} == {}
    assert set(json.loads(done.stdout)) == set(NAMES["value"])


LACKS = cuda_unavailable() or capability_lacks("sm_90a")


@pytest.mark.skipif(LACKS is not None, reason=f"what holds on a GPU: {LACKS}")
def test_values_hold_on_a_gpu():
    done = run_touchstone([str(SCRIPT), "cuda"], environment={"TRITON_INTERPRET": "0"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert {name: error for name, error in json.loads(done.stdout).items() if error} == {}
