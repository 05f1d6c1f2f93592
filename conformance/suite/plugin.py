"""pytest: the options, the parametrisation of the conformance test, and the table at the end."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from touchstone.conformance.compiling import client as compiling
from touchstone.conformance.discovery import options, selection
from touchstone.conformance.discovery.subject import Subject, not_called
from touchstone.conformance.findings import kept
from touchstone.conformance.judging.judgement import DECLINED, FAILED, PASSED, Outcome
from touchstone.conformance.judging.trials import Kind, Trial, trials_of
from touchstone.conformance.reporting.console import Table, fraction_text
from touchstone.conformance.spec.compare import worst

COMPILED = "touchstone-compiled"  # key of the user property that holds the rows of an item of compile conformance
SELECTION = pytest.StashKey[selection.Selection]()  # what the options ask for
RECORD = "touchstone"  # key of the user property that carries an outcome from a worker to the controller


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("touchstone", "Touchstone: which kernels to judge")
    options.add(group.addoption, "--op", "--backend", "--variant", "--kernel", "--arrays", "--op-file", "--device")
    options.add(group.addoption, "--level", default=None)
    options.add(group.addoption, "--quick", "--thorough", "--seed")
    options.add(group.addoption, "--json", dest="touchstone_json", help="write every outcome to FILE as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "conformance: judges a kernel; selected by --backend, --device, --op, --variant, --level"
    )
    option = config.option
    if getattr(option, "dist", "no") != "no" or hasattr(config, "workerinput"):
        option.benchmark_disable = True  # as pytest-benchmark decides itself, with a warning from every worker
    try:
        chosen = selection.select(
            option.backend,
            option.device,
            option.op,
            option.variant,
            option.level or "default",
            option.kernel,
            option.seed,
            library=option.arrays,
            op_file=option.op_file,
        )
        chosen.prepare()
        if (option.variant or option.kernel) and not selection.import_check(chosen):
            chosen.subjects()  # an unknown variant or function is a usage error too
    except (selection.UsageError, RuntimeError) as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[SELECTION] = chosen
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(config, chosen), "touchstone-summary")


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
    for backend, subject in chosen.subjects():
        lacking = selection.not_run_reason(backend, subject)
        ceiling = chosen.ceiling(backend) if backend else None
        trials, plan = trials_of(subject, chosen.level, chosen.seed, ceiling)
        for index, trial in enumerate(trials):
            marks = [pytest.mark.skip(reason=f"not run: {lacking}")] if lacking else []
            judged = KernelItem(subject, trials, index, plan.over_ceiling)
            items.append(
                pytest.param(judged, marks=marks, id=f"{subject.op}-{subject.target}-{subject.name}-{trial.id}")
            )
    metafunc.parametrize("judged", items)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the placeholder of compile conformance when nothing is to be compiled."""
    calls = {item: getattr(item, "callspec", None) for item in items}
    empty = [item for item, call in calls.items() if call is not None and call.params.get("compiled", "") is None]
    if empty:
        items[:] = [item for item in items if item not in empty]
        config.hook.pytest_deselected(items=empty)


class KernelItem:
    """One pytest item: a subject, all of its trials, and which of them this is."""

    def __init__(self, subject: Subject, trials: list[Trial], index: int, dropped: int):
        self.subject, self.trials, self.index, self.dropped = subject, trials, index, dropped
        self.trial, self.of = trials[index], len(trials)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    judged = getattr(getattr(item, "callspec", None), "params", {}).get("judged")
    if judged:
        subject = judged.subject
        about = dict(
            op=subject.op,
            target=subject.target,
            variant=subject.name,
            compute=subject.compute,
            of=judged.of,
            dropped=judged.dropped,
        )
        item.user_properties.append((RECORD, about))


class Summary:
    """In the controller: gathers outcomes, decides whether enough ran, prints the table."""

    def __init__(self, config: pytest.Config, chosen: selection.Selection):
        self.config, self.chosen = config, chosen
        self.variants: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.selected = self.ran = 0
        self.problems: list[str] = []
        self.kept: list[dict[str, Any]] = []  # findings, for replay
        self.compiled: list[dict[str, Any]] = []  # what compile conformance tells, for the record

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            found: list[Any] = [value for key, value in report.user_properties if key == COMPILED]
            self.compiled += [row for rows in found for row in rows]
        about: Any = next((value for key, value in report.user_properties if key == RECORD), None)
        if about is None:
            if report.when == "setup" and "conformance" in report.keywords and report.skipped:
                self.selected += 1
            return
        entry = self.variants.setdefault(
            (about["op"], about["target"], about["variant"]),
            dict(of=about["of"], dropped=about["dropped"], compute=about["compute"], outcomes=[], not_run=None),
        )
        if report.when == "setup":
            self.selected += 1
            if report.skipped:
                entry["not_run"] = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        elif report.when == "call" and "outcome" in about:
            outcome = Outcome.from_dict(about["outcome"])
            entry["outcomes"].append(outcome)
            self.kept += self.records(about, outcome)
            self.ran += outcome.status != DECLINED

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        kept.keep(self.kept)
        if session.config.option.collectonly or session.shouldstop or session.shouldfail:
            return
        for (op, target, variant), entry in self.variants.items():
            done = entry["outcomes"]
            if done and len(done) == entry["of"] and all(o.status == DECLINED for o in _cases(done)):
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
        )
        return kept.records(subject, [outcome], chosen.level, chosen.seed, where)

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self.variants:
            terminalreporter.section("Touchstone")
            terminalreporter.write_line(self.table().plain())
            dropped = sum(entry["dropped"] for entry in self.variants.values())
            if dropped:
                terminalreporter.write_line(f"{dropped} cases dropped: more work than the target's limit at this level")
        if self.compiled:
            terminalreporter.section("Compiled")
            terminalreporter.write_line(compiling.table(self.compiled).plain())
        for problem in self.problems:
            terminalreporter.write_line(f"FAILED: {problem}", red=True)
        path = self.config.option.touchstone_json
        if path:
            self.write(Path(path))

    def table(self) -> Table:
        columns = ["op", "target", "variant", "passed", "failed", "declined", "worst error / budget", "computes in"]
        table = Table(f"level {self.chosen.level}, seed {self.chosen.seed}", columns)
        for (op, target, variant), entry in sorted(self.variants.items(), key=lambda item: item[0][:2]):
            done = entry["outcomes"]
            count: dict[str, int] = defaultdict(int)
            for outcome in done:
                count[outcome.status] += 1
            largest = worst([f for outcome in done for f in outcome.fractions.values()])
            cells = ["not run"] * 3 if entry["not_run"] else [str(count[s]) for s in (PASSED, FAILED, DECLINED)]
            table.rows.append(
                [op, target, variant, *cells, entry["not_run"] or fraction_text(largest), entry["compute"] or ""]
            )
        return table

    def write(self, path: Path) -> None:
        from touchstone.conformance.reporting.provenance import provenance

        record = {
            **provenance(self.chosen.device, ["pytest", *self.config.invocation_params.args]),
            "level": self.chosen.level,
            "seed": self.chosen.seed,
            "device": self.chosen.device,
            "compiled": self.compiled,
            "variants": [
                {
                    "op": op,
                    "target": target,
                    "variant": variant,
                    "compute": entry["compute"],
                    "not_run": entry["not_run"],
                    "dropped": entry["dropped"],
                    "outcomes": [outcome.to_dict() for outcome in entry["outcomes"]],
                }
                for (op, target, variant), entry in self.variants.items()
            ],
        }
        path.write_text(json.dumps(record, indent=1) + "\n")


def _cases(outcomes: list[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.kind is Kind.CASE]
