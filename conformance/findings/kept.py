"""Findings kept by id in a file, and the kernel and the trial of one.

`check`, `python -m touchstone check` and pytest write what they find to `.touchstone/findings.json` in the current
folder; `python -m touchstone replay ID` reads it there. To read a record runs nothing; to load the kernel of one
imports the file that it names.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from touchstone.backends.devices import cuda_unavailable
from touchstone.backends.storage import files, folders
from touchstone.conformance.discovery import importing as worker
from touchstone.conformance.discovery import launching, opfile, registry, selection
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.findings import fields
from touchstone.conformance.judging.again import of_words, on_case
from touchstone.conformance.judging.judgement import Outcome
from touchstone.conformance.judging.trials import Kind, Trial, trials_of
from touchstone.conformance.reporting import earlier
from touchstone.conformance.reporting.report import Report
from touchstone.conformance.spec.narrowing import EVERYTHING, Narrowing

FILE = Path(".touchstone", "findings.json")
KEPT = 2000  # more than one kernel can have at level default
_keeping = True
LISTED = 8  # latest findings that the message about an unknown id lists


def records(
    subject: Subject, outcomes: Iterable[Outcome], level: str, seed: int, where: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """What has to be known of each finding to judge its trial again. `where` says how to import it; None: asked of
    it."""
    if where is None:
        backend, _, _ = subject.target.partition("@")
        where = {"backend": backend, "variant": subject.name} if subject.own else _source(subject)
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
            "again": outcome.again,
            "kind": outcome.kind.value,
            "check": str(finding.check),
            "severity": finding.severity,
            "message": finding.message,
            "compute": subject.compute,
            "deterministic": subject.deterministic,
            "outputs": list(subject.outputs) if subject.outputs is not None else None,
            "arrays": subject.arrays,
            "strict": subject.strict,
            "arch": subject.arch,
            "op_file": op_file,
            "source": where,
        }
        for outcome in outcomes
        for finding in outcome.findings
    ]


def _source(subject: Subject) -> dict[str, str]:
    """How another process can import a user's function: `file` and `function`, or the `reason` why it cannot."""
    if subject.untrusted:
        return {"reason": "it is untrusted; judge it again with the same seed"}
    try:
        file, function = worker.source_of(subject.fn)
    except ValueError as error:
        return {"reason": str(error).removeprefix("fn: ")}
    return {"file": file, "function": function}


def keep(found: list[dict[str, Any]], file: Path | None = None) -> bool:
    """Append records to `file` (None: `FILE`), the last `KEPT` of them; whether that could be done, else with a
    warning."""
    if not found:
        return True
    file = file or FILE
    try:
        folders.owned(file.parent)
        with files.alone(file):
            known = _by_id(file, lambda records: records)  # in whatever words: it takes longer to read them in ours
            for record in found:
                known.pop(record["id"], None)
                known[record["id"]] = record
            files.replace(file, json.dumps(list(known.values())[-KEPT:], indent=1), mode=0o600, follow=False)
    except OSError as error:
        print(f"touchstone: findings cannot be kept for replay in {file}: {error}", file=sys.stderr)
        return False
    return True


def keep_none() -> None:
    """From now on this process keeps no report's findings: it judges one candidate of many, each with a record."""
    global _keeping
    _keeping = False


def keep_report(subject: Subject, report: Report, file: Path | None = None) -> None:
    """Keep the findings of a report, notes too; it knows then whether `replay` can repeat them."""
    if report.findings and _keeping:
        found = records(subject, report.outcomes, report.level, report.seed)
        report.kept = keep(found, file) and "reason" not in found[0]["source"]
        report.elsewhere = elsewhere(found[0]) is not None


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """Records by id, oldest first, in the present words; none where the file is missing or is not one of ours."""
    return _by_id(file, earlier.converted)


def _by_id(file: Path, converted: Callable[[Any], Any]) -> dict[str, dict[str, Any]]:
    try:
        found = converted(files.read_json(file, follow=False))
        return {record["id"]: record for record in found if isinstance(record["id"], str)}
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def find(identifier: str, file: Path | None = None) -> dict[str, Any]:
    """The record of a finding in `file` (None: `FILE`). ValueError lists the latest ones where there is none of this
    id, and names the field of a record that is not one of ours."""
    file = file or FILE
    try:
        known = _read(file)
    except OSError as error:
        raise ValueError(f"ID: {file} cannot be read: {error.strerror}") from None
    if identifier in known:
        record = known[identifier]
        if wrong := fields.problem(record):
            raise ValueError(f"ID: the record of {identifier} in {file} is not one of Touchstone's: {wrong}")
        return {**record, "message": fields.printable(record["message"])}
    latest = [_listed(record) for record in list(known.values())[-LISTED:]]
    told = "the latest are\n" + "\n".join(reversed(latest)) if latest else "it is empty or missing"
    raise ValueError(f"ID: there is no finding {identifier!r} in {file}; {told}")


def _listed(record: dict[str, Any]) -> str:
    identifier, op, target, name, check, trial = (
        fields.printable(record.get(field, "?"))[:200].replace("\n", " ")
        for field in ("id", "op", "target", "name", "check", "trial")
    )
    return f"  {identifier}  {op} {target} {name}: {check} in {trial}"


def elsewhere(record: dict[str, Any]) -> str | None:
    """The first file that `load` would run and that is not under the current folder; None where there is none."""
    named = [path for path in (record["op_file"], record["source"].get("file")) if path]
    try:
        here = Path.cwd().resolve()
        return next((path for path in named if not Path(path).resolve().is_relative_to(here)), None)
    except OSError:  # the current folder was removed
        return next(iter(named), None)


def command(identifier: str, subject: Subject) -> str:
    """What repeats a finding of a subject, typed in the current folder."""
    source = {} if subject.own else _source(subject)
    outside = elsewhere({"op_file": registry.op_file(subject.op), "source": source})
    return f"python -m touchstone replay {identifier}{' --anywhere' if outside else ''}"


def load(record: dict[str, Any]) -> Subject:
    """The kernel of a record, in this process, which is set up for the record's device. ValueError says what is
    gone."""
    where, device, op = record["source"], record["device"], record["op"]
    if "reason" in where:
        raise ValueError(f"ID: {record['id']} cannot be replayed: {where['reason']}")
    if record["op_file"] is not None:
        opfile.load_op(record["op_file"])
    contract = registry.contract(op)
    if unknown := [name for name in record["outputs"] or () if name not in contract.outputs]:
        raise ValueError(f"ID: {record['id']} is about outputs that {op} does not have: {', '.join(unknown)}")
    if device == "cuda" and (reason := cuda_unavailable()):
        raise selection.CannotRun(f"ID: {record['id']} was found on a GPU: {reason}")
    for backend in map(registry.backend, registry.backends()):
        if backend.why_not(device) is None:
            backend.prepare(device)
    if "backend" in where:
        reason = registry.backend(where["backend"]).why_not(device)
        if reason:
            raise ValueError(f"ID: {record['id']} was found on {record['target']}, which does not run here: {reason}")
        language, name = where["backend"], where["variant"]
        fn = selection.variants(language, op, [name]).get(name)
        if fn is None:
            raise ValueError(
                f"ID: {record['target']} has no variant {name!r} of {op} any more; it has "
                f"{', '.join(registry.variants(language, op))}"
            )
        return selection.variant_subject(op, language, name, fn, device)
    arch = record.get("arch", launching.NONE)
    try:
        fn = launching.imported(where["file"], where["function"], arch)
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
        arch=arch,
        strict=record.get("strict", True),  # as every kernel was judged before records said so
    )


def trial_of(record: dict[str, Any], subject: Subject) -> Trial:
    """The trial of a record. ValueError where the contract has none of its name any more."""
    if words := record.get("again"):
        planned = trials_of(subject, record["level"], record["seed"])[0]
        case = of_words(words, [trial.case for trial in planned])
        alike = [trial for trial in planned if trial.kind == record["kind"]]
        trial = next((t for t in alike if t.id == record["trial"]), next(iter(alike), None))
        if case is None or trial is None:
            raise _gone(record, subject)
        return on_case(subject.contract, trial, case, lambda case: True)
    for narrowing in _narrowings(record, subject):
        for trial in trials_of(subject, record["level"], record["seed"], narrowing=narrowing)[0]:
            if trial.id == record["trial"]:
                return trial
    raise _gone(record, subject)


def _gone(record: dict[str, Any], subject: Subject) -> ValueError:
    return ValueError(
        f"ID: {subject.op} has no trial {record['trial']!r} at level {record['level']} any more; run the check again"
    )


def _narrowings(record: dict[str, Any], subject: Subject) -> Iterator[Narrowing]:
    """What a check may have been narrowed to, where the trial of its finding depends on that."""
    yield EVERYTHING
    if record["kind"] in (Kind.CALLS, Kind.STREAM, Kind.GRAPH):
        contract = subject.contract
        for dtype in contract.dtypes:
            yield Narrowing(dtypes=[dtype])
            yield from (Narrowing([dtype], sizes={n: [v] for n, v in size.items()}) for size in contract.sizes[1:])
