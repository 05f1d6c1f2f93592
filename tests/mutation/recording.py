"""Which tests execute which statements: found by running them once in a copy of the clone whose code takes notes.

Before each statement stands one assignment to a map of bytes that all processes of a test share, so that what happens
in children is seen too. It needs no library, and costs a test a few percent. As a pytest plugin this module writes down
after each test what was executed. Not seen are a child in a sandbox that cannot open the map's file, and, of what
is computed once and kept, all tests but the first.
"""

import json
import mmap
import os
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

from tests.mutation.operators import statements
from tests.mutation.trees import Tree

NOTES = "TOUCHSTONE_EXECUTED"  # the folder to which the plugin writes; the map of this process's worker
MAP = "TOUCHSTONE_EXECUTED_MAP"
MODULE = '''"""Notes which statements are executed."""

import builtins
import mmap
import os

try:
    with open(os.environ["{map}"], "r+b") as file:
        executed = mmap.mmap(file.fileno(), 0)
except (KeyError, OSError, ValueError):
    executed = bytearray({size})
builtins._executed = executed  # for code that is given to a function of another module
'''
IMPORT = "from touchstone._executed import executed as _executed"


def instrument(tree: Tree, paths: Iterable[str]) -> list[tuple[str, int]]:
    """Have a copy of the clone note what it executes; by place in the map: the file and the line of a statement."""
    places: list[tuple[str, int]] = []
    for path in paths:
        text = (tree.root / path).read_text()
        lines = text.split("\n")
        for line, column, known in sorted(statements(text), reverse=True):
            if column is not None:
                lines.insert(line - 1, f"{' ' * column}_executed[{len(places)}] = 1")
                places.append((path, known))
        if len(lines) > text.count("\n") + 1:
            tree.write(path, _imported(text, lines))
    (tree.root / "touchstone" / "_executed.py").write_text(MODULE.format(map=MAP, size=len(places)))
    return places


def _imported(text: str, lines: list[str]) -> str:
    """The file with the import of the map, after its docstring and `from __future__`."""
    at = 0
    quotes = '"""'
    if text.startswith(quotes):
        at = text[: text.index(quotes, 3)].count("\n") + 1
    later = [number for number, line in enumerate(lines) if line.startswith("from __future__")]
    at = max([at, *(number + 1 for number in later)])
    return "\n".join([*lines[:at], IMPORT, *lines[at:]])


class Recorder:
    """The plugin: in each worker, one line of JSON per test."""

    def __init__(self, folder: Path) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        size = int((folder / "size").read_text())
        path = folder / f"{worker}.map"
        path.write_bytes(bytes(size))
        os.environ[MAP] = str(path)
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)
        self.notes = folder / f"{worker}.jsonl"
        self.seen = set((folder / "seen").read_text().splitlines())
        self.seconds, self.outcome = 0.0, "passed"

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in self.seen])
        items[:] = [item for item in items if item.nodeid not in self.seen]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.map[:] = bytes(len(self.map))
        self.seconds, self.outcome = 0.0, "passed"
        result = yield
        found = [place for place, byte in enumerate(self.map[:]) if byte]
        note = dict(test=item.nodeid, seconds=round(self.seconds, 3), outcome=self.outcome, executed=found)
        with open(self.notes, "a") as file:
            print(json.dumps(note), file=file)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds += report.duration
        if not report.passed:
            self.outcome = report.outcome


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before conftest.py imports the code that takes notes."""
    if folder := os.environ.get(NOTES):
        early_config.pluginmanager.register(Recorder(Path(folder)), "touchstone-executed")
