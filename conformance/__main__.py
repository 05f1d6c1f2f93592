"""`python -m conformance COMMAND`: list, doctor, check, tune."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from conformance import registry, selection
from conformance.console import Table, fraction_text, show, write_json
from conformance.generate import LEVELS
from conformance.judge import PASSED, Subject
from conformance.report import Report, versions

USAGE_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 passed, 1 failed, 2 wrong usage."""
    options = _parser().parse_args(argv)
    try:
        return options.run(options)
    except (selection.UsageError, ValueError) as error:
        print(f"python -m conformance {options.command}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m conformance", description="Judge GPU kernels against float64.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="ops, lanes and the rungs of every ladder")
    listing.add_argument("--markdown", action="store_true", help="as the table that the README holds")
    listing.set_defaults(run=_list)

    doctor = commands.add_parser("doctor", help="versions, devices, which lanes run here, what is patched and why")
    doctor.set_defaults(run=_doctor)

    check = commands.add_parser("check", help="judge this repository's rungs, or a kernel of your own")
    check.add_argument("op", nargs="*", help="ops to judge (default: all)")
    check.add_argument("--backend", metavar="NAME[,NAME]", help="backends (default: every one that runs here)")
    check.add_argument("--variant", metavar="NAME[,NAME]", help="rungs (default: all)")
    check.add_argument("--kernel", metavar="FILE.py:FUNCTION", help="a function of your own with the op's signature")
    check.add_argument("--device", default="auto", help="auto (default), cpu or cuda")
    check.add_argument("--level", default="default", help=f"one of {', '.join(LEVELS)} (default: default)")
    check.add_argument("--quick", dest="level", action="store_const", const="quick", help="short for --level quick")
    check.add_argument(
        "--thorough", dest="level", action="store_const", const="thorough", help="short for --level thorough"
    )
    check.add_argument("--compute", help="with --kernel: the lower precision it declares (tf32, tf32x3, bf16)")
    check.add_argument("--outputs", metavar="NAME[,NAME]", help="with --kernel: judge only these outputs")
    check.add_argument("--seed", type=int, default=0, help="seed of the inputs (default: 0)")
    check.set_defaults(run=_check)

    tune = commands.add_parser("tune", help="time a rung's configurations on this GPU and pin the fastest")
    tune.add_argument("op", nargs="*", help="ops to tune (default: every op with a tunable rung)")
    tune.add_argument("--backend", metavar="NAME[,NAME]")
    tune.add_argument("--variant", metavar="NAME[,NAME]")
    tune.add_argument("--dry-run", action="store_true", help="print what would be pinned, write nothing")
    tune.set_defaults(run=_tune)

    for command in (listing, doctor, check, tune):
        command.add_argument("--json", metavar="FILE", help="write the result to FILE as JSON")
    return parser


def _list(options: argparse.Namespace) -> int:
    """Ops by backends; rungs are read without a device, from the ladder each file's docstring lists."""
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
    record: dict[str, Any] = {"versions": versions(), "lanes": {}, "checks": []}
    show(Table("versions", ["package", "version"], [list(item) for item in versions().items()]))
    lanes = Table("lanes", ["lane", "runs here", "why not, and what to do"])
    for name in registry.backends():
        for device in ("cpu", "cuda"):
            reason = registry.backend(name).why_not(device)
            if reason is None and not registry.kernel_ops(name):
                reason = "the library works, but there are no kernels in this backend yet"
            lanes.rows.append([f"{name}@{device}", "no" if reason else "yes", reason or ""])
            record["lanes"][f"{name}@{device}"] = reason
    show(lanes)
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
    from conformance.check import check, judge_subject

    if chosen.kernel is not None:
        ((_, subject),) = chosen.subjects()
        outputs = options.outputs.split(",") if options.outputs else None
        report = check(
            subject.op, subject.fn, device=chosen.device, level=chosen.level, outputs=outputs, compute=options.compute,
            seed=chosen.seed,
        )  # fmt: skip
        print(report)
        if options.json:
            write_json(options.json, report.to_dict())
        return 0 if report.passed else 1
    if options.compute or options.outputs:
        raise selection.UsageError(
            "--compute and --outputs go with --kernel; this repository's rungs declare their own"
        )
    if broken := selection.import_check(chosen):
        raise selection.UsageError("kernel files that do not import:\n" + "\n".join(broken))
    reports: list[Report] = []
    not_run: list[tuple[Subject, str]] = []
    for backend, subject in chosen.subjects():
        if reason := selection.not_run_reason(backend, subject):
            not_run.append((subject, reason))
        else:
            reports.append(judge_subject(subject, chosen.level, chosen.seed, ceiling=chosen.ceiling(backend)))
    _print_rungs(reports, not_run, chosen)
    if options.json:
        write_json(options.json, {"reports": [report.to_dict() for report in reports], "skipped": chosen.skipped})
    return 0 if reports and all(report.passed for report in reports) else 1


def _print_rungs(reports: list[Report], not_run: list[tuple[Subject, str]], chosen: selection.Selection) -> None:
    dtypes = list(dict.fromkeys(outcome.dtype for report in reports for outcome in report.outcomes))
    columns = ["op", "lane", "rung", "verdict", "passed", "declined", *(f"{d}: worst error / budget" for d in dtypes)]
    table = Table(f"level {chosen.level}, seed {chosen.seed}", columns)
    for report in reports:
        passed = sum(outcome.status == PASSED for outcome in report.outcomes)
        cells = [fraction_text(report.worst_of(dtype)) for dtype in dtypes]
        verdict = "passed" if report.passed else "failed"
        table.rows.append([report.op, report.lane, report.name, verdict, str(passed), str(report.declined), *cells])
    for subject, _ in not_run:
        table.rows.append([subject.op, subject.lane, subject.name, "not run", "-", "-", *["-"] * len(dtypes)])
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
        print(f"{chosen.lane(name)} skipped: {reason}")


def _tune(options: argparse.Namespace) -> int:
    from conformance.tune import tune

    chosen = _select(options, "quick", None, device="cuda")
    records = tune(chosen, write=not options.dry_run)
    table = Table("pinned configurations", ["op", "rung", "dtype", "sizes", "best", "ms", "tried"])
    table.rows += [
        [str(r[key]) for key in ("op", "variant", "dtype", "sizes", "config", "ms", "tried")] for r in records
    ]
    show(table)
    if options.json:
        write_json(options.json, records)
    return 0 if records else 1


def _select(
    options: argparse.Namespace, level: str, kernel: str | None, device: str | None = None
) -> selection.Selection:
    op = ",".join(options.op) if options.op else None
    seed = getattr(options, "seed", 0)
    chosen = selection.select(options.backend, device or options.device, op, options.variant, level, kernel, seed)
    chosen.prepare()
    return chosen


if __name__ == "__main__":
    sys.exit(main())
