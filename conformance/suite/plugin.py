"""pytest: the options, the parametrisation of the conformance test, and the table at the end."""

import argparse
import dataclasses
import functools
import os
import sys
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import psutil
import pytest

from touchstone.backends.devices import cuda_unavailable, gpus, keep_one
from touchstone.backends.variants import attributes
from touchstone.conformance.compiling import client as compiling
from touchstone.conformance.discovery import best, options, registry, selection
from touchstone.conformance.discovery.subject import Subject, not_called
from touchstone.conformance.findings import kept
from touchstone.conformance.isolation.runner import try_start
from touchstone.conformance.judging.judgement import DECLINED, FAILED, NOT_RUN, PASSED, Outcome
from touchstone.conformance.judging.trials import Kind, Trial, cases_of, narrow, trials_of
from touchstone.conformance.reporting.console import Table, fraction_text, width_of
from touchstone.conformance.reporting.record import STDOUT, Record
from touchstone.conformance.reporting.report import Report
from touchstone.conformance.reporting.source import source_of
from touchstone.conformance.reporting.status import Status
from touchstone.conformance.reporting.tolerance import Tolerance
from touchstone.conformance.spec.cases import plan
from touchstone.conformance.spec.checks import Requirement
from touchstone.conformance.spec.compare import worst
from touchstone.conformance.spec.known import Known, Rule
from touchstone.conformance.spec.known import read as read_known
from touchstone.conformance.spec.narrowing import Narrowing
from touchstone.conformance.spec.sharing import Share, shares
from touchstone.conformance.suite import pasted, workers
from touchstone.conformance.suite.turns import WAITS, in_turn

COMPILED = "touchstone-compiled"  # key of the user property that holds the rows of an item of compile conformance
SELECTION = pytest.StashKey[selection.Selection]()  # what the options ask for
NARROWED = pytest.StashKey[dict[str, Narrowing]]()  # and by op what of its cases
KNOWN = pytest.StashKey[dict[str, Known]]()  # and by op what --known tells
SESSION = pytest.StashKey[pytest.Session]()  # that has ended
OUTPUT = pytest.StashKey[TextIO]()  # standard output, where --json - leaves it to the record
BY_NAME = pytest.StashKey[bool]()  # whether the suite is collected by the name of its package
SUITE = Path(__file__).parent
MODULES = {"::test_kernel": "test_kernels", "::test_compile": "test_compile", "::test_time": "test_benchmarks"}
# options that ask for kernels
ASKS = ("backend", "op", "variant", "kernel", "op_file", "reference", "kernelbench", "dtypes", "sizes", "where")
ALONE = ("collectonly", "usepdb", "trace", "help", "version", "showfixtures", "show_fixtures_per_test", "markers")
WORTH = 3  # variants for which a second process pays
GPU_PROCESSES = 4  # that share a GPU
PROCESS_BYTES = 2**30  # of memory that is free, for each process
ELSEWHERE = "divided among the variants of the op"
IN_KEYWORDS = str.maketrans("@=", "/:")  # characters of ids that an expression of -k cannot have, as it can
RECORD = "touchstone"  # key of the user property that carries an outcome from a worker to the controller


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("touchstone", "Touchstone: which kernels to judge")
    options.add(group.addoption, "--op", "--backend", "--variant", "--kernel", "--arrays", "--op-file", "--device")
    options.add(group.addoption, "--reference", "--inputs", "--kernelbench")
    options.add(group.addoption, "--level", default=None)
    options.add(group.addoption, "--quick", "--thorough", "--seed", "--dtypes", "--sizes", "--where")
    options.add(group.addoption, "--require", "--strict-kernels", "--arch", "--known", "--divide", "--turns")
    options.add(group.addoption, "--json", dest="touchstone_json", help="write every outcome to FILE as JSON")


def _asked(config: pytest.Config) -> bool:
    """Whether kernels are asked for and no tests are named: the conformance suite is meant, and nothing else."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS and not config.stash.get(BY_NAME, False)
    return not named and _asks(config.option)


def _asks(option: argparse.Namespace) -> bool:
    return any(getattr(option, name, None) is not None for name in ASKS)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Where `-p touchstone.pytest` brought this into a project of a user's, collect the suite by its name: by its path,
    the clone's conftest.py would be taken for a part of the project. An id is "::test_kernel[...]" there."""
    known = early_config.known_args_namespace
    if SUITE.is_relative_to(early_config.rootpath):
        return
    ids = [index for index, argument in enumerate(args) if pasted.NAMED.match(argument)]
    for index in ids:
        args[index] = f"{__package__}.{MODULES[args[index].partition('[')[0]]}{args[index]}"
    if not ids and not known.file_or_dir and _asks(known):
        timed = getattr(known, "benchmark_only", False)
        args += [f"{__package__}.{name}" for name in MODULES.values() if (name == "test_benchmarks") == timed]
        early_config.stash[BY_NAME] = True
    elif not ids:
        return
    args.append("--pyargs")
    known.pyargs = True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    """Choose the number of processes, then run; with `--json -`, standard output is for the record alone."""
    _choose_processes(config)
    if config.option.touchstone_json != STDOUT or hasattr(config, "workerinput"):
        return (yield)
    if config.option.capture == "no":
        raise pytest.UsageError("--json -: goes with no -s, which lets tests write to standard output")
    config.stash[OUTPUT] = sys.stdout
    with redirect_stdout(sys.stderr):  # where the terminal reporter, which is made in here, will write
        return (yield)


def _choose_processes(config: pytest.Config) -> None:
    """Where kernels are asked for and pytest-xdist is installed, use all cores, unless -n or --dist says otherwise.

    This is called in each of those processes too, which must start no others.
    """
    option = config.option
    if hasattr(config, "workerinput") or "PYTEST_XDIST_WORKER" in os.environ:
        return
    if getattr(option, "numprocesses", 0) is not None or option.tx or option.dist != "no":
        return
    if not _asked(config) or option.capture == "no" or any(getattr(option, name, False) for name in ALONE):
        return
    if getattr(option, "benchmark_only", False) or (processes := _processes(option)) < 2:
        return
    option.numprocesses, option.dist, option.tx = processes, "worksteal", ["popen"] * processes


def _processes(option: argparse.Namespace) -> int:
    """How many processes pay for what is asked for. What is no op, or no backend, is an error that comes later."""
    ops = option.op.split(",") if option.op else registry.ops()
    backends = [name for name in registry.backends() if option.backend is None or _means(option.backend, name)]
    named = option.variant.split(",") if option.variant else None
    ladders = [[*registry.ladder(name, op), *((best.NAME,) if named else ())] for op in ops for name in backends]
    every = [variant for ladder in ladders for variant in ladder if named is None or variant in named]
    variants = 1 if option.kernel else len(every)
    if variants < WORTH:
        return 1
    processes = min(len(os.sched_getaffinity(0)), psutil.virtual_memory().available // PROCESS_BYTES, variants)
    on_gpu = option.device == "cuda" or (option.device == "auto" and cuda_unavailable() is None)
    return min(processes, GPU_PROCESSES * len(gpus())) if on_gpu else processes


def _means(asked: str, name: str) -> bool:
    """Whether a list of backends and aliases asks for the backend `name`."""
    return any(each.strip() in (name, *registry.backend(name).ALIASES) for each in asked.split(","))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "conformance: judges a kernel; selected by --backend, --device, --op, --variant, --level"
    )
    option = config.option
    if getattr(option, "dist", "no") != "no" or hasattr(config, "workerinput"):
        option.benchmark_disable = True  # as pytest-benchmark decides itself, with a warning from every worker
    if hasattr(config, "workerinput"):
        workers.share_cores(config.workerinput["workercount"])
        if option.device != "cpu":
            keep_one(int(config.workerinput["workerid"].removeprefix("gw")))
    try:
        options.contradictions(config.invocation_params.args)
        options.file("--json", option.touchstone_json)
        if ids := pasted.found(config.args, option.keyword):
            pasted.complete(option, ids)
        options.derived(option, option.level or "default")
        chosen = selection.select(
            option.backend,
            option.device,
            option.op,
            option.variant,
            option.level or "default",
            option.kernel,
            option.seed or 0,
            library=option.arrays,
            op_file=option.op_file,
            require=option.require,
            strict=option.strict_kernels,
            arch=option.arch,
        )
        if _asked(config) and not config.stash.get(BY_NAME, False):
            config.args[:] = [str(SUITE)]
        if option.divide and option.kernel:
            raise selection.UsageError("--divide goes without --kernel: it divides cases among the variants of an op")
        options.positive("--turns", option.turns)
        if option.turns > 1 and (option.kernel or option.variant):
            raise selection.UsageError("--turns goes with neither --kernel nor --variant: it chooses among variants")
        known = _known(option, chosen)
        narrowed = options.narrowed(option, chosen)
        for op, rules in known.items():
            skip = {rule.reason: rule.where for rule in rules.skip}
            narrowed[op] = dataclasses.replace(narrowed[op], skip=skip or None)
        chosen.prepare()
        chosen.here = option.usepdb or option.trace or option.capture == "no"  # as a debugger needs it
        if (option.variant or option.kernel) and not selection.import_check(chosen):
            found = chosen.subjects()  # an unknown variant or function is a usage error too
            if option.kernel and not chosen.here:
                _try_start(found[0][1])
    except (selection.UsageError, RuntimeError) as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[SELECTION], config.stash[NARROWED], config.stash[KNOWN] = chosen, narrowed, known
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(config, chosen), "touchstone-summary")
    elif chosen.device == "cuda":
        worker = workers.Worker(config.workerinput["workercount"], _is_long)
        config.pluginmanager.register(worker, "touchstone-worker")


def _known(option: argparse.Namespace, chosen: selection.Selection) -> dict[str, Known]:
    """By op: what --known tells of it."""
    if option.known is None:
        return {}
    if not option.kernel:
        raise selection.UsageError(options.KNOWN_ALONE)
    try:
        return {op: read_known(option.known, registry.contract(op)) for op in chosen.ops}
    except ValueError as error:
        raise selection.UsageError(f"--{error}") from None


def _try_start(subject: Subject) -> None:
    """Have a child import the function, whose file this process does not."""
    try:
        try_start(subject)
    except ValueError as error:
        raise selection.UsageError(f"--kernel: {str(error).removeprefix('fn: ')}") from error


def pytest_report_header(config: pytest.Config) -> list[str]:
    chosen = config.stash[SELECTION]
    targets = "user@" + chosen.device if chosen.kernel else ", ".join(map(chosen.target, chosen.backends)) or "none"
    lines = [f"touchstone: targets {targets}; level {chosen.level}; seed {chosen.seed}"]
    return lines + [f"touchstone: {name}@{chosen.device} skipped: {reason}" for name, reason in chosen.skipped.items()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "judged" not in metafunc.fixturenames:
        return
    chosen = metafunc.config.stash[SELECTION]
    if broken := selection.import_check(chosen):
        raise ImportError("kernel files that do not import:\n" + "\n".join(broken))
    items = []
    for backend, reason in chosen.skipped.items():
        items.append(
            pytest.param(None, marks=pytest.mark.skip(reason=f"{backend}: {reason}"), id=f"{backend}@{chosen.device}")
        )
    part = functools.cache(functools.partial(_shares, chosen))
    turns = metafunc.config.option.turns
    waiting = functools.cache(functools.partial(_waiting, chosen, turns))
    for backend, subject in chosen.subjects():
        lacking = selection.not_run_reason(backend, subject)
        waits = turns > 1 and subject.name in waiting(backend, subject.op)
        if waits:
            lacking = f"{WAITS} (--turns {turns})"
        ceiling = chosen.ceiling(backend) if backend else None
        share = part(backend, subject.op).get(subject.name) if metafunc.config.option.divide else None
        narrowing = metafunc.config.stash[NARROWED][subject.op]
        every, planned = trials_of(subject, chosen.level, chosen.seed, ceiling, share, narrowing)
        trials, left_out = narrow(every, narrowing)
        if planned.elsewhere:
            left_out[ELSEWHERE] = planned.elsewhere
        expected = metafunc.config.stash[KNOWN].get(subject.op, Known()).expected
        for index, trial in enumerate(trials[:1] if waits else trials):
            marks = [pytest.mark.skip(reason=f"not run: {lacking}")] if lacking else []
            judged = KernelItem(subject, trials, index, planned.over_ceiling, left_out, expected)
            items.append(pytest.param(judged, marks=marks, id=pasted.item_id(subject, trial.id)))
    metafunc.parametrize("judged", items)


def _shares(chosen: selection.Selection, backend: str, op: str) -> dict[str, Share]:
    """By variant that can run here: its part of the cases of an op."""
    ladder = _ladder(chosen, backend, op)
    if not ladder:
        return {}
    contract = registry.contract(op)
    takes = {subject.name: attributes(subject.fn).dtypes or contract.dtypes for subject in ladder}
    made = plan(contract, chosen.level, chosen.seed)
    return shares(contract, takes, cases_of(ladder[0], made, chosen.level, chosen.ceiling(backend)))


def _waiting(chosen: selection.Selection, turns: int, backend: str, op: str) -> set[str]:
    """The variants that could run here, and whose turn it is not."""
    able = [subject.name for subject in _ladder(chosen, backend, op)]
    return {*able} - {*in_turn(backend, op, able, turns)}


def _ladder(chosen: selection.Selection, backend: str, op: str) -> list[Subject]:
    """The variants that can run here."""
    found = registry.variants(backend, op).items()
    subjects = [selection.variant_subject(op, backend, name, fn, chosen.device) for name, fn in found]
    return [subject for subject in subjects if not selection.not_run_reason(backend, subject)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the placeholder of compile conformance when nothing is to be compiled, and let -k take ids."""
    calls = {item: _call_of(item) for item in items}
    empty = [item for item, call in calls.items() if call is not None and call.params.get("compiled", "") is None]
    if empty:
        items[:] = [item for item in items if item not in empty]
        config.hook.pytest_deselected(items=empty)
    if config.option.keyword:
        _by_id(config, items)


def _by_id(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let -k select the one conformance item whose id it is; else let it name parts of ids, in which pytest allows no @
    and =."""
    text = config.option.keyword.strip()
    ours = [item for item in items if item.get_closest_marker("conformance")]
    exact = [item for item in ours if text in (item.nodeid, item.name, getattr(_call_of(item), "id", None))]
    if exact:
        config.option.keyword = ""
        config.hook.pytest_deselected(items=[item for item in items if item not in exact])
        items[:] = exact
        return
    config.option.keyword = text.translate(IN_KEYWORDS)
    for item in items:
        if _call_of(item) is not None:
            item.extra_keyword_matches.add(item.name.translate(IN_KEYWORDS))


def _call_of(item: pytest.Item) -> Any:
    return getattr(item, "callspec", None)


def _is_long(item: pytest.Item) -> bool:
    """Whether it is a trial of many calls, which can be as long as a thousand others: each may compile kernels."""
    judged = getattr(_call_of(item), "params", {}).get("judged")
    return isinstance(judged, KernelItem) and judged.trial.kind is Kind.CALLS


@functools.lru_cache
def _source(subject: Subject) -> dict[str, str | None]:
    """Its file and digest, read once for all of its items."""
    return source_of(subject)


class KernelItem:
    """One pytest item: a subject, all of its trials, which of them this is, and the failures that are expected."""

    def __init__(
        self,
        subject: Subject,
        trials: list[Trial],
        index: int,
        dropped: int,
        left_out: dict[str, int],
        expected: Sequence[Rule] = (),
    ):
        self.subject, self.trials, self.index, self.dropped, self.left_out = subject, trials, index, dropped, left_out
        self.expected = expected
        self.trial, self.of = trials[index], len(trials)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    judged = getattr(_call_of(item), "params", {}).get("judged")
    if isinstance(judged, KernelItem):
        subject = judged.subject
        about = dict(
            op=subject.op,
            target=subject.target,
            variant=subject.name,
            compute=subject.compute,
            source=_source(subject),
            of=judged.of,
            dropped=judged.dropped,
            left_out=judged.left_out,
        )
        item.user_properties.append((RECORD, about))


class Summary:
    """In the controller: gathers outcomes, decides whether enough ran, prints the table."""

    def __init__(self, config: pytest.Config, chosen: selection.Selection):
        self.config, self.chosen = config, chosen
        self.variants: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.selected = self.ran = 0
        self.problems: list[str] = []
        self.exit = pytest.ExitCode.INTERRUPTED  # until the session has ended
        self.kept: list[dict[str, Any]] = []  # findings, for replay
        self.compiled: list[dict[str, Any]] = []  # what compile conformance tells, for the record
        self.not_compiled: dict[str, None] = {}  # reasons

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            found: list[Any] = [value for key, value in report.user_properties if key == COMPILED]
            self.compiled += [row for rows in found for row in rows]
            if report.skipped and "test_compile[" in report.nodeid and isinstance(report.longrepr, tuple):
                self.not_compiled[report.longrepr[2].removeprefix("Skipped: ")] = None
        about: Any = next((value for key, value in report.user_properties if key == RECORD), None)
        if about is None:
            if report.when == "setup" and "conformance" in report.keywords and report.skipped:
                self.selected += 1
            return
        entry = self.variants.setdefault(
            (about["op"], about["target"], about["variant"]),
            {name: about[name] for name in ("of", "dropped", "left_out", "compute", "source")}
            | dict(outcomes=[], not_run=None),
        )
        if report.when == "setup":
            self.selected += 1
            if report.skipped:
                entry["not_run"] = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        elif report.when == "call" and "outcome" in about:
            outcome = Outcome.from_dict(about["outcome"])
            entry["outcomes"].append(outcome)
            self.tolerance(about["op"], entry).add(about["expected"])
            self.kept += self.records(about, outcome)
            self.ran += outcome.judged

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        kept.keep(self.kept)
        if not (session.config.option.collectonly or session.shouldstop or session.shouldfail):
            self._find_problems(session)
        self.exit = pytest.ExitCode(session.exitstatus)
        session.config.stash[SESSION] = session

    def tolerance(self, op: str, entry: dict[str, Any]) -> Tolerance:
        """What came of the failures that are expected of a variant."""
        rules = self.config.stash[KNOWN].get(op, Known()).expected
        found: Tolerance = entry.setdefault("tolerance", Tolerance(rules))
        return found

    def surprises(self, op: str, entry: dict[str, Any]) -> list[str]:
        """The failures that were expected and did not come, once all trials were judged."""
        return self.tolerance(op, entry).surprises() if len(entry["outcomes"]) == entry["of"] else []

    def _find_problems(self, session: pytest.Session) -> None:
        """What makes a session fail in which every test passed."""
        for (op, target, variant), entry in self.variants.items():
            done = entry["outcomes"]
            self.problems += [f"{op}-{target}-{variant} {each}" for each in self.surprises(op, entry)]
            whole = len(done) == entry["of"] and ELSEWHERE not in entry["left_out"]  # else others have what it takes
            if done and whole and all(o.status == DECLINED for o in _cases(done)):
                self.problems.append(
                    f"{op}-{target}-{variant} declined every case, though this machine satisfies its needs"
                )
        if self.selected and not self.ran and session.exitstatus in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            self.problems.append(f"{self.selected} conformance tests were selected and none ran")
        if self.problems and session.exitstatus in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def records(self, about: dict[str, Any], outcome: Outcome) -> list[dict[str, Any]]:
        """What `python -m touchstone replay` has to know of an item's findings."""
        chosen, where = self.chosen, None
        if chosen.kernel is not None:
            where = {"file": str(chosen.kernel[0].resolve()), "function": chosen.kernel[1]}
        subject = Subject(
            about["op"],
            not_called,
            about["variant"],
            about["target"],
            chosen.device,
            own=where is None,
            compute=about["compute"],
            arrays=chosen.arrays,
            strict=where is None or chosen.strict,
            arch=chosen.arch,
        )
        return kept.records(subject, [outcome], chosen.level, chosen.seed, where)

    def pytest_terminal_summary(self, terminalreporter) -> None:
        width = width_of(False) or (terminalreporter._tw.fullwidth if terminalreporter.isatty else None)
        if self.variants:
            terminalreporter.section("Touchstone")
            terminalreporter.write_line(self.table().plain(width))
            for line in self.left_out():
                terminalreporter.write_line(line)
        if self.chosen.kernel is not None:
            for (op, target, variant), entry in self.variants.items():
                report = self.report(op, target, variant, entry)
                terminalreporter.write_line(report.requirements().plain(width))
        if self.compiled:
            terminalreporter.section("Compiled")
            terminalreporter.write_line(compiling.table(self.compiled).plain(width))
        for problem in self.problems:
            terminalreporter.write_line(f"FAILED: {problem}", red=True)
        path = self.config.option.touchstone_json
        if path:
            try:
                self.record(path).end(self.status())
            except OSError as error:
                terminalreporter.write_line(f"FAILED: --json: {path}: {error.strerror}", red=True)
                terminalreporter.config.stash[SESSION].exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def table(self) -> Table:
        columns = ["op", "target", "variant", "passed", "failed", "declined", "worst error / budget", "computes in"]
        table = Table(f"level {self.chosen.level}, seed {self.chosen.seed}", columns)
        for (op, target, variant), entry in sorted(self.variants.items(), key=lambda item: _rank(*item[0])):
            done = entry["outcomes"]
            count: dict[str, int] = defaultdict(int)
            for outcome in done:
                spared = outcome.status == FAILED and not any(f.fails(self.chosen.require) for f in outcome.findings)
                count["not required" if spared else outcome.status] += 1
            largest = worst([f for outcome in done for f in outcome.fractions.values()])
            reason = entry["not_run"] = entry["not_run"] or _cannot_run(done)
            cells = ["not run", "-", "-"] if reason else [str(count[s]) for s in (PASSED, FAILED, DECLINED)]
            table.rows.append([op, target, variant, *cells, fraction_text(largest), entry["compute"] or ""])
        return table

    def left_out(self) -> list[str]:
        """What was not judged, and why, a line each."""
        lines = []
        reasons: dict[tuple[str, str], dict[str, list[str]]] = {}
        for (op, target, variant), entry in self.variants.items():
            if entry["not_run"]:
                why = entry["not_run"].removeprefix("Skipped: ").removeprefix("not run: ")
                reasons.setdefault((target, why), {}).setdefault(op, []).append(variant)
        for (target, reason), ops in reasons.items():
            names = "; ".join(f"{op} {', '.join(variants)}" for op, variants in ops.items())
            lines.append(f"not run on {target}: {names}: {reason}")
        if dropped := sum(entry["dropped"] for entry in self.variants.values()):
            lines.append(f"{dropped} cases dropped: more work than the target's limit at this level")
        counts: dict[str, int] = defaultdict(int)
        for entry in self.variants.values():
            for reason, count in entry["left_out"].items():
                counts[reason] += count
        lines += [f"{count} trials not run: {reason}" for reason, count in counts.items()]
        chosen = self.chosen
        lines += [f"{chosen.target(name)} skipped: {reason}" for name, reason in chosen.skipped.items()]
        if chosen.device == "cpu":
            asked = self.config.option.device == "cpu"
            lines.append(f"no target on a GPU: {'the CPU was asked for' if asked else cuda_unavailable()}")
        return lines + list(self.not_compiled)

    def report(self, op: str, target: str, variant: str, entry: dict[str, Any]) -> Report:
        """What is known of a variant so far."""
        made = Report(op, variant, target, self.chosen.level, self.chosen.seed, entry["outcomes"])
        made.require, made.compute, made.source = self.chosen.require, entry["compute"], entry["source"]
        made.lacking = (entry["not_run"] or "").removeprefix("Skipped: ").removeprefix("not run: ") or None
        made.not_run, made.surprises = dict(entry["left_out"]), self.surprises(op, entry)
        if entry["dropped"]:
            made.not_run["over the target's limit of work"] = entry["dropped"]
        if left := entry["of"] - len(entry["outcomes"]):
            made.interrupted = self.exit == pytest.ExitCode.INTERRUPTED
            made.not_run[made.lacking or ("interrupted" if made.interrupted else "not reached, or deselected")] = left
        return made

    def status(self) -> Status:
        """How the session ended, as a command's exit status would say it; pytest has its own."""
        if self.exit == pytest.ExitCode.INTERRUPTED:
            return Status.INTERRUPTED
        if self.exit not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return Status.FAILED
        verdicts = [self.report(*key, entry).verdict for key, entry in self.variants.items()]
        if not verdicts:
            return Status.NOT_RUN if self.chosen.skipped and not self.compiled else Status.PASSED
        return Status.combined(verdicts)

    def record(self, path: str) -> Record:
        """What --json writes."""
        words = ["pytest", *self.config.invocation_params.args]
        made = Record("pytest", path, words, self.config.stash.get(OUTPUT, None))
        made.concerns(self.chosen.device, self.chosen.level, self.chosen.seed)
        made.reports = [self.report(*key, entry) for key, entry in self.variants.items()]
        made.entries = {"compiled": self.compiled, "problems": self.problems, "skipped": self.chosen.skipped}
        return made


def _cannot_run(outcomes: list[Outcome]) -> str | None:
    """Why a kernel could be judged on nothing but empty operands; None where it could, or ran wrongly."""
    if any(outcome.status == FAILED or (outcome.judged and _filled(outcome)) for outcome in outcomes):
        return None
    return next((outcome.reason for outcome in outcomes if outcome.status == NOT_RUN), None)


def _filled(outcome: Outcome) -> bool:
    return Requirement.EMPTY not in outcome.requirements


def _rank(op: str, target: str, variant: str) -> tuple[str, str, int]:
    """Where a variant stands in the table: in ladder order, whichever process was done with it first."""
    ladder = registry.ladder(target.partition("@")[0], op)
    return op, target, ladder.index(variant) if variant in ladder else len(ladder)


def _cases(outcomes: list[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.kind is Kind.CASE]
