"""The interpreter's instruments: orders of programs, races, writers. The programs are in instrumented_programs.py."""

import importlib.util
import json

import pytest

from tests.processes import interpret
from tests.programs import PROGRAMS, names

if not importlib.util.find_spec("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

SCRIPT = PROGRAMS / "instrumented_programs.py"
NAMES = names(SCRIPT)


@pytest.fixture(scope="module")
def outcomes():
    done = interpret(str(SCRIPT))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_program_holds(outcomes, name):
    assert set(outcomes) == set(NAMES)
    assert outcomes[name] is None
