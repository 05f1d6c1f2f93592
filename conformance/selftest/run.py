"""Test the judge: every mutant and every known-good kernel of an op, on all trials of a level.

A mutant is killed by a trial that fails; a known-good kernel that fails a trial is a false alarm. A mutant that nothing
kills is a hole, and so is a family of cases that kills nothing; a family without which every mutant would still be
killed is redundant.
"""

import json
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject, not_called
from touchstone.conformance.faults import Planted
from touchstone.conformance.isolation.fork import fork
from touchstone.conformance.isolation.processes import Child, Death, alive, serve
from touchstone.conformance.isolation.runner import Runner
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.judgement import DECLINED, FAILED
from touchstone.conformance.judging.trials import Trial, trials_of
from touchstone.conformance.reporting.console import Table, progress
from touchstone.conformance.reporting.provenance import versions
from touchstone.conformance.spec.contract import Case, Contract, Draw, size_text

DEVICE = "cpu"
# kills after which a kernel in a backend's language is left (interpreters and emulators are slow), and any other mutant
# of which
# not the whole matrix is asked for
ENOUGH = {"quick": 1, "default": 4}
TWICE = 2
# kinds that only many calls show, and those that a second one does, in memory that held something else: at level quick
MANY_CALLS = ("known-good", "race", "cache", "alias", "state", "mutation", "unwritten", "bounds")
TWO_CALLS = (*MANY_CALLS, "tail", "accumulator")
ALONE = ("bounds",)  # kinds that may spoil the memory of those judged after them in the same process
SECONDS = 60.0  # for one trial in a shared process, before its kernel is judged in one of its own
T = TypeVar("T")


@dataclass
class MutantResult:
    """One mutant or known-good kernel, on the trials of the dtypes in which it is one."""

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
    def is_known_good(self) -> bool:
        return self.kind == "known-good"


@dataclass
class OpResult:
    """All mutants and known-good kernels of one op."""

    op: str
    level: str
    seed: int
    judged: list[MutantResult] = field(default_factory=list)
    families: list[str] = field(default_factory=list)  # all of the level
    notes: list[str] = field(default_factory=list)
    whole: bool = True  # whether mutants in torch were judged on every trial, which tells what a family is worth

    @property
    def mutants(self) -> list[MutantResult]:
        return [one for one in self.judged if not one.is_known_good]

    @property
    def known_good(self) -> list[MutantResult]:
        return [one for one in self.judged if one.is_known_good]

    @property
    def survivors(self) -> list[MutantResult]:
        return [one for one in self.mutants if not one.killed]

    @property
    def thin(self) -> list[MutantResult]:
        """Mutants that one trial alone kills, of those that were not left after it."""
        left = ENOUGH.get(self.level) == 1
        return [one for one in self.mutants if len(one.killed) == 1 and not (left and one.backend)]

    @property
    def false_alarms(self) -> list[MutantResult]:
        return [one for one in self.known_good if one.killed]

    @property
    def known_good_checks(self) -> int:
        return sum(one.trials - one.declined for one in self.known_good)

    @property
    def idle_families(self) -> list[str]:
        """Families that kill nothing."""
        used = {family for one in self.mutants for family in one.families}
        return [family for family in self.families if family not in used]

    @property
    def redundant_families(self) -> list[str]:
        """Families that kill, but without which every mutant is still killed."""
        needed = {family for one in self.mutants for family in one.needs}
        idle = set(self.idle_families)
        return [family for family in self.families if family not in needed and family not in idle]

    def to_dict(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "level": self.level,
            "seed": self.seed,
            "whole": self.whole,
            "mutants": len(self.mutants),
            "killed": len(self.mutants) - len(self.survivors),
            "killed by one trial only": [f.name for f in self.thin],
            "survivors": [f.name for f in self.survivors],
            "known-good": len(self.known_good),
            "known-good checks": self.known_good_checks,
            "false alarms": [c.name for c in self.false_alarms],
            "families that kill nothing": self.idle_families,
            "redundant families": self.redundant_families,
            "families": self.families,
            "judged": [asdict(one) for one in self.judged],
            "notes": self.notes,
        }

    def matrix(self) -> Table:
        """Mutants by the families of their cases: how many trials of the family kill."""
        columns = list(dict.fromkeys(heading(family) for family in self.families if in_matrix(family)))
        table = Table(
            f"{self.op}: trials that kill, level {self.level}, seed {self.seed}", ["mutant", "kind", *columns, "of"]
        )
        for one in self.judged:
            count = Counter(heading(family) for trial in one.killed for family in self._families_of.get(trial, ()))
            cells = [str(count[column]) if count[column] else "." for column in columns]
            table.rows.append([one.name, one.kind, *cells, f"{len(one.killed)}/{one.trials}"])
        return table

    _families_of: dict[str, list[str]] = field(default_factory=dict)


def in_matrix(family: str) -> bool:
    return family.partition(" ")[0] in ("values", "property", "calls")


def heading(family: str) -> str:
    return family.removeprefix("values ")


def families(trial: Trial) -> list[str]:
    """What a trial is an instance of: its value family, size, layouts that are not contiguous, parameters; or its
    property."""
    if trial.prop is not None:
        return [f"property {trial.prop.name}"]
    if trial.calls:
        return [f"calls {trial.calls}"]
    case = trial.case
    found = [f"values {case.values}", f"size {size_text(case.sizes)}", f"dtype {case.dtype}"]
    found += [f"layout {name} {layout}" for name, layout in case.layouts if layout != "contiguous"]
    return found + [f"parameter {name}={value}" for name, value in case.params]


def judge_op(op: str, level: str, seed: int = 0, whole: bool = True) -> OpResult:
    """Judge all mutants and known-good kernels of `op`, one after another, in children of this process.

    Not `whole`: trials by their cost, and a mutant is left when two have killed it.
    """
    torch.set_num_threads(1)
    found, notes = _planted(op)
    result = OpResult(op, level, seed, notes=notes, whole=whole)
    trials, _ = trials_of(Subject(op, not_called, "planted", f"planted@{DEVICE}", DEVICE), level, seed)
    result._families_of = {trial.id: families(trial) for trial in trials}
    result.families = list(dict.fromkeys(family for trial in trials for family in families(trial)))
    with _drawn_once(registry.contract(op)), last_words_kept():
        judge.keep_answers(trials)
        result.judged = _judge_all(found, trials, level, whole)
    return result


@contextmanager
def last_words_kept() -> Iterator[None]:
    """Within: standard error goes to a file, which is printed only if an exception leaves.

    A mutant that stores out of bounds ruins the heap of the child that it is judged in, and the C library says so as it
    aborts.
    """
    sys.stderr.flush()
    ours = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(ours, kept.read())
            raise
        finally:
            os.dup2(ours, 2)
            os.close(ours)


@contextmanager
def _drawn_once(contract: Contract) -> Iterator[None]:
    """Within: what a family draws for a case is kept for all mutants and known-good kernels."""
    families = contract.values

    def kept(family: Callable[[Draw], dict[str, torch.Tensor | None]]) -> Callable[[Draw], Any]:
        drawn: dict[Case, dict[str, torch.Tensor | None]] = {}
        return lambda draw: drawn.get(draw.case) or drawn.setdefault(draw.case, family(draw))

    contract.values = {name: kept(family) for name, family in families.items()}
    try:
        yield
    finally:
        contract.values = families


def _judge_all(found: Sequence[Planted], trials: Sequence[Trial], level: str, whole: bool) -> list[MutantResult]:
    """Judge them one after another in a forked child, a new one after each that ends it; that one by itself."""
    judged: list[MutantResult] = []
    child: Child | None = None

    def serve_all(connection: Connection) -> None:
        def judge(index: int) -> MutantResult:
            return judge_planted(found[index], trials, level, whole, "none", lambda: alive(connection))

        serve(connection, judge)

    try:
        for index, planted in enumerate(found):
            one = None
            if planted.kind not in ALONE:
                child = child or fork(serve_all)
                try:
                    one = child.ask(index, SECONDS)
                except Exception:  # by itself it shows whether that was its own
                    one = None
                if one is None or isinstance(one, Death):
                    child.close()
                    child = one = None
            judged.append(one or judge_planted(planted, trials, level, whole))
    finally:
        if child is not None:
            child.close()
    return judged


def _planted(op: str) -> tuple[list[Planted], list[str]]:
    """Those in torch, and those in each backend's language that runs here."""
    found, notes = registry.planted(op), []
    for name in registry.backends():
        if not registry.has_planted_kernels(name, op):
            continue
        backend = registry.backend(name)
        if reason := backend.why_not(DEVICE):
            notes.append(f"mutants in {name} not run: {reason}")
            continue
        backend.prepare(DEVICE)
        found += registry.planted_kernels(name, op)
    return found, notes


def judge_planted(
    planted: Planted,
    trials: Sequence[Trial],
    level: str,
    whole: bool,
    isolate: str = "fork",
    after_trial: Callable[[], object] = int,
) -> MutantResult:
    one = MutantResult(planted.op, planted.name, planted.kind, planted.about, planted.backend)
    target = f"{planted.backend or 'torch'}@{DEVICE}"
    subject = Subject(
        planted.op, planted.make(), planted.name, target, DEVICE, deterministic=planted.deterministic, diagnosed=False
    )
    mine = [trial for trial in trials if trial.case.dtype in planted.dtypes]
    if level == "quick" and planted.kind not in MANY_CALLS:
        mine = [trial for trial in mine if not trial.calls]
    if level == "quick" and planted.kind not in TWO_CALLS:
        mine = [replace(trial, watched=False, instrumented=False) for trial in mine]
    enough = ENOUGH.get(level) if planted.backend else None if whole or planted.is_known_good else TWICE
    if enough:
        mine.sort(key=lambda trial: (trial.calls, registry.contract(planted.op).work(trial.case)))
    killing: list[Trial] = []
    with Runner(subject, mine, isolate, confirm=False) as runner:
        for index, trial in enumerate(mine):
            if runner.stopped or (enough and len(killing) == enough):
                break
            outcome = runner.outcome(index)
            after_trial()
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


def run(
    ops: Sequence[str], level: str, seed: int = 0, jobs: int | None = None, whole: bool | None = None
) -> list[OpResult]:
    """Judge the mutants and known-good kernels of `ops`, one process per op, `jobs` at a time (None: one per core).

    `whole` (None: above level quick, and for one op): every mutant on all its trials, not only until two have killed
    it.
    """
    if whole is None:
        whole = level != "quick" or len(ops) == 1
    return each(partial(judge_op, level=level, seed=seed, whole=whole), ops, jobs, "selftest")


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
        "mutants",
        "killed",
        "by 1 trial",
        "known-good",
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

    def worth(count) -> str:
        return total(count) if all(result.whole for result in results) else "-"

    return [
        name,
        total(lambda r: len(r.mutants)),
        total(lambda r: len(r.mutants) - len(r.survivors)),
        total(lambda r: len(r.thin)),
        total(lambda r: len(r.known_good)),
        total(lambda r: r.known_good_checks),
        total(lambda r: sum(len(c.killed) for c in r.false_alarms)),
        worth(lambda r: len(r.idle_families)),
        worth(lambda r: len(r.redundant_families)),
    ]


def holes(results: Sequence[OpResult]) -> list[str]:
    """The gaps that the self-test found, one sentence each: survivors, false alarms, idle families."""
    found = []
    for result in results:
        for one in result.survivors:
            found.append(f"{result.op}: nothing kills {one.name} ({one.kind}: {one.about})")
        for one in result.false_alarms:
            found.append(
                f"{result.op}: the known-good kernel {one.name} is rejected in {len(one.killed)} trials: {one.first}"
            )
        if result.level != "quick":
            found += [f"{result.op}: {one.name} is killed by one trial alone: {one.killed[0]}" for one in result.thin]
        if result.whole and result.idle_families:
            found.append(f"{result.op}: families that kill nothing: {', '.join(result.idle_families)}")
        found += [f"{result.op}: {note}" for note in result.notes]
    return found


def passed(results: Sequence[OpResult]) -> bool:
    """Whether no known-good kernel is rejected and, at levels above quick, every mutant is killed by two trials at
    least."""
    if any(result.false_alarms for result in results):
        return False
    return results[0].level == "quick" or not any(result.survivors or result.thin for result in results)


def record(results: Sequence[OpResult]) -> dict[str, Any]:
    """The whole result for a file."""
    return {
        "level": results[0].level,
        "seed": results[0].seed,
        "versions": versions(),
        "mutants": sum(len(r.mutants) for r in results),
        "survivors": sum(len(r.survivors) for r in results),
        "known-good checks": sum(r.known_good_checks for r in results),
        "false alarms": sum(len(c.killed) for r in results for c in r.false_alarms),
        "ops": [result.to_dict() for result in results],
    }


def read(record: dict[str, Any]) -> list[OpResult]:
    """The results that `record` wrote."""
    return [
        OpResult(
            op["op"],
            op["level"],
            op["seed"],
            [MutantResult(**one) for one in op["judged"]],
            op["families"],
            op["notes"],
            op["whole"],
        )
        for op in record["ops"]
    ]


def page(record: dict[str, Any]) -> str:
    """The page docs/results/selftest.md from a record."""
    results = read(record)
    level, stops = record["level"], ENOUGH.get(record["level"])
    mutants = [one for result in results for one in result.mutants]
    checks, alarms = record["known-good checks"], record["false alarms"]
    killed = sum(bool(one.killed) for one in mutants)
    left = "is left after its first kill" if stops == 1 else f"is left after {stops} kills"
    found = holes(results)
    return "\n".join(
        [
            "# The self-test: what the judge catches, and its false positives",
            "",
            ", ".join(f"{name} {version}" for name, version in record["versions"].items())
            + f"; {date.today()}, seed {record['seed']}.",
            "",
            "```",
            f"python -m touchstone selftest --level {level} --json selftest.json",
            "python -m touchstone.selftest selftest.json > docs/results/selftest.md",
            "```",
            "",
            f"**{killed:,} of {len(mutants):,} mutants are killed, "
            f"{sum(len(one.killed) > 1 for one in mutants):,} of them by two trials or more; "
            f"{sum(len(result.known_good) for result in results)} known-good kernels give {alarms or 'no'} false "
            f"alarms in "
            f"{checks:,} checks.**",
            *([f"A mutant in a backend's language {left}."] if stops else []),
            (
                '"Redundant" are families without which every mutant would still be killed: with every pair of values '
                "of any two axes,"
            ),
            'most are; "-" where mutants were left after two kills.',
            "",
            "```",
            summary(results).plain(),
            "```",
            "",
            *(["Gaps:", "", "```", *found, "```"] if found else ["It found no gaps."]),
            "",
            *(_compared(record, results) if "comparison" in record else []),
        ]
    )


def _compared(record: dict[str, Any], results: Sequence[OpResult]) -> list[str]:
    from touchstone.conformance.selftest import other_rules as comparison

    compared = {op: [comparison.RuleResult(**one) for one in found] for op, found in record["comparison"].items()}
    return [
        (
            "The mutants in torch under the rules of other projects (conformance/selftest/other_rules.py), "
            "`--compare`: caught of"
        ),
        "those to which the rule applies.",
        "",
        "```",
        comparison.table(compared, results).plain(),
        "```",
        "",
    ]


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        print(page(json.load(file)), end="")
