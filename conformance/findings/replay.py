"""Findings kept by id, and one trial of a finding judged again, alone.

`check`, `python -m touchstone check` and pytest write what they find to `.touchstone/findings.json` in the current
folder; `python -m touchstone replay ID` reads it there.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from touchstone.conformance.discovery import importing as worker
from touchstone.conformance.discovery import opfile, registry, selection
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation.limits import Limits
from touchstone.conformance.isolation.runner import Runner
from touchstone.conformance.judging import diagnosis
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.call import output_bytes
from touchstone.conformance.judging.judgement import FAILED, Finding, Outcome
from touchstone.conformance.judging.trials import NOT_CASES, Trial, trials_of
from touchstone.conformance.reporting import earlier
from touchstone.conformance.reporting.report import Report
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.compare import Verdict

FILE = Path(".touchstone", "findings.json")
KEPT = 500
LISTED = 8  # latest findings that the message about an unknown id lists
DEADLY = ("crash", "hang", "memory")  # checks whose trial can take its process along: judged again in a child
CHILD_SECONDS = 30.0


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
            "check": finding.check,
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


def assert_right(record: dict[str, Any], trial: dict[str, Any]) -> None:
    """Judge a kernel on one trial, both spelled out by a script; AssertionError holds what is found of the record's
    check."""
    from touchstone.conformance.findings import minimise

    subject = load(record)
    outcome = rerun(subject, minimise.trial_of(trial, subject.contract), record["check"])
    found = [finding for finding in outcome.findings if finding.check == record["check"]]
    if found:
        raise AssertionError(str(found[0]))


def rerun(subject: Subject, trial: Trial, check: str) -> Outcome:
    """Judge one trial, in a child where that is cheap or where `check` says that the trial can take its process
    along."""
    mode = "none" if subject.device == "cuda" and check not in DEADLY else "auto"
    subject = replace(subject, diagnosed=False)
    with Runner(subject, [trial], mode, limits=Limits(seconds=CHILD_SECONDS)) as runner:
        return runner.outcome(0)


@dataclass
class Output:
    """One output of a call beside the right answer."""

    got: torch.Tensor
    expected: Expected
    verdict: Verdict


def observe(subject: Subject, trial: Trial) -> dict[str, Output]:
    """Call the kernel on the trial's case and compare what can be compared: outputs of the right shape and dtype."""
    contract, case = subject.contract, trial.case
    inputs = contract.build(case, subject.device)
    with probe.poison(probe.PATTERNS[0], subject.device, output_bytes(contract, case)):
        returned = subject.call(inputs.arguments)
    values = contract.by_name(returned, subject.outputs)
    right = contract.expected(contract.build(case), subject.compute)
    found = {}
    for name, got in {} if isinstance(values, str) else values.items():
        answer = right[name]
        if answer is None or not isinstance(got, torch.Tensor) or (subject.outputs and name not in subject.outputs):
            continue
        shape = contract.shape(contract.outputs[name].axes, case.size)
        if tuple(got.shape) == shape and got.dtype == (contract.outputs[name].dtype or case.torch_dtype):
            bits = diagnosis.exact(contract, case, name)
            found[name] = Output(got, answer, compare.compare(got, answer, case.torch_dtype, bits))
    return found


def explain(subject: Subject, trial: Trial, seen: dict[str, Output]) -> str | None:
    """The diagnosis of what `observe` saw, and who wrote the worst element where the target knows."""
    contract, case = subject.contract, trial.case
    verdicts = {name: output.verdict for name, output in seen.items()}
    text = diagnosis.diagnose(
        contract,
        case,
        {name: o.got for name, o in seen.items()},
        {name: o.expected for name, o in seen.items()},
        verdicts,
    )
    lines = [text] if text else []
    for name, verdict in verdicts.items():
        if not verdict.ok and verdict.worst is not None:
            writer = diagnosis.owner(subject, case, name, verdict.worst)
            if writer:
                lines.append(f"{name}{list(verdict.worst)} was written by {writer}")
    return "\n".join(lines) or None


def picture(subject: Subject, trial: Trial, seen: dict[str, Output], path: str) -> str:
    """Write the heat map of the worst output to `path`; its name."""
    from touchstone.conformance.judging import heatmap

    if not seen:
        raise ValueError(f"--picture: {trial.id} gave no output that can be compared, so there is nothing to draw")
    name = max(seen, key=lambda n: (not seen[n].verdict.ok, seen[n].verdict.fraction))
    bits = diagnosis.exact(subject.contract, trial.case, name)
    fractions = diagnosis.shares(seen[name].got, seen[name].expected, trial.case.torch_dtype, bits)
    heatmap.picture(fractions, path, f"{subject.op} {subject.target} {subject.name}: {name} of {trial.id}")
    return name


def replay(
    identifier: str,
    *,
    minimise: bool = False,
    picture_to: str | None = None,
    seconds: float = 60.0,
    file: Path | None = None,
) -> dict[str, Any]:
    """Judge the trial of a kept finding again; what came of it, as a record. ValueError where that cannot be done.

    `failed` says whether the trial still fails, `findings` what is held against it now, `diagnosis` what is known
    beyond that. With `minimise`: `case`, `tried` and the stand-alone `script` of the smallest failing case found in
    about `seconds`; both are None where the finding itself is gone.
    """
    kept = find(identifier, file)
    subject = load(kept)
    trial = trial_of(kept, subject)
    start = time.monotonic()
    outcome = rerun(subject, trial, kept["check"])
    result: dict[str, Any] = {
        "finding": kept,
        "status": outcome.status,
        "failed": outcome.status == FAILED,
        "seconds": time.monotonic() - start,
        "reason": outcome.reason,
        "findings": [vars(finding) for finding in outcome.findings],
        "diagnosis": None,
        "script": None,
    }
    same = [finding for finding in outcome.findings if finding.check == kept["check"]]
    returns = not any(finding.check in ("raised", *DEADLY) for finding in outcome.findings)
    if trial.invalid is None and returns and (picture_to or any(f.check == "values" for f in outcome.findings)):
        seen = observe(subject, trial)
        result["diagnosis"] = explain(subject, trial, seen)
        if picture_to:
            result["picture"] = {"file": picture_to, "output": picture(subject, trial, seen, picture_to)}
    elif picture_to:
        raise ValueError(f"--picture: {trial.id} gave no output that can be compared, so there is nothing to draw")
    if minimise and same:
        from touchstone.conformance.findings import minimise as shrinking

        least = shrinking.minimise(subject, trial, same[0], seconds=seconds)
        result["case"], result["tried"] = least.trial.case.id, least.tried
        result["script"] = shrinking.script(least, kept)
    return result


def text(result: dict[str, Any]) -> str:
    """A replay's result to read, without the script."""
    kept = result["finding"]
    head = f"{kept['op']} {kept['target']} {kept['name']}, {kept['trial']} (seed {kept['seed']})"
    lines = [head]
    if result["reason"]:
        lines.append(f"not judged, declined: {result['reason']}; found was: {kept['message']}")
    elif not result["findings"]:
        lines.append(f"passes now, alone; found was: {kept['message']}")
        if not kept["trial"].startswith(NOT_CASES):
            lines.append("where the kernel is unchanged, it depends on earlier calls, or on chance")
    for found in result["findings"]:
        lines.append(str(Finding(**found)))
    if result["diagnosis"]:
        lines.append(result["diagnosis"])
    if "picture" in result:
        lines.append(f"picture of {result['picture']['output']} in {result['picture']['file']}")
    if "case" in result:
        lines.append(f"smallest failing case found in {result['tried']} tries: {result['case']}")
    return "\n".join(lines)
