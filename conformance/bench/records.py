"""Records of a bench: what was measured, on what, from which commit, by which command; and two of them compared."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from touchstone.conformance.bench.ceilings import Ceilings
from touchstone.conformance.bench.group import Result
from touchstone.conformance.reporting import earlier
from touchstone.conformance.reporting.console import Table

FORMAT = 1
NOISE = 0.02  # changes below this are noise, whatever the quartiles say
SPREADS = 1.5  # and so are those below so many interquartile ranges of both
COLUMNS = (
    "op",
    "mode",
    "target",
    "name",
    "kind",
    "dtype",
    "sizes",
    "params",
    "cache",
    "status",
    "ms",
    "q1",
    "q3",
    "count",
    "host_ms",
    "tflops",
    "gbps",
    "fraction",
    "bound",
    "peak_bytes",
    "registers",
    "spills",
    "shared",
    "worst",
    "problems",
)


def row(result: Result, samples: bool = True) -> dict[str, Any]:
    """A result as JSON has it; numbers only where it was measured."""
    taken = result.stats
    made: dict[str, Any] = {
        name: getattr(result, name)
        for name in (
            "op",
            "mode",
            "target",
            "name",
            "kind",
            "dtype",
            "sizes",
            "params",
            "cache",
            "status",
            "problems",
            "notes",
            "compute",
            "ms",
            "host_ms",
            "tflops",
            "gbps",
            "fraction",
            "ratios",
            "peak_bytes",
            "resources",
            "clocks",
            "worst",
        )
    }
    made |= (
        {"q1": None, "q3": None, "least": None, "count": None}
        if taken is None
        else {"q1": taken.q1, "q3": taken.q3, "least": taken.least, "count": taken.count}
    )
    made["roof"] = None if result.roof is None else asdict(result.roof)
    if samples:
        made["samples_ms"] = [round(1e3 * s, 6) for s in result.seconds]
    return made


def record(
    about: Mapping[str, Any], ceilings: Ceilings | None, results: Sequence[Result], left_out: Mapping[str, str]
) -> dict[str, Any]:
    """The whole run, as `write` puts it into a file."""
    return {
        "format": FORMAT,
        **about,
        "ceilings": None if ceilings is None else ceilings.to_dict(),
        "left_out": dict(left_out),
        "results": [row(result) for result in results],
    }


def write(path: str | Path, whole: Mapping[str, Any]) -> None:
    """As JSON, in one step: a run that is stopped leaves the last whole file."""
    target = Path(path)
    partly = target.with_name(target.name + ".part")
    partly.write_text(json.dumps(_plain(whole), indent=1) + "\n")
    partly.replace(target)


def _plain(value: Any) -> Any:
    """What JSON can hold: no NaN, no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def write_csv(path: str | Path, results: Sequence[Result]) -> None:
    """One line per contestant."""
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for result in results:
            made = {**row(result, samples=False), **(result.resources or {})}
            made["bound"] = result.roof.bound if result.roof else None
            made["problems"] = "; ".join(result.problems)
            for name in ("sizes", "params"):
                made[name] = " ".join(f"{letter}={value}" for letter, value in made[name].items())
            writer.writerow(["" if made.get(name) is None else made[name] for name in COLUMNS])


def read(path: str | Path) -> dict[str, Any]:
    """A record written by `write`. Raises ValueError that says what the file is not."""
    try:
        found = earlier.converted(json.loads(Path(path).read_text()))
    except OSError as error:
        raise ValueError(f"--compare: {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"--compare: {path} is no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("results"), list):
        raise ValueError(f"--compare: {path} is no record of `bench --json` of format {FORMAT}")
    return found


def key(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """What makes two rows the same measurement."""
    names = ("op", "mode", "target", "name", "dtype", "sizes", "params", "cache")
    return tuple(json.dumps(entry.get(name), sort_keys=True) for name in names)


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Table, list[str]]:
    """The rows whose time changed beyond noise, slower first, and remarks: other machines, rows without a
    counterpart."""
    before = {key(entry): entry for entry in old["results"]}
    after = {key(entry): entry for entry in new["results"]}
    changes, within, lost = [], 0, []
    for name, entry in after.items():
        was = before.get(name)
        if was is None or (was["ms"] is None and entry["ms"] is None):
            continue
        if was["ms"] is None or entry["ms"] is None:
            lost.append(f"{_label(entry)}: was {was['status']}, is {entry['status']}")
            continue
        change = entry["ms"] / was["ms"] - 1
        if abs(change) > noise(was, entry):
            changes.append((change, was, entry))
        else:
            within += 1
    table = Table("changes beyond noise", ["what", "old ms", "new ms", "change", "noise"])
    for change, was, entry in sorted(changes, key=lambda found: -found[0]):
        cells = [f"{was['ms']:.4g}", f"{entry['ms']:.4g}", f"{100 * change:+.1f} %", f"{100 * noise(was, entry):.1f} %"]
        table.rows.append([_label(entry), *cells])
    remarks = [f"{len(changes)} changed beyond noise, {within} did not", *lost]
    for where, (one, other) in {"only in OLD": (before, after), "only in NEW": (after, before)}.items():
        alone = [_label(entry) for name, entry in one.items() if name not in other]
        remarks += (
            [f"{where}: {len(alone)} ({', '.join(alone[:3])}{', ...' if len(alone) > 3 else ''})"] if alone else []
        )
    for what in ("machine", "versions"):
        differing = [n for n in {*old[what], *new[what]} if old[what].get(n) != new[what].get(n)]
        remarks += [f"{what}, {n}: {old[what].get(n)} -> {new[what].get(n)}" for n in sorted(differing)]
    return table, remarks


def noise(was: Mapping[str, Any], entry: Mapping[str, Any]) -> float:
    """The relative change that two measurements may show for nothing."""
    spreads = [(each["q3"] - each["q1"]) / each["ms"] for each in (was, entry)]
    return max(NOISE, SPREADS * math.hypot(*spreads))


def _label(entry: Mapping[str, Any]) -> str:
    sizes = "x".join(str(n) for n in entry["sizes"].values())
    params = "".join(f" {name}={value}" for name, value in entry["params"].items() if value not in (None, False))
    mode = "" if entry["mode"] == "fwd" else f" {entry['mode']}"
    return f"{entry['op']}{mode} {entry['target']} {entry['name']} {entry['dtype']} {sizes}{params}"
