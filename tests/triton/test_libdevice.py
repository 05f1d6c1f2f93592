"""libdevice in the interpreter, and on a GPU: every function within the error that CUDA documents; what is refused."""

import importlib.util
import json

import pytest

from tests.processes import interpret, run_touchstone
from tests.programs import PROGRAMS
from touchstone.backends.devices import cuda_unavailable

if not importlib.util.find_spec("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

SCRIPT = PROGRAMS / "libdevice_functions.py"
pytestmark = pytest.mark.slow


def check(outcomes):
    assert len(outcomes) >= 313  # symbols; 197 functions
    assert {symbol: found for symbol, found in outcomes.items() if not 0 <= found["worst"] <= 1} == {}
    assert {symbol: found["special"] for symbol, found in outcomes.items() if found["special"]} == {}
    few = {symbol: found["compared"] for symbol, found in outcomes.items() if found["compared"] < 100}
    assert few == {}


@pytest.mark.level("default")
def test_every_function_is_within_its_documented_error():
    done = interpret(str(SCRIPT))
    assert done.returncode == 0, done.stderr[-3000:]
    check(json.loads(done.stdout))


@pytest.mark.skipif(cuda_unavailable() is not None, reason=f"what holds on a GPU: {cuda_unavailable()}")
def test_every_function_is_within_its_documented_error_on_a_gpu():
    done = run_touchstone([str(SCRIPT), "cuda"], environment={"TRITON_INTERPRET": "0"})
    assert done.returncode == 0, done.stderr[-3000:]
    check(json.loads(done.stdout))
