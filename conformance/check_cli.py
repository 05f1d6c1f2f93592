"""`python -m touchstone check`: judge this repository's variants, or a kernel of the user's own."""

import argparse
from typing import Any

from touchstone.conformance.discovery import options as shared
from touchstone.conformance.discovery import selection
from touchstone.conformance.discovery.selection import Selection, UsageError
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging.judgement import PASSED
from touchstone.conformance.reporting.console import Table, fraction_text, show, write_json
from touchstone.conformance.reporting.provenance import provenance
from touchstone.conformance.reporting.report import Report

NOT_RUN = "not run"


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    check = commands.add_parser(
        "check",
        help="judge this repository's variants, or a kernel of your own",
        description="Judge this repository's variants, or with --kernel a function of your own, against the contract "
        "of an op. Exit status 1: something failed, or nothing was judged.",
    )
    shared.add(check.add_argument, "op", "--backend", "--variant", "--kernel", "--arrays", "--op-file", "--device")
    shared.add(check.add_argument, "--level", "--quick", "--thorough")
    check.add_argument(
        "--compute",
        metavar="PRECISION",
        help="with --kernel: the lower precision in which its dot products round their operands: tf32, tf32x3 or bf16",
    )
    check.add_argument("--outputs", metavar=shared.NAMES, help="with --kernel: judge only these outputs")
    shared.add(check.add_argument, "--seed")
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


def run(options: argparse.Namespace) -> int:
    """The command. Exit status 1 where something failed, or nothing was judged."""
    shared.positive("--timeout", options.timeout)
    chosen = shared.select(options, options.level)
    shared.prepare(chosen)
    try:
        return _check_kernel(options, chosen) if chosen.kernel is not None else _check_variants(options, chosen)
    except ValueError as error:
        raise UsageError(_by_option(str(error), options)) from error


def _by_option(message: str, options: argparse.Namespace) -> str:
    """What `check` says of an argument, said of the option that sets it."""
    argument, colon, rest = message.partition(":")
    name = {"fn": "kernel"}.get(argument, argument)
    return f"--{name.replace('_', '-')}:{rest}" if colon and name != "op" and name in vars(options) else message


def _check_kernel(options: argparse.Namespace, chosen: Selection) -> int:
    """Judge the user's own function."""
    from touchstone.conformance.check import check
    from touchstone.conformance.porting import port
    from touchstone.conformance.reporting.session import Interrupted

    ((_, subject),) = chosen.subjects()
    try:
        report = check(
            subject.op,
            subject.fn,
            device=chosen.device,
            level=chosen.level,
            outputs=options.outputs.split(",") if options.outputs else None,
            compute=options.compute,
            seed=chosen.seed,
            arrays=chosen.arrays,
            isolate=options.isolate,
            timeout=options.timeout,
        )
    except Interrupted as interrupted:
        print(interrupted.report)
        raise
    print(report)
    assert chosen.kernel is not None
    for line in port.advice(*chosen.kernel, report):
        print(line)
    if options.json:
        write_json(options.json, report.to_dict())
    return 0 if report.passed else 1


def _check_variants(options: argparse.Namespace, chosen: Selection) -> int:
    """Judge the variants selected, one report each."""
    from touchstone.conformance.check import isolation_limits
    from touchstone.conformance.findings.kept import keep_report
    from touchstone.conformance.reporting.session import Interrupted, judge_subject

    if options.compute or options.outputs:
        raise UsageError("--compute and --outputs go with --kernel; this repository's variants declare their own")
    shared.require_imports(chosen)
    limits = isolation_limits(chosen.device, options.isolate, options.timeout)
    reports: list[Report] = []
    not_run: list[tuple[Subject, str]] = []
    for backend, subject in chosen.subjects():
        if reason := selection.not_run_reason(backend, subject):
            not_run.append((subject, reason))
            continue
        ceiling = chosen.ceiling(backend)
        try:
            report = judge_subject(
                subject, chosen.level, chosen.seed, ceiling=ceiling, isolate=options.isolate, limits=limits
            )
        except Interrupted as interrupted:
            _print_variants([*reports, interrupted.report], not_run, chosen)
            raise
        reports.append(report)
        keep_report(subject, report)
    _print_variants(reports, not_run, chosen)
    if options.json:
        found = {"reports": [report.to_dict() for report in reports], "skipped": chosen.skipped}
        write_json(options.json, {**provenance(chosen.device), **found})
    return 0 if reports and all(report.passed for report in reports) else 1


def _print_variants(reports: list[Report], not_run: list[tuple[Subject, str]], chosen: Selection) -> None:
    for report in reports:
        if not report.passed:
            print(report, end="\n\n")
    show(_table(reports, not_run, f"level {chosen.level}, seed {chosen.seed}"))
    for reason in dict.fromkeys(reason for report in reports for reason in report.not_run):
        print(f"{sum(report.not_run.get(reason, 0) for report in reports)} cases not run: {reason}")
    for report in reports:
        for note in report.notes:
            print(f"{report.op} {report.name}: {note}")
    for subject, reason in not_run:
        print(f"{subject.op} {subject.name} {NOT_RUN}: {reason}")
    for name, reason in chosen.skipped.items():
        print(f"{chosen.target(name)} skipped: {reason}")


def _table(reports: list[Report], not_run: list[tuple[Subject, str]], title: str) -> Table:
    """One row per variant: the verdict, and the worst error of each dtype."""
    dtypes = list(dict.fromkeys(outcome.dtype for report in reports for outcome in report.outcomes))
    errors = [f"{dtype}: worst error / budget" for dtype in dtypes]
    table = Table(title, ["op", "target", "variant", "verdict", "passed", "declined", *errors])
    for report in reports:
        verdict = "passed" if report.passed else "not ported" if report.unported else "failed"
        cells = [fraction_text(report.worst_of(dtype)) for dtype in dtypes]
        counts = [str(sum(outcome.status == PASSED for outcome in report.outcomes)), str(report.declined)]
        table.rows.append([report.op, report.target, report.name, verdict, *counts, *cells])
    for subject, _ in not_run:
        table.rows.append([subject.op, subject.target, subject.name, NOT_RUN, "-", "-", *["-"] * len(dtypes)])
    return table
