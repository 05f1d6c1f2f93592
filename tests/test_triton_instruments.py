"""The interpreter's instruments: orders of programs, races, writers. The programs are in instrumented_programs.py."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from tests.test_triton_interpreter import interpret

if not importlib.util.find_spec("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

SCRIPT = Path(__file__).with_name("instrumented_programs.py")
NAMES = re.findall(r"^@program\ndef (\w+)", SCRIPT.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def outcomes():
    done = interpret(str(SCRIPT))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_program_holds(outcomes, name):
    assert set(outcomes) == set(NAMES)
    assert outcomes[name] is None
