"""Importing a user's file, by path: here, or in a process that imports it afresh (conformance/isolation/travel.py).

A script or test file is imported under a name of its own there, so an `if __name__ == "__main__"` block does not run;
where the import reaches a `check` call at the top level, the import ends there, with what was defined so far.
"""

import contextlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from touchstone.backends import forks
from touchstone.conformance.discovery import registry

PREFIX = "touchstone_user_"  # of the names under which such files are imported
LARGEST = 1 << 24  # bytes of a file of Python
last: list[str] = []  # folders in which such files find modules that are nowhere else
_importing: list[str] = []  # the user's files being imported right now


@dataclass(frozen=True)
class FileFunction:
    """Stands for the function `name` of a Python file that this process does not import. `instead`: the name that the
    file was read not to have, for which this one was taken."""

    path: Path
    name: str
    instead: str | None = None

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"{self.name} of {self.path} is not imported in this process")


class FromSource(SourceFileLoader):
    """Compiles what stands in the file. Bytecode beside it may be of another text: Python compares sizes and times of
    the second at most, and of some bytecode nothing."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def without_bytecode(home: Path) -> None:
    """From here on, modules in the folder `home` and below are imported from their source, or are compiled extensions;
    of installed packages nothing changes."""
    root = f"{home.resolve()}{os.sep}"

    def own(folder: str) -> bool:
        whole = f"{os.path.realpath(folder)}{os.sep}"
        return whole.startswith(root) and not {"site-packages", "dist-packages"} & set(Path(whole).parts)

    def finder(folder: str) -> FileFinder:
        if not own(folder):
            raise ImportError(f"{folder} is not below {home}", path=folder)
        return FileFinder(folder, (ExtensionFileLoader, EXTENSION_SUFFIXES), (FromSource, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, finder)
    for folder in [folder for folder in sys.path_importer_cache if own(folder)]:
        del sys.path_importer_cache[folder]


class ImportReachedCheck(BaseException):
    """Raised by `check` while a worker imports the file that called it: the functions above are all it needs."""


def stop_if_importing() -> None:
    """End the import of a user's file here, if one is under way."""
    if _importing:
        raise ImportReachedCheck


def interpreted_by(backend: str, fn: Callable[..., Any]) -> bool:
    """Whether a user's function reaches kernels that a backend interprets on the CPU (`interprets` of its protocol). Of
    a file that is not imported here its text tells."""
    interprets = getattr(registry.backend(backend), "interprets", None)
    if interprets is None:
        return False
    if isinstance(fn, FileFunction):
        text = fn.path.read_text(errors="replace")
        return re.search(rf"^\s*(?:import|from)\b.*\b{backend}\b", text, re.MULTILINE) is not None
    return interprets(fn)


def describe(fn: Callable[..., Any]) -> str:
    """The name to print for a function."""
    return getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__name__


def load(path: str | Path, qualname: str, instead: str | None = None) -> Callable[..., Any]:
    """The function `qualname` of the Python file `path`, freshly imported. ValueError names what is missing, or says
    that the file has the name `instead`, which no statement of it gives a meaning."""
    module, complete = load_module(path)
    if instead is not None and hasattr(module, instead):
        raise ValueError(
            f"{path} has {instead!r} once it is imported, which no statement of it defines, so that {qualname!r} was "
            f"taken for the kernel; define {instead!r} by a statement, or name the function"
        )
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
        if found is None and not complete:
            raise ValueError(
                f"{path} calls check before it defines {qualname!r}, and the import ends at the first call; put "
                'the calls under if __name__ == "__main__"'
            )
        if found is None:
            names = [n for n, v in vars(module).items() if inspect.isfunction(v) and not n.startswith("_")]
            raise ValueError(f"{path} defines no function {qualname!r}; it has {', '.join(names) or 'none'}")
    if not callable(found):
        raise ValueError(f"{qualname!r} in {path} is a {type(found).__name__}, not a function")
    return found


def load_module(path: str | Path) -> tuple[ModuleType, bool]:
    """The module, and whether its import got to the end. A file inside a package can import its neighbours
    relatively."""
    path = Path(path).resolve()
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if (size := path.stat().st_size) > LARGEST:
        raise ValueError(f"{path} has {size} bytes; {LARGEST} are read at most")
    root = root_of(path)
    package = ".".join(path.parent.relative_to(root).parts)
    name = f"{package}.{PREFIX}{path.stem}" if package else f"{PREFIX}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file")
    if isinstance(spec.loader, SourceFileLoader):
        spec.loader = FromSource(name, str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folders = [folder for folder in dict.fromkeys([str(path.parent), str(root)]) if folder not in sys.path]
    sys.path[:0] = folders
    sys.path += [folder for folder in last if folder not in sys.path]
    _importing.append(name)
    try:
        spec.loader.exec_module(module)
    except ImportReachedCheck:
        return module, False
    finally:
        _importing.remove(name)
        sys.path[:] = [entry for entry in sys.path if entry not in folders] + folders  # for imports inside functions
    return module, True


def once_more(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that was imported by its path, of a module of its own: nothing that it kept is there. ImportError
    where it was imported otherwise."""
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    if module is None or path is None or not module.__name__.rpartition(".")[2].startswith(PREFIX):
        raise ImportError(f"{describe(fn)} was not imported by the path of its file")
    try:
        return load(path, describe(fn))
    except ValueError as error:
        raise ImportError(str(error)) from None
    finally:
        sys.modules[module.__name__] = module


def tried(load: Callable[[], Any]) -> None:
    """Have a fork of this process do first what imports a user's file here. ValueError where that ends its process: it
    would end this one, with a status that says whatever it likes. What it raises, it will raise here.
    """
    if not forks.able:
        return

    def run(written: int) -> None:
        with contextlib.suppress(BaseException):
            load()
        os.write(written, b"1")

    written, status = forks.forked(run)
    if not written and status is not None:
        how = f"with status {status}" if status >= 0 else f"by signal {-status}"
        raise ValueError(f"it ends the process that imports it, {how}")


def root_of(path: Path) -> Path:
    """The folder from which a file is imported: its own, or that of the outermost package that it is in."""
    root = path.resolve().parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return root


def source_of(fn: Callable[..., Any], why: str = "") -> tuple[str, str]:
    """File and qualified name by which another process can import `fn`. ValueError says why not, and the way out.

    `why` goes on from what `fn` is: why another process has to import it.
    """
    if isinstance(fn, FileFunction):
        return str(fn.path.resolve()), fn.name
    name, inner = describe(fn), inspect.unwrap(fn)
    if not inspect.isfunction(inner):
        raise ValueError(
            f"fn: {name} is a {type(fn).__name__}{why}; another process can import only a function at the top level "
            "of a file: define one that calls it"
        )
    path = inspect.getsourcefile(inner)
    if path is None or not os.path.isfile(path) or "ipython-input" in path or "ipykernel" in path:
        raise ValueError(
            f"fn: {name} is defined in a notebook cell or at a prompt{why}; another process cannot import it from "
            f"there. Put kernel and function into a file and import them from it{_restart(fn) if why else ''}"
        )
    if "<" in inner.__qualname__:
        raise ValueError(
            f"fn: {name} is a lambda or is defined inside a function{why}; another process can import only a "
            "function at the top level of a file: define it there"
        )
    return str(Path(path).resolve()), inner.__qualname__


def _restart(fn: Callable[..., Any]) -> str:
    """How else a function of a notebook gets to run on the CPU whose kernels were set up for CUDA."""
    stale = {name: registry.backend(name) for name in registry.backends() if registry.backend(name).reimport(fn, "cpu")}
    ways = [
        f'os.environ["{variable}"] = "1" in the first cell, before anything imports {name}'
        for name, backend in stale.items()
        for variable in backend.CPU_VARIABLES
    ]
    return f", or restart and run {' and '.join(ways)}" if ways else ""
