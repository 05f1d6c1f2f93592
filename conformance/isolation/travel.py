"""How a function reaches a fresh process: by the name of its file and of itself, or pickled."""

import importlib.util
import io
import os
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, ClassVar

import cloudpickle

from touchstone.conformance.discovery import importing


class CannotTravel(ValueError):
    """A fresh process cannot get the function; the message says why and what to do instead."""


def ways(fn: Callable[..., Any], fresh_import: bool) -> Iterator[tuple]:
    """How a fresh process can get the function: ("file", path, name) or ("pickle", bytes).

    With `fresh_import` only by its file, which is imported anew. Raises CannotTravel.
    """
    if fresh_import or isinstance(fn, importing.FileFunction):
        yield ("file", *importing.source_of(fn, ", and its kernel was set up for the other device"))
        return
    if not _importable(fn) and (place := file_and_name(fn)) is not None:
        yield ("file", *place)
    try:
        yield ("pickle", _pickled(fn))
    except Exception as error:
        raise CannotTravel(
            f"fn: {importing.describe(fn)} cannot be sent to another process ({error}); define it at the top level "
            "of a file, or pass isolate='none'"
        ) from error


def arrived(way: tuple) -> Callable[..., Any]:
    """The function, in the process that it was sent to."""
    kind, *rest = way
    return importing.load(*rest) if kind == "file" else cloudpickle.loads(*rest)


def _pickled(fn: Callable[..., Any]) -> bytes:
    made = io.BytesIO()
    _Pickler(made).dump(fn)
    return made.getvalue()


def _code(code: CodeType) -> tuple[Any, ...]:
    return _of_file, (code.co_filename, *cloudpickle.Pickler.dispatch_table[CodeType](code))


def _of_file(path: str, make: Callable[..., CodeType], arguments: tuple[Any, ...], *_: Any) -> CodeType:
    return make(*arguments).replace(co_filename=path)


class _Pickler(cloudpickle.Pickler):
    """Keeps the name of the file that code comes from, which cloudpickle from 3.1.3 on leaves out: what says where a
    call died goes by it, and what reads the source."""

    dispatch_table: ClassVar = ChainMap({CodeType: _code}, cloudpickle.Pickler.dispatch_table)


def _importable(fn: Callable[..., Any]) -> bool:
    """Whether a fresh process finds the function by the names of its module and of itself: cloudpickle then sends
    those."""
    module = getattr(fn, "__module__", None)
    if module not in sys.modules or module == "__main__" or importing.PREFIX in module:
        return False
    try:
        found = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
    return found and _at(sys.modules[module], getattr(fn, "__qualname__", "")) is fn


def file_and_name(fn: Callable[..., Any]) -> tuple[str, str] | None:
    """The file at whose top level `fn` is found, and its name there; a compiled function has that of the original."""
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    path, name = getattr(module, "__file__", None), getattr(fn, "__qualname__", "")
    if path is None or not os.path.isfile(path):
        return None
    if _at(module, name) is not fn:
        name = next((name for name, value in vars(module).items() if value is fn), "")
    return (path, name) if name else None


def _at(module: Any, qualname: str) -> Any:
    for part in qualname.split("."):
        module = getattr(module, part, None)
    return module
