"""`python -m touchstone judge`: many candidates, a result each."""

import argparse
import os
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from touchstone.backends.devices import gpus
from touchstone.conformance.batch import candidates as reading
from touchstone.conformance.batch import fleet, pool, seals, telling
from touchstone.conformance.batch.attempt import Judged
from touchstone.conformance.batch.candidates import Candidate, Settings
from touchstone.conformance.batch.results import Results
from touchstone.conformance.batch.run import run as run_all
from touchstone.conformance.discovery import options as shared
from touchstone.conformance.discovery import selection
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.judge_one import judged
from touchstone.conformance.reporting.record import STDOUT, Record, standard_output_kept
from touchstone.conformance.reporting.status import Status

LIMIT = 1800.0  # seconds for a candidate: far more than one takes whose trials end in time


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    judge = commands.add_parser(
        "judge",
        help="judge many candidates, of authors who need not be trusted",
        description="Judge many candidates, so many at a time, each as check --untrusted does, and write one record in "
        "JSON for each as it ends. Run again, with the same --out, it goes on where it was stopped.",
    )
    judge.add_argument(
        "candidates",
        nargs="+",
        metavar="CANDIDATES",
        help="a file of JSON Lines, or a folder that holds OP/NAME.py or candidates.jsonl (docs/judge.md)",
    )
    how = judge.add_argument_group("how they are judged")
    shared.add(how.add_argument, "--level", default="quick", help="how many cases (default: quick)")
    shared.add(how.add_argument, "--device", "--seed")
    how.add_argument(
        "--coverage",
        type=float,
        metavar="SHARE",
        help="the share of the trials, 0 to 1, that have to be judged, else a candidate is partial (default: 1; 0 with "
        "--trusted)",
    )
    how.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="of a trial (default: 60)")
    how.add_argument(
        "--allow-library", action="store_true", help="the library may do work that a kernel of a GPU language should do"
    )
    how.add_argument("--trusted", action="store_true", help="the authors are trusted: nothing is confined")
    how.add_argument(
        "--bench",
        metavar="small|large|FILE",
        help="with --trusted: time those that pass on the first of these shapes, beside the baselines, one at a "
        "time on each GPU",
    )
    where = judge.add_argument_group("where, and what is written")
    where.add_argument(
        "--jobs", type=int, metavar="N", help="candidates at a time (default: one a processor; on GPUs, one a GPU)"
    )
    where.add_argument(
        "--limit",
        type=float,
        default=LIMIT,
        metavar="SECONDS",
        help=f"for a candidate; one that takes longer twice is not judged (default: {LIMIT:g})",
    )
    where.add_argument(
        "--ray", metavar="ADDRESS", help="judge on the machines of a Ray cluster: its address, auto, or local"
    )
    where.add_argument(
        "--out", default=STDOUT, metavar="FILE|-", help="append the results to FILE (default: -, standard output)"
    )
    judge.set_defaults(run=run)


def run(options: argparse.Namespace) -> Status:
    """The command; the status says how the candidates did."""
    _validate(options)
    settings = _settings(options)
    found = reading.read(options.candidates, settings.level)
    base = Record("judge", words=options.recording.words)
    base.concerns("cpu", settings.level)  # asked about its GPU, this process could fork none that uses one
    base.device = base.about["machine"]["device"] = settings.device
    if options.out == STDOUT:
        with standard_output_kept() as stream, Results(None, stream) as results:
            return _judge(options, settings, found, results, base)
    with Results(Path(options.out)) as results:
        if why := seals.why_not():
            print(f"judge: no later run can go on with {options.out}: there is no key: {why}", file=sys.stderr)
        return _judge(options, settings, found, results, base)


def _validate(options: argparse.Namespace) -> None:
    """Raises UsageError naming the option."""
    shared.level(options.level)
    shared.file("--out", options.out)
    for name in ("timeout", "limit", "jobs"):
        shared.positive(f"--{name}", getattr(options, name))
    if options.coverage is not None and not 0 <= options.coverage <= 1:
        raise UsageError(f"--coverage: expected a share from 0 to 1, got {options.coverage}")
    if options.allow_library and options.trusted:
        raise UsageError("--allow-library and --trusted: those that are trusted may call the library")
    if options.bench is not None and not options.trusted:
        raise UsageError("--bench: goes with --trusted, since what is timed is not confined")
    if options.ray not in (None, fleet.LOCAL) and options.jobs is not None:
        raise UsageError("--jobs: goes with one machine; a cluster has as many at a time as it has processors")


def _settings(options: argparse.Namespace) -> Settings:
    device = _device(options)
    if options.bench is not None and options.bench not in ("small", "large"):
        options.bench = str(Path(options.bench).resolve())
    return Settings(
        device,
        options.level,
        options.seed,
        options.timeout,
        options.coverage,
        not options.trusted,
        options.allow_library,
        options.bench,
    )


def _device(options: argparse.Namespace) -> str:
    """Where candidates run."""
    if options.ray is not None and options.device == "cuda":
        return "cuda"  # of the cluster; this machine needs none
    return selection.select(device=options.device, level=options.level).device


def _judge(
    options: argparse.Namespace, settings: Settings, found: Sequence[Candidate], results: Results, base: Record
) -> Status:
    began = time.monotonic()
    shown = telling.Progress(len(found))
    known = 0

    def tell(briefs: Sequence[telling.Brief], before: int) -> None:
        nonlocal known
        known = before
        shown(briefs, before)

    try:
        briefs = run_all(found, settings, lambda left: _judging(options, settings, left), results, base, tell)
    finally:
        shown.end()
    telling.summary(briefs, known, time.monotonic() - began, sys.stderr if options.out == STDOUT else sys.stdout)
    return telling.status(briefs)


def _judging(
    options: argparse.Namespace, settings: Settings, left: Sequence[Candidate]
) -> Generator[tuple[Candidate, Judged] | None, None, None]:
    if left and options.ray is not None:
        yield from fleet.judged(judged, left, settings, options.ray, options.jobs, options.limit)
    elif left:
        yield from pool.judged(judged, left, settings, _slots(options, settings), options.limit)


def _slots(options: argparse.Namespace, settings: Settings) -> list[str | None]:
    """A place for each candidate that is judged at a time: None, or the GPU that it has."""
    if settings.device == "cpu":
        jobs = 1 if settings.bench else options.jobs or len(os.sched_getaffinity(0))
        return [None] * jobs
    there = gpus()
    jobs = min(options.jobs or len(there), len(there)) if settings.bench else options.jobs or len(there)
    return [there[index % len(there)] for index in range(jobs)]
