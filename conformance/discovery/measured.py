"""How fast the variants of an op are on an architecture: what was measured, in a table that `touchstone tune --best`
writes.

A table is backends/<backend>/best/<arch>/<op>.json: the records that it is made from, and points. A point is one case
(dtype, sizes, parameters, and the layouts of operands that do not lie as the contract's first has it) and the
milliseconds of each variant, all of one run, in which they took turns: only there do ratios mean something.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from touchstone.backends.storage import files
from touchstone.conformance.discovery import registry

FORMAT = 1
ABOUT = ("gpu", "date", "command", "commit", "versions")  # what a table says of each record
APART = 0.95  # of two times from different runs: below it one is clearly the shorter


@dataclass(frozen=True)
class Point:
    """Variants timed in turns on one case."""

    dtype: str
    sizes: Mapping[str, Any]
    params: Mapping[str, Any]
    layouts: Mapping[str, str]
    ms: Mapping[str, float]  # by variant, the fastest first
    record: int  # its place in the table's records

    @property
    def case(self) -> str:
        """Equal for points of the same case."""
        return json.dumps([self.dtype, self.sizes, self.params, self.layouts], sort_keys=True)

    def __str__(self) -> str:
        given = {**self.sizes, **{name: value for name, value in self.params.items() if value not in (None, False)}}
        words = [f"{name}={_text(value)}" for name, value in {**given, **self.layouts}.items()]
        return " ".join([self.dtype, *words])


@dataclass(frozen=True)
class Table:
    """What was measured of an op's ladder in a backend on an architecture."""

    op: str
    backend: str
    arch: str
    records: Sequence[Mapping[str, Any]] = field(default=())
    points: Sequence[Point] = field(default=())

    @property
    def path(self) -> Path:
        return path_of(self.op, self.backend, self.arch)

    def text(self) -> str:
        """As JSON, with a line for each record and each point."""
        head = {"format": FORMAT, "op": self.op, "backend": self.backend, "arch": self.arch}
        lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        listed: dict[str, list[Any]] = {"records": list(self.records), "points": [vars(point) for point in self.points]}
        for name, rows in listed.items():
            inside = ",\n".join(f"  {json.dumps(row)}" for row in rows)
            lines.append(f' "{name}": [\n{inside}\n ]')
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def merged(self, other: "Table") -> "Table":
        """The points of both; of two of one case the newer, unless it lacks the variant that was the fastest and has no
        other that is clearly faster."""
        records = list(self.records)
        places = []
        for about in other.records:
            if about not in records:
                records.append(about)
            places.append(records.index(about))
        found: dict[str, Point] = {}
        for point in [*self.points, *(replace(each, record=places[each.record]) for each in other.points)]:
            before = found.get(point.case, point)
            older, newer = sorted((before, point), key=lambda each: records[each.record]["date"])
            least = min(older.ms, key=lambda name: older.ms[name])
            beaten = min(newer.ms.values()) < APART * older.ms[least]
            found[point.case] = newer if beaten or least in newer.ms else older
        kept = sorted({point.record for point in found.values()}, key=lambda place: records[place]["date"])
        points = [replace(point, record=kept.index(point.record)) for _, point in sorted(found.items(), key=_order)]
        return replace(self, records=[records[place] for place in kept], points=points)

    def write(self) -> None:
        """Write the table to its file, in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(self.path, self.text())


def path_of(op: str, backend: str, arch: str) -> Path:
    """Where the table lies."""
    return registry.ROOT / "backends" / backend / "best" / arch / f"{op}.json"


def architectures(op: str, backend: str) -> list[str]:
    """Those for which there is a table."""
    return sorted(path.parent.name for path in path_of(op, backend, "*").parent.parent.glob(f"*/{op}.json"))


def table(op: str, backend: str, arch: str) -> Table | None:
    """The table of an op, None where nothing was measured. Raises ValueError that names the file and what is wrong with
    it."""
    path = path_of(op, backend, arch)
    if not path.is_file():
        return None
    shown = path.relative_to(registry.ROOT)
    try:
        return _checked(files.read_json(path), Table(op, backend, arch))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"{shown} is no table of what was measured: {why}; `touchstone tune --best` writes it"
        ) from None


def _checked(found: Any, empty: Table) -> Table:
    head = {"format": FORMAT, "op": empty.op, "backend": empty.backend, "arch": empty.arch}
    for name, value in head.items():
        if found[name] != value:
            raise ValueError(f"{name}: expected {value!r}, got {found[name]!r}")
    for about in found["records"]:
        if not set(ABOUT) <= about.keys():
            raise ValueError(f"records: one lacks {', '.join(name for name in ABOUT if name not in about)}")
    points = []
    for entry in found["points"]:
        sizes = {name: _size(value) for name, value in entry["sizes"].items()}
        point = Point(**{each.name: entry[each.name] for each in fields(Point)} | {"sizes": sizes})
        if point.record not in range(len(found["records"])):
            raise ValueError(f"record: there is no number {point.record!r}")
        if not point.ms or not all(isinstance(ms, float | int) and ms > 0 for ms in point.ms.values()):
            raise ValueError(f"ms: expected milliseconds by variant, got {point.ms!r}")
        points.append(point)
    return replace(empty, records=found["records"], points=points)


def _size(value: Any) -> Any:
    """A size as a contract has it, from JSON, which has no tuples."""
    size = tuple(value) if isinstance(value, list) else value
    if not all(isinstance(n, int) for n in (size if isinstance(size, tuple) else (size,))):
        raise ValueError(f"sizes: expected whole numbers, got {value!r}")
    return size


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _order(item: tuple[str, Point]) -> tuple[Any, ...]:
    """By dtype, parameters and layouts, then from small sizes to large."""
    case, point = item
    flat = [n for size in point.sizes.values() for n in (size if isinstance(size, tuple | list) else (size,))]
    return point.dtype, json.dumps([point.params, point.layouts], sort_keys=True), flat, case
