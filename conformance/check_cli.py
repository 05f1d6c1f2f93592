"""`python -m touchstone check`: judge this repository's variants, or a kernel of the user's own."""

import argparse
from typing import Any

from touchstone.conformance.discovery import launching, selection
from touchstone.conformance.discovery import options as shared
from touchstone.conformance.discovery.selection import Selection, UsageError
from touchstone.conformance.judging.judgement import NOT_RUN, PASSED
from touchstone.conformance.reporting.console import Table, fraction_text, show
from touchstone.conformance.reporting.report import Report, empty
from touchstone.conformance.reporting.status import Status
from touchstone.conformance.spec.narrowing import Narrowing


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    check = commands.add_parser(
        "check",
        help="judge this repository's variants, or a kernel of your own",
        description="Judge this repository's variants, or with --kernel a function of your own, against the contract "
        "of an op.",
    )
    shared.add(check.add_argument, "op", "--backend", "--variant", "--kernel", "--arrays", "--op-file", "--device")
    shared.add(check.add_argument, "--reference", "--inputs", "--kernelbench")
    shared.add(check.add_argument, "--level", "--quick", "--thorough", "--dtypes", "--sizes", "--where")
    check.add_argument(
        "--compute",
        metavar="PRECISION",
        help="with --kernel: the lower precision in which its dot products round their operands: tf32, tf32x3 or bf16",
    )
    check.add_argument("--outputs", metavar=shared.NAMES, help="with --kernel: judge only these outputs")
    shared.add(check.add_argument, "--require", "--strict", "--arch", "--seed")
    check.add_argument(
        "--coverage",
        type=float,
        metavar="SHARE",
        help="with --kernel: the share of the trials, 0 to 1, that have to be judged, neither declined nor impossible "
        "here; with less it is partial, exit status 4 (default: 0; 1 with --untrusted)",
    )
    shared.add(check.add_argument, "--known")
    check.add_argument(
        "--untrusted",
        action="store_true",
        help="with --kernel on the CPU: its author may want a verdict that it does not deserve; what it does beside "
        "computing counts against it (docs/threat-model.md)",
    )
    check.add_argument(
        "--allow-library",
        action="store_true",
        help="with --untrusted: the library may do work that a kernel of a GPU language should do",
    )
    check.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="a trial that takes longer counts as a hang (default: 60)",
    )
    check.add_argument(
        "--isolate",
        default="auto",
        metavar="auto|fork|spawn|none",
        help="where the kernel runs: a forked child, a fresh process, or this process (default: auto, fork on the CPU "
        "and spawn on a GPU)",
    )
    shared.add(check.add_argument, "--json")
    check.set_defaults(run=run)


def run(options: argparse.Namespace) -> Status:
    """The command; the status says how the kernels did."""
    shared.positive("--timeout", options.timeout)
    shared.level(options.level)
    shared.derived(options, options.level)
    chosen = shared.select(options, options.level)
    narrowed = shared.narrowed(options, chosen)
    options.recording.concerns(chosen.device, chosen.level, chosen.seed)
    shared.prepare(chosen, apart=options.isolate != "none" and not options.untrusted)
    try:
        if chosen.kernel is not None:
            return _check_kernel(options, chosen, narrowed[chosen.ops[0]])
        return _check_variants(options, chosen, narrowed)
    except selection.CannotRun:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(_by_option(str(error), options)) from error


def _by_option(message: str, options: argparse.Namespace) -> str:
    """What `check` says of an argument, said of the option that sets it."""
    argument, colon, rest = message.partition(":")
    name = {"fn": "kernel"}.get(argument, argument)
    return f"--{name.replace('_', '-')}:{rest}" if colon and name != "op" and name in vars(options) else message


def _check_kernel(options: argparse.Namespace, chosen: Selection, narrowing: Narrowing) -> Status:
    """Judge the user's own function."""
    if options.allow_library and not options.untrusted:
        raise UsageError("--allow-library: goes with --untrusted; without it the library may be called")
    if options.untrusted and options.isolate not in ("auto", "fork"):
        raise UsageError(f"--untrusted: such a kernel runs in a forked child; got --isolate {options.isolate}")
    from touchstone.conformance.check import check
    from touchstone.conformance.porting import port
    from touchstone.conformance.reporting.session import Interrupted

    chosen.here = options.isolate == "none"
    try:
        ((_, subject),) = chosen.subjects()
        report = check(
            subject.op,
            subject.fn,
            device=chosen.device,
            level=chosen.level,
            dtypes=narrowing.dtypes,
            where=narrowing.where,
            sizes=narrowing.sizes,
            outputs=options.outputs.split(",") if options.outputs else None,
            compute=options.compute,
            seed=options.seed,
            arrays=chosen.arrays,
            isolate=options.isolate,
            timeout=options.timeout,
            require=chosen.require or None,
            strict=chosen.strict,
            arch=options.arch,
            coverage=options.coverage,
            untrusted=options.untrusted,
            allow_library=options.allow_library,
            known=options.known,
        )
    except launching.MissingPackage as missing:
        options.recording.reason = _by_option(str(missing), options)
        print(f"NOT RUN: {options.recording.reason}")
        return Status.NOT_RUN
    except Interrupted as interrupted:
        print(interrupted.report)
        options.recording.reports.append(interrupted.report)
        raise
    options.recording.reports.append(report)
    options.recording.reason = report.reason
    print(report)
    assert chosen.kernel is not None
    for line in port.advice(*chosen.kernel, report):
        print(line)
    return Status.of(report.verdict)


def _check_variants(options: argparse.Namespace, chosen: Selection, narrowed: dict[str, Narrowing]) -> Status:
    """Judge the variants selected, one report each."""
    from touchstone.conformance.check import isolation_limits
    from touchstone.conformance.findings.kept import keep_report
    from touchstone.conformance.reporting.session import Interrupted, judge_subject

    if options.compute or options.outputs:
        raise UsageError("--compute and --outputs go with --kernel; this repository's variants declare their own")
    if options.coverage is not None:
        raise UsageError("--coverage goes with --kernel; what this repository's variants decline is in the table")
    if options.known is not None:
        raise UsageError(shared.KNOWN_ALONE)
    if options.untrusted or options.allow_library:
        raise UsageError("--untrusted and --allow-library go with --kernel; this repository's variants are trusted")
    shared.require_imports(chosen)
    limits = isolation_limits(chosen.device, options.isolate, options.timeout)
    reports: list[Report] = options.recording.reports
    options.recording.entries["skipped"] = chosen.skipped
    for backend, subject in chosen.subjects():
        if reason := selection.not_run_reason(backend, subject):
            reports.append(empty(subject, chosen.level, chosen.seed))
            reports[-1].lacking = reason
            continue
        ceiling = chosen.ceiling(backend)
        try:
            report = judge_subject(
                subject,
                chosen.level,
                chosen.seed,
                ceiling=ceiling,
                narrowing=narrowed[subject.op],
                isolate=options.isolate,
                limits=limits,
            )
        except Interrupted as interrupted:
            reports.append(interrupted.report)
            _print_variants(reports, chosen)
            raise
        reports.append(report)
        keep_report(subject, report)
    _print_variants(reports, chosen)
    if not reports and chosen.skipped:
        options.recording.reason = "; ".join(chosen.skipped.values())
        return Status.NOT_RUN
    return Status.combined(report.verdict for report in reports)


def _print_variants(every: list[Report], chosen: Selection) -> None:
    reports, lacking = ([report for report in every if bool(report.lacking) is wanted] for wanted in (False, True))
    for report in reports:
        if not report.passed:
            print(report, end="\n\n")
    show(_table(reports, lacking, f"level {chosen.level}, seed {chosen.seed}; by dtype: worst error / budget"))
    for reason in dict.fromkeys(reason for report in reports for reason in report.not_run):
        print(f"{sum(report.not_run.get(reason, 0) for report in reports)} cases not run: {reason}")
    for report in reports:
        for note in report.notes:
            print(f"{report.op} {report.name}: {note}")
    for report in lacking:
        print(f"{report.op} {report.name} {NOT_RUN}: {report.lacking}")
    for name, reason in chosen.skipped.items():
        print(f"{chosen.target(name)} skipped: {reason}")


def _table(reports: list[Report], lacking: list[Report], title: str) -> Table:
    """One row per variant: the verdict, and the worst error of each dtype."""
    dtypes = list(dict.fromkeys(outcome.dtype for report in reports for outcome in report.outcomes))
    table = Table(title, ["op", "target", "variant", "verdict", "passed", "declined", *dtypes])
    for report in reports:
        verdict = "not ported" if report.unported else report.verdict
        cells = [fraction_text(report.worst_of(dtype)) for dtype in dtypes]
        counts = [str(sum(outcome.status == PASSED for outcome in report.outcomes)), str(report.declined)]
        table.rows.append([report.op, report.target, report.name, verdict, *counts, *cells])
    for report in lacking:
        table.rows.append([report.op, report.target, report.name, NOT_RUN, "-", "-", *["-"] * len(dtypes)])
    return table
