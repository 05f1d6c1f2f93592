"""What is known of a kernel: cases to skip, and failures that are expected, in a TOML file that is kept with it.

An entry names an op, a condition on its cases (`condition`, as `--where` has it) and the reason:

    [[skip]]
    op = "softmax"
    where = "cols > 4096"
    reason = "minutes in the interpreter"

    [[expected]]
    op = "softmax"
    where = "dtype == 'float16' and values == 'steep'"
    check = "values"  # optional: only findings of this check
    reason = "ticket 12"
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import Case, Contract
from touchstone.conformance.spec.narrowing import condition
from touchstone.conformance.spec.words import not_one_of

FIELDS = {"skip": ("op", "where", "reason"), "expected": ("op", "where", "reason", "check")}


@dataclass(frozen=True)
class Rule:
    """An entry: the cases that it is about, why, and of which check the findings are expected (None: any)."""

    where: Callable[[Case], bool]
    reason: str
    check: str | None = None


@dataclass(frozen=True)
class Known:
    """The entries of a file that are about one op."""

    skip: tuple[Rule, ...] = ()
    expected: tuple[Rule, ...] = ()


def read(path: str | Path, contract: Contract) -> Known:
    """The entries about `contract`. ValueError names the file, the entry and its field where one is wrong."""
    try:
        content = tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:  # of its encoding, its TOML, or a number of too many digits
        raise ValueError(f"known: {path} cannot be read: {error}") from None
    except RecursionError:
        raise ValueError(f"known: {path} cannot be read: its lists and tables are nested too deeply") from None
    if unknown := set(content) - set(FIELDS):
        raise ValueError(f"known: {path}: {not_one_of(min(unknown), list(FIELDS))}")
    return Known(*(tuple(_rules(path, kind, content.get(kind, []), contract)) for kind in FIELDS))


def _rules(path: str | Path, kind: str, entries: Any, contract: Contract) -> list[Rule]:
    if not isinstance(entries, list):
        raise ValueError(f"known: {path}: expected tables [[{kind}]], got {kind} = {entries!r}")
    found = []
    for number, entry in enumerate(entries, 1):
        try:
            rule = _rule(kind, entry, contract)
        except ValueError as error:
            raise ValueError(f"known: {path}, {kind} {number}: {error}") from None
        found += [rule] if rule is not None else []
    return found


def _rule(kind: str, entry: Any, contract: Contract) -> Rule | None:
    """None for another op's."""
    if not isinstance(entry, dict):
        raise ValueError(f"expected a table, got {entry!r}")
    for field in entry:
        if field not in FIELDS[kind]:
            raise ValueError(not_one_of(field, list(FIELDS[kind])))
    for field in ("op", "where", "reason", *(["check"] if "check" in entry else [])):
        if not isinstance(entry.get(field), str) or not entry[field].strip():
            raise ValueError(f"{field}: expected a text, got {entry.get(field)!r}")
    reason = " ".join(entry["reason"].split())
    if not reason.isprintable():
        raise ValueError(f"reason: expected printable text, got {entry['reason']!r}")
    if entry["op"] != contract.name:
        return None
    if entry.get("check") is not None and entry["check"] not in list(map(str, Check)):
        raise ValueError(f"check: {not_one_of(entry['check'], list(map(str, Check)))}")
    try:
        return Rule(condition(entry["where"], contract), reason, entry.get("check"))
    except ValueError as error:
        raise ValueError(f"where: {error}") from None
