"""Whose code is the kernel's: that beside its file, no library's wherever it was installed, no generated code."""

import sys

import pytest

from tests.processes import in_a_fork
from touchstone.conformance.discovery import registry
from touchstone.conformance.isolation import tripwires

LIBRARY = "import sys\n\ndef looks():\n    return sys._getframe(1)\n"


@pytest.mark.parametrize("home", ["library", "kernels"])
def test_what_a_library_does_is_not_the_kernels(tmp_path, home):
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "library.py").write_text(LIBRARY)

    def looks():
        sys.path.append(str(tmp_path / "library"))
        tripwires.set_up("softmax", tmp_path / home)
        __import__("library")
        eval("sys.modules['library'].looks()")
        return tripwires.told()

    told = in_a_fork(looks, tmp_path)
    assert ("reads the frames of its callers" in told) == (home == "library")


@pytest.mark.parametrize(
    ("read", "noted"),
    [
        ("backends/triton/softmax.py", True),
        ("backends/numba/matmul/__init__.py", True),
        ("reference/softmax.py", True),
        ("backends/signatures/rope.py", False),  # of an op's name, and no kernel
        ("backends/variants.py", False),
    ],
)
def test_a_kernel_may_read_how_calls_are_checked_and_no_answers(tmp_path, read, noted):
    def reads():
        tripwires.set_up("softmax", tmp_path)
        code = compile("open(path).close()", str(tmp_path / "mine.py"), "exec")
        exec(code, {"path": str(registry.ROOT / read)})
        return tripwires.told()

    assert (f"reads {read}" in in_a_fork(reads, tmp_path)) == noted
