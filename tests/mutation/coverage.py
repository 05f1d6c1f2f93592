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
NEARER = 0.1  # what the time of a test in the code's own room counts
NEAREST = 0.03  # and of one in a file of the code's name there: `tests/isolation/test_wire.py` for `wire.py`
SLOWEST = 60.0  # seconds of a test that is used
QUICK = 0.05  # seconds of a test that may look at what another of its file has computed


@dataclass
class Known:
    """One test: its id, how long it took, and by file the lines of the statements that it executed."""

    id: str
    seconds: float
    executed: dict[str, list[int]] = field(repr=False)

    @property
    def file(self) -> str:
        return self.id.partition("::")[0]


class Coverage:
    """The tests that pass, and what each of them executes."""

    def __init__(self, tests: Iterable[Known]) -> None:
        self.tests = sorted(tests, key=lambda test: test.id)
        self._by_line: dict[tuple[str, int], list[Known]] = defaultdict(list)
        self._by_file: dict[str, list[Known]] = defaultdict(list)
        self._quick: dict[str, list[Known]] = defaultdict(list)
        for test in self.tests:
            if test.seconds < QUICK:
                self._quick[test.file].append(test)
            for path, lines in test.executed.items():
                self._by_file[path].append(test)
                for line in lines:
                    self._by_line[path, line].append(test)

    def tests_for(self, mutant: Mutant, seconds: float) -> list[Known]:
        """Those that could notice it, the cheapest first, until their time is `seconds`.

        What the tests of a file compute once and keep (a kernel that is compiled, the outcomes of a script) was seen
        to be executed by the first of them alone: each is followed by the quick ones of its file.

        What was not seen to be executed (the top of a module, a class's fields, a sandbox's child) may be noticed by
        every test that executes something of the file, or else of the file's room.
        """
        own = own_rooms(mutant.path)
        named = tuple(f"{room}test_{Path(mutant.path).stem}.py::" for room in own)
        found = self._by_line.get((mutant.path, mutant.statement)) or self._by_file.get(mutant.path)
        found = found or [test for test in self.tests if test.id.startswith(own)]
        near = {named: NEAREST, own: NEARER, "": 1.0}
        cost = {
            test.id: test.seconds * next(factor for place, factor in near.items() if test.id.startswith(place))
            for test in found
        }
        alike: dict[str, int] = defaultdict(int)  # cases of one test tell much the same: others come first
        for test in sorted(found, key=lambda test: cost[test.id]):
            name = test.id.partition("[")[0]
            alike[name] += 1
            cost[test.id] = (cost[test.id] + 0.01) * alike[name]
        chosen: dict[str, Known] = {}
        left = seconds
        for test in sorted(found, key=lambda test: (cost[test.id], test.id)):
            if test.id not in chosen and (test.seconds <= min(left, SLOWEST) or not chosen):
                further = [each for each in (test, *self._quick[test.file]) if each.id not in chosen]
                chosen |= {each.id: each for each in further}
                left -= sum(each.seconds for each in further)
        return list(chosen.values())


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
    `seconds`: what is not recorded by then notices no mutant in this run, and is recorded in the next.

    Tests that fail in a copy which takes notes are run again in one that does not; those that fail there too, or are
    skipped, notice no mutant. The sources' changes do not outdate the map: it only chooses tests.
    """
    known: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    digests = {file: hashlib.sha256(level.encode() + (ROOT / file).read_bytes()).hexdigest() for file in files}
    known = {file: about for file, about in known.items() if about["digest"] == digests.get(file, about["digest"])}
    missing = [file for file in files if not known.get(file, {}).get("whole")]
    if missing:
        say(f"recording what the tests of {len(missing)} files execute")
        before = {file: known.get(file, {}).get("tests", []) for file in missing}
        begun = time.monotonic()
        spread = ["-q", f"--level={level}", *(["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else [])]
        seen = [test for tests in before.values() for test, *_ in tests]
        noted, ended = _record([*spread, *missing], sources, tree("recorded"), seconds, seen)
        failed = [note["test"] for note in noted if note["outcome"] == "failed"]
        passed = _passing(spread, failed, tree("plain")) if failed else set()
        for file in missing:
            tests = [
                [note["test"], note["seconds"], note["executed"]]
                for note in noted
                if note["test"].partition("::")[0] == file and (note["outcome"] == "passed" or note["test"] in passed)
            ]
            known[file] = {"digest": digests[file], "whole": ended, "tests": before[file] + tests}
        kept.write_text(json.dumps(known))
        cut = "" if ended else ", which was not enough"
        say(f"recorded {len(noted)} tests in {time.monotonic() - begun:.0f} s{cut}; {len(failed) - len(passed)} fail")
    return Coverage(Known(*test) for file in files for test in known[file]["tests"])


def _record(
    arguments: Sequence[str], sources: Sequence[str], tree: Tree, seconds: float, seen: Sequence[str]
) -> tuple[list[dict[str, Any]], bool]:
    """What each test executes but those `seen` before, and whether all of them have ended."""
    places = recording.instrument(tree, sources)
    notes = tree.folder / "notes"
    notes.mkdir()
    (notes / "size").write_text(str(len(places)))
    (notes / "seen").write_text("\n".join(seen))
    plugin = ["-p", "tests.mutation.recording", "--continue-on-collection-errors"]
    status, said = tree.pytest([*plugin, *arguments], seconds, {recording.NOTES: str(notes)})
    if status not in (0, 1, 5, None):  # 5: there was none
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
