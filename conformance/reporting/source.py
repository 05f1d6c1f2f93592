"""Which source was judged: its file and digest, for a record."""

import contextlib
import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.importing import FileFunction
from touchstone.conformance.discovery.subject import Subject


def source_of(subject: Subject) -> dict[str, str | None]:
    """`file`, `function` and `sha256` of the source that defines a kernel, as it lies there now.

    Of a variant whose op is a folder, that folder and the digest of its files; of a function typed at a prompt, no
    file and the digest of its text where Python still has it. `file` is relative to the repository or to the current
    folder, or a name alone.
    """
    if isinstance(subject.fn, FileFunction):
        given = subject.fn.path.resolve()
        return {"file": _shown(given), "function": subject.fn.name, "sha256": digest(given)}
    fn = _defining(subject.fn)
    function = getattr(fn, "__qualname__", type(fn).__qualname__)
    path = _file(fn)
    if path is None:
        return {"file": None, "function": function, "sha256": _of_text(fn)}
    if subject.own and path.parent.name == subject.op:
        path = path.parent
    return {"file": _shown(path), "function": function, "sha256": digest(path)}


def digest(path: Path) -> str | None:
    """SHA-256 of a file, in hexadecimal; of a folder, that of the names and digests of its source files, sorted. None
    where it cannot be read."""
    try:
        if path.is_file():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        if not path.is_dir():
            return None
        files = sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
        lines = [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.relative_to(path).as_posix()}\n" for f in files]
    except OSError:
        return None
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _defining(fn: Callable[..., Any]) -> Any:
    """The function within partial objects, wrappers and bound methods, or the type of a callable object."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    fn = getattr(fn, "__func__", fn)
    return fn if hasattr(fn, "__code__") else getattr(fn, "fn", None) or type(fn)


def _file(fn: Any) -> Path | None:
    try:
        path = Path(fn.__code__.co_filename if hasattr(fn, "__code__") else inspect.getfile(fn))
    except (TypeError, OSError):
        return None
    return path.resolve() if path.is_file() else None


def _of_text(fn: Any) -> str | None:
    try:
        return hashlib.sha256(inspect.getsource(fn).encode()).hexdigest()
    except (TypeError, OSError):
        return None


def _shown(path: Path) -> str:
    roots = [registry.ROOT]
    with contextlib.suppress(OSError):  # where the current folder was removed
        roots.append(Path.cwd())
    return next((path.relative_to(root).as_posix() for root in roots if path.is_relative_to(root)), path.name)
