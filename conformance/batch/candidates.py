"""Candidates, and the folders and files of JSON Lines that they are read from; docs/judge.md has the rules.

Everything is read before anything runs, and every mistake is told with its file, line and field.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import touchstone
from touchstone.backends.storage import files
from touchstone.conformance.batch import fields, functions
from touchstone.conformance.discovery import neighbours, registry
from touchstone.conformance.discovery.opfile import load_op_of_a_run
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.reporting.provenance import versions
from touchstone.conformance.reporting.record import FORMAT
from touchstone.conformance.reporting.source import digest
from touchstone.conformance.spec.returned import in_line
from touchstone.conformance.spec.words import not_one_of

LISTING = "candidates.jsonl"  # in a folder, the candidates that it holds
FIELDS = ("id", "op", "file", "source", "function", "language", *fields.OPTIONS)
SHOWN = 20  # mistakes in a message
_NAMES = re.compile(r"[\w.+-]+")


@dataclass(frozen=True)
class Text:
    """A Python file as it was read, or a text that needs no other file (no `path`). `beside`: the digests of files that
    may belong to it."""

    name: str
    text: str
    path: Path | None = None
    beside: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def placed(self, folder: Path) -> Path:
        """The file if it still holds this text, else one made in `folder`: the machine may be another one."""
        if self.path is not None and digest(self.path) == self.sha256:
            return self.path
        made = folder / self.name
        made.write_bytes(self.text.encode())
        return made


@dataclass(frozen=True)
class Settings:
    """How all candidates of a run are judged. `bench`: the shapes that those which pass are timed on, None: they are
    not."""

    device: str = "cpu"
    level: str = "quick"
    seed: int | None = None
    timeout: float = 60.0
    coverage: float | None = None
    untrusted: bool = True
    allow_library: bool = False
    bench: str | None = None


@dataclass(frozen=True)
class Candidate:
    """One kernel to be judged: a function of a text, as an op. `options` are those of `check` that its line sets.
    `instead`: the op's name, where the text does not define it and its only function that fits was taken."""

    id: str
    op: str
    source: Text
    function: str
    op_file: Text | None = None
    language: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    instead: str | None = None

    def key(self, settings: Settings) -> str:
        """The digest of all that its result depends on, its id apart: candidates of one key are judged once."""
        content = [
            [FORMAT, _judge()],
            [self.op, self.op_file and _all_of(self.op_file)],
            [_all_of(self.source), self.function, self.instead],
            [dict(self.options), vars(settings)],
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@functools.cache
def _judge() -> list[Any]:
    """Touchstone's source, and the versions of what it judges with."""
    whole = Path(touchstone.__file__).parent
    parts = [path for path in sorted(whole.iterdir()) if path.suffix == ".py" or (path / "__init__.py").exists()]
    return [{path.name: digest(path) for path in parts}, versions()]


def _all_of(source: Text) -> list[Any]:
    """Of a file that is judged where it lies, the place too: there it may find what others do not."""
    return [source.sha256, source.path and str(source.path), dict(source.beside)]


def _text(path: Path, in_place: bool) -> Text:
    """A file; unless `in_place`, one that neither imports what lies beside it nor asks where it lies is judged by its
    text, without it. Raises OSError and ValueError."""
    text = files.read(path, neighbours.LARGEST).decode()
    imported = neighbours.imported(path)
    if not (in_place or imported or neighbours.asks_for_its_place(text)):
        return Text(path.name, text)
    named = {path.parent / name for name in _NAMES.findall(text) if "." in name}
    named |= {Path(entry.path) for entry in os.scandir(path.parent) if entry.name.startswith(f"{path.stem}.")}
    there = {*imported, *(each for each in named if each.is_file())} - {path}
    return Text(path.name, text, path, {os.path.relpath(each, path.parent): digest(each) for each in sorted(there)})


def read(places: Sequence[str], level: str) -> list[Candidate]:
    """The candidates of folders and files of JSON Lines, in their order.

    Raises UsageError that names file, line and field of each mistake, and where there is no candidate or two have one
    id.
    """
    reader = _Reader(level)
    for place in map(Path, places):
        if place.is_dir() and (place / LISTING).is_file():
            reader.lines(place / LISTING)
        elif place.is_dir():
            reader.folder(place)
        elif place.is_file():
            reader.lines(place)
        else:
            reader.mistakes.append(f"{place}: there is no such file or folder")
    mistakes = reader.mistakes
    if mistakes:
        more = [f"... and {len(mistakes) - SHOWN} more"] if len(mistakes) > SHOWN else []
        raise UsageError("CANDIDATES:\n" + "\n".join(mistakes[:SHOWN] + more))
    if not reader.found:
        raise UsageError(f"CANDIDATES: {', '.join(places)}: there is no candidate; expected OP/NAME.py or {LISTING}")
    return list(reader.found.values())


class _Reader:
    """Gathers candidates by id, and mistakes."""

    def __init__(self, level: str):
        self.level = level
        self.found: dict[str, Candidate] = {}
        self.mistakes: list[str] = []
        self._places: dict[str, str] = {}  # id -> where it stands

    def folder(self, root: Path) -> None:
        """OP/NAME.py is a candidate for OP, and OP.py an op of the user's own."""
        for folder in sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))):
            paths = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
            own = root / f"{folder.name}.py"
            for path in paths:
                line = {"id": f"{folder.name}/{path.stem}", "op": str(own) if own.is_file() else folder.name}
                self._take(line | {"file": path.name}, in_line(str(path)), folder)

    def lines(self, path: Path) -> None:
        """One object a line."""
        try:
            texts = files.read(path).decode().split("\n")
        except (OSError, ValueError) as error:
            self.mistakes.append(f"{path}: cannot be read: {error}")
            return
        for number, text in enumerate(texts, 1):
            if not text.strip():
                continue
            where = f"{path}:{number}"
            try:
                line = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
            except (ValueError, RecursionError) as error:
                self.mistakes.append(f"{where}: expected one JSON object: {error}")
                continue
            if not isinstance(line, dict):
                self.mistakes.append(f"{where}: expected one JSON object, got {type(line).__name__}")
                continue
            self._take({"id": f"{path.stem}:{number}", **line}, where, path.parent)

    def _take(self, line: dict[str, Any], where: str, folder: Path) -> None:
        before = len(self.mistakes)
        self.mistakes += [f"{where}: field {what}" for what in fields.unlike(line, FIELDS)]
        if len(self.mistakes) > before:
            return
        try:
            made = _made(line, folder, self.level)
        except ValueError as error:
            self.mistakes.append(f"{where}: field {error}")
            return
        if made.id in self.found:
            self.mistakes.append(f"{where}: field 'id': {made.id!r} is that of {self._places[made.id]} too")
            return
        self.found[made.id], self._places[made.id] = made, where


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"field {next(name for name in names if names.count(name) > 1)!r} is there more than once")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _made(line: Mapping[str, Any], folder: Path, level: str) -> Candidate:
    """Raises ValueError that begins with the name of the field."""
    op, op_file = _op(line["op"], folder)
    contract = registry.contract(op)
    if ("file" in line) == ("source" in line):
        raise ValueError("'file': give either 'file' or 'source'")
    source = _file(line["file"], folder, "file") if "file" in line else Text("candidate.py", line["source"])
    options = fields.options(line, contract, level)
    function = line.get("function") or functions.meant(source.text, contract)
    instead = None if line.get("function") or function == contract.name else contract.name
    return Candidate(line["id"], op, source, function, op_file, line.get("language"), options, instead)


def _op(name: str, folder: Path) -> tuple[str, Text | None]:
    if not name.endswith(".py"):
        if name not in registry.ops():
            raise ValueError(f"'op': {not_one_of(name, registry.ops())}")
        return name, None
    file = _file(name, folder, "op")
    assert file.path is not None
    try:
        known = registry.op_file(file.path.stem)
        return (file.path.stem if known == file.path else load_op_of_a_run(file.path)), file
    except ValueError as error:
        raise ValueError(f"'op': {error}") from None


def _file(name: str, folder: Path, of: str) -> Text:
    try:
        return _text(Path(os.path.realpath(folder / name)), in_place=of == "op")  # a loop of links is told by reading
    except (OSError, ValueError) as error:
        no_text = isinstance(error, UnicodeError)
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8" if no_text else str(error)
        raise ValueError(f"'{of}': {in_line(name)}: {why}") from None


def each_once(candidates: Sequence[Candidate], settings: Settings) -> Iterator[tuple[str, list[Candidate]]]:
    """Candidates by key, in order."""
    found: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        found.setdefault(candidate.key(settings), []).append(candidate)
    return iter(found.items())
