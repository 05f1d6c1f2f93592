"""The file of results: one record a line, appended whole, and read again by a run that goes on."""

import fcntl
import json
import math
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from touchstone.backends.storage import files
from touchstone.conformance.batch import seals
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.judging.judgement import FAILED, NOT_RUN, PARTIAL, PASSED
from touchstone.conformance.reporting.record import dumps

BEGINNING = b'{"format": '  # of every line
VERDICTS = (PASSED, FAILED, PARTIAL, NOT_RUN)
WAIT_SECONDS = 2.0  # for the file of a run that was killed just now
_open: set[int] = set()  # descriptors of such files, which no forked child is to have


@dataclass(frozen=True)
class Brief:
    """What a summary says of a result. `causes`: of each root cause its id and what it is, in a few words."""

    id: str
    verdict: str
    seconds: float
    causes: dict[str, str] = field(default_factory=dict)
    repeated: bool = False

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Brief":
        """Of a record, as `dumps` writes it or before. ValueError, KeyError or TypeError where it is no `judge`'s."""
        about = record["candidate"]
        texts = [about["id"], about["key"], record["reason"] or "", about["same_as"] or ""]
        if not all(isinstance(text, str) for text in texts) or record["verdict"] not in VERDICTS:
            raise ValueError("a result that `judge` did not write")
        if not (type(about["seconds"]) in (int, float) and 0 <= about["seconds"] < math.inf):
            raise ValueError("seconds that `judge` did not write")
        causes = {}
        for report in record["reports"]:
            messages = {finding["id"]: finding["message"] for finding in report["findings"]}
            for group in report["groups"]:
                if group["severity"] == "failure":
                    causes[str(group["id"])] = f"{group['check']}: {messages[group['example']]}"
        if not causes and record["reason"]:
            causes = {"": record["reason"]}
        return cls(about["id"], record["verdict"], about["seconds"], causes, about["same_as"] is not None)


class Results:
    """Where the lines go: `file`, or without one the stream. A context manager, which keeps other runs off the file.

    A line that was torn when a run was killed is dropped. `briefs`: the latest result of each (id, key) that the file
    has. Raises UsageError where the file holds anything else, a line without this user's seal too, or where another run
    writes it.
    """

    def __init__(self, file: Path | None, stream: TextIO | None = None):
        self.file, self.stream = file, stream
        self.briefs: dict[tuple[str, str], Brief] = {}
        self._places: dict[str, int] = {}  # key -> where the line of a result begins
        self._descriptor = -1

    def __enter__(self) -> "Results":
        if self.file is not None:
            try:
                self._descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise UsageError(f"--out: {self.file}: {error.strerror}") from None
            _open.add(self._descriptor)
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                self.__exit__()
                raise UsageError(f"--out: {self.file} is no plain file; without --out, lines go to standard output")
            try:
                self._lock()
                self._read()
            except BaseException as error:
                self.__exit__()
                if isinstance(error, BlockingIOError):
                    raise UsageError(f"--out: {self.file}: another run is writing it") from None
                raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._descriptor >= 0:
            _open.discard(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def add(self, record: dict[str, Any]) -> Brief:
        """Append a record. Raises OSError where there is no room; the file then ends with the last whole line."""
        sealed = json.loads(dumps(record))  # as it is read again
        sealed["candidate"]["seal"] = seals.seal(sealed)
        line = dumps(sealed) + "\n"
        brief = Brief.of(record)
        if self.stream is not None:
            self.stream.write(line)
            self.stream.flush()
        if self._descriptor >= 0:
            self._append(line.encode(), record["candidate"]["key"])
        self.briefs[brief.id, record["candidate"]["key"]] = brief
        return brief

    def of_key(self, key: str) -> dict[str, Any] | None:
        """The record of a candidate of this key, from the file."""
        if key not in self._places:
            return None
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(self._places[key])
            found: dict[str, Any] = json.loads(file.readline())
        return found

    def _lock(self) -> None:
        """Raises BlockingIOError where another process has the file."""
        until = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.05)

    def _append(self, data: bytes, key: str) -> None:
        begins = os.lseek(self._descriptor, 0, os.SEEK_END)
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError:
            os.ftruncate(self._descriptor, begins)
            raise
        self._places.setdefault(key, begins)

    def _read(self) -> None:
        whole = 0
        for number, begins, line in self._lines():
            torn = not line.endswith(b"\n") and (line.startswith(BEGINNING) or BEGINNING.startswith(line))
            try:
                record = files.parsed(line)
                about, brief = record["candidate"], Brief.of(record)
            except (ValueError, KeyError, TypeError):
                if torn and not _is_json(line):
                    break
                raise self._refused(number, "is no result of `judge`; give a file of its own") from None
            if not seals.sealed(record):
                raise self._refused(
                    number,
                    "this line does not have the seal of your `judge` (docs/judge.md), so it is not taken for a "
                    "result; give another file",
                )
            if torn:  # of its end alone
                break
            self.briefs[about["id"], about["key"]] = brief
            self._places.setdefault(about["key"], begins)
            whole = begins + len(line)
        os.ftruncate(self._descriptor, whole)

    def _refused(self, number: int, why: str) -> UsageError:
        return UsageError(f"--out: {self.file}:{number}: {why}")

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        begins = 0
        with open(self._descriptor, "rb", closefd=False) as file:
            for number, line in enumerate(file, 1):
                yield number, begins, line
                begins += len(line)


def _is_json(line: bytes) -> bool:
    try:
        files.parsed(line)
    except ValueError:
        return False
    return True


def _forget() -> None:
    for descriptor in _open:
        os.close(descriptor)
    _open.clear()


os.register_at_fork(after_in_child=_forget)
