"""Which of the two ways to run Numba's kernels on the CPU was taken is said, and what is patched for it is explained."""

import os
import subprocess
import sys

import pytest

from backends import numba
from conformance import registry
from tests.test_backend_protocol import run

if numba.why_not("cpu"):
    pytest.skip(numba.why_not("cpu"), allow_module_level=True)


@pytest.mark.parametrize(("simulator", "lane"), [("0", "numba@cpu"), ("1", "numba@simulator")])
def test_the_header_and_the_ids_name_what_runs_the_kernels(simulator, lane):
    asked = ["--backend=numba", "--op=softmax", "--variant=naive", "--quick", "--device=cpu", "--collect-only"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "conformance/test_kernels.py", *asked, "-p", "no:cacheprovider"],
        cwd=registry.ROOT, capture_output=True, text=True, env={**os.environ, "NUMBA_ENABLE_CUDASIM": simulator},
    )  # fmt: skip
    assert f"touchstone: lanes {lane}; level quick; seed 0" in done.stdout, done.stdout + done.stderr
    ids = [line for line in done.stdout.splitlines() if "test_kernel[" in line]
    assert len(ids) > 10 and all(f"[softmax-{lane}-naive-" in line for line in ids)


def test_a_report_names_what_ran():
    code = """
from backends import numba
numba.prepare("cpu")
from conformance import registry, selection
from conformance.check import judge_subject
subject = selection.rung("softmax", "numba", "naive", registry.variants("numba", "softmax")["naive"], "cpu")
report = judge_subject(subject, "quick", dtypes=("float32",), where=lambda case: case.size["rows"] < 4, isolate="none")
assert report.passed, report
print(report)
"""
    assert "softmax: naive on numba@simulator, level quick" in run(code, NUMBA_ENABLE_CUDASIM="1")
    assert "softmax: naive on numba@cpu, level quick" in run(code)


def test_doctor_says_what_is_patched_and_why():
    done = run("""
import numpy
numpy.__dict__.pop("row_stack", None)
from backends import numba
rows = {what: (value, note) for what, value, note in numba.doctor()}
value, note = rows["patch: np.row_stack"]
assert value == "np.vstack stands in" and "NumPy 2.5 has removed it" in note
print(sorted(what for what in rows if what.startswith("patch: ")))
""")
    assert "patch: indexing" in done and "patch: get_current_device" in done
