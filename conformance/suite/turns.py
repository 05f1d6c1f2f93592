"""Which variants of a ladder are judged where a run judges one in several of them: `--turns`.

What the last commit or the working tree changes is judged at once: a file of an op in a backend, what that imports or
includes of the backend's library, the op's contract or reference. Of the other variants of a ladder one in several has
its turn, by the commit: the same ones in each run of a commit, others in the next. Where git does not tell, all have.
"""

import functools
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from touchstone.backends.storage.files import ROOT
from touchstone.conformance.reporting.provenance import git

WAITS = "not its turn at this commit"
_IMPORTED = re.compile(r"^from touchstone\.([\w.]+) import (\([^)]*\)|[^\n]+)", re.MULTILINE)
_NAMED = re.compile(r'"(\w+\.cuh?)"')
_CODE = (".py", ".cu", ".cuh")


def in_turn(backend: str, op: str, ladder: Sequence[str], every: int) -> list[str]:
    """Those of a ladder that are judged at this commit, at least one: all where the op has changed in this backend."""
    commit, changed = _commit(), _changed()
    every = min(every, len(ladder))
    if every < 2 or commit is None or changed is None or not changed.isdisjoint(_files(backend, op)):
        return list(ladder)
    first = int(commit[:8], 16) + zlib.crc32(f"{backend} {op}".encode())  # not the same place in all ladders
    return [name for place, name in enumerate(ladder) if (first + place) % every == 0]


@functools.cache
def _commit() -> str | None:
    return git("rev-parse", "HEAD")


@functools.cache
def _changed() -> frozenset[str] | None:
    """Files by their path below the clone that differ from the commit before the last."""
    told = git("diff", "--name-only", "HEAD~1"), git("ls-files", "--others", "--exclude-standard")
    return None if None in told else frozenset(line for text in told if text for line in text.splitlines())


@functools.cache
def _files(backend: str, op: str) -> frozenset[str]:
    """What an op's kernels are made of in a backend, without its runtime, and what they are judged by, without what
    contracts and references share: that has tests of its own."""
    own = (f"conformance/contracts/{op}.py", f"reference/{op}.py", f"backends/signatures/{op}.py")
    found, left = set(own), [*_of_module(f"backends.{backend}.{op}")]
    while left:
        path = left.pop()
        if path not in found and path.startswith(f"backends/{backend}/") and "/runtime/" not in path:
            found.add(path)
            left += _needed(ROOT / path)
    return frozenset(found)


def _of_module(name: str) -> list[str]:
    """The file of a module, or all files of a package; none if it is neither."""
    place = ROOT.joinpath(*name.split("."))
    files = [place.with_suffix(".py")] if place.with_suffix(".py").is_file() else place.rglob("*")
    return [path.relative_to(ROOT).as_posix() for path in files if path.suffix in _CODE]


def _needed(path: Path) -> list[str]:
    """What a file of a backend imports of Touchstone, includes, or names as CUDA C to compile."""
    text = path.read_text()
    library = ROOT / "backends" / path.relative_to(ROOT).parts[1] / "lib"
    beside = [folder / name for name in _NAMED.findall(text) for folder in (path.parent, library)]
    found = [each.relative_to(ROOT).as_posix() for each in beside if each.is_file()]
    for module, members in _IMPORTED.findall(text):
        names = [module, *(f"{module}.{member}" for member in re.findall(r"\w+", members))]
        found += [
            file for name in names if name.count(".") > 1 and not name.endswith(".lib") for file in _of_module(name)
        ]
    return found
