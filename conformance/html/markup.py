"""Pieces of HTML that the sections share."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from touchstone.conformance.html.records import Record

WRAPPED = ("case", "what")  # columns of long text


def source(records: Iterable[Record | str]) -> str:
    """Links to the records that a figure is made from."""
    names = dict.fromkeys(each if isinstance(each, str) else each.name for each in records)
    links = ", ".join(f'<a href="#record-{escape(name)}">{escape(name)}</a>' for name in names)
    return f'<p class="source">from {links}</p>'


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[str] = (), kind: str = "") -> str:
    """A table that scrolls sideways on a narrow screen. Cells are text; those of the columns `numbers` stand right,
    those of WRAPPED may take several lines."""
    classes = [" class=n" if name in numbers else " class=wide" if name in WRAPPED else "" for name in columns]

    def cell(tag: str, text: Any, of: int) -> str:
        return f"<{tag}{classes[of]}>{escape(str(text))}</{tag}>"

    head = "".join(cell("th", name, i) for i, name in enumerate(columns))
    body = "".join(f"<tr>{''.join(cell('td', text, i) for i, text in enumerate(row))}</tr>" for row in rows)
    return scroll(f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>')


def breakable(name: str) -> str:
    """A name with underscores, which may go on in another line behind each."""
    return escape(name).replace("_", "_<wbr>")


def scroll(body: str) -> str:
    return f'<div class="scroll" tabindex="0">{body}</div>'


def details(summary: str, body: str, open_: bool = False) -> str:
    return f"<details{' open' if open_ else ''}><summary>{escape(summary)}</summary>{body}</details>"
