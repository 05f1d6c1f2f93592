"""What a run gave, as JSON and as a page: the score by room, and the survivors with their reasons."""

import platform
import textwrap
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.mutation.operators import Mutant
from tests.mutation.running import KILLED, SURVIVED, TIMED_OUT, Result

REASONS = Path(__file__).with_name("reasons.toml")
PACKAGES = ("torch", "triton", "numba-cuda", "numpy", "pytest")
PARTS = {
    "conformance/judging": "judging",
    "conformance/isolation": "isolation",
    "conformance/spec": "spec",
    "backends/emulator": "the emulator's Python",
    "backends/triton/runtime": "Triton's interpreter",
}


@dataclass(frozen=True)
class Reason:
    """Why a mutant survives. `equivalent`: because no test can tell it from the original."""

    file: str
    scope: str
    code: str
    change: str
    reason: str
    equivalent: bool = False


def reasons(path: Path = REASONS) -> dict[tuple[str, ...], Reason]:
    """Those that are known, by file, function, line of code and change. ValueError where one is not whole."""
    found: dict[tuple[str, ...], Reason] = {}
    for entry in tomllib.loads(path.read_text()).get("mutant", []):
        try:
            reason = Reason(**entry)
        except TypeError as error:
            raise ValueError(f"{path.name}: {entry}: {error}") from None
        found[reason.file, reason.scope, reason.code, reason.change] = reason
    return found


def reason_for(mutant: Mutant, known: Mapping[tuple[str, ...], Reason]) -> Reason | None:
    return known.get((mutant.path, mutant.scope, mutant.code, mutant.change))


def record(
    command: str,
    of: int,
    mutants: Sequence[Mutant],
    results: Mapping[str, Result],
    controls: Sequence[Result],
    seconds: float,
    processes: int,
) -> dict[str, Any]:
    """A run in plain types; `of`: how many mutants there are to draw from."""
    known = reasons()
    rows = []
    for mutant in mutants:
        if (result := results.get(mutant.id)) is None:
            continue
        row = {"file": mutant.path, "line": mutant.line, "in": mutant.scope, "operator": mutant.operator}
        row |= {"change": mutant.change, "code": mutant.code, **asdict(result)}
        if (why := reason_for(mutant, known)) is not None:
            row |= {"reason": why.reason, "equivalent": why.equivalent}
        rows.append(row)
    return {
        "command": command,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "processes": processes,
        "seconds": round(seconds),
        "of": of,
        "asked": len(mutants),
        "mutants": rows,
        "controls": [asdict(each) for each in controls],
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def score(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int, int, int]:
    """How many were killed by a failing test, were ended by time, survived, and are equivalent among those."""
    count = Counter(row["verdict"] for row in rows)
    equivalent = sum(row["verdict"] == SURVIVED and row.get("equivalent", False) for row in rows)
    return count[KILLED], count[TIMED_OUT], count[SURVIVED], equivalent


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def page(made: Mapping[str, Any]) -> str:
    """The page in Markdown."""
    rows: list[Mapping[str, Any]] = made["mutants"]
    killed, late, survived, equivalent = score(rows)
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    false = [each["id"] for each in made["controls"] if each["verdict"] != SURVIVED]
    noticed, whole = killed + late, len(rows)
    noticed, whole = killed + late, len(rows)
    lines = [
        "# Mutants of the judge",
        "",
        f"`{made['command']}`",
        f"on {made['processes']} processes in {made['seconds']} s; Python {made['python']}, {versions}.",
        "",
        _filled(
            f"Of {made['of']} possible changes to the judge's code {made['asked']} were drawn and {whole} run. Tests "
            f"noticed {noticed} ({percent(noticed, whole)}), {late} of them because a test did not end, and {survived} "
            f"not. {equivalent} of these are equivalent to the original: without them "
            f"{percent(noticed, whole - equivalent)}. Of {len(made['controls'])} controls, which are no change at all, "
            f"{len(false)} were taken for mutants."
        ),
        "",
        "| part | mutants | killed | timed out | survived | equivalent | score |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for folder, name in PARTS.items():
        some = [row for row in rows if row["file"].startswith(f"{folder}/")]
        a, b, c, d = score(some)
        if some:
            lines.append(f"| {name} | {len(some)} | {a} | {b} | {c} | {d} | {percent(a + b, len(some))} |")
    lines += ["", "## Survivors", ""]
    for row in rows:
        if row["verdict"] == SURVIVED:
            kind = "Equivalent: " if row.get("equivalent") else ""
            change = row["change"] if row["operator"] != "constant" else f"{row['code']}: {row['change']}"
            change = change.replace("`", "'")
            text = f"- `{row['file']}:{row['line']}`, {row['in'] or 'module'}, {row['operator']}: `{change}`"
            lines.append(_filled(f"{text} ({row['tests']} tests). {kind}{row.get('reason', 'No reason yet.')}", "  "))
    if false:
        lines += ["", "## Controls that failed", "", *(f"- `{name}`" for name in false)]
    return "\n".join(lines) + "\n"


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
