"""Test the judge: every mutant and every known-good kernel of an op, on all trials of a level."""

import itertools
import multiprocessing
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import TypeVar

import torch

from touchstone.backends.storage import files
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject, not_called
from touchstone.conformance.faults import Planted
from touchstone.conformance.isolation.fork import fork
from touchstone.conformance.isolation.processes import Child, Death, alive, serve
from touchstone.conformance.isolation.runner import Runner
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.judgement import DECLINED, FAILED
from touchstone.conformance.judging.trials import ManyCalls, Trial, called_once, trials_of, with_few_calls
from touchstone.conformance.reporting.console import progress
from touchstone.conformance.selftest.order import Order
from touchstone.conformance.selftest.results import ENOUGH, MutantResult, OpResult, families
from touchstone.conformance.spec.cases import also_case
from touchstone.conformance.spec.contract import Case, Contract, Family

DEVICE = "cpu"
# kinds that only many calls show, and those that a second one does, in memory that held something else: at level quick
MANY_CALLS = ("known-good", "race", "cache", "alias", "state", "mutation", "unwritten", "bounds")
TWO_CALLS = (*MANY_CALLS, "tail", "accumulator")
TAKEN = 3  # of so many trials a known-good kernel is judged on one, another kernel on others: at level quick
SECOND_CALLS = 3  # of so many of those of a known-good kernel in torch one calls it again
ALONE = ("bounds",)  # kinds that may spoil the memory of those judged after them in the same process
SECONDS = 60.0  # for one trial in a shared process, before its kernel is judged in one of its own
T = TypeVar("T")


def judge_op(
    op: str,
    level: str,
    seed: int = 0,
    whole: bool = True,
    sample: int = 1,
    part: tuple[int, int] = (0, 1),
    known_good: bool = False,
) -> OpResult:
    """Judge one in `sample` of the mutants and known-good kernels of `op`, with `known_good` of those alone, one after
    another, in children of this process; of those the `part` (i, n), every n-th from number i on.

    Not `whole`: a mutant is left when a trial has killed it, and those that probably do come first.
    """
    torch.set_num_threads(1)
    found, notes = _planted(op)
    found = [one for one in found if one.is_known_good or not known_good]
    found = sampled(op, found, sample)[part[0] :: part[1]]
    result = OpResult(op, level, seed, notes=notes, whole=whole and not known_good)
    trials, _ = trials_of(Subject(op, not_called, "planted", f"planted@{DEVICE}", DEVICE), level, seed)
    result.families_of = {trial.id: families(trial) for trial in trials}
    result.families = list(dict.fromkeys(family for trial in trials for family in families(trial)))
    with drawn_once(registry.contract(op)), last_words_kept():
        judge.keep_answers(trials)
        result.judged = _judge_all(found, trials, level, whole)
    return result


def sampled(op: str, found: Sequence[Planted], every: int) -> list[Planted]:
    """One in so many of the mutants, and of the known-good kernels: where they start depends on the op, so that those
    which every op has are judged in some."""
    taken: list[Planted] = []
    for sound in (False, True):
        those = [one for one in found if one.is_known_good is sound]
        taken += those[zlib.crc32(op.encode()) % min(every, max(1, len(those))) :: every]
    return sorted(taken, key=found.index)


@contextmanager
def last_words_kept() -> Iterator[None]:
    """Within: standard error goes to a file, which is printed only if an exception leaves.

    A mutant that stores out of bounds ruins the heap of the child that it is judged in, and the C library says so as it
    aborts.
    """
    sys.stderr.flush()
    ours = os.dup(2)
    with files.in_memory() as kept:
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
def drawn_once(contract: Contract) -> Iterator[None]:
    """Within: what a family draws for a case is kept for all mutants and known-good kernels."""
    families, also = contract.values, contract.also

    def kept(family: Family) -> Family:
        drawn: dict[Case, dict[str, torch.Tensor | None]] = {}
        return lambda draw: drawn.get(draw.case) or drawn.setdefault(draw.case, family(draw))

    contract.values = {name: kept(family) for name, family in families.items()}
    contract.also = {
        name: replace(one, values=kept(one.values) if callable(one.values) else one.values)
        for name, one in also.items()
    }
    try:
        yield
    finally:
        contract.values, contract.also = families, also


def _judge_all(found: Sequence[Planted], trials: Sequence[Trial], level: str, whole: bool) -> list[MutantResult]:
    """Judge them one after another in a forked child, a new one after each that ends it; that one by itself."""
    judged: list[MutantResult] = []
    child: Child | None = None

    def serve_all(connection: Connection) -> None:
        def result(request: tuple[int, list[str]]) -> MutantResult:
            planted, ids = found[request[0]], request[1]
            mine = {trial.id: trial for trial in held_to(planted, trials, level)}
            enough = kills_enough(planted, level, whole)
            return judge_planted(planted, [mine[each] for each in ids], enough, "none", lambda: alive(connection))

        serve(connection, result)

    order = Order(registry.contract(trials[0].case.op), trials)
    try:
        for index, planted in enumerate(found):
            one, mine, enough = None, held_to(planted, trials, level), kills_enough(planted, level, whole)
            if enough and not planted.is_known_good:
                mine = order.of(planted, mine)
            if planted.kind not in ALONE:
                child = child or fork(serve_all)
                try:
                    one = child.ask((index, [trial.id for trial in mine]), SECONDS)
                except Exception:  # by itself it shows whether that was its own
                    one = None
                if one is None or isinstance(one, Death):
                    child.close()
                    child = one = None
            judged.append(one or judge_planted(planted, mine, enough))
            if not planted.is_known_good:
                order.learn(planted, mine[: judged[-1].trials], judged[-1].killed)
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


def held_to(planted: Planted, trials: Sequence[Trial], level: str) -> list[Trial]:
    """Those of an op's trials that something planted is judged on."""
    mine = [trial for trial in trials if trial.case.dtype in planted.dtypes]
    if level == "quick" and planted.kind not in MANY_CALLS:
        mine = [trial for trial in mine if not isinstance(trial, ManyCalls)]
    if level == "quick" and planted.kind not in TWO_CALLS:
        mine = [called_once(trial) for trial in mine]
    contract = registry.contract(planted.op)
    if level == "quick" and planted.is_known_good:  # some of these add one element to another, by the ten thousand
        single = {also_case(contract, name, trials[0].case.seed) for name in contract.also}
        mine = [with_few_calls(trial) for trial in mine if trial.case not in single]
        turn = zlib.crc32(planted.name.encode())
        many = [one for one in mine if contract.is_beyond_grid(one.case)]
        if planted.backend:
            mine = [one for one in mine if one not in many or one is many[turn % len(many)]]
        kept = [*many, *(one for one in mine if isinstance(one, ManyCalls))]
        mine = [one for one in mine if one in kept or zlib.crc32(f"{planted.name} {one.id}".encode()) % TAKEN == 0]
        if not planted.backend:
            mine = [called_once(trial) if (turn + at) % SECOND_CALLS else trial for at, trial in enumerate(mine)]
    return mine


def kills_enough(planted: Planted, level: str, whole: bool) -> int | None:
    """Kills after which a mutant is left; None: it is judged on every trial."""
    if planted.backend:
        return ENOUGH.get(level)
    return None if whole or planted.is_known_good else 1


def judge_planted(
    planted: Planted,
    trials: Sequence[Trial],
    enough: int | None = None,
    isolate: str = "fork",
    after_trial: Callable[[], object] = int,
) -> MutantResult:
    """Judge it on these trials, in their order, until `enough` have failed (None: on all)."""
    one = MutantResult(planted.op, planted.name, planted.kind, planted.about, planted.backend)
    target = f"{planted.backend or 'torch'}@{DEVICE}"
    subject = Subject(
        planted.op, planted.make(), planted.name, target, DEVICE, deterministic=planted.deterministic, diagnosed=False
    )
    killing: list[Trial] = []
    with Runner(subject, trials, isolate, confirm=False) as runner:
        for index, trial in enumerate(trials):
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
    ops: Sequence[str],
    level: str,
    seed: int = 0,
    jobs: int | None = None,
    whole: bool | None = None,
    sample: int = 1,
    known_good: bool = False,
) -> list[OpResult]:
    """Judge one in `sample` of the mutants and known-good kernels of `ops`, with `known_good` of those alone, one
    process per op, `jobs` at a time (None: one per core); above level quick fewer ops than that are divided, so that
    each process has a part of one.

    `whole` (None: above level quick, and for one op): every mutant on all its trials, not only until one has killed it.
    """
    if whole is None:
        whole = level != "quick" or len(ops) == 1
    work = partial(judge_op, level=level, seed=seed, whole=whole, sample=sample, known_good=known_good)
    jobs = jobs or len(os.sched_getaffinity(0))
    parts = 1 if level == "quick" else max(1, jobs // max(1, len(ops)))
    if parts == 1:
        return each(work, ops, jobs, "selftest")
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        tasks = [[pool.submit(work, op, part=(index, parts)) for index in range(parts)] for op in ops]
        return [joined([task.result() for task in of_one]) for of_one in progress(tasks, "selftest")]


def joined(parts: Sequence[OpResult]) -> OpResult:
    """The result of an op from those of its parts, in the order in which one process judges them."""
    turns = itertools.zip_longest(*(part.judged for part in parts))
    return replace(parts[0], judged=[one for turn in turns for one in turn if one is not None])


def each(work: Callable[[str], T], ops: Sequence[str], jobs: int | None, label: str) -> list[T]:
    """`work(op)` of each op, in processes of their own, those with the most operands and outputs first."""
    jobs = jobs or len(os.sched_getaffinity(0))
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
