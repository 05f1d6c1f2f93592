"""Records of a bench: what was measured, on what, from which commit, by which command; and two of them compared."""

import csv
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from touchstone.conformance.bench.ceilings import Ceilings
from touchstone.conformance.bench.group import AGAIN, MEASURED, REFUSED, Result
from touchstone.conformance.bench.timing import stats
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging.judgement import FAILED, PASSED, Finding, Outcome
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.reporting import record
from touchstone.conformance.reporting.console import Table
from touchstone.conformance.reporting.report import Report, empty
from touchstone.conformance.spec.compare import worst
from touchstone.conformance.spec.returned import in_line

EARLIER = 1  # the format of a bench's records before every command had the same
STATUS = {MEASURED: PASSED, REFUSED: FAILED}  # of an outcome; the others have the same names
Key = tuple[str, str, str]  # op, target, name
SEED = 0  # of the timed cases
NOISE = 0.02  # changes below this are noise, whatever the quartiles say
SPREADS = 1.5  # and so are those below so many interquartile ranges of both
LEAST_MS, MOST_MS = 1e-9, 1e12  # of a time
MOST_SAMPLES = 10**9
ROUNDED = 1e-5  # of samples in a record
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


def entries(ceilings: Ceilings | None, results: Sequence[Result], left_out: Mapping[str, str]) -> dict[str, Any]:
    """What the record of a bench has besides its reports."""
    return {
        "ceilings": None if ceilings is None else ceilings.to_dict(),
        "left_out": dict(left_out),
        "results": [row(result) for result in results],
    }


def begun(subjects: Iterable[Subject], level: str | None) -> dict[Key, Report]:
    """A report for each variant that is to be timed, with its source as it lies there before anything is called."""
    return {(each.op, each.target, each.name): empty(each, level or "", SEED) for each in subjects}


def reports(begun: Mapping[Key, Report], results: Sequence[Result]) -> list[dict[str, Any]]:
    """The reports of the variants, each over all of its rows: one passed where it was measured, and failed where it was
    refused a number or is wrong."""
    rows: dict[Key, list[Result]] = {}
    for result in results:
        key = (result.op, result.target, result.name.removesuffix(AGAIN))
        if key in begun:
            rows.setdefault(key, []).append(result)
    made = []
    for key, found in rows.items():
        report = replace(begun[key], outcomes=[_outcome(result) for result in found])
        worst_of_all = worst([result.worst for result in found if result.worst is not None])
        made.append(report.to_dict() | {"level": report.level or None, "worst": worst_of_all})
    return made


def _outcome(result: Result) -> Outcome:
    """A row as the outcome of a trial."""
    sizes = "x".join(str(n) for n in result.sizes.values())
    params = [f"{name}={value}" for name, value in result.params.items() if value not in (None, False)]
    trial = "-".join([result.dtype, sizes, *params, result.mode, result.cache])
    made = Outcome(trial, Kind.CASE, result.dtype, STATUS.get(result.status, result.status))
    for problem in result.problems:
        if made.status == FAILED:
            key = f"{result.op} {result.target} {result.name} {trial} {problem}"
            identifier = f"{zlib.crc32(key.encode()):08x}"
            made.findings.append(Finding(identifier, "failure", result.status, trial, problem, result.worst))
        else:
            made.reason = problem
    return made


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


def read(path: str | Path, option: str = "--compare") -> dict[str, Any]:
    """The record of a bench in a file that `option` names. Raises ValueError that says what the file is not."""
    try:
        found = record.read(path)
    except OSError as error:
        raise ValueError(f"{option}: {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{option}: {path} is no JSON: {error}") from None
    known = isinstance(found, dict) and found.get("format") in (EARLIER, record.FORMAT)
    if not known or not isinstance(found.get("results"), list):
        raise ValueError(f"{option}: {path} is no record of `bench --json` of format {EARLIER} or {record.FORMAT}")
    with record.of_one_form(f"{option}: {path}"):
        for entry in found["results"]:
            label(entry)
            _a_measurement(entry)
        for about in ("machine", "versions"):
            if not isinstance(found[about], dict):
                raise TypeError(f"{about} is no object")
        for name, kind in (("interrupted", bool), ("status", int)):  # an earlier record has neither
            if type(found.get(name)) not in (kind, type(None)):
                raise TypeError(f"{name}: {found[name]!r}")
    return found


def _a_measurement(entry: Mapping[str, Any]) -> None:
    """Raises TypeError where a row is none that a run could have written: with NaN every comparison is false, and a
    median that is not that of its samples says nothing about them."""
    if not isinstance(entry["status"], str) or (entry["ms"] is None) is (entry["status"] == MEASURED):
        raise TypeError(f"status {entry['status']!r} does not go with ms {entry['ms']!r}")
    if entry["ms"] is None:
        return
    for name in ("ms", "q1", "q3"):
        if type(entry[name]) is bool or not LEAST_MS <= entry[name] <= MOST_MS:
            raise TypeError(f"{name} is no time: {entry[name]!r}")
    count, samples = entry.get("count"), entry.get("samples_ms")
    if not entry["q1"] <= entry["ms"] <= entry["q3"]:
        raise TypeError("ms does not lie between q1 and q3")
    if count is not None and not (type(count) is int and 0 < count <= MOST_SAMPLES):
        raise TypeError(f"count is no number of samples: {count!r}")
    if samples:
        taken = stats([1e-3 * each for each in samples])
        pairs = zip((taken.q1, taken.median, taken.q3), (entry["q1"], entry["ms"], entry["q3"]), strict=True)
        if len(samples) != count or not all(abs(mine - told) <= ROUNDED * (1 + told) for mine, told in pairs):
            raise TypeError("ms, q1, q3 and count are not those of its samples_ms")


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
            lost.append(f"{label(entry)}: was {was['status']}, is {entry['status']}")
            continue
        change = entry["ms"] / was["ms"] - 1
        if abs(change) > noise(was, entry):
            changes.append((change, was, entry))
        else:
            within += 1
    table = Table("changes beyond noise", ["what", "old ms", "new ms", "change", "noise"])
    for change, was, entry in sorted(changes, key=lambda found: -found[0]):
        cells = [f"{was['ms']:.4g}", f"{entry['ms']:.4g}", f"{100 * change:+.1f} %", f"{100 * noise(was, entry):.1f} %"]
        table.rows.append([label(entry), *cells])
    remarks = [f"{len(changes)} changed beyond noise, {within} did not", *lost]
    for where, (one, other) in {"only in OLD": (before, after), "only in NEW": (after, before)}.items():
        alone = [label(entry) for name, entry in one.items() if name not in other]
        remarks += (
            [f"{where}: {len(alone)} ({', '.join(alone[:3])}{', ...' if len(alone) > 3 else ''})"] if alone else []
        )
    for what in ("machine", "versions"):
        differing = [n for n in {*old[what], *new[what]} if old[what].get(n) != new[what].get(n)]
        remarks += [f"{what}, {n}: {old[what].get(n)} -> {new[what].get(n)}" for n in sorted(differing)]
    return table, list(map(in_line, remarks))


def noise(was: Mapping[str, Any], entry: Mapping[str, Any]) -> float:
    """The relative change that two measurements may show for nothing."""
    spreads = [(each["q3"] - each["q1"]) / each["ms"] for each in (was, entry)]
    return max(NOISE, SPREADS * math.hypot(*spreads))


def label(entry: Mapping[str, Any]) -> str:
    """A row in words, for a line of text."""
    sizes = "x".join(str(n) for n in entry["sizes"].values())
    params = "".join(f" {name}={value}" for name, value in entry["params"].items() if value not in (None, False))
    mode = "" if entry["mode"] == "fwd" else f" {entry['mode']}"
    return in_line(f"{entry['op']}{mode} {entry['target']} {entry['name']} {entry['dtype']} {sizes}{params}")
