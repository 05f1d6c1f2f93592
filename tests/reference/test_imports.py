"""reference imports with no kernel library installed, and imports nothing beyond NumPy, torch and itself."""

import ast
from pathlib import Path

import pytest

from tests.processes import run_touchstone

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "reference").glob("*.py"))

SCRIPT = """
import sys
for name in ("triton", "cupy", "numba"):
    sys.modules[name] = None
import importlib
import numpy
for name in sys.argv[1:]:
    importlib.import_module("touchstone.reference." + name)
from touchstone.reference.softmax import softmax
assert abs(softmax(numpy.ones((1, 4))) - 0.25).max() == 0
assert not any(name.startswith(("touchstone.backends", "touchstone.conformance")) for name in sys.modules)
print("imported", len(sys.argv) - 1)
"""


@pytest.mark.slow
def test_imports_without_any_kernel_library():
    ops = [path.stem for path in FILES if not path.stem.startswith("_")]
    done = run_touchstone(["-c", SCRIPT, *ops])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"imported {len(ops)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_imports_only_numpy_and_torch(path):
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").removeprefix("touchstone.").split(".")[0])
    assert found <= {"math", "numpy", "torch", "reference"}
