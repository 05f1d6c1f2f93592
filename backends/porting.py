"""What the `porting.py` of the backends share: a launch as no one language writes it, and reading launchers as text.

`backends/<name>/runtime/porting.py` makes a backend one that `touchstone port` reads from and writes for. It imports
no kernel library and offers what `Porting` in backends/protocol.py lists.
"""

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Launch(NamedTuple):
    """One launch of a kernel. All but the kernel's name are expressions, as the launcher has them."""

    kernel: str
    grid: str
    threads: str | None  # of a block
    arguments: tuple[str, ...]
    constants: tuple[tuple[str, str], ...] = ()  # known when the kernel is compiled
    shared: str | None = None  # bytes of dynamic shared memory
    rest: tuple[tuple[str, str], ...] = ()  # what other languages have no word for


class Kernel(NamedTuple):
    """Where a kernel stands: its file, its lines from `first` to `last`, and its signature."""

    file: Path
    first: int
    last: int
    signature: str


class Topic(NamedTuple):
    """What a language has to say about one way in which languages differ."""

    notes: tuple[str, ...]  # the first words of the backend's NOTES that are about it
    pattern: str | None = None  # of the lines of a kernel that it concerns


def text(node: ast.AST) -> str:
    return ast.unparse(node)


def keywords(call: ast.Call) -> list[tuple[str, str]]:
    """The keyword arguments of a call; `**options` is ("**", "options")."""
    return [(keyword.arg or "**", text(keyword.value)) for keyword in call.keywords]


def extent(arguments: Sequence[ast.expr]) -> tuple[str, str | None, list[str]]:
    """Grid, threads and what follows, of arguments that begin with the two; `*extent(rows)` is both."""
    first, rest = arguments[0], list(arguments[1:])
    if isinstance(first, ast.Starred):
        return f"{text(first.value)}[0]", f"{text(first.value)}[1]", [text(argument) for argument in rest]
    threads = text(rest[0]) if rest else None
    return text(first), threads, [text(argument) for argument in rest[1:]]


def times(factor: int, expression: str) -> str:
    """`factor` times an expression, computed where that is a number."""
    node = ast.parse(expression, mode="eval").body
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return str(factor * node.value)
    plain = isinstance(node, ast.Name | ast.Call | ast.Subscript | ast.Attribute)
    return f"{factor} * {expression if plain else f'({expression})'}"


def warps(threads: str) -> str:
    """The warps in a block, from the expression for its threads."""
    node = ast.parse(threads, mode="eval").body
    count = 1
    for part in node.elts if isinstance(node, ast.Tuple) else [node]:
        if not (isinstance(part, ast.Constant) and isinstance(part.value, int)):
            return f"({threads}) // 32"
        count *= part.value
    return str(max(1, count // 32))


def python_kernel(files: Iterable[Path], name: str) -> Kernel | None:
    """The kernel `name` among the functions of Python files; its decorators are left out of `first`."""
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return Kernel(file, node.lineno, node.end_lineno or node.lineno, f"{name}({text(node.args)})")
    return None
