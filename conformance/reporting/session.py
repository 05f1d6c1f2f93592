"""All trials of one subject, judged in isolation and gathered into a report."""

from dataclasses import replace

from touchstone.conformance.isolation.limits import DEFAULT_LIMITS
from touchstone.conformance.isolation.runner import Runner
from touchstone.conformance.judging.trials import ManyCalls, PropertyTrial, Trial, trials_of
from touchstone.conformance.reporting.console import progress
from touchstone.conformance.reporting.report import Report, empty


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came while a kernel was judged; `report` holds what was done by then."""

    def __init__(self, report: Report):
        super().__init__()
        self.report = report


def judge_subject(
    subject,
    level: str,
    seed: int = 0,
    *,
    ceiling=None,
    dtypes=None,
    where=None,
    isolate="auto",
    limits=DEFAULT_LIMITS,
    fresh_import=False,
) -> Report:
    """Judge a subject on all trials of a level that `dtypes` and `where` leave, isolated as `Runner` says."""
    report = empty(subject, level, seed)
    found, plan = trials_of(subject, level, seed, ceiling)
    report.planned = len(found)
    kept: list[Trial] = []
    for trial in found:
        if dtypes is not None and trial.case.dtype not in dtypes:
            _count(report, "left out by dtypes")
        elif where is not None and not where(trial.case):
            _count(report, "left out by where")
        elif (
            isinstance(trial, PropertyTrial)
            and subject.outputs is not None
            and len(subject.outputs) < len(subject.contract.outputs)
        ):
            _count(report, "properties left out by outputs")
        else:
            if where is not None and isinstance(trial, ManyCalls):
                trial = replace(trial, others=tuple(filter(where, trial.others)))
            kept.append(trial)
    if plan.over_ceiling:
        report.not_run["over the target's limit of work"] = plan.over_ceiling
    if plan.sampled_out:
        report.not_run["sampled out of the full product"] = plan.sampled_out
    if subject.compute is not None:
        report.notes.append(f"computes in {subject.compute}, and is judged in that precision")
    if subject.outputs is not None:
        left = [name for name in subject.contract.outputs if name not in subject.outputs]
        report.notes.append(f"outputs not judged: {', '.join(left) or 'none'}")
    if kept:
        with Runner(subject, kept, isolate, limits=limits, fresh_import=fresh_import) as runner:
            _run(runner, report)
    return report


def _run(runner: Runner, report: Report) -> None:
    """Judge what the runner has, into the report."""
    left, ended = len(runner.trials), "interrupted"
    try:
        for index in progress(range(left), f"{report.op} {report.name}"):
            if runner.stopped:
                break
            report.add(runner.outcome(index, index + 1 if left > 1 else None))
            left -= 1
            if report.unported:
                ended = "not called: the variant is not ported"
                break
    except KeyboardInterrupt:
        raise Interrupted(report) from None
    finally:
        if left:
            report.not_run[runner.stopped or ended] = left
        report.notes += runner.notes
        report.instruments.append(runner.how)


def _count(report: Report, reason: str) -> None:
    report.not_run[reason] = report.not_run.get(reason, 0) + 1
