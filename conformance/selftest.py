"""The judge judged: every planted fault and every control of an op, on all trials of a level.

A fault is killed by a trial that fails; a control that fails a trial is a false alarm. A fault that nothing kills is a hole,
and so is a family of cases that kills nothing; a family without which every fault would still be killed is redundant.
"""

import multiprocessing
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

from conformance import judge, registry
from conformance.console import Table, progress
from conformance.faults import Planted
from conformance.isolation import Runner
from conformance.judge import DECLINED, FAILED, Subject, Trial
from conformance.report import versions

DEVICE = "cpu"
ENOUGH = {
    "quick": 2,
    "default": 4,
}  # kills of a kernel in a backend's language, after which it is left: interpreters are slow
OF_MANY_CALLS = ("control", "race", "cache", "alias", "state", "mutation", "unwritten", "bounds")  # at level quick
T = TypeVar("T")


@dataclass
class Judged:
    """One fault or control, on the trials of the dtypes in which it is one."""

    op: str
    name: str
    kind: str
    about: str
    backend: str | None
    trials: int = 0
    declined: int = 0
    killed: list[str] = field(default_factory=list)  # ids of the trials that fail
    checks: dict[str, int] = field(default_factory=dict)  # check of the first finding -> trials
    families: list[str] = field(default_factory=list)  # of the trials that kill
    needs: list[str] = field(default_factory=list)  # families without which nothing would kill it
    first: str | None = None  # the first finding

    @property
    def is_control(self) -> bool:
        return self.kind == "control"


@dataclass
class OpResult:
    """All that is planted in one op."""

    op: str
    level: str
    seed: int
    judged: list[Judged] = field(default_factory=list)
    families: list[str] = field(default_factory=list)  # all of the level
    notes: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[Judged]:
        return [one for one in self.judged if not one.is_control]

    @property
    def controls(self) -> list[Judged]:
        return [one for one in self.judged if one.is_control]

    @property
    def survivors(self) -> list[Judged]:
        return [one for one in self.faults if not one.killed]

    @property
    def thin(self) -> list[Judged]:
        """Faults that one trial alone kills."""
        return [one for one in self.faults if len(one.killed) == 1]

    @property
    def false_alarms(self) -> list[Judged]:
        return [one for one in self.controls if one.killed]

    @property
    def control_checks(self) -> int:
        return sum(one.trials - one.declined for one in self.controls)

    @property
    def idle_families(self) -> list[str]:
        """Families that kill nothing."""
        used = {family for one in self.faults for family in one.families}
        return [family for family in self.families if family not in used]

    @property
    def redundant_families(self) -> list[str]:
        """Families that kill, but without which every fault is still killed."""
        needed = {family for one in self.faults for family in one.needs}
        idle = set(self.idle_families)
        return [family for family in self.families if family not in needed and family not in idle]

    def to_dict(self) -> dict[str, Any]:
        return {
            "op": self.op, "level": self.level, "seed": self.seed, "faults": len(self.faults),
            "killed": len(self.faults) - len(self.survivors), "killed by one trial only": [f.name for f in self.thin],
            "survivors": [f.name for f in self.survivors], "controls": len(self.controls),
            "control checks": self.control_checks, "false alarms": [c.name for c in self.false_alarms],
            "families that kill nothing": self.idle_families, "redundant families": self.redundant_families,
            "families": self.families, "judged": [asdict(one) for one in self.judged], "notes": self.notes,
        }  # fmt: skip

    def matrix(self) -> Table:
        """Faults by the families of their cases: how many trials of the family kill."""
        columns = list(dict.fromkeys(_heading(family) for family in self.families if _in_matrix(family)))
        table = Table(
            f"{self.op}: trials that kill, level {self.level}, seed {self.seed}", ["fault", "kind", *columns, "of"]
        )
        for one in self.judged:
            count = Counter(_heading(family) for trial in one.killed for family in self._families_of.get(trial, ()))
            cells = [str(count[heading]) if count[heading] else "." for heading in columns]
            table.rows.append([one.name, one.kind, *cells, f"{len(one.killed)}/{one.trials}"])
        return table

    _families_of: dict[str, list[str]] = field(default_factory=dict)


def _in_matrix(family: str) -> bool:
    return family.partition(" ")[0] in ("values", "law", "calls")


def _heading(family: str) -> str:
    return family.removeprefix("values ")


def families(trial: Trial) -> list[str]:
    """What a trial is an instance of: its value family, size, layouts that are not contiguous, parameters; or its law."""
    if trial.law is not None:
        return [f"law {trial.law.name}"]
    if trial.calls:
        return [f"calls {trial.calls}"]
    case = trial.case
    sizes = "x".join("x".join(map(str, n)) if isinstance(n, tuple) else str(n) for _, n in case.sizes)
    found = [f"values {case.values}", f"size {sizes}", f"dtype {case.dtype}"]
    found += [f"layout {name} {layout}" for name, layout in case.layouts if layout != "contiguous"]
    return found + [f"parameter {name}={value}" for name, value in case.params]


def judge_op(op: str, level: str, seed: int = 0) -> OpResult:
    """Judge everything planted in `op`, one after another, in this process and children of it."""
    torch.set_num_threads(1)
    found, notes = _planted(op)
    result = OpResult(op, level, seed, notes=notes)
    trials, _ = judge.trials(Subject(op, _never, "planted", f"planted@{DEVICE}", DEVICE), level, seed)
    result._families_of = {trial.id: families(trial) for trial in trials}
    result.families = list(dict.fromkeys(family for trial in trials for family in families(trial)))
    judge.keep_answers(trials)
    for planted in found:
        result.judged.append(_judge_planted(planted, trials, level))
    return result


def _never(*args, **kwargs):
    raise AssertionError("stands in for the planted kernels while trials are listed")


def _planted(op: str) -> tuple[list[Planted], list[str]]:
    """Those in torch, and those in each backend's language that runs here."""
    found, notes = registry.planted(op), []
    for name in registry.backends():
        if not registry.has_planted_kernels(name, op):
            continue
        backend = registry.backend(name)
        if reason := backend.why_not(DEVICE):
            notes.append(f"planted {name} kernels not run: {reason}")
            continue
        backend.prepare(DEVICE)
        found += registry.planted_kernels(name, op)
    return found, notes


def _judge_planted(planted: Planted, trials: Sequence[Trial], level: str) -> Judged:
    one = Judged(planted.op, planted.name, planted.kind, planted.about, planted.backend)
    lane = f"{planted.backend or 'torch'}@{DEVICE}"
    subject = Subject(
        planted.op, planted.make(), planted.name, lane, DEVICE, deterministic=planted.deterministic, diagnosed=False
    )
    mine = [trial for trial in trials if trial.case.dtype in planted.dtypes]
    if level == "quick" and planted.kind not in OF_MANY_CALLS:
        mine = [trial for trial in mine if not trial.calls]
    few = ENOUGH.get(level) if planted.backend else None
    if few:  # an interpreter takes its time
        mine.sort(key=lambda trial: registry.contract(planted.op).work(trial.case))
    killing: list[Trial] = []
    with Runner(subject, mine, "fork", confirm=False) as runner:
        for index, trial in enumerate(mine):
            if runner.stopped or (few and len(killing) == few):
                break
            outcome = runner.outcome(index)
            one.trials += 1
            one.declined += outcome.status == DECLINED
            if outcome.status == FAILED:
                killing.append(trial)
                failures = [finding for finding in outcome.findings if finding.severity == "failure"]
                one.checks[failures[0].check] = one.checks.get(failures[0].check, 0) + 1
                one.first = one.first or str(failures[0])
    one.killed = [trial.id for trial in killing]
    counted = Counter(family for trial in killing for family in families(trial))
    one.families = list(counted)
    one.needs = [family for family, count in counted.items() if count == len(killing)]
    return one


def run(ops: Sequence[str], level: str, seed: int = 0, jobs: int | None = None) -> list[OpResult]:
    """Judge what is planted in `ops`, one process an op, `jobs` at a time (None: one a core)."""
    return each(partial(judge_op, level=level, seed=seed), ops, jobs, "selftest")


def each(work: Callable[[str], T], ops: Sequence[str], jobs: int | None, label: str) -> list[T]:
    """`work(op)` of each op, in processes of their own, those with the most operands and outputs first."""
    jobs = jobs or multiprocessing.cpu_count()
    if jobs == 1 or len(ops) == 1:
        return [work(op) for op in progress(list(ops), label)]

    def size(op: str) -> int:
        return len(registry.contract(op).operands) * len(registry.contract(op).outputs)

    found: dict[str, T] = {}
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        tasks = {pool.submit(work, op): op for op in sorted(ops, key=size, reverse=True)}
        done = as_completed(tasks)
        for _ in progress(list(ops), label):
            task = next(done)
            found[tasks[task]] = task.result()
    return [found[op] for op in ops]


def summary(results: Sequence[OpResult]) -> Table:
    level, seed = results[0].level, results[0].seed
    columns = [
        "op",
        "faults",
        "killed",
        "by 1 trial",
        "controls",
        "checks",
        "false alarms",
        "idle families",
        "redundant",
    ]
    table = Table(f"what the judge catches, level {level}, seed {seed}", columns)
    for result in results:
        table.rows.append(_summary_row(result.op, [result]))
    table.rows.append(_summary_row("all", results))
    return table


def _summary_row(name: str, results: Sequence[OpResult]) -> list[str]:
    def total(count) -> str:
        return str(sum(count(result) for result in results))

    return [
        name, total(lambda r: len(r.faults)), total(lambda r: len(r.faults) - len(r.survivors)), total(lambda r: len(r.thin)),
        total(lambda r: len(r.controls)), total(lambda r: r.control_checks),
        total(lambda r: sum(len(c.killed) for c in r.false_alarms)), total(lambda r: len(r.idle_families)),
        total(lambda r: len(r.redundant_families)),
    ]  # fmt: skip


def holes(results: Sequence[OpResult]) -> list[str]:
    """What the self-test found wanting, one sentence each: survivors, false alarms, idle families."""
    found = []
    for result in results:
        for one in result.survivors:
            found.append(f"{result.op}: nothing kills {one.name} ({one.kind}: {one.about})")
        for one in result.false_alarms:
            found.append(f"{result.op}: the control {one.name} is accused in {len(one.killed)} trials: {one.first}")
        if result.level != "quick":
            found += [f"{result.op}: {one.name} is killed by one trial alone: {one.killed[0]}" for one in result.thin]
        if result.idle_families:
            found.append(f"{result.op}: families that kill nothing: {', '.join(result.idle_families)}")
        found += [f"{result.op}: {note}" for note in result.notes]
    return found


def passed(results: Sequence[OpResult]) -> bool:
    """Whether no control is accused and, at levels above quick, every fault is killed by two trials at least."""
    if any(result.false_alarms for result in results):
        return False
    return results[0].level == "quick" or not any(result.survivors or result.thin for result in results)


def record(results: Sequence[OpResult]) -> dict[str, Any]:
    """The whole result for a file."""
    return {
        "level": results[0].level, "seed": results[0].seed, "versions": versions(),
        "faults": sum(len(r.faults) for r in results), "survivors": sum(len(r.survivors) for r in results),
        "control checks": sum(r.control_checks for r in results),
        "false alarms": sum(len(c.killed) for r in results for c in r.false_alarms),
        "ops": [result.to_dict() for result in results],
    }  # fmt: skip
