"""What `--json` writes: one format for every command, for pytest, and for `report.to_json()`; docs/records.md.

`record.schema.json` beside this file is its JSON Schema, which `python -m touchstone schema` prints.
"""

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from touchstone.backends.storage import files
from touchstone.conformance.reporting import earlier
from touchstone.conformance.reporting.provenance import provenance
from touchstone.conformance.reporting.status import Status

if TYPE_CHECKING:
    from touchstone.conformance.reporting.report import Report

FORMAT = 2  # 1: what `bench` wrote before; other records of that time have no number
STDOUT = "-"  # in place of the name of a file
LONGEST = 4096  # characters of a message, a reason or a note
NOT_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
SCHEMA = Path(__file__).with_name("record.schema.json")
_kept: set[int] = set()  # descriptors of the real standard output, which no forked child is to have


@dataclass
class Record:
    """A record that is gathered while a command works, and written when it ends, however that is.

    `kind` is the command, or "pytest"; `words` what was typed; `entries` what records of this kind have besides.
    `path` says where it is written, "-" to `stream`; None: nowhere. `reports` are `Report`s or what their `to_dict`
    gives.
    """

    kind: str
    path: str | None = None
    words: Sequence[str] = ()
    stream: TextIO | None = None
    device: str = "cpu"
    level: str | None = None
    seed: int | None = None
    status: Status = Status.INTERRUPTED  # until it has ended
    reason: str | None = None
    reports: "list[Report | dict[str, Any]]" = field(default_factory=list)
    entries: dict[str, Any] = field(default_factory=dict)
    _about: dict[str, Any] | None = None

    @classmethod
    def of_report(cls, report: "Report") -> "Record":
        """That of one report, made by this process."""
        made = cls("check", words=[Path(word).name for word in ("python", sys.argv[0])] + sys.argv[1:])
        made.concerns(report.target.partition("@")[2], report.level, report.seed)
        made.reports.append(report)
        made.status, made.reason = Status.of(report.verdict), report.reason
        return made

    def concerns(self, device: str, level: str | None = None, seed: int | None = None) -> None:
        """Say on which device ("cpu", "cuda"), at which level and with which seed kernels are judged."""
        self.device, self.level, self.seed = device, level, seed

    @property
    def about(self) -> dict[str, Any]:
        """Command, date, commit, versions, machine; found out once."""
        if self._about is None:
            self._about = provenance(self.device, self.words)
        return self._about

    def to_dict(self) -> dict[str, Any]:
        """The record as docs/records.md describes it, numbers that are not finite still among them."""
        reports = [report if isinstance(report, dict) else report.to_dict() for report in self.reports]
        return {
            "format": FORMAT,
            "kind": self.kind,
            **self.about,
            "level": self.level,
            "seed": self.seed,
            "verdict": self.status.verdict,
            "status": int(self.status),
            "passed": self.status is Status.PASSED,
            "interrupted": self.status is Status.INTERRUPTED,
            "reason": capped(self.reason),
            "reports": reports,
            **self.entries,
        }

    def text(self, indent: int | None = 1) -> str:
        """As JSON; without `indent`, in one line."""
        return dumps(self.to_dict(), indent)

    def write(self) -> None:
        """Write it to its file, in one step: a run that is stopped leaves the last whole one, and of two that write
        one file at once the later record is there, whole. OSError where that cannot be done."""
        if self.path is not None and self.path != STDOUT:
            files.replace(self.path, self.text() + "\n")

    def end(self, status: Status) -> None:
        """The command ended with this status: write the record. Wrong usage leaves none."""
        self.status = status
        if status is Status.USAGE or self.path is None:
            return
        if self.path == STDOUT:
            assert self.stream is not None
            self.stream.write(self.text() + "\n")
            self.stream.flush()
        else:
            self.write()


def dumps(value: Any, indent: int | None = None) -> str:
    """JSON that every parser takes: a number that is not finite as the string "Infinity", "-Infinity" or "NaN", as
    Protocol Buffers have it; in ASCII, without lone surrogates."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def read(path: str | Path) -> Any:
    """What `dumps` wrote into a file, in the present form also where an earlier one was written: numbers that are not
    finite are numbers again. Raises OSError, and ValueError for what is no JSON."""
    found = _numbers(files.read_json(path))
    now = isinstance(found, dict) and found.get("format") == FORMAT
    return found if now else earlier.converted(found)


def read_lines(path: str | Path) -> list[Any] | None:
    """The records of a file of JSON Lines as `judge` writes it, numbers as `read` has them; a last line that a kill has
    torn is passed over. None: it is no such file. Raises OSError, and ValueError for a file that is too large."""
    *whole, last = files.read(path).split(b"\n")
    try:
        found = [_numbers(files.parsed(line)) for line in whole]
        found += [_numbers(files.parsed(last))] if not found and last.strip() else []
    except ValueError:
        return None
    of_judge = (isinstance(one, dict) and one.get("format") == FORMAT and one.get("kind") == "judge" for one in found)
    return found if found and all(of_judge) else None


@contextmanager
def of_one_form(what: str) -> Iterator[None]:
    """Within: a field of a record that is missing or of another form is a ValueError about `what`."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{what}: field {error.args[0]!r} is missing") from None
    except (TypeError, AttributeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"{what}: a field is of another form than Touchstone writes: {error}") from None


def capped(text: str | None) -> str | None:
    """A text of at most `LONGEST` characters, with a mark where some are left out."""
    return text if text is None or len(text) <= LONGEST else text[: LONGEST - 4] + " ..."


@contextmanager
def standard_output_kept() -> Iterator[TextIO]:
    """A stream to standard output that is this block's alone: what anything else prints there, child processes too,
    goes to standard error."""
    sys.stdout.flush()
    printed = sys.stdout
    kept, real = os.dup(1), _is_real(printed)
    _kept.add(kept)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr), _stream(kept) if real else _same(printed) as stream:
            yield stream
    finally:
        sys.stderr.flush()
        os.dup2(kept, 1)
        _kept.discard(kept)
        os.close(kept)


def _is_real(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except (OSError, AttributeError):
        return False


def _stream(descriptor: int) -> TextIO:
    return open(descriptor, "w", encoding="utf-8", closefd=False)


@contextmanager
def _same(stream: TextIO) -> Iterator[TextIO]:
    yield stream


def _close_kept() -> None:
    for descriptor in _kept:
        os.close(descriptor)
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_kept)


def _plain(value: Any) -> Any:
    """What JSON can hold."""
    if isinstance(value, str):
        return str(value).encode("utf-8", "backslashreplace").decode()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(str(name)): _plain(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else _name_of(number)
    return _plain(str(value))


def _name_of(number: float) -> str:
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value
