"""What judges one candidate of many, in a process of its own."""

import time
from dataclasses import replace
from pathlib import Path

from touchstone.conformance.batch.attempt import Judged, prepare
from touchstone.conformance.batch.candidates import Candidate, Settings
from touchstone.conformance.batch.timing import timed
from touchstone.conformance.check import check
from touchstone.conformance.discovery import launching, registry, selection
from touchstone.conformance.discovery.importing import FileFunction
from touchstone.conformance.discovery.opfile import load_op
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.findings import kept
from touchstone.conformance.reporting.provenance import machine, versions
from touchstone.conformance.reporting.report import empty
from touchstone.conformance.reporting.status import Status


def judged(candidate: Candidate, settings: Settings, folder: Path) -> Judged:
    """As `check` judges it, and timed if it passes and that is asked for; `folder` is for what has to be written.

    What `check` says of wrong arguments is said of the candidate, which has failed: a file that does not import, a
    function that is missing or does not fit.
    """
    began = time.monotonic()
    kept.keep_none()
    if candidate.op_file is not None and registry.op_file(candidate.op) is None:
        load_op(candidate.op_file.placed(folder))
    prepare(settings.device)
    fn = FileFunction(candidate.source.placed(folder), candidate.function, candidate.instead)
    found = _checked(candidate, fn, settings)
    if settings.bench is not None and found.status is Status.PASSED:
        found = _timed(found, candidate, fn, settings, folder)
    about = {"versions": versions(), "machine": machine(settings.device)}
    return replace(found, seconds=time.monotonic() - began, about=about)


def _checked(candidate: Candidate, fn: FileFunction, settings: Settings) -> Judged:
    given = {
        "device": settings.device,
        "level": settings.level,
        "seed": settings.seed,
        "timeout": settings.timeout,
        "coverage": settings.coverage,
        "untrusted": settings.untrusted,
        "allow_library": settings.allow_library,
        **candidate.options,
    }
    try:
        report = check(candidate.op, fn, **given)
    except (launching.MissingPackage, selection.CannotRun) as error:
        return Judged(Status.NOT_RUN, reason=_said(error, fn.path))
    except (ValueError, TypeError) as error:
        report = empty(_subject(candidate, fn, settings), settings.level, settings.seed or 0)
        return Judged(Status.FAILED, report.to_dict(), _said(error, fn.path), report.seed)
    return Judged(Status.of(report.verdict), report.to_dict(), report.reason, report.seed)


def _said(error: Exception, path: Path) -> str:
    """Its message; of the file the name alone, which is the same wherever it lies."""
    return str(error).removeprefix("fn: ").replace(str(path), path.name)


def _subject(candidate: Candidate, fn: FileFunction, settings: Settings) -> Subject:
    target = f"user@{settings.device}"
    return Subject(candidate.op, fn, fn.name, target, settings.device, untrusted=settings.untrusted)


def _timed(found: Judged, candidate: Candidate, fn: FileFunction, settings: Settings, folder: Path) -> Judged:
    assert found.report is not None and settings.bench is not None
    if candidate.op_file is not None:
        rows: list | str = "not timed: bench knows no op of your own"
    else:
        rows = timed(candidate.op, fn.path, fn.name, settings.device, settings.bench, folder)
    if isinstance(rows, str):
        return replace(found, report={**found.report, "notes": [*found.report["notes"], rows]})
    return replace(found, results=rows)
