"""What is said while candidates are judged, and at the end."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from touchstone.conformance.batch.results import Brief
from touchstone.conformance.judging.judgement import FAILED, NOT_RUN, PARTIAL, PASSED
from touchstone.conformance.reporting.console import QUIET_SECONDS, Table, show
from touchstone.conformance.reporting.status import Status

SHOWN = 5  # candidates, causes
WIDEST = 100  # characters of a cause
OFTEN_SECONDS = 0.2  # between two renewals of a terminal's line
ERASE = "\r\x1b[K"
DECIDING = (FAILED, NOT_RUN, PARTIAL, PASSED)


class Progress:
    """How far a run is, how fast, and how long it will take, on stderr: one line that is renewed in a terminal, else a
    line from time to time."""

    def __init__(self, total: int, stream: TextIO | None = None):
        self.total, self.stream = total, stream or sys.stderr
        self.began = self._last = time.monotonic()
        self._terminal = self.stream.isatty()

    def __call__(self, briefs: Sequence[Brief], known: int) -> None:
        now = time.monotonic()
        if now - self._last < (OFTEN_SECONDS if self._terminal else QUIET_SECONDS):
            return
        self._last = now
        text = told(briefs, known, self.total, now - self.began)
        print(f"{ERASE}{text}" if self._terminal else text, end="" if self._terminal else "\n", file=self.stream)
        self.stream.flush()

    def end(self) -> None:
        if self._terminal:
            print(ERASE, end="", file=self.stream, flush=True)


def told(briefs: Sequence[Brief], known: int, total: int, seconds: float) -> str:
    """ "judge: 120 of 2000, 37 failed; 1.4 a second, 22 min left"."""
    counts = Counter(brief.verdict for brief in briefs)
    others = [f"{counts[verdict]} {verdict}" for verdict in DECIDING if counts[verdict] and verdict != PASSED]
    done, rate = len(briefs) - known, (len(briefs) - known) / seconds if seconds else 0.0
    pace = f"{_rate(rate)}, {_time((total - len(briefs)) / rate)} left" if done else "none ended yet"
    return f"judge: {', '.join([f'{len(briefs)} of {total}', *others])}; {pace}"


def _rate(each_second: float) -> str:
    return f"{each_second:.1f} a second" if each_second >= 1 else f"{60 * each_second:.1f} a minute"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def summary(briefs: Sequence[Brief], known: int, seconds: float, file: TextIO) -> None:
    """Tables: how many of each verdict, the slowest, the root causes that most have."""
    counts = Counter(brief.verdict for brief in briefs)
    table = Table(f"{len(briefs)} candidates", ["verdict", "candidates", "share"])
    table.rows = [[name, str(n), f"{n / len(briefs):.1%}"] for name in DECIDING[::-1] if (n := counts[name])]
    show(table, file)
    if found := causes(briefs)[:SHOWN]:
        show(Table("root causes of most candidates", ["candidates", "id", "for instance", "what"], found), file)
    slow = sorted((brief for brief in briefs if not brief.repeated), key=lambda brief: -brief.seconds)[:SHOWN]
    rows: list[Sequence[str]] = [[f"{brief.seconds:.1f}", brief.id, brief.verdict] for brief in slow]
    show(Table("slowest", ["seconds", "candidate", "verdict"], rows), file)
    again = sum(brief.repeated for brief in briefs)
    done = len(briefs) - known
    print(
        f"{done} results in {seconds:.0f} s ({_rate(done / seconds)}); {known} were there before, {again} are those of "
        "identical candidates",
        file=file,
    )


def causes(briefs: Sequence[Brief]) -> list[Sequence[str]]:
    """Rows: how many candidates have a root cause, its id, one of them, what it is."""
    having: dict[tuple[str, str], list[Brief]] = {}
    for brief in briefs:
        for identifier, text in brief.causes.items():
            having.setdefault((identifier, "" if identifier else text), []).append(brief)
    largest = sorted(having.items(), key=lambda item: -len(item[1]))
    return [
        [str(len(those)), identifier or "-", those[0].id, _short(those[0].causes[identifier])]
        for (identifier, _), those in largest
    ]


def _short(text: str) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= WIDEST else line[: WIDEST - 4] + " ..."


def status(briefs: Sequence[Brief]) -> Status:
    """Of many candidates a failure decides, then one that was not judged, then what is partial."""
    found = {brief.verdict for brief in briefs}
    return Status.of(next(verdict for verdict in DECIDING if verdict in found))
