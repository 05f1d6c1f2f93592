"""The wrong kernels in conformance/faults/triton are rejected, and for their fault: without it the same kernel is
right."""

import functools
import importlib.util
import json
import re

import pytest

from tests.programs import PROGRAMS
from tests.triton.test_interpreter import interpret
from touchstone.conformance.discovery import registry
from touchstone.conformance.faults import KINDS

if not importlib.util.find_spec("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

SCRIPT = PROGRAMS / "planted_kernels.py"
FOLDER = registry.ROOT / "conformance" / "faults" / "triton"
OPS = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
FAULT = re.compile(r'^@fault\("(\w+)"[^\n]*\)\ndef (\w+)\([^\n]*\):\n    """([^\n]*)"""$', re.MULTILINE)
LAUNCHER = re.compile(r'^def (\w+)\([^)]*fault: str = "none"', re.MULTILINE)
FAULTS = [(op, *found) for op in OPS for found in FAULT.findall((FOLDER / f"{op}.py").read_text())]
# Racing kernels that are right in order, and the instrument that sees them: the race detector alone, or an order too.
RIGHT_ANSWERS = {
    "matmul": {"splits_load_and_store": "races", "first_split_stores": "programs in reverse"},
    "layer_norm_backward": {"sums_load_and_store": "races"},
}
SOUND = [(op, name) for op in OPS for name in LAUNCHER.findall((FOLDER / f"{op}.py").read_text())]


@functools.cache
def outcomes(op: str) -> dict[str, dict]:
    done = interpret(str(SCRIPT), op)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)[op]


def test_enough_is_planted_and_every_line_is_read():
    assert len(FAULTS) >= 60 and len(OPS) >= 10
    assert set(OPS) <= set(registry.ops())
    for op in OPS:
        assert (FOLDER / f"{op}.py").read_text().count("@fault(") == sum(found[0] == op for found in FAULTS)
    for _, kind, _, about in FAULTS:
        assert kind in KINDS and re.fullmatch(r"[^A-Z\n].*[^.]", about)


@pytest.mark.parametrize("op", OPS)  # one item per op: its process serves all of them
def test_each_fault_is_rejected_and_the_kernel_without_one_is_right(op):
    found = outcomes(op)
    assert set(found) == {name for of, _, name, _ in FAULTS if of == op} | {name for of, name in SOUND if of == op}
    accused = [
        name
        for of, name in SOUND
        if of == op
        and [*found[name]["instruments"].values(), found[name]["cases"]]
        != [None] * (len(found[name]["instruments"]) + 1)
    ]
    assert accused == []
    passed = [name for of, kind, name, _ in FAULTS if of == op and kind != "race" and found[name]["cases"] is None]
    assert passed == []
    races = {
        name: str(found[name]["instruments"]["races"]) for of, kind, name, _ in FAULTS if (of, kind) == (op, "race")
    }
    assert [name for name, what in races.items() if not what.startswith("RaceCondition")] == []
    for name, alone in RIGHT_ANSWERS.get(op, {}).items():
        instruments = found[name]["instruments"]
        if alone == "races":
            assert {what for what, wrong in instruments.items() if wrong is not None} == {"races"}
        else:
            assert instruments["in order"] is None and instruments[alone].startswith("c: ")
