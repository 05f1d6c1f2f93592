"""Whose code is the kernel's: that beside its file, no library's wherever it was installed, no generated code."""

import pytest

from tests.processes import output_of

LIBRARY = "import sys\n\ndef looks():\n    return sys._getframe(1)\n"
CODE = """
import sys
from pathlib import Path
from touchstone.conformance.isolation import tripwires
tripwires.set_up("softmax", Path({home!r}))
import library
{call}
print(tripwires.told())
"""


@pytest.mark.parametrize("home", ["library", "kernels"])
def test_what_a_library_does_is_not_the_kernels(tmp_path, monkeypatch, home):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "library"))
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "library.py").write_text(LIBRARY)
    code = CODE.format(home=str(tmp_path / home), call="eval('library.looks()')")
    told = output_of(code)
    assert ("reads the frames of its callers" in told) == (home == "library")


READING = """
from pathlib import Path
from touchstone.conformance.discovery import registry
from touchstone.conformance.isolation import tripwires
tripwires.set_up("softmax", Path({home!r}))
code = compile("open(path).close()", {file!r}, "exec")
exec(code, {{"path": str(registry.ROOT / {read!r})}})
print(tripwires.told())
"""


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
    told = output_of(READING.format(home=str(tmp_path), file=str(tmp_path / "mine.py"), read=read))
    assert (f"reads {read}" in told) == noted
