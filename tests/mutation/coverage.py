"""Which tests a mutant is run with: those that executed its statement, by a map that is recorded once and kept."""

import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mutation import recording
from tests.mutation.operators import Mutant
from tests.mutation.trees import ROOT, Tree

# where the tests of a folder's code are, besides those of a room of its name
OWN = {
    "backends/emulator/numba": ("tests/numba/",),
    "backends/emulator": ("tests/emulator/", "tests/cupy/"),
    "backends/triton": ("tests/triton/",),
}
NEARER = 0.3  # what the time of a test in the code's own room counts
SLOWEST = 60.0  # seconds of a test that is used


@dataclass
class Known:
    """One test: its id, how long it took, and by file the lines of the statements that it executed."""

    id: str
    seconds: float
    executed: dict[str, list[int]] = field(repr=False)


class Coverage:
    """The tests that pass, and what each of them executes."""

    def __init__(self, tests: Iterable[Known]) -> None:
        self.tests = sorted(tests, key=lambda test: test.id)
        self._by_line: dict[tuple[str, int], list[Known]] = defaultdict(list)
        self._by_file: dict[str, list[Known]] = defaultdict(list)
        for test in self.tests:
            for path, lines in test.executed.items():
                self._by_file[path].append(test)
                for line in lines:
                    self._by_line[path, line].append(test)

    def tests_for(self, mutant: Mutant, seconds: float) -> list[Known]:
        """Those that could notice it, the cheapest first, until their time is `seconds`.

        What was not seen to be executed (the top of a module, a class's fields, a sandbox's child) may be noticed by
        every test that executes something of the file, or else of the file's room.
        """
        own = own_rooms(mutant.path)
        found = self._by_line.get((mutant.path, mutant.statement)) or self._by_file.get(mutant.path)
        found = found or [test for test in self.tests if test.id.startswith(own)]
        cost = {test.id: test.seconds * (NEARER if test.id.startswith(own) else 1) for test in found}
        alike: dict[str, int] = defaultdict(int)  # cases of one test tell much the same: others come first
        for test in sorted(found, key=lambda test: cost[test.id]):
            name = test.id.partition("[")[0]
            alike[name] += 1
            cost[test.id] = (cost[test.id] + 0.01) * alike[name]
        chosen: list[Known] = []
        left = seconds
        for test in sorted(found, key=lambda test: (cost[test.id], test.id)):
            if test.seconds <= min(left, SLOWEST) or not chosen:
                chosen.append(test)
                left -= test.seconds
        return chosen


def own_rooms(path: str) -> tuple[str, ...]:
    """The folders with the tests of a file's room."""
    for folder, rooms in OWN.items():
        if path.startswith(f"{folder}/"):
            return rooms
    return (f"tests/{path.split('/')[1]}/",)


def test_files(folders: Sequence[str]) -> list[str]:
    """The files with tests in these files and folders."""
    found = []
    for name in folders:
        path = ROOT / name
        found += sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    return [str(path.relative_to(ROOT)) for path in found]


def recorded(
    kept: Path,
    sources: Sequence[str],
    files: Sequence[str],
    tree: Callable[[str], Tree],
    *,
    jobs: int,
    level: str,
    seconds: float,
    say: Callable[[str], None],
) -> Coverage:
    """The map of these test files: read from `kept`, and recorded for files that are new there or have changed, within
    `seconds`: what is not recorded by then notices no mutant in this run.

    Tests that fail in a copy which takes notes are run again in one that does not; those that fail there too, or are
    skipped, notice no mutant. The sources' changes do not outdate the map: it only chooses tests.
    """
    known: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    digests = {file: hashlib.sha256(level.encode() + (ROOT / file).read_bytes()).hexdigest() for file in files}
    missing = [file for file in files if known.get(file, {}).get("digest") != digests[file]]
    if missing:
        say(f"recording what the tests of {len(missing)} files execute")
        begun = time.monotonic()
        spread = ["-q", f"--level={level}", *(["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else [])]
        noted, ended = _record([*spread, *missing], sources, tree("recorded"), seconds)
        failed = [note["test"] for note in noted if note["outcome"] == "failed"]
        passed = _passing(spread, failed, tree("plain")) if failed else set()
        for file in missing:
            tests = [
                [note["test"], note["seconds"], note["executed"]]
                for note in noted
                if note["test"].partition("::")[0] == file and (note["outcome"] == "passed" or note["test"] in passed)
            ]
            known[file] = {"digest": digests[file] if ended else "", "tests": tests}
        kept.write_text(json.dumps(known))
        cut = "" if ended else ", which was not enough"
        say(f"recorded {len(noted)} tests in {time.monotonic() - begun:.0f} s{cut}; {len(failed) - len(passed)} fail")
    return Coverage(Known(*test) for file in files for test in known[file]["tests"])


def _record(
    arguments: Sequence[str], sources: Sequence[str], tree: Tree, seconds: float
) -> tuple[list[dict[str, Any]], bool]:
    """What each test executes, and whether all of them have ended."""
    places = recording.instrument(tree, sources)
    notes = tree.folder / "notes"
    notes.mkdir()
    (notes / "size").write_text(str(len(places)))
    plugin = ["-p", "tests.mutation.recording", "--continue-on-collection-errors"]
    status, said = tree.pytest([*plugin, *arguments], seconds, {recording.NOTES: str(notes)})
    if status not in (0, 1, None):
        raise RuntimeError(f"the tests cannot be run; pytest ends with {status}:\n{said[-4000:]}")
    lines = [line for path in sorted(notes.glob("*.jsonl")) for line in path.read_text().splitlines()]
    noted = [json.loads(line) for line in lines if line.endswith("}")]
    for note in noted:
        note["executed"] = _by_file(places[place] for place in note["executed"])
    return noted, status is not None


def _by_file(places: Iterable[tuple[str, int]]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for path, line in places:
        found[path].append(line)
    return found


def _passing(arguments: Sequence[str], tests: Sequence[str], tree: Tree) -> set[str]:
    listed = tree.folder / "tests"
    listed.write_text("\n".join(tests))
    _, said = tree.pytest([*arguments, "-rp", f"@{listed}"], 600)
    return {line.removeprefix("PASSED ").strip() for line in said.splitlines() if line.startswith("PASSED ")}


def cores() -> int:
    return len(os.sched_getaffinity(0))
