"""The engine's reports on Numba's kernels in words: places, indices out of range, exceptions of a class and others."""

import os

import pytest

if not pytest.importorskip("numba.cuda"):
    pytest.skip("numba-cuda is not installed", allow_module_level=True)

from touchstone.backends.emulator import errors
from touchstone.backends.emulator.arguments import Argument
from touchstone.backends.emulator.binary import Variable
from touchstone.backends.emulator.library import Loaded, Place, Report
from touchstone.backends.emulator.numba import findings, lines

LOADED = Loaded("numba", None, None, 0, [Variable("table", 0, 40, False)], (0, 0))
REGIONS = [Argument("y", 0, 96, 4, (4, 6), (6, 1))]
LONG = f"{'long' * 60}.py"
THREAD = "block (1, 2, 3), thread (4, 5, 6)"


@pytest.fixture(autouse=True)
def _sites(monkeypatch):
    sites = lines.Sites()
    sites.places = [("unknown", 0), ("/users/a.py", 7), (f"/users/{LONG}", 9), ("/users/a.py:7 or 8", 0)]
    monkeypatch.setattr(lines, "sites", sites)


def here(pc=1):
    return Place(pc, b"", 0, (1, 2, 3), (4, 5, 6), 0, 0)


def error(kind, text=b"", exceptions=None, classes=None, pc=1, **fields):
    report = Report(kind=kind, size=4, here=here(pc), there=here(2), text=text)
    for name, value in fields.items():
        setattr(report, name, value)
    return findings.error("k", exceptions or {}, LOADED, report, REGIONS, classes), report


def test_a_place_is_a_line_of_python():
    assert findings.place_of(1) == ("a.py", 7) and findings.place_of(4) == ("linked code", 0)
    told, report = error(8, b"assertion failed")
    assert str(told) == f"k (a.py:7): {THREAD}: assertion failed" and type(told) is errors.KernelError
    assert (report.here.pc, report.here.file, report.here.line) == (0, b"a.py", 7)
    assert (report.there.pc, report.there.file, report.there.line) == (0, LONG[-199:].encode(), 9)
    _, report = error(8, b"assertion failed", pc=0)
    assert (report.here.file, report.here.line) == (b"", 0)
    assert str(error(8, b"assertion failed", pc=3)[0]) == f"k (a.py:7 or 8): {THREAD}: assertion failed"
    assert str(error(8, b"assertion failed", pc=4)[0]) == f"k (linked code): {THREAD}: assertion failed"


@pytest.mark.parametrize(
    ("fields", "whose"),
    [
        (dict(region_kind=0), "an array"),
        (dict(region_kind=1, region_index=0), "y"),
        (dict(region_kind=2, name=b"tile"), "the shared array tile"),
        (dict(region_kind=3), "a constant array"),
        (dict(region_kind=4), "a local array"),
    ],
)
def test_an_index_out_of_range(fields, whose):
    for index, more in ((9, ""), (-1, " (Numba would count it from the end)"), (0, "")):
        told, _ = error(1, b"index", address=index % 2**64, item=1, **fields)
        assert type(told) is errors.OutOfBounds
        assert str(told) == f"k (a.py:7): {THREAD} uses index {index} in axis 1 of {whose}, which has 4{more}"
    told, _ = error(1, b"other", region_kind=1, region_index=0, offset=0, extent=96, item=4)
    assert str(told) == f"k (a.py:7): {THREAD} reads 4 bytes of y[0, 0]"
    told, _ = error(8, b"index")
    assert str(told) == f"k (a.py:7): {THREAD}: index"


class Own(Exception):
    def __init__(self, text, number=0):
        super().__init__(text)
        self.number = number


class Picky(Exception):
    def __init__(self):
        super().__init__("nothing else")


def test_an_exception_is_told_with_its_line():
    known = {3: ("ValueError: too large", "/users/c.py", 12), 4: ("E: x", "", 5)}
    told, _ = error(8, b"exception 3", known)
    assert str(told) == f"k (c.py:12): {THREAD} raises ValueError: too large" and type(told) is errors.KernelError
    assert str(error(8, b"exception 4", known)[0]) == f"k (line unknown): {THREAD} raises E: x"
    unknown = f"k (line unknown): {THREAD} raises Exception: in a device function"
    assert str(error(8, b"exception 5", known)[0]) == unknown
    assert str(error(7, b"exception 3", known, region_kind=1, region_index=0, offset=4, item=4)[0]).startswith(
        "k (a.py:7)"
    )


def test_an_exception_of_a_class_is_of_it_and_a_finding():
    """As a GPU raises it in a kernel that is compiled with debug=True."""
    known = {3: ("Own: a, 5", "/users/c.py", 12)}
    where = "tid=[6, 5, 4] ctaid=[3, 2, 1]"

    def raised(kind, arguments, place, code=3):
        return error(8, b"exception 3", known, {code: (kind, arguments, place)})[0]

    told = raised(Own, ("a", 5), ("f", "c.py", 12))
    assert isinstance(told, Own) and isinstance(told, errors.KernelError) and told.number == 5
    assert type(told).__name__ == "Own" and type(told).__module__ == __name__
    assert str(told) == f"In function 'f', file {os.path.abspath('c.py')}, line 12, {where}: a"
    assert str(raised(Own, ("a",), None)) == f"{where}: a" and str(raised(Own, (), None)) == where
    plainly = f"k (c.py:12): {THREAD} raises Own: a, 5"
    for other in (raised(Picky, ("a",), None), raised(Own, ("a", 5), None, code=4), raised(Own, ("a", 5, 6), None)):
        assert (type(other), str(other)) == (errors.KernelError, plainly)
