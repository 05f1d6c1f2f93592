"""Output that reads well in a terminal, in a file and in a CI log."""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

T = TypeVar("T")
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

    def plain(self) -> str:
        """Aligned text without colours or box drawing."""
        lines = [list(self.columns), *[[str(cell) for cell in row] for row in self.rows]]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([self.title, text[0], "  ".join("-" * width for width in widths), *text[1:]])

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


def show(table: Table, file: TextIO | None = None) -> None:
    """Print a table: rich in a terminal, plain elsewhere."""
    console = Console(file=file or sys.stdout)
    if console.is_terminal:
        console.print(table.rich())
    else:
        print(table.plain(), file=file or sys.stdout)
    print(file=file or sys.stdout)


def fraction_text(fraction: float | None) -> str:
    """A fraction of the error budget: `0.31`; `-` where nothing was judged."""
    if fraction is None:
        return "-"
    return f"{fraction:.2f}" if fraction < 100 else f"{fraction:.2g}"


def progress(items: Sequence[T], label: str) -> Iterator[T]:
    """Go through `items`; show how far it is on stderr: a bar in a terminal, else a line every 15 seconds."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            yield from bar.track(items, description=label)
        return
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last > QUIET_SECONDS:
            last = time.monotonic()
            print(f"{label}: {done} of {len(items)}", file=sys.stderr, flush=True)
        yield item


def write_json(path: str | Path, record: Any) -> None:
    Path(path).write_text(json.dumps(record, indent=1, default=str) + "\n")


def bullet_list(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)
