"""`python -m touchstone COMMAND`: list, doctor, check, replay, selftest, tune, port, bench, report."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

import touchstone
from touchstone.conformance.bench import cli as bench
from touchstone.conformance.discovery import registry, selection
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.html import cli as page
from touchstone.conformance.isolation.runner import MODES
from touchstone.conformance.judging.judgement import PASSED
from touchstone.conformance.reporting.console import Table, fraction_text, show, write_json
from touchstone.conformance.reporting.provenance import provenance
from touchstone.conformance.reporting.report import Report, versions
from touchstone.conformance.spec.cases import LEVELS

USAGE_ERROR = 2
BROKEN_PIPE = 141  # what a shell reports of a command that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 passed, 1 failed, 2 wrong usage."""
    options = _parser().parse_args(argv)
    try:
        return options.run(options)
    except (selection.UsageError, ValueError) as error:
        print(f"python -m touchstone {options.command}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except BrokenPipeError:  # `... | head`: whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes stdout when it ends
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m touchstone", description="Judge GPU kernels against float64.")
    parser.add_argument("--version", action="version", version=f"touchstone {touchstone.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="ops, targets and the variants of every ladder")
    listing.add_argument("--markdown", action="store_true", help="print the table of the README")
    listing.set_defaults(run=_list)

    doctor = commands.add_parser("doctor", help="versions, devices, which targets run here, what is patched and why")
    doctor.set_defaults(run=_doctor)

    check = commands.add_parser("check", help="judge this repository's variants, or a kernel of your own")
    check.add_argument("op", nargs="*", help="ops to judge (default: all)")
    check.add_argument("--backend", metavar="NAME[,NAME]", help="backends (default: every one that runs here)")
    check.add_argument("--variant", metavar="NAME[,NAME]", help="variants (default: all)")
    check.add_argument("--kernel", metavar="FILE.py:FUNCTION", help="a function of your own with the op's signature")
    check.add_argument(
        "--arrays", default="torch", help="with --kernel: the arrays it takes: torch (default), numpy, cupy"
    )
    check.add_argument(
        "--op-file", metavar="FILE.py", help="with --kernel: an op of your own, its reference and contract"
    )
    check.add_argument("--device", default="auto", help="auto (default), cpu or cuda")
    check.add_argument("--level", default="default", help=f"one of {', '.join(LEVELS)} (default: default)")
    check.add_argument("--quick", dest="level", action="store_const", const="quick", help="short for --level quick")
    check.add_argument(
        "--thorough", dest="level", action="store_const", const="thorough", help="short for --level thorough"
    )
    check.add_argument("--compute", help="with --kernel: the lower precision it declares (tf32, tf32x3, bf16)")
    check.add_argument("--outputs", metavar="NAME[,NAME]", help="with --kernel: judge only these outputs")
    check.add_argument("--seed", type=int, default=0, help="seed of the inputs (default: 0)")
    check.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="a trial that takes longer is a hang (default: 60)",
    )
    check.add_argument(
        "--isolate", default="auto", help=f"where the kernel runs: {', '.join(MODES)} (in this process; default: auto)"
    )
    check.set_defaults(run=_check)

    selftest = commands.add_parser("selftest", help="test the judge: mutants killed, known-good kernels rejected")
    selftest.add_argument("op", nargs="*", help="ops (default: all)")
    selftest.add_argument("--op", dest="named", metavar="NAME[,NAME]", help="the same, as for pytest")
    selftest.add_argument("--level", default="quick", help=f"one of {', '.join(LEVELS)} (default: quick)")
    selftest.add_argument("--seed", type=int, default=0, help="seed of the inputs (default: 0)")
    selftest.add_argument("--jobs", type=int, help="ops judged at a time (default: one per core)")
    selftest.add_argument(
        "--compare", action="store_true", help="also evaluate the mutants with other projects' tolerances"
    )
    selftest.add_argument(
        "--matrix", action="store_true", help="print every mutant by the families of cases that kill it"
    )
    selftest.set_defaults(run=_selftest)

    again = commands.add_parser("replay", help="run the trial of one finding again and say what is wrong")
    again.add_argument("id", metavar="ID", help="of a finding, as printed in brackets")
    again.add_argument("--minimise", action="store_true", help="shrink it and print a stand-alone script")
    again.add_argument("--seconds", type=float, default=60.0, help="with --minimise: for about how long (default: 60)")
    again.add_argument("--picture", metavar="FILE", help="draw the errors into FILE.png or FILE.svg")
    again.set_defaults(run=_replay)

    tune = commands.add_parser("tune", help="benchmark a variant's configurations on this GPU and pin the fastest")
    tune.add_argument("op", nargs="*", help="ops to tune (default: every op with a tunable variant)")
    tune.add_argument("--backend", metavar="NAME[,NAME]")
    tune.add_argument("--variant", metavar="NAME[,NAME]")
    tune.add_argument("--dry-run", action="store_true", help="print what would be pinned, write nothing")
    tune.set_defaults(run=_tune)

    port = commands.add_parser(
        "port", help="start porting a variant to another language, or compare a port with its source"
    )
    port.add_argument("op", help="the op to port")
    port.add_argument("--from", dest="source", metavar="NAME", required=True, help="the backend to port from")
    port.add_argument("--to", dest="target", metavar="NAME", required=True, help="the backend to port to")
    port.add_argument("--variant", metavar="NAME[,NAME]", help="variants of the source (default: its whole ladder)")
    port.add_argument("--as", dest="name", metavar="NAME", help="name of the ported variant in the target language")
    port.add_argument("-o", "--output", metavar="FILE.py", help="the file to write (default: backends/TO/OP.py)")
    port.add_argument(
        "--trace", action="store_true", help="run source and port on the CPU and show the first tile that differs"
    )
    port.add_argument("--case", metavar="ID", help="with --trace: a case, as check names it (default: small ones)")
    port.add_argument("--seed", type=int, default=0, help="with --trace: seed of the inputs (default: 0)")
    port.set_defaults(run=_port)

    bench.add(commands)
    page.add(commands)

    for command in (listing, doctor, check, selftest, again, tune, port):
        command.add_argument("--json", metavar="FILE", help="write the result to FILE as JSON")
    return parser


def _list(options: argparse.Namespace) -> int:
    """Ops by backends; variants are read without a device, from the ladder each file's docstring lists."""
    present = [name for name in registry.backends() if registry.kernel_ops(name)]
    table = Table("ops and their ladders", ["op", *present])
    record = {}
    for op in registry.ops():
        ladders = {name: registry.ladder(name, op) for name in present}
        table.rows.append([op, *(" ".join(ladders[name]) or "-" for name in present)])
        record[op] = ladders
    if options.markdown:
        print(table.markdown())
    else:
        show(table)
    if options.json:
        write_json(options.json, record)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    record: dict[str, Any] = {"versions": versions(), "targets": {}, "checks": []}
    show(Table("versions", ["package", "version"], [list(item) for item in versions().items()]))
    targets = Table("targets", ["target", "runs here", "why not, and what to do"])
    for name in registry.backends():
        for device in ("cpu", "cuda"):
            reason = registry.backend(name).why_not(device)
            if reason is None and not registry.kernel_ops(name):
                reason = "the library works, but there are no kernels in this backend yet"
            targets.rows.append([f"{name}@{device}", "no" if reason else "yes", reason or ""])
            record["targets"][f"{name}@{device}"] = reason
    show(targets)
    notes = Table("backends", ["backend", "what", "value", "note"])
    for name in registry.backends():
        for what, value, note in registry.backend(name).doctor():
            notes.rows.append([name, what, value, note])
            record["checks"].append({"backend": name, "what": what, "value": value, "note": note})
    show(notes)
    if options.json:
        write_json(options.json, record)
    return 0


def _check(options: argparse.Namespace) -> int:
    chosen = _select(options, options.level, options.kernel)
    from touchstone.conformance.check import check, isolation_limits
    from touchstone.conformance.findings.replay import keep_report
    from touchstone.conformance.porting import port
    from touchstone.conformance.reporting.session import Interrupted, judge_subject

    if chosen.kernel is not None:
        ((_, subject),) = chosen.subjects()
        outputs = options.outputs.split(",") if options.outputs else None
        try:
            report = check(
                subject.op,
                subject.fn,
                device=chosen.device,
                level=chosen.level,
                outputs=outputs,
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
        for line in port.advice(*chosen.kernel, report):
            print(line)
        if options.json:
            write_json(options.json, report.to_dict())
        return 0 if report.passed else 1
    if options.compute or options.outputs:
        raise selection.UsageError(
            "--compute and --outputs go with --kernel; this repository's variants declare their own"
        )
    if broken := selection.import_check(chosen):
        raise selection.UsageError("kernel files that do not import:\n" + "\n".join(broken))
    limits = isolation_limits(chosen.device, options.isolate, options.timeout)
    reports: list[Report] = []
    not_run: list[tuple[Subject, str]] = []
    for backend, subject in chosen.subjects():
        if reason := selection.not_run_reason(backend, subject):
            not_run.append((subject, reason))
        else:
            try:
                report = judge_subject(
                    subject,
                    chosen.level,
                    chosen.seed,
                    ceiling=chosen.ceiling(backend),
                    isolate=options.isolate,
                    limits=limits,
                )
            except Interrupted as interrupted:
                _print_variants([*reports, interrupted.report], not_run, chosen)
                raise
            reports.append(report)
            keep_report(subject, reports[-1])
    _print_variants(reports, not_run, chosen)
    if options.json:
        write_json(
            options.json,
            {
                **provenance(chosen.device),
                "reports": [report.to_dict() for report in reports],
                "skipped": chosen.skipped,
            },
        )
    return 0 if reports and all(report.passed for report in reports) else 1


def _print_variants(reports: list[Report], not_run: list[tuple[Subject, str]], chosen: selection.Selection) -> None:
    dtypes = list(dict.fromkeys(outcome.dtype for report in reports for outcome in report.outcomes))
    columns = [
        "op",
        "target",
        "variant",
        "verdict",
        "passed",
        "declined",
        *(f"{d}: worst error / budget" for d in dtypes),
    ]
    table = Table(f"level {chosen.level}, seed {chosen.seed}", columns)
    for report in reports:
        passed = sum(outcome.status == PASSED for outcome in report.outcomes)
        cells = [fraction_text(report.worst_of(dtype)) for dtype in dtypes]
        verdict = "passed" if report.passed else "not ported" if report.unported else "failed"
        table.rows.append([report.op, report.target, report.name, verdict, str(passed), str(report.declined), *cells])
    for subject, _ in not_run:
        table.rows.append([subject.op, subject.target, subject.name, "not run", "-", "-", *["-"] * len(dtypes)])
    for report in reports:
        if not report.passed:
            print(report, end="\n\n")
    show(table)
    for reason in dict.fromkeys(reason for report in reports for reason in report.not_run):
        print(f"{sum(report.not_run.get(reason, 0) for report in reports)} cases not run: {reason}")
    for report in reports:
        for note in report.notes:
            print(f"{report.op} {report.name}: {note}")
    for subject, reason in not_run:
        print(f"{subject.op} {subject.name} not run: {reason}")
    for name, reason in chosen.skipped.items():
        print(f"{chosen.target(name)} skipped: {reason}")


def _selftest(options: argparse.Namespace) -> int:
    from touchstone.conformance.selftest import other_rules as comparison
    from touchstone.conformance.selftest import run as selftest

    ops = options.op or (options.named.split(",") if options.named else list(registry.ops()))
    for op in ops:
        registry.contract(op)
    if options.level not in LEVELS:
        raise selection.UsageError(f"--level: expected one of {', '.join(LEVELS)}, got {options.level!r}")
    if options.jobs is not None and options.jobs < 1:
        raise selection.UsageError(f"--jobs: expected a positive number, got {options.jobs}")
    results = selftest.run(ops, options.level, options.seed, options.jobs)
    if options.matrix or len(results) == 1:
        for result in results:
            show(result.matrix())
    show(selftest.summary(results))
    for line in selftest.holes(results):
        print(line)
    record = {**provenance("cpu"), **selftest.record(results)}
    if options.json:
        write_json(options.json, record)  # before the comparison, which takes minutes
    if options.compare:
        compared = comparison.run(ops, options.jobs)
        show(comparison.table(compared, results))
        record["comparison"] = {op: [vars(one) for one in found] for op, found in compared.items()}
    if options.json:
        write_json(options.json, record)
    return 0 if selftest.passed(results) else 1


def _replay(options: argparse.Namespace) -> int:
    from touchstone.conformance.findings import replay

    if not options.seconds > 0:
        raise selection.UsageError(f"--seconds: expected a positive number, got {options.seconds}")
    result = replay.replay(options.id, minimise=options.minimise, picture_to=options.picture, seconds=options.seconds)
    print(replay.text(result))
    if result["script"]:
        print(f"\n{result['script']}", end="")
    if options.json:
        write_json(options.json, result)
    return 1 if result["failed"] else 0


def _tune(options: argparse.Namespace) -> int:
    from touchstone.conformance.bench.tune import tune

    chosen = _select(options, "quick", None, device="cuda")
    records = tune(chosen, write=not options.dry_run)
    table = Table("pinned configurations", ["op", "variant", "dtype", "sizes", "best", "ms", "tried"])
    table.rows += [
        [str(r[key]) for key in ("op", "variant", "dtype", "sizes", "config", "ms", "tried")] for r in records
    ]
    show(table)
    if options.json:
        write_json(options.json, records)
    return 0 if records else 1


def _port(options: argparse.Namespace) -> int:
    from touchstone.conformance.porting import port
    from touchstone.conformance.porting import trace as porttrace

    planned = port.plan(options.op, options.source, options.target, options.variant, options.output, options.name)
    if options.trace:
        found = porttrace.trace(planned, options.case, options.seed)
        print(found)
        if options.json:
            write_json(options.json, found.to_dict())
        return 0 if found.agrees else 1
    if options.case is not None or options.seed:
        raise selection.UsageError("--case and --seed go with --trace")
    written = port.write(planned)
    print(port.summary(planned, written))
    if options.json:
        write_json(options.json, port.record(planned, written))
    return 0


def _select(
    options: argparse.Namespace, level: str, kernel: str | None, device: str | None = None
) -> selection.Selection:
    op = ",".join(options.op) if options.op else None
    seed = getattr(options, "seed", 0)
    chosen = selection.select(
        options.backend,
        device or options.device,
        op,
        options.variant,
        level,
        kernel,
        seed,
        library=getattr(options, "arrays", "torch"),
        op_file=getattr(options, "op_file", None),
    )
    try:
        chosen.prepare()
    except RuntimeError as error:
        raise selection.UsageError(str(error)) from error
    return chosen
