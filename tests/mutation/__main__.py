"""`python -m tests.mutation`: draw mutants of the judge's code, run its tests on each, and write down what survives."""

import argparse
import hashlib
import json
import shlex
import sys
import tempfile
import time
from pathlib import Path

from tests.mutation import page, running
from tests.mutation.coverage import cores, recorded, test_files
from tests.mutation.operators import Mutant, mutants, sample
from tests.mutation.running import SURVIVED, Result
from tests.mutation.trees import ROOT, Tree
from touchstone.conformance.spec.cases import LEVELS

SOURCES = tuple(page.PARTS)
ROOMS = (
    *("spec", "contracts", "discovery", "judging", "isolation", "findings", "selftest", "batch", "interface"),
    *("backends", "emulator", "triton", "numba", "cupy", "referee", "compiling", "porting"),
)
CONTROLS = 20  # mutants for each control


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of results, where a run goes on")
    parser.add_argument("--sample", type=_count, default=300, help="how many mutants are drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=_count, default=cores(), help="how many run at a time")
    parser.add_argument("--sources", nargs="+", default=SOURCES, help="files and folders to change")
    folders = [f"tests/{room}" for room in ROOMS]
    parser.add_argument("--tests", nargs="+", default=folders, help="files and folders of tests")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests that a mutant is run with at most")
    parser.add_argument("--level", default="default", choices=LEVELS, help="of the tests")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds after which no further mutant is begun")
    parser.add_argument("--survivors", type=Path, help="a mutation.json: only what survived there, or was not run")
    given = parser.parse_args(arguments)
    for name in ("sources", "tests"):
        if missing := [path for path in getattr(given, name) if not (ROOT / path).exists()]:
            parser.error(f"--{name}: expected files and folders of the clone; there is no {', '.join(missing)}")
    if given.survivors is not None and not given.survivors.is_file():
        parser.error(f"--survivors: expected a file that an earlier run wrote; there is no {given.survivors}")
    return given


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return int(text)


def source_files(names: list[str]) -> list[str]:
    """The Python files in these files and folders."""
    places = [ROOT / name for name in names]
    paths = [path for place in places for path in (place.rglob("*.py") if place.is_dir() else [place])]
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def drawn(given: argparse.Namespace, every: list[Mutant]) -> list[Mutant]:
    """The mutants that are asked for."""
    chosen = sample(every, given.sample, given.seed)
    if given.survivors is None:
        return chosen
    killed = {row["id"] for row in json.loads(given.survivors.read_text())["mutants"] if row["verdict"] != SURVIVED}
    return [one for one in chosen if one.id not in killed]


def _same_code(kept: Path, files: list[str]) -> None:
    """SystemExit where the results kept in a folder are of other code."""
    digest = hashlib.sha256(b"\0".join((ROOT / path).read_bytes() for path in files)).hexdigest()
    if kept.exists() and kept.read_text() != digest and kept.with_name("results.jsonl").exists():
        sys.exit(f"--out: {kept.parent} has results of other code or tests; name another folder")
    kept.write_text(digest)


def say(text: str) -> None:
    print(text, flush=True)


class Progress:
    """One line per mutant, with the rate so far and the time left."""

    def __init__(self, total: int, jobs: int) -> None:
        self.total, self.jobs, self.done, self.begun = total, jobs, 0, time.monotonic()

    def __call__(self, result: Result) -> None:
        self.done += 1
        passed = time.monotonic() - self.begun
        left = passed / self.done * (self.total - self.done)
        rate = 60 * self.done / passed
        say(
            f"{self.done}/{self.total} {result.verdict:9} {result.seconds:5.1f} s  {result.id}  [{result.by}]"
            f"  {rate:.1f} a minute, {left:.0f} s left"
        )


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; 1 where a control was taken for a mutant."""
    given = parsed(arguments)
    begun = time.monotonic()
    until = begun + given.limit
    files = source_files(given.sources)
    tests = test_files(given.tests)
    given.out.mkdir(parents=True, exist_ok=True)
    _same_code(given.out / "digest", [*files, *tests])
    every = [one for path in files for one in mutants(path, (ROOT / path).read_text())]
    chosen = drawn(given, every)
    with tempfile.TemporaryDirectory(prefix="touchstone-mutation-") as name:
        folder = Path(name)
        coverage = recorded(
            given.out / "map.json",
            files,
            tests,
            lambda which: Tree(folder / which),
            jobs=given.jobs,
            level=given.level,
            seconds=given.limit / 2,
            say=say,
        )
        log = given.out / "results.jsonl"
        known = running.kept(log)
        waiting = [one for one in chosen if one.id not in known]
        controls = [result for id, result in known.items() if id.startswith("control: ")]
        wanted = max(1, len(chosen) // CONTROLS) - len(controls)
        say(f"{len(chosen)} of {len(every)} mutants, {len(chosen) - len(waiting)} of them known; {wanted} controls")
        progress = Progress(len(waiting) + max(0, wanted), given.jobs)

        def told(mutant: Mutant | None, result: Result) -> None:
            running.keep(log, result)
            known[result.id] = result
            if mutant is None:
                controls.append(result)
            progress(result)

        jobs = min(given.jobs, len(waiting) + max(0, wanted))
        trees = [Tree(folder / f"slot-{number}") for number in range(jobs)]
        work = [*waiting, *[None] * max(0, wanted)]
        running.run(work, coverage, trees, given.level, given.seconds, told, until, like=chosen)
    command = shlex.join(["python", "-m", "tests.mutation", *(arguments if arguments is not None else sys.argv[1:])])
    made = page.record(command, len(every), chosen, known, controls, time.monotonic() - begun, given.jobs)
    (given.out / "mutation.json").write_text(json.dumps(made, indent=1))
    (given.out / "mutation.md").write_text(page.page(made))
    killed, late, survived, equivalent = page.score(made["mutants"])
    say(
        f"{killed + late} of {len(made['mutants'])} killed, {survived} survived ({equivalent} equivalent), "
        f"{len(chosen) - len(made['mutants'])} not run; {given.out / 'mutation.md'}"
    )
    return int(any(each.verdict != SURVIVED for each in controls))


if __name__ == "__main__":
    sys.exit(main())
