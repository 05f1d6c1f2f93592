"""Whose code is the kernel's: that beside its file, no library's wherever it was installed, no generated code."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils import _python_dispatch

from tests.processes import in_a_fork
from touchstone.backends.emulator import instruments
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
        ("conformance/contracts/softmax.py", True),
        ("conformance/faults/softmax.py", True),
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


def test_of_a_contract_only_what_calls_take_is_left(tmp_path):
    """Neither what makes inputs, nor what knows of answers: each says so, and refuses."""

    def asks():
        contract = registry.contract("softmax")
        kept = [name for name in tripwires.NEEDED if getattr(contract, name)]
        tripwires.set_up("softmax", tmp_path)
        refused = []
        for name in ("expect", "flops", "bytes", "calls", "valid"):
            try:
                getattr(contract, name)({}, {})
            except PermissionError as error:
                refused.append(str(error))
        left = [len(contract.values), len(contract.properties), len(contract.invalid)]
        return refused, left, [bool(getattr(contract, name)) for name in kept], tripwires.told()

    refused, left, kept, told = in_a_fork(asks, tmp_path)
    assert refused == [f"the kernel {what}" for what in told] and len(refused) == 5
    assert all(" of the op's contract" in what for what in told) and left == [0, 0, 0] and all(kept)


def test_modules_that_hold_answers_refuse_and_cannot_be_imported(tmp_path):
    def asks():
        from touchstone.reference import softmax

        tripwires.set_up("softmax", tmp_path)
        found = []
        for ask in (lambda: softmax.torch_softmax(None), lambda: __import__("touchstone.reference.of_nobody")):
            try:
                ask()
            except (PermissionError, ImportError) as error:
                found.append(type(error).__name__)
        return found, tripwires.told()

    found, told = in_a_fork(asks, tmp_path)
    assert found == ["PermissionError", "ImportError"]
    assert (
        told[0] == "calls touchstone.reference.softmax.torch_softmax"
        and "imports touchstone.reference.of_nobody" in told
    )


KERNEL = """
import _thread, ctypes, gc, os, socket, sys, threading, torch

DONE = {
    "starts a thread": lambda: threading.Thread(target=print).start(),
    "looks through the objects of its process": gc.get_objects,
    "reads the frames of its callers": lambda: sys._getframe(0),
    "looks through torch's modes": lambda: getattr(torch._C, "_len_torch_" + "dispatch_stack")(),
    "sets a profile function": lambda: sys.setprofile(None),
    "calls numpy, which a GPU's tensor has not": lambda: torch.ones(2).numpy(),
    "calls from_numpy, which a GPU's tensor has not": lambda: torch.from_numpy(torch.ones(2).numpy()),
    "opens a port": lambda: socket.socket().bind(("127.0.0.1", 0)),
    "calls C with ctypes": lambda: ctypes.CDLL(None).getpid,
    "sends a signal": lambda: os.kill(os.getpid(), 0),
}


def run(what):
    DONE[what]()
"""
DEEDS = [line.split('"')[1] for line in KERNEL.splitlines() if line.startswith('    "')]


FRAMES = """
def by_a_generator():
    def walks():
        yield it.gi_frame
    it = walks()
    next(it)

def by_a_coroutine():
    async def walks():
        return it.cr_frame
    it = walks()
    try:
        it.send(None)
    except StopIteration:
        pass

def by_an_error():
    try:
        raise KeyError
    except KeyError as error:
        getattr(error.__traceback__, "tb_" + "frame")
"""


@pytest.mark.parametrize("way", ["by_a_generator", "by_a_coroutine", "by_an_error"])
def test_frames_are_seen_to_be_read_whatever_leads_to_them(tmp_path, way):
    def reads():
        tripwires.set_up("softmax", tmp_path)
        exec(compile(FRAMES, str(tmp_path / "mine.py"), "exec"), space := {})
        space[way]()
        return tripwires.told()

    assert in_a_fork(reads, tmp_path) == ["reads the frames of its callers"]


KEPT = """
import collections, enum, logging, traceback, typing

logging.basicConfig(level=logging.INFO, stream=open("/dev/null", "w"))

def names():
    class Pair(typing.NamedTuple):
        x: int
    return Pair, collections.namedtuple("Sizes", "rows cols"), enum.Enum("Kind", "A B"), typing.TypeVar("T")

def logs():
    logging.getLogger("mine").info("a launch")
    logging.getLogger("mine").warning("another one", stack_info=False)

def shows_an_error():
    try:
        raise KeyError
    except KeyError:
        traceback.format_exc()
        logging.getLogger("mine").exception("no launch")
"""


@pytest.mark.parametrize("deed", ["names", "logs", "shows_an_error"])
def test_frames_that_pythons_own_library_reads_for_itself_are_nobodys(tmp_path, deed):
    """Names of classes, logging and the text of errors need them, and give none of them away."""

    def does():
        tripwires.set_up("softmax", tmp_path)
        exec(compile(KEPT, str(tmp_path / "mine.py"), "exec"), space := {"__name__": "mine"})
        space[deed]()
        return tripwires.told()

    assert in_a_fork(does, tmp_path) == []


@pytest.mark.parametrize("way", ["logging.currentframe()", "inspect.currentframe()", "[*traceback.walk_stack(None)]"])
def test_frames_that_pythons_own_library_gives_away_are_read(tmp_path, way):
    def does():
        tripwires.set_up("softmax", tmp_path)
        code = "import inspect, logging, traceback\ndef reads():\n    return list([way])\n".replace("way", way)
        exec(compile(code, str(tmp_path / "mine.py"), "exec"), space := {})
        space["reads"]()
        return tripwires.told()

    assert in_a_fork(does, tmp_path) == ["reads the frames of its callers"]


@pytest.mark.parametrize("path", ["/proc/self/maps", "link/maps", "self/mem"])
def test_the_memory_of_a_process_is_known_by_any_path(tmp_path, path):
    def opens():
        os.chdir(tmp_path)
        os.symlink("/proc/self", "link")
        folder = os.open("/proc", os.O_RDONLY)
        tripwires.set_up("softmax", tmp_path)
        code = compile("os.open(path, os.O_RDONLY, dir_fd=folder)", str(tmp_path / "mine.py"), "exec")
        exec(code, {"os": os, "path": path, "folder": folder if path.startswith("self") else None})
        return tripwires.told()

    assert in_a_fork(opens, tmp_path) == [f"opens {path}"]


def test_a_file_beside_this_package_is_its_authors():
    assert tripwires.is_of_this_package(tripwires.__file__) and tripwires.is_of_this_package(registry.__file__)
    assert not tripwires.is_of_this_package(str(registry.ROOT / "mine.py"))
    assert not tripwires.is_of_this_package(str(registry.ROOT / "candidates" / "mine.py"))


@pytest.mark.parametrize("deed", DEEDS)
def test_what_a_kernel_does_is_noted_and_the_same_of_a_library_is_not(tmp_path, deed):
    def does(folder):
        def run():
            tripwires.set_up("softmax", tmp_path / "kernels")
            code = compile(KERNEL, str(tmp_path / folder / "mine.py"), "exec")
            exec(code, space := {})
            eval(compile("run(what)", "<string>", "eval"), space, {"what": deed})
            return tripwires.told()

        return in_a_fork(run, tmp_path)

    for folder in ("kernels", "library"):
        (tmp_path / folder).mkdir()
    sys.path.append(str(tmp_path / "library"))
    assert deed in does("kernels") and does("library") == []


@pytest.mark.parametrize(
    ("operator", "instead"), [("clone", lambda x, memory_format=None: x), ("resize_", lambda x, size, **more: x)]
)
def test_another_copy_than_the_library_s_is_noted(tmp_path, operator, instead):
    def replaces():
        tripwires.set_up("softmax", tmp_path)
        before = tripwires.told()
        with torch.library._scoped_library("aten", "IMPL") as theirs:
            theirs.impl(operator, instead, "CPU", allow_override=True)
            during = tripwires.told()
        return before, during

    note = "replaces what the library does where it allocates, fills, copies or reads a tensor"
    assert in_a_fork(replaces, tmp_path) == [[], [note]]


@pytest.mark.parametrize(
    ("path", "noted"),
    [
        ("/proc/self/mem", True),
        ("/proc/self/maps", True),
        ("/proc/1/environ", True),
        ("/proc/self/status", False),
        ("/etc/hostname", False),
        (b"/proc/self/maps", True),
    ],
)
def test_a_kernel_that_opens_the_memory_of_processes_is_noted(tmp_path, path, noted):
    def opens():
        tripwires.set_up("softmax", tmp_path)
        code = compile("try:\n    open(path).close()\nexcept OSError:\n    pass", str(tmp_path / "mine.py"), "exec")
        exec(code, {"path": path})
        return tripwires.told()

    assert in_a_fork(opens, tmp_path) == ([f"opens {os.fsdecode(path)}"] if noted else [])


def test_what_only_pythons_library_calls_is_nobodys():
    """As in a thread of one of its pools: neither the kernel's, nor a launch that this package tells of."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(tripwires._by_the_kernel).result() is False
        assert pool.submit(tripwires.asked_by_this_package).result() is False


def test_who_asks_for_torchs_modes_is_given_them_and_noted_where_it_is_the_kernel(tmp_path):
    def asks():
        tripwires.set_up("softmax", tmp_path)
        got = [torch._C._len_torch_dispatch_stack(), _python_dispatch._get_current_dispatch_mode_stack()]
        before = tripwires.told()
        code = "modes._get_current_dispatch_mode_stack()"
        got.append(eval(compile(code, str(tmp_path / "mine.py"), "eval"), {"modes": _python_dispatch}))
        return got, before, tripwires.told()

    assert in_a_fork(asks, tmp_path) == [[0, [], []], [], ["looks through torch's modes"]]


@pytest.mark.parametrize("code", ["_thread.start_new_thread(print, ())", "threading.Thread(target=print).start()"])
def test_threads_are_seen_to_be_started_by_whichever_module(tmp_path, code):
    def starts():
        tripwires.set_up("softmax", tmp_path)
        exec(compile(f"import _thread, threading\n{code}", str(tmp_path / "mine.py"), "exec"), {"print": lambda: None})
        return tripwires.told()

    assert in_a_fork(starts, tmp_path) == ["starts a thread"]


NOTED = {
    "looks through the objects of its process": "gc.get_objects gc.get_referrers gc.get_referents",
    "reads the frames of its callers": "sys._getframe",
    "reads the frames of other threads": "sys._current_frames sys._current_exceptions",
    "sets a trace function": "sys.settrace",
    "sets a profile function": "sys.setprofile",
    "adds an audit hook": "sys.addaudithook",
    "starts a process": "os.fork os.forkpty os.posix_spawn",
    "starts a program": "os.exec os.system subprocess.Popen",
    "sends a signal": "os.kill os.killpg signal.pthread_kill",
    "opens a connection": "socket.connect",
    "opens a port": "socket.bind",
    "loads a library with ctypes": "ctypes.dlopen",
    "calls C with ctypes": "ctypes.dlsym",
    "reads memory by its address": "ctypes.string_at",
    "changes its limits": "resource.setrlimit",
}


@pytest.mark.parametrize("kernels", [True, False])
def test_what_each_event_of_a_kernel_is_called(monkeypatch, kernels):
    monkeypatch.setattr(tripwires, "_by_the_kernel", lambda: kernels)
    for what, events in NOTED.items():
        for event in events.split():
            monkeypatch.setattr(tripwires, "_told", [])
            tripwires._audit(event, ())
            assert tripwires._told == [what] * kernels, event
    for attribute in ("tb_frame", "gi_frame", "cr_frame", "ag_frame", "of_another"):
        monkeypatch.setattr(tripwires, "_told", [])
        tripwires._audit("object.__getattr__", (None, attribute))
        assert bool(tripwires._told) == (kernels and attribute != "of_another")
    monkeypatch.setattr(tripwires, "_told", [])
    tripwires._audit("import", ())
    assert tripwires._told == []


GPUS = str(registry.ROOT / "backends" / "gpus.py")  # a file of this package


@pytest.mark.parametrize(
    ("deed", "noted"),
    [
        (f"compile('1', {GPUS!r}, 'eval')", True),
        (f"compile('1', {GPUS + '.none'!r}, 'eval')", True),
        (f"looks.__code__.replace(co_filename={GPUS!r})", True),
        (f"compile(open({GPUS!r}).read(), {GPUS!r}, 'exec')", False),
        ("compile('1', '<mine>', 'eval')", False),
        ("compile('1', __file__, 'eval')", False),
        ("looks.__code__.replace(co_name='other')", False),
    ],
)
def test_code_that_goes_by_the_name_of_a_librarys_file_is_noted(tmp_path, deed, noted):
    def does():
        tripwires.set_up("softmax", tmp_path)
        file = str(tmp_path / "mine.py")
        exec(compile(f"def looks(): pass\n{deed}", file, "exec"), {"__file__": file})
        return tripwires.told()

    assert in_a_fork(does, tmp_path) == ["has code of its own go by the name of a library's file"] * noted


def test_a_path_that_leaves_a_librarys_folder_is_none_of_its():
    beside = os.path.dirname(GPUS)
    assert tripwires.is_of_this_package(GPUS) and not tripwires.is_foreign(GPUS)
    for file in (f"{beside}/../../mine.py", f"{os.path.dirname(os.__file__)}/../mine.py"):
        assert tripwires.is_foreign(file) and not tripwires.is_of_this_package(file), file


@pytest.mark.parametrize("kernels", [True, False])
def test_an_instrument_that_a_kernel_turns_on_is_noted(tmp_path, kernels):
    def turns():
        tripwires.set_up("softmax", tmp_path)
        text = "with instruments.writers() as writers:\n    pass\n"
        exec(compile(text, str(tmp_path / "mine.py") if kernels else GPUS, "exec"), {"instruments": instruments})
        return tripwires.told()

    assert in_a_fork(turns, tmp_path) == ["has an instrument of the judge's tell what its kernels do"] * kernels


def test_so_many_things_are_noted_each_once(monkeypatch):
    monkeypatch.setattr(tripwires, "_told", [])
    for number in (*range(20), *range(20)):
        tripwires.note(f"does {number}")
    assert tripwires.told() == [f"does {number}" for number in range(16)]
