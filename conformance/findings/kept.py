"""Findings kept by id in a file, and the kernel and the trial of one.

`check`, `python -m touchstone check` and pytest write what they find to `.touchstone/findings.json` in the current
folder; `python -m touchstone replay ID` reads it there.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from touchstone.conformance.discovery import importing as worker
from touchstone.conformance.discovery import opfile, registry, selection
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging.judgement import Outcome
from touchstone.conformance.judging.trials import Trial, trials_of
from touchstone.conformance.reporting import earlier
from touchstone.conformance.reporting.report import Report

FILE = Path(".touchstone", "findings.json")
KEPT = 500
LISTED = 8  # latest findings that the message about an unknown id lists


def records(
    subject: Subject, outcomes: Iterable[Outcome], level: str, seed: int, where: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """What has to be known of each finding to judge its trial again. `where` says how to import it; None: asked of
    it."""
    if where is None:
        backend, _, _ = subject.target.partition("@")
        where = {"backend": backend, "variant": subject.name} if subject.own else _source(subject.fn)
    own_file = registry.op_file(subject.op)
    op_file = None if own_file is None else str(Path(own_file).resolve())
    return [
        {
            "id": finding.id,
            "op": subject.op,
            "target": subject.target,
            "name": subject.name,
            "device": subject.device,
            "level": level,
            "seed": seed,
            "trial": outcome.trial,
            "kind": outcome.kind.value,
            "check": str(finding.check),
            "severity": finding.severity,
            "message": finding.message,
            "compute": subject.compute,
            "deterministic": subject.deterministic,
            "outputs": list(subject.outputs) if subject.outputs is not None else None,
            "arrays": subject.arrays,
            "op_file": op_file,
            "source": where,
        }
        for outcome in outcomes
        for finding in outcome.findings
    ]


def _source(fn: Callable[..., Any]) -> dict[str, str]:
    """How another process can import `fn`: `file` and `function`, or the `reason` why it cannot."""
    try:
        file, function = worker.source_of(fn)
    except ValueError as error:
        return {"reason": str(error).removeprefix("fn: ")}
    return {"file": file, "function": function}


def keep(found: list[dict[str, Any]], file: Path | None = None) -> None:
    """Append records to `file` (None: `FILE`), the last `KEPT` of them; one that cannot be written is a warning."""
    if not found:
        return
    file = file or FILE
    try:
        known = _read(file)
        for record in found:
            known.pop(record["id"], None)
            known[record["id"]] = record
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".json", delete=False) as new:
            json.dump(list(known.values())[-KEPT:], new, indent=1)
        os.replace(new.name, file)
    except OSError as error:
        print(f"touchstone: findings cannot be kept for replay in {file}: {error}", file=sys.stderr)


def keep_report(subject: Subject, report: Report, file: Path | None = None) -> None:
    """Keep the findings of a report that did not pass."""
    if not report.passed:
        keep(records(subject, report.outcomes, report.level, report.seed), file)


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """Records by id, oldest first; none where the file is missing or is not one of ours."""
    try:
        return {record["id"]: record for record in earlier.converted(json.loads(file.read_text()))}
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return {}


def find(identifier: str, file: Path | None = None) -> dict[str, Any]:
    """The record of a finding in `file` (None: `FILE`). ValueError lists the latest ones where there is none of this
    id."""
    file = file or FILE
    known = _read(file)
    if identifier in known:
        return known[identifier]
    latest = [f"  {r['id']}  {r['op']} {r['target']} {r['name']}: {r['check']} in {r['trial']}" for r in known.values()]
    told = "the latest are\n" + "\n".join(reversed(latest[-LISTED:])) if latest else "it is empty or missing"
    raise ValueError(f"ID: there is no finding {identifier!r} in {file}; {told}")


def load(record: dict[str, Any]) -> Subject:
    """The kernel of a record, in this process, which is set up for the record's device. ValueError says what is
    gone."""
    where, device, op = record["source"], record["device"], record["op"]
    if "reason" in where:
        raise ValueError(f"ID: {record['id']} cannot be replayed: {where['reason']}")
    if record["op_file"] is not None:
        opfile.load_op(record["op_file"])
    registry.contract(op)
    for backend in map(registry.backend, registry.backends()):
        if backend.why_not(device) is None:
            backend.prepare(device)
    if "backend" in where:
        reason = registry.backend(where["backend"]).why_not(device)
        if reason:
            raise ValueError(f"ID: {record['id']} was found on {record['target']}, which does not run here: {reason}")
        variants = registry.variants(where["backend"], op)
        if where["variant"] not in variants:
            raise ValueError(
                f"ID: {record['target']} has no variant {where['variant']!r} of {op} any more; it has "
                f"{', '.join(variants)}"
            )
        return selection.variant_subject(op, where["backend"], where["variant"], variants[where["variant"]], device)
    try:
        fn = worker.load(where["file"], where["function"])
    except ValueError as error:
        raise ValueError(f"ID: {record['id']} cannot be replayed: {error}") from None
    except (Exception, SystemExit) as error:
        raise ValueError(f"ID: {where['file']} does not import: {type(error).__name__}: {error}") from error
    for backend in map(registry.backend, registry.backends()):
        backend.adopt(fn, device)
    return Subject(
        op,
        fn,
        record["name"],
        record["target"],
        device,
        compute=record["compute"],
        arrays=record["arrays"],
        deterministic=record["deterministic"],
        outputs=tuple(record["outputs"]) if record["outputs"] else None,
    )


def trial_of(record: dict[str, Any], subject: Subject) -> Trial:
    """The trial of a record. ValueError where the contract has none of its name any more."""
    trials, _ = trials_of(subject, record["level"], record["seed"])
    for trial in trials:
        if trial.id == record["trial"]:
            return trial
    raise ValueError(
        f"ID: {subject.op} has no trial {record['trial']!r} at level {record['level']} any more; run the check again"
    )
