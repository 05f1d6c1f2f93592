"""Programs that wait for each other go on under every schedule; a deadlock is told. The programs are in
waiting_programs.py."""

import importlib.util
import json

import pytest

from tests.processes import interpret
from tests.programs import PROGRAMS, names

if not importlib.util.find_spec("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

SCRIPT = PROGRAMS / "waiting_programs.py"
NAMES = names(SCRIPT)


@pytest.fixture(scope="module")
def outcomes():
    done = interpret(str(SCRIPT), timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_program_holds(outcomes, name):
    assert set(outcomes) == set(NAMES)
    assert outcomes[name] is None
