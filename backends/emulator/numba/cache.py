"""Keeps what was compiled from one process to the next, beside the C++ kernels (backends/storage).

Typing and lowering take two thirds of a compilation, so the key is made before them: of the kernel's bytecode and
lines, of all that it refers to (globals, closures, device functions, intrinsics and what those call), of the types of
its arguments, of the versions and sources of what compiles, and of this CPU. A kernel that refers to something that is
not understood here has no key and is compiled anew in every process.
"""

import base64
import dis
import enum
import functools
import hashlib
import json
import linecache
import os
import platform
import re
import sys
import types as python
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import llvmlite.binding as llvm
import numpy as np

from touchstone.backends.emulator import compiler
from touchstone.backends.emulator.numba import build, linking, ptx
from touchstone.backends.storage.artefacts import store
from touchstone.backends.storage.files import portable

T = TypeVar("T")
_HERE = Path(__file__).parent
_LIBRARIES = {"numba", "numba_cuda", "numpy", "llvmlite", "cuda"}
_OWN = __package__ + "."
_SAID = ("Array", "Number", "Boolean", "Record", "CPointer", "NoneType", "NPDatetime", "NPTimedelta")  # by their names
_EXTENDS = re.compile(
    rb"@(?:\w+\.)*(?:overload|lower|infer|typeof_impl|type_callable|register)\w*|\b(?:register_\w+|declare_device)\("
)


class Raised(NamedTuple):
    """What a status code stands for: an exception as it is told, and the line that raises it ("" where unknown)."""

    text: str
    file: str
    line: int


class Entry(NamedTuple):
    """A compiled kernel: its object code, the types of its parameters, and what its status codes stand for."""

    built: build.ObjectCode
    types: list[str]
    exceptions: dict[int, Raised]


def load(key: str | None) -> Entry | None:
    """What is kept under `key`, if anything is."""
    data = None if key is None else store().load(_name(key))
    return None if data is None else read(data)


def keep(key: str | None, entry: Entry) -> None:
    """Keep `entry` under `key`, where that can be done."""
    if key is not None:
        store().keep(_name(key), written(entry))


def _name(key: str) -> str:
    return f"numba_{key}.json"


def written(entry: Entry) -> bytes:
    """An entry as JSON."""
    built = {**entry.built._asdict(), "code": base64.b64encode(entry.built.code).decode()}
    return json.dumps({**entry._asdict(), "built": built}).encode()


def read(data: bytes) -> Entry | None:
    """The entry that `written` was given; None where it is of another form."""
    try:
        found = json.loads(data)
        built = found["built"]
        return Entry(
            build.ObjectCode(
                code=base64.b64decode(_is(str, built["code"]), validate=True),
                base=_is(str, built["base"]),
                places=[(_is(str, file), _is(int, line)) for file, line in _is(list, built["places"])],
                cooperative=_is(bool, built["cooperative"]),
                constants=[(_is(str, name), _is(int, size)) for name, size in _is(list, built["constants"])],
                functions=[_is(str, name) for name in _is(list, built["functions"])],
                sources=[linking.Source(*(_is(str, part) for part in each)) for each in _is(list, built["sources"])],
            ),
            [_is(str, kind) for kind in _is(list, found["types"])],
            {
                int(code): Raised(_is(str, text), _is(str, file), _is(int, line))
                for code, (text, file, line) in found["exceptions"].items()
            },
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _is(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def key(kernel: Any, kinds: tuple[Any, ...]) -> str | None:
    """The name of a kernel for arguments of the types `kinds`; None if it depends on something unknown."""
    found = described(kernel, kinds, ptx.PTX)
    return None if found is None else compiler.digest(found, _compilers())


def described(kernel: Any, kinds: tuple[Any, ...], *more: Any) -> str | None:
    """A hash of all that the code of a kernel for arguments of the types `kinds` depends on, and of what `more`
    refers to, but for what compiles it; None if something of it is unknown."""
    known = _Description()
    try:
        known.value(kernel)
        for kind in kinds:
            known.argument(kind)
        for each in more:
            known.value(each)
        extensions = _extensions()
    except _Unknown:
        return None
    numba = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_"))
    return compiler.digest(known.digest(), extensions, *numba)


@functools.cache
def _compilers() -> str:
    """What compiles: versions, own sources, the libraries called, and the CPU compiled for."""
    library, engine = linking.support()
    versions = [f"{name} {metadata.version(name)}" for name in ("numba", "numba-cuda", "llvmlite", "numpy")]
    own = [file.read_text() for file in sorted(_HERE.glob("*")) if file.suffix in (".py", ".ll", ".cpp")]
    cpu = [platform.machine(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    return compiler.digest(sys.version, Path(library._name).name, engine.name, *versions, *own, *cpu)


_seen: dict[str, bytes] = {}  # name of a module -> hash of its text if it extends Numba


def _extensions() -> str:
    """Modules beside the libraries that tell Numba how to compile something. What a kernel calls does not show them."""
    for name, module in list(sys.modules.items()):
        if name not in _seen:
            _seen[name] = _extension(name, module)
    return "".join(text.hex() for text in sorted(_seen.values()))


def _extension(name: str, module: Any) -> bytes:
    root, file = name.partition(".")[0], getattr(module, "__file__", None)
    library = root in _LIBRARIES or root in sys.stdlib_module_names or (name + ".").startswith(_OWN)
    if (library and name != "__main__") or "site-packages" in (file or "") or (not file and name != "__main__"):
        return b""
    if not any(_root(value) in ("numba", "numba_cuda") for value in list(vars(module).values())):
        return b""
    if not file:
        raise _Unknown  # typed in: what it has told Numba so far cannot be read
    try:
        text = Path(file).read_bytes()
    except OSError:
        return b""
    return hashlib.sha256(text).digest() if _EXTENDS.search(text) else b""


def _root(value: Any) -> str:
    """The package that a module, function, class or object comes from."""
    name = value.__name__ if isinstance(value, python.ModuleType) else getattr(value, "__module__", None)
    return name.partition(".")[0] if isinstance(name, str) else type(value).__module__.partition(".")[0]


def _is_library(value: Any) -> bool:
    """Whether a version in `_compilers` says what a module, function or class is."""
    name = value.__name__ if isinstance(value, python.ModuleType) else getattr(value, "__module__", None)
    root = _root(value)
    own = isinstance(name, str) and (name + ".").startswith(_OWN)
    return own or root in _LIBRARIES or (root in sys.stdlib_module_names and root != "__main__")


class _Unknown(Exception):
    """Something that a kernel refers to and whose meaning is not known here."""


class _Description:
    """All that a kernel's code depends on, written to a hash."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._places: dict[int, int] = {}  # of what was described: its number
        self._kept: list[Any] = []  # so that no address is used twice

    def digest(self) -> str:
        return self._hash.hexdigest()

    def add(self, *parts: str) -> None:
        for part in parts:
            data = part.encode("utf-8", "surrogatepass")
            self._hash.update(b"%d:" % len(data) + data)

    def argument(self, kind: Any) -> None:
        """A type of Numba's whose name says all of it."""
        from numba.cuda import types

        if isinstance(kind, types.BaseTuple):
            self.add(type(kind).__qualname__, str(kind))
            for part in kind:
                self.argument(part)
        elif isinstance(kind, tuple(getattr(types, name) for name in _SAID)):
            self.add(type(kind).__qualname__, str(kind))
        else:
            raise _Unknown

    def value(self, value: Any) -> None:
        """Anything that code refers to."""
        if isinstance(value, np.generic):
            self._object(value)
            return
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes, type(...))):
            if isinstance(value, enum.Enum):
                self.add("enum", type(value).__qualname__, value.name)
            elif type(value).__module__ != "builtins":
                raise _Unknown
            self.add(type(value).__name__, repr(value))
            return
        if id(value) in self._places:
            self.add("again", str(self._places[id(value)]))
            return
        self._places[id(value)] = len(self._places)
        self._kept.append(value)
        self._object(value)

    def _object(self, value: Any) -> None:
        from llvmlite import ir
        from numba.core.types import Type as CoreType
        from numba.cuda.types import Type

        if isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value)
            if array.dtype.hasobject:
                raise _Unknown
            self.add(type(value).__name__, str(array.dtype.descr), str(array.shape), str(array.flags.c_contiguous))
            self.add(str(array.flags.f_contiguous), array.tobytes().hex())
        elif isinstance(value, np.dtype):
            self.add("dtype", str(value.descr), str(value.isalignedstruct))
        elif isinstance(value, (tuple, list, frozenset)):
            self.add(type(value).__qualname__, str(getattr(value, "_fields", "")), str(len(value)))
            parts: list[Any] = sorted(value, key=repr) if isinstance(value, frozenset) else list(value)
            for part in parts:
                self.value(part)
        elif isinstance(value, dict):
            self.add("dict", str(len(value)))
            for pair in value.items():
                self.value(pair[0])
                self.value(pair[1])
        elif isinstance(value, (Type, CoreType)):
            self.argument(value)
        elif isinstance(value, (ir.Type, re.Pattern)):
            self.add(type(value).__qualname__, str(value))
        elif isinstance(value, python.CodeType):
            self._code(value)
        elif hasattr(value, "py_func") and hasattr(value, "targetoptions"):
            self._dispatcher(value)
        elif hasattr(value, "_defn") and _root(type(value)) in _LIBRARIES:
            self.add("intrinsic", str(value._prefer_literal))
            self.value(value._defn)
        elif isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            self.add("named tuple", value.__module__, value.__qualname__, *value._fields)
            self.value(getattr(value, "_field_defaults", {}))
        elif isinstance(value, enum.EnumMeta):
            members: dict[str, Any] = dict(value.__members__)
            self.add("enum", value.__qualname__, *(f"{name}={member.value!r}" for name, member in members.items()))
        elif isinstance(value, functools._lru_cache_wrapper):
            self.value(value.__wrapped__)
        elif isinstance(value, np.ufunc) or _is_library(value):
            name = getattr(value, "__qualname__", getattr(value, "__name__", None))
            if name is None:
                raise _Unknown
            self.add("library", _root(value), getattr(value, "__module__", None) or "", name)
        elif isinstance(value, python.FunctionType):
            self._function(value)
        else:
            raise _Unknown

    def _dispatcher(self, value: Any) -> None:
        self.add("jit", type(value).__name__)
        for name, option in sorted(value.targetoptions.items()):
            self.add(name)
            if name == "link":
                for source in map(linking.source_of, option or ()):
                    self.add(*source)
            else:
                self.value(option)
        self._function(value.py_func)

    def _function(self, function: Any) -> None:
        self.add(function.__module__ or "", function.__qualname__)
        self._code(function.__code__)
        self.value(function.__defaults__)
        self.value(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            self.value(cell.cell_contents)
        for path in sorted(_references(function.__code__)):
            owner: Any = function.__globals__
            for name in path:  # through modules of the user's
                found = owner.get(name, owner) if isinstance(owner, dict) else getattr(owner, name, owner)
                if found is owner:  # a name of Python's own, or one that is never reached
                    self.add("absent", *path)
                    break
                owner = found
                if not isinstance(owner, python.ModuleType) or _is_library(owner):
                    self.add(*path)
                    self.value(owner)
                    break
            else:
                raise _Unknown  # a module of the user's as a value

    def _code(self, code: python.CodeType) -> None:
        self.add(code.co_name, portable(code.co_filename), str(code.co_firstlineno), str(code.co_flags))
        self.add(code.co_code.hex())
        self.add(*map(repr, (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)))
        self.add(code.co_linetable.hex(), getattr(code, "co_exceptiontable", b"").hex())
        last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
        self.add(*linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : last])  # findings name variables
        for constant in code.co_consts:
            self.value(constant)


def _references(code: python.CodeType) -> set[tuple[str, ...]]:
    """The globals that code reads, each with the attributes that it takes of it: ("rows", "warp_sum")."""
    found: set[tuple[str, ...]] = set()
    path: tuple[str, ...] = ()
    for instruction in _instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.add(path)
            path = (instruction.argval,)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path = (*path, instruction.argval)
        elif instruction.opname not in ("CACHE", "PUSH_NULL"):
            found.add(path)
            path = ()
    return {*found, path} - {()}


def _instructions(code: python.CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, python.CodeType):
            yield from _instructions(constant)
