"""All trials of one subject, judged in isolation and gathered into a report."""

import secrets
from collections.abc import Iterator, Sequence
from functools import partial

from touchstone.backends.gpus import GPUS
from touchstone.conformance.discovery.selection import CannotRun
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation.limits import DEFAULT_LIMITS
from touchstone.conformance.isolation.runner import Runner
from touchstone.conformance.judging.again import drawn_again, in_words
from touchstone.conformance.judging.judgement import DECLINED, Outcome
from touchstone.conformance.judging.trials import CaseTrial, PropertyTrial, Trial, narrow, trials_of
from touchstone.conformance.reporting import common
from touchstone.conformance.reporting.console import progress
from touchstone.conformance.reporting.report import Report, empty
from touchstone.conformance.reporting.tolerance import Tolerance
from touchstone.conformance.spec.contract import Case
from touchstone.conformance.spec.known import Rule
from touchstone.conformance.spec.narrowing import EVERYTHING, Narrowing


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came while a kernel was judged; `report` holds what was done by then."""

    def __init__(self, report: Report):
        super().__init__()
        self.report = report


def judge_subject(
    subject,
    level: str,
    seed: int | None = None,
    *,
    ceiling=None,
    narrowing=EVERYTHING,
    isolate="auto",
    limits=DEFAULT_LIMITS,
    fresh_import=False,
    expected: Sequence[Rule] = (),
) -> Report:
    """Judge a subject on all trials of a level that `narrowing` leaves, isolated as `Runner` says.

    `expected` are failures that do not count, and one that does not come fails.
    `seed`: None stands for 0, and of an untrusted subject for one that is drawn once its function is loaded.
    """
    report = empty(subject, level, seed or 0)
    if subject.compute is not None:
        report.notes.append(f"computes in {subject.compute}, and is judged in that precision")
    if subject.outputs is not None:
        left = [name for name in subject.contract.outputs if name not in subject.outputs]
        report.notes.append(f"outputs not judged: {', '.join(left) or 'none'}")
    kept = [] if subject.untrusted else _planned(report, subject, ceiling, narrowing)
    try:
        if subject.untrusted:
            with Runner(subject, kept, isolate, limits=limits) as runner:
                report.seed = secrets.randbelow(2**31) if seed is None else seed
                how = "drawn" if seed is None else "given"
                report.notes.append(f"untrusted: seed {report.seed}, {how} once the function was loaded")
                kept = runner.trials
                kept += _planned(report, subject, ceiling, narrowing)
                _run(runner, report, expected, ceiling, narrowing)
        elif kept:
            with Runner(subject, kept, isolate, limits=limits, fresh_import=fresh_import) as runner:
                _run(runner, report, expected, ceiling, narrowing)
    except CannotRun as error:
        report.lacking = str(error)
    except KeyboardInterrupt:
        report.interrupted = True
        if len(kept) > len(report.outcomes):
            report.not_run["interrupted"] = len(kept) - len(report.outcomes)
        raise Interrupted(report) from None
    asked = sorted({name for outcome in report.outcomes for name in outcome.answered})
    if asked and subject.arch in GPUS:
        report.notes.append(
            f"CUDA calls of the launcher were answered as an {GPUS[subject.arch]} would: {', '.join(asked)}; tensors "
            "are on the CPU"
        )
    return report


def _planned(report: Report, subject: Subject, ceiling: float | None, narrowing: Narrowing) -> list[Trial]:
    """The trials of the report's level and seed that are judged; the report is told of the others."""
    found, plan = trials_of(subject, report.level, report.seed, ceiling, narrowing=narrowing)
    report.planned = len(found)
    found, report.not_run = narrow(found, narrowing)
    some = subject.outputs is not None and len(subject.outputs) < len(subject.contract.outputs)
    kept = [trial for trial in found if not (some and isinstance(trial, PropertyTrial))]
    if len(kept) < len(found):
        report.not_run["properties left out by outputs"] = len(found) - len(kept)
    if plan.over_ceiling:
        report.not_run["over the target's limit of work"] = plan.over_ceiling
    if plan.sampled_out:
        report.not_run["sampled out of the full product"] = plan.sampled_out
    return kept


def _run(runner: Runner, report: Report, expected: Sequence[Rule], ceiling: float | None, narrowing: Narrowing) -> None:
    """Judge what the runner has, into the report; and of a user's kernel again what it declined, with what it takes."""
    left, ended = len(runner.trials), "interrupted"
    tolerance = Tolerance(expected)
    judged: list[tuple[Trial, Outcome]] = []
    try:
        for index in progress(range(left), f"{report.op} {report.name}"):
            if runner.stopped:
                break
            judged.append((runner.trials[index], runner.outcome(index)))
            report.add(tolerance.settled(*_on(judged[-1])))
            left -= 1
            if report.unported:
                ended = "not called: the variant is not ported"
                break
        if not left and not runner.subject.own:
            label, declined = f"{report.op} {report.name}, in place of declined", report.declined
            for trial, outcome in progress(_again(runner, judged, ceiling, narrowing), label, declined):
                judged.append((trial, outcome))
                report.add(tolerance.settled(*_on(judged[-1])))
    finally:
        common.note(judged, None if left else partial(_on_another, runner))
        report.surprises = tolerance.surprises() if not left else []
        if left:
            report.not_run[runner.stopped or ended] = left
        runner.close()  # what is left behind then is told too
        report.notes += runner.notes
        report.instruments.append(runner.how)


def _on_another(runner: Runner, case: Case) -> Outcome | None:
    """What comes of one more case, which is no trial of the report's; None where nothing is judged any more."""
    if runner.stopped:
        return None
    runner.trials.append(CaseTrial(case))
    return runner.outcome(len(runner.trials) - 1)


def _on(judged: tuple[Trial, Outcome]) -> tuple[Case, Outcome]:
    return judged[0].case, judged[1]


def _again(
    runner: Runner, judged: Sequence[tuple[Trial, Outcome]], ceiling: float | None, narrowing: Narrowing
) -> Iterator[tuple[Trial, Outcome]]:
    """Trials in place of those that were declined, with what came of them; those that are declined too are left out."""
    contract = runner.subject.contract
    taken = [trial for trial, outcome in judged if outcome.judged]
    declined = [trial for trial, outcome in judged if outcome.status == DECLINED and not outcome.blank]

    def allowed(case: Case) -> bool:
        return not narrowing.leaves_out(case) and (ceiling is None or contract.work(case) <= ceiling)

    drawn = drawn_again(runner.subject, taken, declined, allowed)
    trial = next(drawn, None)
    while trial is not None and not runner.stopped:
        runner.trials.append(trial)
        outcome = runner.outcome(len(runner.trials) - 1)
        if outcome.judged:
            outcome.again = in_words(trial.case)
            yield trial, outcome
        try:
            trial = drawn.send(outcome.judged)
        except StopIteration:
            return
