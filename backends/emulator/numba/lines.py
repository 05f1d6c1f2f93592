"""Places in Python files: what debug information says, and the numbers that stand for them in the engine's reports."""

import ctypes
import functools
import importlib.util
import os
import re
from typing import Any

SITE = 6073470532629640704  # stands for the number of a line until that is known


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
