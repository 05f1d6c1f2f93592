"""What lies beside a kernel's file and may belong to it: found by its text, nothing is imported."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from touchstone.backends.storage import files
from touchstone.conformance.discovery.importing import LARGEST, root_of

OURS = "touchstone"  # which the process of a kernel has by then, whatever lies beside it
# by which a module finds out where it lies, or takes in what no import statement names
_PLACE = re.compile(
    r"__(?:file|spec|path|cached|loader|code)__|co_filename|\bsys\.path|\b(?:inspect|importlib|pkgutil|runpy|zipimport)\b"
)


def parsed(raw: bytes) -> ast.Module | None:
    """The syntax tree of a file, in the encoding that its first lines name; None of what is no Python, which its import
    finds out again. RecursionError or MemoryError where it is nested too deeply to tell."""
    try:
        return ast.parse(raw)
    except (ValueError, SyntaxError, LookupError):
        return None


def asks_for_its_place(text: str) -> bool:
    """Whether a module may look at where its file lies."""
    return _PLACE.search(text) is not None


def imported(path: Path) -> list[Path]:
    """The Python files below the folder that `path` is imported from which it imports, and those that these import, by
    their import statements; of a package, all of its files."""
    path = path.resolve()
    root, found, todo = root_of(path), {path: None}, [path]
    while todo:
        each = todo.pop()
        folders = [folder for folder in each.parents if folder.is_relative_to(root)]
        for place in (folder / name for name in _names(each) for folder in folders):
            for other in _python(place):
                if other not in found:
                    found[other] = None
                    todo.append(other)
    return list(found)[1:]


def _names(path: Path) -> list[str]:
    """Of the modules that a file imports, the first part of each name."""
    try:
        tree = parsed(files.read(path, LARGEST))
    except (OSError, ValueError, RecursionError, MemoryError):
        return []
    found: dict[str, None] = {}
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import):
            found |= dict.fromkeys(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= dict.fromkeys(name.partition(".")[0] for name in names)
    return [name for name in found if name != OURS]


def _python(place: Path) -> Iterator[Path]:
    """The files of a module or package of this name."""
    if (module := place.with_name(f"{place.name}.py")).is_file():
        yield module.resolve()
    if place.is_dir():
        yield from (file.resolve() for file in sorted(place.rglob("*.py")) if file.is_file())
