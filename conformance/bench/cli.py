"""`python -m touchstone bench`: the command's options, and its steps from the plan to the records."""

import argparse
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from touchstone.backends.devices import cuda_unavailable
from touchstone.conformance.discovery import options as shared
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.selection import Selection, UsageError
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.reporting.console import Table, progress, show
from touchstone.conformance.reporting.status import Status

if TYPE_CHECKING:
    from touchstone.conformance.bench.cases import Plan
    from touchstone.conformance.bench.ceilings import Ceilings
    from touchstone.conformance.bench.group import Group, Result
    from touchstone.conformance.bench.timing import Guard, Timer


LEFT_OUT = 4  # reasons in the message that there is nothing to time
EMULATED = "on the CPU an emulator or interpreter runs the kernels, within a limit of work"
ON_CPU = (
    "An emulator or interpreter runs the kernels here, at small sizes: the times tell which variant does less work in "
    "it, and that a change made it slower. They say nothing about a GPU, and there is no roofline to compare with."
)


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    bench = commands.add_parser(
        "bench",
        help="time the variants that are right, interleaved with baselines",
        description="Time variants, or with --kernel a function of your own, interleaved with baselines. What is wrong "
        "or cheats gets no number. Exit status 1: a variant was refused or failed, or nothing was measured.",
    )
    what = bench.add_argument_group("what is timed")
    shared.add(what.add_argument, "op", "--backend", "--variant", "--kernel", "--device")
    what.add_argument(
        "--shapes",
        metavar="small|large|FILE",
        help="sizes: the contract's large or small ones, or those of a JSON file (default: large on a GPU, small on "
        "the CPU)",
    )
    what.add_argument(
        "--experiment",
        metavar="NAME",
        help="the ops, variants, dtypes, mode and shapes of a named experiment; `--experiment list` lists them",
    )
    what.add_argument("--first", action="store_true", help="only the first shape of each op and dtype")
    what.add_argument("--top", type=int, metavar="N", help="only the last N variants of each ladder")
    what.add_argument("--dtype", metavar=shared.NAMES, help="dtypes (default: those the contract names)")
    what.add_argument(
        "--mode",
        metavar="fwd|bwd|fwd_bwd",
        help="the op (fwd, the default), its gradient (bwd), or both in one call (fwd_bwd)",
    )
    what.add_argument(
        "--baselines",
        action="store_true",
        help="use all baselines: also those that take seconds to compile, and on the CPU",
    )
    what.add_argument("--no-baselines", action="store_true", help="time variants only")
    what.add_argument(
        "--noise-floor", action="store_true", help="also time each variant against itself, to show the noise floor"
    )
    how = bench.add_argument_group("how it is timed")
    cache = how.add_mutually_exclusive_group()
    for name, text in (
        ("cold", "with the inputs out of the L2 cache (default)"),
        ("warm", "with the inputs in the L2 cache, where they fit"),
        ("graph", "cold, replayed from a CUDA graph: no launches from Python"),
    ):
        cache.add_argument(f"--{name}", dest="cache", action="store_const", const=name, default="cold", help=text)
    how.add_argument(
        "--seconds",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="seconds of timed calls per variant or baseline (default: 1)",
    )
    how.add_argument(
        "--max-call-seconds", type=float, metavar="SECONDS", help="skip kernels that need more than SECONDS per call"
    )
    shared.add(
        how.add_argument,
        "--level",
        default=None,
        help="judge every variant at this level first, and time those that pass (default: judge the timed case alone)",
    )
    how.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="with --kernel: calls that take longer count as a hang, and are ended (default: 60)",
    )
    how.add_argument(
        "--isolate",
        default="auto",
        metavar="auto|none",
        help="with --kernel: whether it is called in a process of its own, or in this one, which then trusts it "
        "(default: auto, its own)",
    )
    how.add_argument(
        "--untrusted",
        action="store_true",
        help="with --kernel on the CPU: its process is confined (docs/threat-model.md)",
    )
    results = bench.add_argument_group("results")
    results.add_argument("--csv", metavar="FILE", help="write one line per variant or baseline to FILE")
    shared.add(results.add_argument, "--json", help="write everything, with provenance, to FILE as JSON")
    results.add_argument(
        "--compare", nargs=2, metavar=("OLD", "NEW"), help="time nothing: list what changed between two JSON records"
    )
    results.add_argument(
        "--fail-if-slower",
        metavar="SHARE",
        help="with --compare: exit status 1 where a row of NEW is slower than in OLD by more than SHARE (5%% or 0.05), "
        "at 95 %% confidence, or has lost its number",
    )
    results.add_argument(
        "--any-machine", action="store_true", help="with --fail-if-slower: also compare records of different machines"
    )
    bench.set_defaults(run=run)


def run(options: argparse.Namespace) -> Status:
    """The command; failed where a variant was refused or failed, or nothing was measured."""
    from touchstone.conformance.bench import cases

    _check_gate(options)
    if options.compare:
        return _compare(options)
    if options.experiment == "list":
        table = Table("experiments", ["name", "what", "source"])
        table.rows += [[name, each["about"], each["source"]] for name, each in cases.experiments().items()]
        show(table)
        options.recording.entries["experiments"] = {name: each["about"] for name, each in cases.experiments().items()}
        return Status.PASSED
    typed = options.variant  # by name; an experiment names variants that a backend may lack
    if options.experiment:
        use_experiment(options)
    return _bench(options, typed)


def _check_gate(options: argparse.Namespace) -> None:
    """Raises UsageError naming the option."""
    from touchstone.conformance.bench import gate

    if options.fail_if_slower is None:
        if options.any_machine:
            raise UsageError("--any-machine: goes with --fail-if-slower")
        return
    gate.share(options.fail_if_slower)
    if not options.compare:
        raise UsageError("--fail-if-slower: goes with --compare OLD NEW")


def _compare(options: argparse.Namespace) -> Status:
    """Two records compared; failed where the gate was asked for and does not let NEW pass."""
    from touchstone.conformance.bench import gate, records

    old, new = map(records.read, options.compare)
    verdict = None
    if options.fail_if_slower is not None:
        verdict = gate.judge(old, new, gate.share(options.fail_if_slower), options.any_machine)
    table, remarks = records.compare(old, new)
    show(table)
    print("\n".join([*remarks, *(verdict.lines() if verdict else [])]))
    options.recording.entries["changes"] = {
        "columns": list(table.columns),
        "rows": [list(cells) for cells in table.rows],
        "remarks": remarks,
    }
    if verdict is None:
        return Status.PASSED
    options.recording.entries["gate"] = verdict.to_dict()
    return Status.PASSED if verdict.passed else Status.FAILED


def use_experiment(options: argparse.Namespace) -> None:
    """Set what the experiment sets; what was typed narrows it, but for shapes."""
    from touchstone.conformance.bench import cases

    if options.shapes:
        raise UsageError("--shapes and --experiment: give one of the two")
    path, given = cases.experiment(options.experiment)
    for name, value in given.items():
        if not getattr(options, name):
            setattr(options, name, value)
    options.shapes = str(path)


def _bench(options: argparse.Namespace, typed: str | None) -> Status:
    """Select, plan, measure the machine, measure the groups; `typed` are the variants asked for by name."""
    from touchstone.conformance.bench.records import SEED
    from touchstone.conformance.bench.run import guard
    from touchstone.conformance.bench.timing import timer

    _check_numbers(options)
    chosen = shared.select(options, options.level or "quick")
    _check_isolation(options, chosen)
    options.recording.concerns(chosen.device, options.level, SEED)
    watch = guard()  # before any kernel's file is imported
    shared.prepare(chosen)
    shared.require_imports(chosen)
    if typed:
        chosen.subjects()  # an unknown variant is a usage error
    plan = _plan(options, chosen)
    emulated = _opened_apart(plan, options.untrusted) if not chosen.here else None
    clock = timer(chosen.device, options.cache)
    results = _measure(options, chosen, plan, clock, _way(options, chosen, clock, watch), emulated)
    clock.close()
    return _status(results)


def _check_isolation(options: argparse.Namespace, chosen: Selection) -> None:
    """Say in the selection where a user's kernel is called. Raises UsageError naming the option."""
    if options.isolate not in ("auto", "none"):
        raise UsageError(f"--isolate: expected auto or none, got {options.isolate!r}")
    if chosen.kernel is None:
        for name, given in (("--isolate", options.isolate != "auto"), ("--untrusted", options.untrusted)):
            if given:
                raise UsageError(f"{name}: goes with --kernel; this repository's variants are timed in this process")
        return
    if options.untrusted and (chosen.device != "cpu" or options.isolate == "none"):
        what = "--isolate=none" if options.isolate == "none" else f"--device={chosen.device}"
        raise UsageError(f"--untrusted: does not go with {what}: what is confined is a process of its own on the CPU")
    chosen.here = options.isolate == "none"


def _opened_apart(plan: "Plan", untrusted: bool) -> bool:
    """Whether the user's kernel is emulated here; its file is imported for that in a process that ends. Raises
    UsageError where it does not import."""
    from touchstone.conformance.bench import apart
    from touchstone.conformance.discovery import launching, selection
    from touchstone.conformance.isolation import runner

    for group in plan.groups:
        group.subjects = [(backend, replace(subject, untrusted=untrusted)) for backend, subject in group.subjects]
    first = next((group for group in plan.groups if group.subjects), None)
    if first is None:
        return False
    try:
        subject = first.subjects[0][1]
        if subject.device == "cpu":
            return apart.is_emulated(subject, first)
        runner.try_start(subject)
        return False
    except selection.CannotRun:
        raise
    except launching.MissingPackage as error:
        raise selection.MissingPackage(f"--kernel:{str(error).removeprefix('fn:')}") from error
    except ValueError as error:
        raise UsageError(f"--kernel:{str(error).removeprefix('fn:')}") from error


def _check_numbers(options: argparse.Namespace) -> None:
    """Raises UsageError naming the option."""
    for name in ("seconds", "max_call_seconds", "top", "timeout"):
        shared.positive(f"--{name.replace('_', '-')}", getattr(options, name))
    if options.baselines and options.no_baselines:
        raise UsageError("--baselines and --no-baselines: give one of the two")


def _plan(options: argparse.Namespace, chosen: Selection) -> "Plan":
    """The groups that are timed. Raises UsageError where there are none."""
    from touchstone.conformance.bench import cases

    shapes = options.shapes or ("large" if chosen.device == "cuda" else "small")
    dtypes = options.dtype.split(",") if options.dtype else None
    plan = cases.plan(chosen, shapes, dtypes, options.mode or "fwd", options.baselines, options.first, options.top)
    if options.no_baselines:
        for group in plan.groups:
            group.baselines = ()
    plan.groups = [group for group in plan.groups if group.subjects or group.baselines]
    if not plan.groups:
        raise UsageError(f"nothing to time with --shapes={shapes}: {_why_nothing(plan, chosen, shapes)}")
    return plan


def _why_nothing(plan: "Plan", chosen: Selection, shapes: str) -> str:
    """Why there is no group to time, and what there would be."""
    reasons = [f"{what}: {why}" for what, why in list(plan.left_out.items())[:LEFT_OUT]]
    if len(plan.left_out) > LEFT_OUT:
        reasons.append(f"and {len(plan.left_out) - LEFT_OUT} more")
    told = "; ".join(reasons) or "no variant is selected"
    if chosen.device != "cpu":
        return told
    way = "" if shapes == "small" else "; --shapes=small has sizes for it"
    return f"{told}. There is no GPU in use ({cuda_unavailable() or '--device=cpu'}), and {EMULATED}{way}"


def _measure(
    options: argparse.Namespace,
    chosen: Selection,
    plan: "Plan",
    timer: "Timer",
    measure: "Callable[[Group, Ceilings | None], list[Result]]",
    emulated: bool | None,
) -> "list[Result]":
    """Measure the machine, then group by group by `measure`; the record is written after each, the tables at the end.

    `emulated` says whether a user's kernel that this process has not imported is.
    """
    from touchstone.conformance.bench import goals, records
    from touchstone.conformance.bench.tables import print_results

    if chosen.device == "cpu":
        print(f"on the CPU: {cuda_unavailable() or 'as asked for'}. {ON_CPU}\n")
    machine = options.recording.about["machine"].get("gpu", "CPU")
    ceilings = _ceilings(plan, timer, machine) if _native(plan, chosen, emulated) else None
    verdicts = _LevelVerdicts(options.level, chosen.here, timer) if options.level else None
    results: list[Result] = []
    begun = records.begun((subject for group in plan.groups for _, subject in group.subjects), options.level)
    options.recording.entries = records.entries(ceilings, results, plan.left_out)
    try:
        for group in progress(plan.groups, "bench"):
            if verdicts is not None:
                results += verdicts.drop_failed(group)
            if group.subjects or verdicts is None:  # baselines beside nothing tell nothing
                results += measure(group, ceilings)
            options.recording.entries = records.entries(ceilings, results, plan.left_out)
            options.recording.reports = records.reports(begun, results)
            with contextlib.suppress(OSError):  # told at the end, where it cannot be written then either
                options.recording.write()
    finally:
        print_results(results, plan.left_out)
        if held := goals.held(plan.goals, results):
            show(goals.table(held))
            options.recording.entries["goals"] = held
        if options.csv:
            records.write_csv(options.csv, results)
    return results


def _way(
    options: argparse.Namespace, chosen: Selection, timer: "Timer", watch: "Guard"
) -> "Callable[[Group, Ceilings | None], list[Result]]":
    """How a group is measured: a user's kernel in a process of its own, everything else in this one."""
    from touchstone.conformance.bench import apart, fresh, run
    from touchstone.conformance.isolation.limits import Limits
    from touchstone.conformance.reporting import provenance

    about: dict[str, Any] = {
        "noise_floor": options.noise_floor,
        "max_call_seconds": options.max_call_seconds or float("inf"),
    }
    limits, seconds = Limits(seconds=options.timeout), options.seconds
    if not chosen.here and chosen.device == "cpu":
        return lambda group, ceilings: apart.measure(group, ceilings, seconds, limits=limits, **about)
    about["clocks"] = provenance.clocks if chosen.device == "cuda" else dict
    if not chosen.here:
        return lambda group, ceilings: fresh.measure(group, timer, ceilings, seconds, limits=limits, **about)
    about["launched"] = _launched
    return lambda group, ceilings: run.measure(group, timer, watch, ceilings, seconds, **about)


def _native(plan: "Plan", chosen: Selection, emulated: bool | None) -> bool:
    """Whether something is timed that has this machine's speed: on a GPU anything, on the CPU no emulated kernel."""
    if chosen.device != "cpu":
        return True
    if emulated is not None:
        return not emulated or any(group.baselines for group in plan.groups)
    backends = [registry.backend(name) for name in registry.backends()]
    functions = [subject.fn for group in plan.groups for backend, subject in group.subjects if backend == ""]
    torch_only = any(not any(each.reimport(fn, "cuda") for each in backends) for fn in functions)
    return torch_only or any(group.baselines for group in plan.groups)


def _ceilings(plan: "Plan", timer: "Timer", machine: str) -> "Ceilings":
    """What this machine reaches in the dtypes of the plan; printed."""
    from touchstone.conformance.bench import ceilings

    measured = ceilings.measure(timer, sorted({group.case.dtype for group in plan.groups} | {"float32"}))
    show(Table(f"ceilings of this run, {machine}", ["what", "rate"], measured.rows()))
    return measured


class _LevelVerdicts:
    """Verdicts of --level, each variant's once."""

    def __init__(self, level: str, here: bool, timer: "Timer"):
        self._level, self._here, self._timer = level, here, timer
        self._verdicts: dict[tuple[str, str, str], str | None] = {}

    def drop_failed(self, group: "Group") -> "list[Result]":
        """Take the variants that do not pass out of the group; a result for each of them."""
        from touchstone.conformance.bench.contestant import result_of
        from touchstone.conformance.bench.group import FAILED

        failed = []
        for _, subject in group.subjects:
            if (problem := self._problem(subject)) is not None:
                result = result_of(group, subject.name, subject.target, "variant", self._timer)
                failed.append(replace(result, status=FAILED, problems=[problem]))
        group.subjects = [(backend, s) for backend, s in group.subjects if self._problem(s) is None]
        return failed

    def _problem(self, subject: Subject) -> str | None:
        from touchstone.conformance.reporting.session import judge_subject

        key = (subject.op, subject.target, subject.name)
        if key not in self._verdicts:
            report = judge_subject(subject, self._level, isolate="none" if self._here else "auto")
            self._verdicts[key] = None if report.passed else f"does not pass at level {self._level}: {report.summary()}"
        return self._verdicts[key]


def _launched(backend: str, call: Callable[[], Any]) -> dict[str, int] | None:
    """Registers, spills and shared memory of the kernels of a call: the most of any, where the backend can tell."""
    module = registry.backend(backend) if backend else None
    if module is None or not hasattr(module, "launched"):
        return None
    found = [module.resources(kernel) for kernel in module.launched(call)]
    return {name: max(each[name] for each in found) for name in found[0]} if found else None


def _status(results: "list[Result]") -> Status:
    """Failed where a variant was refused or failed, or nothing was measured; not run where nothing could be."""
    from touchstone.conformance.bench.group import FAILED, MEASURED, NOT_RUN, REFUSED

    variants = [result for result in results if result.kind == "variant"]
    if any(result.status in (REFUSED, FAILED) for result in variants):
        return Status.FAILED
    if any(result.status == MEASURED for result in results):
        return Status.PASSED
    return Status.NOT_RUN if results and all(result.status == NOT_RUN for result in results) else Status.FAILED
