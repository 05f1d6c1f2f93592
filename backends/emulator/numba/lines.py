"""Places in Python files: what debug information says, and the numbers that stand for them in the engine's reports."""

import ctypes
import functools
import importlib.util
import os
import re
from typing import Any

SITE = 6073470532629640704  # stands for the number of a line until that is known
BLOCK = re.compile(r'^("[^"]*"|[\w.$-]+):(?:.*; preds = (.*))?$')
DBG = re.compile(r"!dbg !(\d+)")


class _Site(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("line", ctypes.c_int64)]


class Sites:
    """Numbers for places in Python files; 0 is none."""

    def __init__(self) -> None:
        self.places: list[tuple[str, int]] = [("unknown", 0)]
        self._table: Any = None

    def add(self, places: list[tuple[str, int]]) -> int:
        """The number of the first; the others follow."""
        self.places += places
        return len(self.places) - len(places)

    def publish(self, support: ctypes.CDLL) -> None:
        if self._table is None or len(self._table) < len(self.places):
            self._table, self._published = (_Site * (2 * len(self.places)))(), 0
            support.tsn_sites(self._table)
        for i in range(self._published, len(self.places)):
            file, line = self.places[i]
            self._table[i] = _Site(file.encode(), line)
        self._published = len(self.places)


sites = Sites()


@functools.cache
def _numba_folders() -> tuple[str, ...]:
    """Where Numba's own functions lie, whose lines tell a user nothing."""
    found = (importlib.util.find_spec(name) for name in ("numba", "numba_cuda"))
    return tuple(os.path.join(folder, "") for spec in found if spec for folder in spec.submodule_search_locations or ())


class Lines:
    """From the numbers of debug locations to places in files."""

    def __init__(self, text: str) -> None:
        self._nodes: dict[str, str] = dict(re.findall(r"^!(\d+) = (.+)$", text, re.M))
        self._files: dict[str, str] = {}
        self._places: dict[str, tuple[str, int]] = {}

    def _field(self, node: str, name: str) -> str | None:
        found = re.search(rf"\b{name}: !?(\"[^\"]*\"|\w+)", self._nodes.get(node, ""))
        return found[1].strip('"') if found else None

    def _file(self, scope: str | None) -> str:
        while scope is not None:
            if scope in self._files:
                return self._files[scope]
            node = self._field(scope, "file")
            if node:
                path = os.path.join(self._field(node, "directory") or "", self._field(node, "filename") or "unknown")
                self._files[scope] = path
                return path
            scope = self._field(scope, "scope")
        return "unknown"

    def of(self, number: str) -> tuple[str, int]:
        """The innermost place that is not Numba's own."""
        if number not in self._places:
            at: str | None = number
            place, first = ("unknown", 0), None
            while at is not None:
                line = int(self._field(at, "line") or 0)
                place = (self._file(self._field(at, "scope")), line)
                first = first or place
                if line and not place[0].startswith(_numba_folders()):
                    break
                at = self._field(at, "inlinedAt")
            else:
                place = first or place
            self._places[number] = place
        return self._places[number]


class Merged:
    """Of stores at the ends of several branches, which LLVM has made one where these meet, under line 0: the lines at
    the ends of those."""

    def __init__(self, text: str, lines: Lines) -> None:
        self._text, self._lines = text, lines

    @functools.cached_property
    def _blocks(self) -> dict[tuple[int, str], tuple[list[str], list[str]]]:
        """By function and name, which blocks come before a block, and its locations."""
        found: dict[tuple[int, str], tuple[list[str], list[str]]] = {}
        function, here = 0, ([""], [""])
        for line in self._text.splitlines():
            if line.startswith("define"):
                function += 1
                here = found[function, ""] = [], []
            elif block := BLOCK.match(line):
                here = found[function, block[1]] = [name.strip()[1:] for name in (block[2] or "").split(",")], []
            elif location := DBG.search(line):
                here[1].append(location[1])
        return found

    def of(self, function: int, block: str, place: tuple[str, int]) -> tuple[str, int]:
        """A place without a line in a block, with the lines of the branches that end there: all in its own file, else
        it stays as it is."""
        before = self._blocks.get((function, block), ([], []))[0]
        ends = [self._end(function, name) for name in before]
        if len(ends) < 2 or any(end is None or end[0] != place[0] or not end[1] for end in ends):
            return place
        numbers = sorted({end[1] for end in ends if end is not None})
        if len(numbers) == 1:
            return place[0], numbers[0]
        return f"{place[0]}:{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}", 0

    def _end(self, function: int, block: str) -> tuple[str, int] | None:
        """The place of the last instruction of a block that has one; an unnamed first block comes as a number."""
        known = self._blocks.get((function, block)) or self._blocks.get((function, ""), ([], []))
        places = map(self._lines.of, reversed(known[1]))
        return next((place for place in places if place[1]), None)
