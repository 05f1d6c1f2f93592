"""Output that reads well in a terminal, in a file and in a CI log."""

import itertools
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import TextIO, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

T = TypeVar("T")
GAP = "  "  # between columns
NARROWEST = 8  # characters of a column that has to be wrapped within words
QUIET_SECONDS = 15.0  # between progress lines where there is no terminal
STYLES = {
    "passed": "green",
    "failed": "bold red",
    "declined": "yellow",
    "not run": "yellow",
    "no": "yellow",
    "yes": "green",
}


@dataclass
class Table:
    """A table with a title, as rows of strings; numbers are formatted by whoever makes the row."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)

    def plain(self, width: int | None = None) -> str:
        """Aligned text without colours or box drawing; cells are wrapped where a line is longer than `width`."""
        lines = [list(self.columns), *[[str(cell) for cell in row] for row in self.rows]]
        widths = _fitting([[line[i] for line in lines] for i in range(len(self.columns))], width)
        text = [self.title, *_wrapped(lines[0], widths), GAP.join("-" * n for n in widths)]
        for line in lines[1:]:
            text += _wrapped(line, widths)
        return "\n".join(text)

    def markdown(self) -> str:
        """The table without its title, in GitHub's form."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)

    def rich(self) -> RichTable:
        made = RichTable(title=self.title, title_justify="left", header_style="bold")
        for column in self.columns:
            made.add_column(column, overflow="fold")
        for row in self.rows:
            made.add_row(*[Text(str(cell), style=STYLES.get(str(cell), "")) for cell in row])
        return made


def _fitting(columns: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """The widths of columns: of the longest cell of each, or less where they have to fit into `width`.

    The widest is made narrower first, no column so narrow that a word has to be broken, unless nothing else helps.
    """
    widths = [max(1, *map(len, cells)) for cells in columns]  # a column may be empty
    words = [max((len(word) for cell in cells for word in cell.split()), default=1) for cells in columns]
    for least in (words, [min(NARROWEST, n) for n in words]):
        while width is not None and sum(widths) + len(GAP) * (len(widths) - 1) > width:
            wide = [i for i in range(len(widths)) if widths[i] > least[i]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _wrapped(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """A row as lines."""
    parts = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    return [
        GAP.join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip()
        for line in itertools.zip_longest(*parts, fillvalue="")
    ]


def width_of(terminal: bool) -> int | None:
    """How wide a line may be: as COLUMNS says, or as wide as the terminal, if it is one; None: as wide as it is."""
    return shutil.get_terminal_size().columns if terminal or os.environ.get("COLUMNS", "").isdigit() else None


def show(table: Table, file: TextIO | None = None, width: int | None = None) -> None:
    """Print a table: rich in a terminal; elsewhere plain, `width` wide where COLUMNS does not say otherwise."""
    console = Console(file=file or sys.stdout)
    if console.is_terminal:
        console.print(table.rich())
    else:
        print(table.plain(width_of(False) or width), file=file or sys.stdout)
    print(file=file or sys.stdout)


def fraction_text(fraction: float | None) -> str:
    """A fraction of the error budget: `0.31`; `-` where nothing was judged."""
    if fraction is None:
        return "-"
    return f"{fraction:.2f}" if fraction < 100 else f"{fraction:.2g}"


def progress(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Go through `items`, of which there are about `total` (None: their length); show how far it is on stderr: a bar in
    a terminal, else a line every 15 seconds."""
    if total is None:
        total = len(items) if isinstance(items, Sized) else 0
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            yield from bar.track(items, total=total, description=label)
        return
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last > QUIET_SECONDS:
            last = time.monotonic()
            print(f"{label}: {done} of {total}", file=sys.stderr, flush=True)
        yield item


def bullet_list(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)
