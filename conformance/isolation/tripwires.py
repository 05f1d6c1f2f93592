"""In the process of an untrusted kernel: what the kernel's code may not do there, noted where it is done.

The answer may not come from this package's references, contracts or kernels, nor be worked out in another thread or
process, nor be read out of the objects of this process. A kernel that is found here cheats; one that is not may still
have got round this: what decides are the values, which are judged in another process.
"""

import _thread
import dis
import functools
import importlib.abc
import importlib.machinery
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch.utils import _python_dispatch

import touchstone
from touchstone import backends
from touchstone.conformance.discovery import registry
from touchstone.conformance.judging.instruments import COPIES, READS
from touchstone.conformance.spec.contract import Contract

TOLD = 16  # notes at most
NEEDED = ("operands", "outputs", "params", "name", "dtypes")  # of a contract, to make calls
FORBIDDEN = ("reference", "conformance/contracts", "conformance/faults")  # folders of this package
GET_FRAME = "sys._getframe"
# audit events, and what the kernel's code does with them
EVENTS = {
    "gc.get_objects": "looks through the objects of its process",
    "gc.get_referrers": "looks through the objects of its process",
    "gc.get_referents": "looks through the objects of its process",
    GET_FRAME: "reads the frames of its callers",
    "sys._current_frames": "reads the frames of other threads",
    "sys.settrace": "sets a trace function",
    "sys.setprofile": "sets a profile function",
    "sys.addaudithook": "adds an audit hook",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.exec": "starts a program",
    "os.system": "starts a program",
    "subprocess.Popen": "starts a program",
    "os.kill": "sends a signal",
    "os.killpg": "sends a signal",
    "signal.pthread_kill": "sends a signal",
    "socket.connect": "opens a connection",
    "socket.bind": "opens a port",
    "ctypes.dlopen": "loads a library with ctypes",
    "ctypes.dlsym": "calls C with ctypes",
    "ctypes.string_at": "reads memory by its address",
    "resource.setrlimit": "changes its limits",
    "sys._current_exceptions": "reads the frames of other threads",
}
COMPILING, MAKING = "compile", "code.__new__"  # events of what has a text, or code, be that of a file that it names
NAMED_TUPLES = {"_tuple_new", "__builtins__", "__name__"}  # the names that `namedtuple` gives what makes one
CALLS = {name for name in dis.opname if name.startswith("CALL")}
READING = "object.__getattr__"  # the event of an attribute that leads into an interpreter's own objects
MEMORY = {"mem", "environ", "maps", "smaps"}  # files of a process that show what is in it
# of Python's own library what reads frames and gives none away: functions; and files, for what they call themselves
KEEPING = {("collections/__init__.py", "namedtuple"), ("typing.py", "_caller"), ("enum.py", "_create_")}
KEEPING_WITHIN = {"logging/__init__.py", "traceback.py"}
FRAMES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}

# what starts a thread, by the names of Python's versions; 3.11 raises no audit event for it
THREADS = ("start_new_thread", "start_new", "start_joinable_thread", "_start_new_thread", "_start_joinable_thread")
STARTS_THREADS = [(module, name) for module in (_thread, threading) for name in THREADS if hasattr(module, name)]
# what gives a tensor's memory to other libraries, on the host alone
HOST_ONLY = [(torch.Tensor, "numpy"), (torch.Tensor, "__array__"), (torch, "from_numpy"), (torch, "frombuffer")]

# which torch calls, itself too, while numbers are shown
OPERATORS = sorted(COPIES | READS | {"empty.memory_format", "empty_strided", "empty_like", "zero_"})
OPERATORS += ["fill_.Scalar", "fill_.Tensor", "resize_"]
# what gives torch's modes, or takes them away
MODES = [
    (module, name)
    for module, names in (
        (torch._C, ("_get_dispatch_stack_at", "_get_dispatch_mode", "_set_dispatch_mode", "_unset_dispatch_mode")),
        (torch._C, ("_len_torch_dispatch_stack", "_pop_torch_dispatch_stack")),
        (_python_dispatch, ("_get_current_dispatch_mode", "_get_current_dispatch_mode_stack")),
        (_python_dispatch, ("_disable_current_modes", "_pop_mode", "_pop_mode_temporarily")),
        (_python_dispatch, ("_get_dispatch_stack_at", "_len_torch_dispatch_stack", "_pop_torch_dispatch_stack")),
    )
    for name in names
    if hasattr(module, name)
]

_told: list[str] = []
_shown: list[str] = []  # what torch dispatches to where numbers are shown


def told() -> list[str]:
    """What was noted so far."""
    if _shown and _shown != _dispatched():
        note("replaces what the library does where it allocates, fills, copies or reads a tensor")
    return list(_told)


def _dispatched() -> list[str]:
    return [torch._C._dispatch_dump(f"aten::{name}") for name in OPERATORS]


def note(what: str) -> None:
    if what not in _told and len(_told) < TOLD:
        _told.append(what)


def set_up(op: str, home: Path | None) -> None:
    """From here on, note what is not allowed. Before the kernel's file, in the folder `home`, is imported."""
    global _libraries
    _libraries = (*_PACKAGE, *(folder for folder in _import_path() if not _is_own(folder, home)))
    contract = registry.contract(op)
    for field in fields(Contract):
        if field.name not in NEEDED and callable(getattr(contract, field.name)):
            setattr(contract, field.name, _forbidden(f"calls {field.name} of the op's contract"))
    contract.values = {}
    contract.properties = contract.invalid = ()
    for name, module in list(sys.modules.items()):
        if _is_forbidden(name):
            _empty(name, module)
    for owner, attribute in HOST_ONLY:
        setattr(owner, attribute, _noted(getattr(owner, attribute), f"calls {attribute}, which a GPU's tensor has not"))
    for owner, attribute in STARTS_THREADS:
        setattr(owner, attribute, _noted(getattr(owner, attribute), "starts a thread"))
    for owner, attribute in MODES:
        setattr(owner, attribute, _noted(getattr(owner, attribute), "looks through torch's modes"))
    backends.on_observing.append(_observed)
    sys.meta_path.insert(0, _Finder())
    _shown[:] = _dispatched()
    sys.addaudithook(_audit)


def _import_path() -> list[str]:
    return [os.path.abspath(entry) + os.sep for entry in sys.path if entry]


def _is_own(folder: str, home: Path | None) -> bool:
    """Whether a folder that modules are imported from has the kernel's author's own beside, or among, others'."""
    packages = os.path.basename(os.path.dirname(folder)) in ("site-packages", "dist-packages")
    return home is not None and not packages and f"{home}{os.sep}".startswith(folder)


def _is_forbidden(module: str) -> bool:
    """Whether a module holds answers: references, contracts, planted kernels, and the kernels of this repository."""
    parts = module.split(".")
    if parts[0] != "touchstone" or len(parts) < 3:
        return module == "touchstone.reference"
    if parts[1] == "backends":
        return len(parts) > 3 and parts[2] in registry.backends() and parts[3] in registry.ops()
    return parts[1] == "reference" or parts[1:3] in (["conformance", "contracts"], ["conformance", "faults"])


def _empty(name: str, module: ModuleType) -> None:
    """Put tripwires in the place of a module's functions."""
    for attribute, value in list(vars(module).items()):
        if isinstance(value, FunctionType):
            setattr(module, attribute, _forbidden(f"calls {name}.{attribute}"))


def _forbidden(what: str) -> Callable[..., Any]:
    def refuse(*arguments: Any, **named: Any) -> Any:
        note(what)
        raise PermissionError(f"the kernel {what}")

    return refuse


def _noted(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if _by_the_kernel():
            note(what)
        return function(*arguments, **named)

    return call


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if _is_forbidden(fullname):
            note(f"imports {fullname}")
            raise ImportError(f"{fullname} is not there for a kernel under judgement", name=fullname)
        return None


_FOLDER = str(registry.ROOT) + os.sep
_LINKS = os.path.dirname(str(touchstone.__file__)) + os.sep
_TELLS = str(backends.__file__)  # what tells of launches
_BACKENDS = (f"{_FOLDER}backends{os.sep}", f"{_LINKS}backends{os.sep}")
_STANDARD = (sysconfig.get_paths()["stdlib"] + os.sep, "<")  # and code that was generated, by whom its caller tells
# of this package; in a clone others' files may lie beside it
_PACKAGE = (*(f"{_FOLDER}{name}{os.sep}" for name in ("backends", "conformance", "reference")), _LINKS)
_libraries: tuple[str, ...] = _PACKAGE  # beginnings of the files that are not the kernel's author's
_FILES = tuple(os.path.join(root, folder) for root in (_FOLDER, _LINKS) for folder in FORBIDDEN)
_auditing = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    global _auditing
    opens = event == "open"
    if _auditing or not (opens or event in EVENTS or event in (READING, COMPILING, MAKING)):
        return
    _auditing = True
    try:
        if opens:
            path = arguments[0]
            path = os.fsdecode(path) if isinstance(path, str | bytes) else ""
            if path and not path.startswith(_STANDARD) and _by_the_kernel():
                real = os.path.realpath(path)
                if real.startswith(_FILES) or _is_variant(Path(real)):
                    note(f"reads {os.path.relpath(real, _FOLDER)}")
                elif os.path.basename(path) in MEMORY and (real.startswith("/proc/") or not os.path.exists(real)):
                    note(f"opens {path}")
        elif event == READING:
            if arguments[1] in FRAMES and not _keeps_frames() and _by_the_kernel():
                note(EVENTS[GET_FRAME])
        elif event in (COMPILING, MAKING):
            if _is_named_falsely(event, *arguments[:2]) and _by_the_kernel():
                note("has code of its own go by the name of a library's file")
        elif not (event == GET_FRAME and _keeps_frames()) and _by_the_kernel():
            note(EVENTS[event])
    finally:
        _auditing = False


def _is_named_falsely(event: str, made_of: Any, file: Any) -> bool:
    """Whether what is compiled, or made as code, is to be of a library's file, and is not what stands there."""
    if not isinstance(file, str) or file.startswith("<") or is_foreign(file):
        return False
    if event == MAKING:
        return True
    try:
        text = Path(file).read_bytes()
    except OSError:
        return True
    return made_of != text and made_of != text.decode(errors="replace")


def _observed() -> None:
    """An instrument is turned on that tells what kernels do: by the judge, or by the kernel, which learns numbers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*_BACKENDS, *_STANDARD)):
        frame = frame.f_back
    if frame is not None and is_foreign(frame.f_code.co_filename):
        note("has an instrument of the judge's tell what its kernels do")


def _is_variant(path: Path) -> bool:
    """Whether a file is of a kernel of this repository."""
    parts = path.relative_to(_FOLDER).parts if path.is_relative_to(_FOLDER) else ()
    ours = len(parts) > 2 and parts[0] == "backends" and parts[1] in registry.backends()
    return ours and parts[2].partition(".")[0] in registry.ops()


def is_of_this_package(file: str) -> bool:
    """Whether code of a file is Touchstone's."""
    return _lies_in(file, _PACKAGE)


def called_by_this_package(above: int) -> bool:
    """Whether a function so far above the caller is this package's."""
    return is_of_this_package(sys._getframe(above + 1).f_code.co_filename)


def asked_by_this_package() -> bool:
    """Whether what told of a launch, above the caller, is an interpreter or emulator of this package."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith((_TELLS, *_STANDARD)):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and is_of_this_package(frame.f_code.co_filename)


def is_foreign(file: str) -> bool:
    """Whether code of a file is of the kernel's author: of no library, nor of what generated it."""
    return not _lies_in(file, (*_STANDARD, *_libraries))


def _lies_in(file: str, folders: tuple[str, ...]) -> bool:
    return file.startswith(folders) and f"{os.sep}..{os.sep}" not in file


def is_generated(frame: FrameType) -> bool:
    """Whether a frame's code lies in no file and is of no library: it may be anybody's. Code that calls nothing is not,
    as `dataclass` makes it of constants, nor what makes a named tuple."""
    code, names = frame.f_code, frame.f_globals
    if not code.co_filename.startswith("<") or not any(each.opname in CALLS for each in dis.get_instructions(code)):
        return False
    if names.keys() <= NAMED_TUPLES and not names["__builtins__"]:
        return False
    module = sys.modules.get(names.get("__name__", ""))
    return module is None or vars(module) is not names or is_foreign(getattr(module, "__file__", None) or "<")


def _keeps_frames() -> bool:
    """Whether what reads a frame, above the caller, is of Python's own library and keeps it to itself."""
    reader = sys._getframe(2)
    file, caller = _in_library(reader), reader.f_back
    if (file, reader.f_code.co_name) in KEEPING:
        return True
    return file in KEEPING_WITHIN and caller is not None and _in_library(caller) == file


def _in_library(frame: FrameType) -> str:
    """The file of Python's own library that a frame is in; empty where it is in none."""
    file = frame.f_code.co_filename
    return file.removeprefix(_STANDARD[0]) if file.startswith(_STANDARD[0]) else ""


def _by_the_kernel() -> bool:
    """Whether the innermost code outside of Python's own library, above the caller, is of the kernel's author."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not _lies_in(file, _STANDARD):
            return not _lies_in(file, _libraries)
        frame = frame.f_back  # type: ignore[assignment]
    return False
