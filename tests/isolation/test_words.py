"""How a process ended in words, what a request may take, how a function travels, which modules hold answers."""

import functools
import importlib.machinery
import operator
import signal
import sys
import sysconfig
import threading
from pathlib import Path
from types import ModuleType

import pytest

from touchstone.conformance.discovery import importing, registry
from touchstone.conformance.isolation import endings, limits, travel, tripwires

LIBRARY = sysconfig.get_paths()["stdlib"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "the process ended with status 0"),
        (3, "the process ended with status 3"),
        (-signal.SIGSEGV, "segmentation fault"),
        (-signal.SIGABRT, "abort"),
        (-signal.SIGBUS, "bus error"),
        (-signal.SIGFPE, "arithmetic exception"),
        (-signal.SIGILL, "illegal instruction"),
        (-signal.SIGKILL, "killed by SIGKILL, as happens when the machine runs out of memory"),
        (-signal.SIGTERM, "ended by SIGTERM"),
        (-99, "ended by signal 99"),
    ],
)
def test_an_ending_in_words(code, said):
    assert endings.ending(code) == said


def traced(*files, title="Current thread 0x1 (most recent call first):"):
    return "\n".join([title, *(f'  File "{file}", line {n} in f{n}' for n, file in enumerate(files, 1))])


JUDGE = str(Path(endings.__file__).parents[1] / "judging" / "executor.py")
FAULT = str(Path(endings.__file__).parents[1] / "faults" / "softmax.py")
PACKAGE = "/usr/lib/python3/site-packages/torch/x.py"


@pytest.mark.parametrize(
    ("trace", "place"),
    [
        (traced("/u/mine.py", JUDGE), " at mine.py:1, in f1"),
        (traced(f"{LIBRARY}/json.py", PACKAGE, "/u/mine.py", JUDGE), " at mine.py:3, in f3"),
        (traced("<frozen importlib>", "/u/mine.py"), " at mine.py:2, in f2"),
        (traced(PACKAGE, f"{LIBRARY}/json.py", JUDGE, "/u/mine.py"), " at x.py:1, in f1"),
        (traced(JUDGE, "/u/mine.py"), ""),
        (traced(FAULT, JUDGE), " at softmax.py:1, in f1"),
        (traced("/u/other.py", title="Thread 0x2:") + "\n\n" + traced("/u/mine.py"), " at mine.py:1, in f1"),
        (traced("/u/other.py", title="Thread 0x2:"), " at other.py:1, in f1"),
        ("", ""),
    ],
)
def test_the_innermost_line_of_the_users(trace, place):
    assert endings.place(trace) == place


@pytest.mark.parametrize("name", ["seconds", "bytes"])
@pytest.mark.parametrize("value", [0, -1, True, "3", None, float("nan")])
def test_a_limit_is_a_positive_number(name, value):
    with pytest.raises(ValueError, match=f"^{name}: expected a positive number, got "):
        limits.Limits(**{name: value})


def test_limits():
    assert (limits.DEFAULT_LIMITS.seconds, limits.DEFAULT_LIMITS.bytes) == (60, 2**32)
    assert limits.Limits(seconds=0.5, bytes=1).seconds == 0.5
    assert 2**20 < limits.available_memory() < 2**50


@pytest.mark.parametrize(
    ("elapsed", "processor", "waited", "too_long"),
    [
        (9.9, 9.9, 0, False),
        (10, 10, 0, True),
        (10, 0.1, 0, True),  # stuck: it neither works nor waits for its turn
        (10, 0.2, 0, False),  # at work at times
        (10, 0.1, 0.2, False),  # or kept from it
        (39.9, 5, 0, False),
        (40, 5, 0, True),
    ],
)
def test_when_a_child_has_taken_too_long(elapsed, processor, waited, too_long):
    assert limits.too_long(elapsed, processor, 10, waited) is too_long


def plain(x):
    return x


def _other(x):
    return x


_other.__qualname__ = "hidden"


def test_where_a_function_is_found():
    assert travel.file_and_name(plain) == (__file__, "plain")
    assert travel.file_and_name(_other) == (__file__, "_other")  # by the name under which it stands there
    assert travel.file_and_name(lambda x: x) is None
    assert travel.file_and_name(functools.partial(plain)) is None
    assert travel.file_and_name(operator.add) is None or travel.file_and_name(operator.add)[1] == "add"


def test_a_function_travels_by_its_names_where_a_fresh_process_finds_it():
    assert travel._importable(plain) and not travel._importable(_other)
    assert not travel._importable(lambda x: x) and not travel._importable(functools.partial(plain))
    assert [way[0] for way in travel.ways(plain, fresh_import=False)] == ["pickle"]
    assert [way[0] for way in travel.ways(_other, fresh_import=False)] == ["file", "pickle"]
    for way in [*travel.ways(plain, fresh_import=False), *travel.ways(lambda x: 2 * x, fresh_import=False)]:
        assert travel.arrived(way)(4) in (4, 8)


@pytest.mark.parametrize(
    ("name", "found"), [("of_somebody", True), ("__main__", False), (f"{importing.PREFIX}mine", False)]
)
def test_a_module_that_a_fresh_process_has_another_of_or_none(monkeypatch, name, found):
    """The program that runs, and a file that was imported under a name of this process's own."""
    module = ModuleType(name)
    exec("def fn(x):\n    return x\n", vars(module))
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, name, module)
    assert travel._importable(module.fn) is found
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(travel.importlib.util, "find_spec", lambda name: module.__spec__)
    assert not travel._importable(module.fn)


def test_what_cannot_travel_says_why():
    lock = threading.Lock()
    with pytest.raises(travel.CannotTravel, match="^fn: .* cannot be sent to another process .*isolate='none'"):
        list(travel.ways(lambda x: lock, fresh_import=False))


def test_a_function_of_a_file_travels_as_its_file(tmp_path):
    (tmp_path / "mine.py").write_text("def fn(x):\n    return 3 * x\n")
    (way,) = travel.ways(importing.load(str(tmp_path / "mine.py"), "fn"), fresh_import=True)
    assert way[0] == "file" and travel.arrived(way)(2) == 6


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("touchstone.reference", True),
        ("touchstone.reference.softmax", True),
        ("touchstone.conformance.contracts.softmax", True),
        ("touchstone.conformance.contracts", True),
        ("touchstone.conformance.faults.softmax", True),
        ("touchstone.backends.triton.softmax", True),
        ("touchstone.backends.numba.attention.flash", True),
        ("touchstone.backends.triton.lib.rows", False),
        ("touchstone.backends.triton", False),
        ("touchstone.backends.signatures.softmax", False),
        ("touchstone.conformance.judging.judge", False),
        ("touchstone", False),
        ("torch.softmax", False),
        ("reference.softmax", False),
    ],
)
def test_which_modules_hold_answers(module, forbidden):
    assert tripwires._is_forbidden(module) is forbidden


@pytest.mark.parametrize(
    ("path", "kernel"),
    [
        ("backends/triton/softmax.py", True),
        ("backends/cupy/matmul/tiled.cu", True),
        ("backends/triton/lib/rows.py", False),
        ("backends/signatures/softmax.py", False),
        ("reference/softmax.py", False),
        ("backends/triton", False),
        ("docs/triton/softmax.py", False),
    ],
)
def test_which_files_are_kernels_of_this_repository(path, kernel):
    assert tripwires._is_variant(registry.ROOT / path) is kernel
    assert not tripwires._is_variant(Path("/elsewhere") / path)


def test_a_folder_is_the_authors_own_unless_it_is_of_packages():
    assert tripwires._is_own("/u/me/", Path("/u/me/kernels")) and tripwires._is_own("/u/me/", Path("/u/me"))
    assert not tripwires._is_own("/u/other/", Path("/u/me"))
    assert not tripwires._is_own("/u/me/site-packages/", Path("/u/me/site-packages/mine"))
    assert not tripwires._is_own("/u/me/dist-packages/", Path("/u/me/dist-packages/mine"))
    assert not tripwires._is_own("/u/me/", None)


def test_notes_are_told_once_and_are_few(monkeypatch):
    monkeypatch.setattr(tripwires, "_told", [])
    for n in (1, 1, *range(40)):
        tripwires.note(f"does {n}")
    told = tripwires.told()
    assert len(told) == len(set(told)) == 16 and told[0] == "does 1"
    told.clear()
    assert len(tripwires.told()) == 16


def test_a_forbidden_function_says_so_and_refuses(monkeypatch):
    monkeypatch.setattr(tripwires, "_told", [])
    with pytest.raises(PermissionError, match="^the kernel calls expect of the op's contract$"):
        tripwires._forbidden("calls expect of the op's contract")(1, a=2)
    assert tripwires.told() == ["calls expect of the op's contract"]
