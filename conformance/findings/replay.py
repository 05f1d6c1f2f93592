"""`python -m touchstone replay ID`: the trial of a kept finding judged again, explained, drawn and made smaller."""

import time
from pathlib import Path
from typing import Any

from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.findings import kept, script
from touchstone.conformance.findings import minimise as shrinking
from touchstone.conformance.findings.rerun import DEADLY, Output, explain, observable, observe, rerun
from touchstone.conformance.judging import diagnosis, heatmap
from touchstone.conformance.judging.judgement import FAILED, Finding
from touchstone.conformance.judging.trials import Kind, Trial
from touchstone.conformance.spec.checks import Check


def picture(subject: Subject, trial: Trial, seen: dict[str, Output], path: str) -> str:
    """Write the heat map of the worst output to `path`; its name."""
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
    anywhere: bool = False,
) -> dict[str, Any]:
    """Judge the trial of a kept finding again; what came of it, as a record. ValueError where that cannot be done.

    Files outside the current folder are run only with `anywhere`: a record that came with somebody's repository may
    name any.

    `failed` says whether the trial still fails, `findings` what is held against it now, `diagnosis` what is known
    beyond that. With `minimise`: `case`, `tried` and the stand-alone `script` of the smallest failing case found in
    about `seconds`; both are None where the finding itself is gone.
    """
    record = kept.find(identifier, file)
    outside = None if anywhere else kept.elsewhere(record)
    if outside is not None:
        raise ValueError(
            f"ID: {identifier} would run {outside}, which is not under the current folder {Path.cwd()}; go there, or "
            "say --anywhere if you trust the record"
        )
    subject = kept.load(record)
    trial = kept.trial_of(record, subject)
    start = time.monotonic()
    outcome = rerun(subject, trial, record["check"])
    result: dict[str, Any] = {
        "finding": record,
        "status": outcome.status,
        "failed": outcome.status == FAILED,
        "seconds": time.monotonic() - start,
        "reason": outcome.reason,
        "findings": [vars(finding) for finding in outcome.findings],
        "diagnosis": None,
        "script": None,
    }
    same = [finding for finding in outcome.findings if finding.check == record["check"]]
    returns = not any(finding.check in (Check.RAISED, Check.COMPILES, *DEADLY) for finding in outcome.findings)
    if observable(trial) and returns and (picture_to or any(f.check == Check.VALUES for f in outcome.findings)):
        seen = observe(subject, trial)
        result["diagnosis"] = explain(subject, trial, seen)
        if picture_to:
            result["picture"] = {"file": picture_to, "output": picture(subject, trial, seen, picture_to)}
    elif picture_to:
        raise ValueError(f"--picture: {trial.id} gave no output that can be compared, so there is nothing to draw")
    if minimise and same:
        least = shrinking.minimise(subject, trial, same[0], seconds=seconds)
        result["case"], result["tried"] = least.trial.case.id, least.tried
        result["script"] = script.script(least, record)
    return result


def text(result: dict[str, Any]) -> str:
    """A replay's result to read, without the script."""
    record = result["finding"]
    head = f"{record['op']} {record['target']} {record['name']}, {record['trial']} (seed {record['seed']})"
    lines = [head]
    if result["reason"]:
        lines.append(f"not judged, declined: {result['reason']}; found was: {record['message']}")
    elif not result["findings"]:
        lines.append(f"passes now, alone; found was: {record['message']}")
        if record["kind"] == Kind.CASE:
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
