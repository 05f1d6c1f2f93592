"""`python -m touchstone bench`: the command's options, its table, and what it writes."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from touchstone.conformance.reporting.console import Table, progress, show

NO_NUMBER = "-"


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    bench = commands.add_parser("bench", help="benchmark passing variants, interleaved with baselines")
    bench.add_argument("op", nargs="*", help="ops to time (default: all)")
    bench.add_argument("--backend", metavar="NAME[,NAME]", help="backends (default: every one that runs here)")
    bench.add_argument("--variant", metavar="NAME[,NAME]", help="variants (default: all)")
    bench.add_argument("--kernel", metavar="FILE.py:FUNCTION", help="a function of your own with the op's signature")
    bench.add_argument("--device", default="auto", help="auto (default), cpu or cuda")
    bench.add_argument(
        "--shapes", metavar="small|large|FILE", help="sizes: large on a GPU, small on the CPU, or a JSON file"
    )
    bench.add_argument(
        "--experiment",
        metavar="NAME",
        help="ops, variants, dtypes, mode and shapes of an experiment; `list` names them",
    )
    bench.add_argument("--first", action="store_true", help="only the first shape of each op and dtype")
    bench.add_argument("--top", type=int, metavar="N", help="only the last N variants of each ladder")
    bench.add_argument(
        "--max-call-seconds", type=float, metavar="SECONDS", help="skip kernels that need more than SECONDS per call"
    )
    bench.add_argument("--dtype", metavar="NAME[,NAME]", help="dtypes (default: those the contract names)")
    bench.add_argument("--mode", help="fwd (the op, default), bwd (its gradient) or fwd_bwd (both in one call)")
    bench.add_argument(
        "--baselines",
        action="store_true",
        help="use all baselines: also those that take seconds to compile, and on the CPU",
    )
    bench.add_argument("--no-baselines", action="store_true", help="time variants only")
    bench.add_argument(
        "--noise-floor", action="store_true", help="also time each variant against itself, to show the noise floor"
    )
    cache = bench.add_mutually_exclusive_group()
    for name, text in (
        ("cold", "with the inputs out of the L2 cache (default)"),
        ("warm", "with the inputs in the L2 cache, where they fit"),
        ("graph", "cold, replayed from a CUDA graph: no launches from Python"),
    ):
        cache.add_argument(f"--{name}", dest="cache", action="store_const", const=name, default="cold", help=text)
    bench.add_argument("--seconds", type=float, default=1.0, help="seconds of timed calls per contestant (default: 1)")
    bench.add_argument(
        "--level", help="judge every variant at this level first; time those that pass (default: the timed case)"
    )
    bench.add_argument("--csv", metavar="FILE", help="write one line per contestant to FILE")
    bench.add_argument("--json", metavar="FILE", help="write everything, with provenance, to FILE")
    bench.add_argument(
        "--compare", nargs=2, metavar=("OLD", "NEW"), help="compare two JSON records and list changes beyond noise"
    )
    bench.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """The command. Exit status 1 where a variant was refused or failed, or nothing was measured."""
    from touchstone.conformance.bench import cases, records

    if options.compare:
        table, remarks = records.compare(*map(records.read, options.compare))
        show(table)
        print("\n".join(remarks))
        return 0
    if options.experiment == "list":
        table = Table("experiments", ["name", "what", "source"])
        table.rows += [[name, each["about"], each["source"]] for name, each in cases.experiments().items()]
        show(table)
        return 0
    typed = options.variant
    if options.experiment:
        _as_experiment(options)
    return _measure(options, typed)


def _as_experiment(options: argparse.Namespace) -> None:
    """Set what the experiment sets; what was typed narrows it, but for shapes."""
    from touchstone.conformance.bench import cases
    from touchstone.conformance.discovery import selection

    if options.shapes:
        raise selection.UsageError("--shapes and --experiment: give one of the two")
    path, given = cases.experiment(options.experiment)
    for name, value in given.items():
        if not getattr(options, name):
            setattr(options, name, value)
    options.shapes = str(path)


def _measure(options: argparse.Namespace, typed: str | None) -> int:
    """`typed`: the variants asked for by name; an experiment names variants that a backend may lack."""
    from touchstone.conformance.discovery import selection
    from touchstone.conformance.reporting import provenance

    if not options.seconds > 0:
        raise selection.UsageError(f"--seconds: expected a positive number, got {options.seconds}")
    for name in ("max_call_seconds", "top"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise selection.UsageError(f"--{name.replace('_', '-')}: expected a positive number, got {value}")
    if options.baselines and options.no_baselines:
        raise selection.UsageError("--baselines and --no-baselines: give one of the two")
    op = ",".join(options.op) if options.op else None
    level = options.level or "quick"
    chosen = selection.select(options.backend, options.device, op, options.variant, level, options.kernel)
    from touchstone.conformance.bench import cases, ceilings, records, timing
    from touchstone.conformance.bench.run import FAILED, MEASURED, REFUSED, Result, guard, measure

    watch = guard()  # before any kernel's file
    chosen.prepare()
    if broken := selection.import_check(chosen):
        raise selection.UsageError("kernel files that do not import:\n" + "\n".join(broken))
    if typed:
        chosen.subjects()  # an unknown variant is a usage error
    shapes = options.shapes or ("large" if chosen.device == "cuda" else "small")
    dtypes = options.dtype.split(",") if options.dtype else None
    plan = cases.plan(chosen, shapes, dtypes, options.mode or "fwd", options.baselines, options.first, options.top)
    if options.no_baselines:
        for group in plan.groups:
            group.baselines = ()
    plan.groups = [group for group in plan.groups if group.subjects or group.baselines]
    if not plan.groups:
        raise selection.UsageError(_nothing(plan, shapes))
    about = provenance.provenance(chosen.device)
    timer = timing.timer(chosen.device, options.cache)
    measured = ceilings.measure(timer, sorted({group.case.dtype for group in plan.groups} | {"float32"}))
    show(Table(f"ceilings of this run, {about['machine'].get('gpu', 'CPU')}", ["what", "rate"], measured.rows()))
    judged = _LevelVerdicts(options.level, chosen)
    results: list[Result] = []
    clocks = provenance.clocks if chosen.device == "cuda" else dict
    try:
        for group in progress(plan.groups, "bench"):
            if options.level:
                group.subjects = [(b, s) for b, s in group.subjects if judged.passed(s, results, group)]
            results += measure(
                group,
                timer,
                watch,
                measured,
                options.seconds,
                launched=_launched,
                clocks=clocks,
                noise_floor=options.noise_floor,
                max_call_seconds=options.max_call_seconds or float("inf"),
            )
            if options.json:
                records.write(options.json, records.record(about, measured, results, plan.left_out))
    finally:
        _print(results, plan.left_out, chosen.device, options)
        if options.csv:
            records.write_csv(options.csv, results)
    timer.close()
    wrong = [r for r in results if r.kind == "variant" and r.status in (REFUSED, FAILED)]
    return 1 if wrong or not any(r.status == MEASURED for r in results) else 0


def _nothing(plan: Any, shapes: str) -> str:
    reasons = "; ".join(f"{what}: {why}" for what, why in list(plan.left_out.items())[:4])
    return f"nothing to time with --shapes={shapes}" + (f" ({reasons})" if reasons else "")


class _LevelVerdicts:
    """Verdicts of --level, each variant's once."""

    def __init__(self, level: str | None, chosen: Any):
        self._level, self._chosen = level, chosen
        self._verdicts: dict[Any, str | None] = {}

    def passed(self, subject: Any, results: list[Any], group: Any) -> bool:
        from touchstone.conformance.bench.run import FAILED, Result
        from touchstone.conformance.reporting.session import judge_subject

        key = (subject.op, subject.target, subject.name)
        if key not in self._verdicts:
            report = judge_subject(subject, self._level or "quick", isolate="none")
            self._verdicts[key] = None if report.passed else f"does not pass at level {self._level}: {report.summary()}"
        problem = self._verdicts[key]
        if problem is not None:
            case = group.case
            results.append(
                Result(
                    case.op,
                    subject.name,
                    subject.target,
                    "variant",
                    case.dtype,
                    case.size,
                    group.params,
                    group.mode,
                    "-",
                    FAILED,
                    [problem],
                )
            )
        return problem is None


def _launched(backend: str, call: Callable[[], Any]) -> dict[str, int] | None:
    """Registers, spills and shared memory of the kernels of a call: the most of any, where the backend can tell."""
    from touchstone.conformance.discovery import registry

    module = registry.backend(backend) if backend else None
    if module is None or not hasattr(module, "launched"):
        return None
    found = [module.resources(kernel) for kernel in module.launched(call)]
    return {name: max(each[name] for each in found) for name in found[0]} if found else None


def tables(results: Sequence[Any]) -> list[Table]:
    """One table for each group of results: same op, dtype, sizes and parameters."""
    groups: dict[str, list[Any]] = {}
    for result in results:
        sizes = " ".join(f"{letter}={n}" for letter, n in result.sizes.items())
        params = "".join(f" {name}={value}" for name, value in result.params.items() if value is not None)
        mode = "" if result.mode == "fwd" else f" {result.mode}"
        groups.setdefault(f"{result.op}{mode} {result.dtype} {sizes}{params}, {result.cache}", []).append(result)
    return [_table(title, rows) for title, rows in groups.items()]


def _table(title: str, rows: Sequence[Any]) -> Table:
    baseline = next((r.name for r in rows if r.kind == "baseline" and r.ms is not None), None)
    against = [name for name in (baseline, "itself") if any(name in r.ratios for r in rows)]
    columns = ["target", "kernel", "ms", "IQR", "n", "TFLOP/s", "GB/s", "roofline", *(f"vs {name}" for name in against)]
    more: dict[str, Callable[[Any], str]] = {
        "peak MB": lambda r: _text(r.peak_bytes, 1e-6),
        "launch ms": lambda r: _text(r.host_ms),
        "registers": lambda r: _text((r.resources or {}).get("registers")),
        "spills": lambda r: _text((r.resources or {}).get("spills")),
        "shared": lambda r: _text((r.resources or {}).get("shared")),
    }
    shown = {name: cell for name, cell in more.items() if any(cell(r) != NO_NUMBER for r in rows)}
    table = Table(title, [*columns, *shown, "computes in"])
    for r in rows:
        taken = r.stats if r.ms is not None else None
        numbers = (
            [_text(taken.median), _text(taken.iqr), str(taken.count)] if taken else [r.status, NO_NUMBER, NO_NUMBER]
        )
        numbers += [_text(r.tflops), _text(r.gbps), _text(r.fraction)] if taken else [NO_NUMBER] * 3
        ratios = [_text(r.ratios.get(name)) for name in against]
        table.rows.append([r.target, r.name, *numbers, *ratios, *(cell(r) for cell in shown.values()), r.compute or ""])
    return table


def _text(value: float | None, scale: float = 1.0) -> str:
    if value is None:
        return NO_NUMBER
    return str(value) if isinstance(value, int) and scale == 1.0 else f"{value * scale:.3g}"


def _print(results: Sequence[Any], left_out: dict[str, str], device: str, options: argparse.Namespace) -> None:
    for table in tables(results):
        show(table)
    for result in results:
        where = f"{result.op} {result.target} {result.name} {result.dtype}"
        for problem in result.problems:
            print(f"{where} {result.status}: {problem}")
        for note in result.notes:
            print(f"{where}: {note}")
    for what, why in left_out.items():
        print(f"{what} left out: {why}")
    if device == "cpu":
        print(
            "these are times of an emulator or interpreter on the CPU: they tell which variant does less work here, "
            "and that a "
            "change made this target slower; they say nothing about a GPU"
        )
