"""What the report reads: the JSON of `pytest --json`, `check`, `selftest` and `bench`, and the JSON Lines of `judge`,
brought to a short form.

The short form is also what is worth keeping in a repository: of a judged variant the counts and the worst errors
instead of every outcome, of a self-test which families kill a mutant instead of every trial, of a bench no single
samples.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from touchstone.conformance.judging.judgement import FAILED, NOT_RUN
from touchstone.conformance.reporting import record
from touchstone.conformance.reporting.report import SHOWN_FINDINGS
from touchstone.conformance.selftest import other_rules
from touchstone.conformance.selftest.record import from_record
from touchstone.conformance.selftest.results import holes, in_matrix
from touchstone.conformance.spec.compare import worst as worst_of

ABOUT = ("command", "date", "commit", "changed", "versions", "machine")
KINDS = ("judged", "selftest", "bench")
_BY_OP = {"variants", "compiled", "ops", "results"}  # lists whose entries belong to an op each
NO_RECORD = "no record of pytest --json, check --json, selftest --json or bench --json, nor results of judge"


@dataclass
class Record:
    """A file: its name, what kind it is, where it comes from (`ABOUT`), and the kind's own entries in short form.

    `judged`: `variants` and `compiled`; `selftest`: `ops`, `comparison`; `bench`: `results`, `ceilings`, `left_out`.
    """

    name: str
    kind: str
    about: dict[str, Any]
    data: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"report": self.kind, **self.about, **self.data}

    def ops(self) -> set[str]:
        return {entry["op"] for name in _BY_OP for entry in self.data.get(name, [])}

    def of_op(self, op: str) -> "Record":
        """What the record says of one op."""
        data = {name: value for name, value in self.data.items() if name != "comparison"}
        for name in _BY_OP & set(data):
            data[name] = [entry for entry in data[name] if entry["op"] == op]
        return replace(self, data=data)


def read(paths: Sequence[str | Path]) -> list[Record]:
    """The records in files. Raises ValueError that names the file and says what it is not."""
    names: Counter[str] = Counter()
    found = []
    for path in map(Path, paths):
        try:
            lines = record.read_lines(path)
            raw = record.read(path) if lines is None else _gathered(lines)
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise ValueError(f"{path} is no JSON, and no results of judge: {error}") from None
        names[path.stem] += 1
        name = path.stem if names[path.stem] == 1 else f"{path.stem}-{names[path.stem]}"
        with record.of_one_form(str(path)):
            found.append(_checked(_record(path, name, raw)))
    return found


def _gathered(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The results of many candidates as one record, each a variant by its id; of one that never came to its trials,
    the reason stands for a failed one. What was not run at all has no report."""
    with record.of_one_form("results of judge"):
        reports = [
            {**report, "name": line["candidate"]["id"], "findings": report["findings"] or _reason(line)}
            for line in lines
            for report in line["reports"]
        ]
    seeds = {line.get("seed") for line in lines if line["reports"]}
    seed = seeds.pop() if len(seeds) == 1 else "drawn for each"
    return {**lines[0], "seed": seed, "reports": reports}


def _reason(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    if line["verdict"] != FAILED or not line["reason"]:
        return []
    return [{"id": "-", "check": "call", "message": line["reason"], "severity": "failure"}]


def _checked(made: Record) -> Record:
    """The record, if its entries are lists of objects; else TypeError."""
    for key in ("variants", "compiled", "ops", "results"):
        entries = made.data.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise TypeError(f"{key} is not a list of objects")
    return made


def _record(path: Path, name: str, raw: Any) -> Record:
    if isinstance(raw, dict):
        about = {key: raw.get(key) for key in ABOUT}
        if raw.get("report") in KINDS:
            data = {key: value for key, value in raw.items() if key not in ABOUT and key != "report"}
            return Record(name, raw["report"], about, data)
        if raw.get("format") == record.FORMAT:
            return _of_this_format(path, name, raw, about)
        if isinstance(raw.get("variants"), list):
            return Record(name, "judged", about, _judged(raw, raw["variants"]))
        reports = raw.get("reports", [raw] if "outcomes" in raw else None)
        if isinstance(reports, list):
            variants = [{**each, "variant": each["name"]} for each in reports]
            return Record(name, "judged", about, _judged(raw, variants))
        if isinstance(raw.get("ops"), list) and "known-good checks" in raw:
            return Record(name, "selftest", about, _selftest(raw))
        if isinstance(raw.get("results"), list) and "ceilings" in raw:
            return Record(name, "bench", about, _bench(raw))
    raise ValueError(f"{path}: {NO_RECORD}")


def _of_this_format(path: Path, name: str, raw: Mapping[str, Any], about: dict[str, Any]) -> Record:
    if raw["kind"] in ("check", "judge", "pytest"):
        return Record(
            name, "judged", about, _judged(raw, [{**each, "variant": each["name"]} for each in raw["reports"]])
        )
    if raw["kind"] == "selftest" and "ops" in raw:
        return Record(name, "selftest", about, _selftest(raw))
    if raw["kind"] == "bench" and "results" in raw:
        return Record(name, "bench", about, _bench(raw))
    raise ValueError(f"{path}: {NO_RECORD}, but of {raw['kind']}")


def _bench(raw: Mapping[str, Any]) -> dict[str, Any]:
    results = [{key: value for key, value in row.items() if key != "samples_ms"} for row in raw["results"]]
    return {"format": raw["format"], **{key: raw[key] for key in ("ceilings", "left_out")}, "results": results}


def _judged(raw: Mapping[str, Any], variants: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "level": raw.get("level") or next((entry.get("level") for entry in variants), None),
        "seed": raw.get("seed", 0),
        "variants": [_variant(entry) for entry in variants],
        "compiled": raw.get("compiled", []),
    }


def _variant(entry: Mapping[str, Any]) -> dict[str, Any]:
    outcomes = entry["outcomes"]
    fractions: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        for output, fraction in outcome["fractions"].items():
            fractions[outcome["dtype"]][output].append(fraction)
    worst = {
        dtype: {output: round(worst_of(each) or 0.0, 4) for output, each in row.items()}
        for dtype, row in fractions.items()
    }
    count = Counter(outcome["status"] for outcome in outcomes)
    reason = entry.get("not_run")  # in earlier records: a sentence for pytest's variants, cases by reason for others
    if entry.get("verdict") == NOT_RUN:
        reasons = (outcome["reason"] for outcome in outcomes if outcome["status"] == NOT_RUN)
        reason = entry.get("reason") or next(reasons, NOT_RUN)
    findings = entry.get("findings")
    if findings is None:
        findings = [finding for outcome in outcomes for finding in outcome["findings"]]
    return {
        "op": entry["op"],
        "target": entry["target"],
        "variant": entry["variant"],
        "compute": entry.get("compute"),
        "not_run": reason if isinstance(reason, str) else None,
        "passed": count["passed"],
        "failed": count["failed"] or int(entry.get("verdict") == FAILED and not outcomes),
        "declined": count["declined"],
        "worst": worst,
        "findings": [
            {"id": finding["id"], "check": finding["check"], "message": finding["message"]}
            for finding in findings
            if finding["severity"] == "failure"
        ][:SHOWN_FINDINGS],
    }


def _selftest(raw: Mapping[str, Any]) -> dict[str, Any]:
    results = from_record(dict(raw))
    ops = []
    for result in results:
        families = [family for family in result.families if in_matrix(family)]
        place = {family: i for i, family in enumerate(families)}
        ops.append(
            {
                "op": result.op,
                "families": families,
                "idle": result.idle_families,
                "notes": result.notes,
                "redundant": result.redundant_families if result.whole else None,
                "judged": [
                    {
                        "name": one.name,
                        "kind": one.kind,
                        "about": one.about,
                        "backend": one.backend,
                        "trials": one.trials - one.declined,
                        "kills": len(one.killed),
                        "families": [place[family] for family in one.families if family in place],
                        "first": one.first if one.is_known_good or not one.killed else None,
                    }
                    for one in result.judged
                ],
            }
        )
    found = {"level": raw["level"], "seed": raw["seed"], "holes": holes(results), "ops": ops}
    if "comparison" in raw:
        compared = {op: [other_rules.RuleResult(**one) for one in each] for op, each in raw["comparison"].items()}
        table = other_rules.table(compared, results)
        found["comparison"] = {"columns": list(table.columns), "rows": [list(row) for row in table.rows]}
    return found


def keep(records: Sequence[Record], folder: str | Path) -> list[Path]:
    """Write each record in short form into `folder`; the paths."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = []
    for one in records:
        paths.append(target / f"{one.name}.json")
        paths[-1].write_text(_lines(one.to_dict()) + "\n")
    return paths


def _lines(whole: Mapping[str, Any]) -> str:
    """JSON with a line for each entry of a list of records: changes read well, and the file stays small."""
    parts = []
    for key, value in whole.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n  ".join(record.dumps(row) for row in value)
            parts.append(f" {record.dumps(key)}: [\n  {rows}\n ]")
        else:
            parts.append(f" {record.dumps(key)}: {record.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}"
