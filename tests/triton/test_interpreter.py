"""Triton on the CPU matches GPU semantics, and every patch of its interpreter is needed: the programs of
interpreted_programs.py."""

import importlib.util
import json
import re

import pytest

from tests.processes import interpret, run_touchstone
from tests.programs import PROGRAMS
from touchstone.backends.devices import cuda_unavailable

if not importlib.util.find_spec("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

SCRIPT = PROGRAMS / "interpreted_programs.py"
NAMES = re.findall(r'^@program\("[\w ]+"[^\n]*\)\ndef (\w+)', SCRIPT.read_text(), re.MULTILINE)
ROOT = PROGRAMS.parents[1]


@pytest.fixture(scope="module")
def outcomes():
    done = interpret(str(SCRIPT))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)["programs"]


@pytest.mark.parametrize("name", NAMES)
def test_program_holds_and_needs_its_repair(outcomes, name):
    outcome = outcomes[name]
    assert outcome["with"] is None
    if "without" in outcome:
        assert outcome["without"] is not None, "holds in the stock interpreter too: the repair is not needed for it"


@pytest.mark.skipif(cuda_unavailable() is not None, reason=f"what holds on a GPU: {cuda_unavailable()}")
def test_programs_about_values_hold_on_a_gpu():
    done = run_touchstone([str(SCRIPT), "cuda"], environment={"TRITON_INTERPRET": "0"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert {name: error for name, error in json.loads(done.stdout)["programs"].items() if error} == {}


def test_every_repair_has_a_program_that_fails_without_it(outcomes):
    sources = [path.read_text() for path in (ROOT / "backends/triton/runtime/interpreter").glob("*.py")]
    registered = re.findall(r'^@repair\("([\w ]+)"', "\n".join(sources), re.MULTILINE)
    exercised = re.findall(r'^@program\("([\w ]+)"', SCRIPT.read_text(), re.MULTILINE)
    assert set(registered) - {"types"} == set(exercised)  # "types" is for speed alone
    assert set(outcomes) == set(NAMES)


def test_an_unknown_version_warns_and_still_installs():
    code = """
import warnings, triton
triton.__version__ = "3.42.0"
from touchstone.backends.triton.runtime import interpreter
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    interpreter.install()
    interpreter.install()
assert ["3.6 to 3.9, not 3.42.0" in str(w.message) for w in caught] == [True], caught
assert interpreter.active("bounds")
"""
    done = interpret("-c", code)
    assert done.returncode == 0, done.stderr


def test_what_an_author_puts_into_tritons_language_is_found():
    code = """
import triton.language as tl
from touchstone.backends.triton.runtime import interpreter
from touchstone.conformance.isolation import guarded, tripwires
interpreter.install()
guard = guarded.Guard()
guard.look()
assert tripwires._told == [], tripwires._told
tl.core.load = lambda *given: None
guard.look()
assert [said.split(",")[0] for said in tripwires._told] == ["replaces triton.language.core.load"], tripwires._told
"""
    done = interpret("-c", code)
    assert done.returncode == 0, done.stderr


def test_breakpoints_and_prints_reach_a_kernel(tmp_path):
    script = tmp_path / "kernel.py"
    script.write_text("""
import torch, triton, triton.language as tl
import touchstone.backends.triton
touchstone.backends.triton.prepare("cpu")

@triton.jit
def kernel(x_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    breakpoint()
    tl.store(x_ptr + tl.arange(0, N), x + 1)

kernel[(1,)](torch.arange(4.0), 4)
""")
    done = interpret(str(script), input="p x\nq\n")
    assert "[0. 1. 2. 3.]" in done.stdout or "array([0., 1., 2., 3.]" in done.stdout, done.stdout + done.stderr
    assert "BdbQuit" in done.stderr
    assert "KernelError" not in done.stderr
