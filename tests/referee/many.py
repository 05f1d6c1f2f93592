"""Two thousand candidates for `judge`, made of the planted faults and of the hostile candidates.

`python -m tests.referee.many FOLDER` writes kernels.jsonl, which is judged as it is (Triton kernels with one fault or
none, in each dtype, hostile candidates, honest ones), and planted.jsonl, which takes --trusted: the planted torch
functions of every op. Each is narrowed to its cheapest case, on which many a fault does not show; with --whole each has
all cases of the level, and expected.json says which verdict it owes. tests/referee/agree.py compares.
"""

import argparse
import ast
import functools
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.referee import harness
from tests.referee.harness import Candidate, needed
from touchstone.conformance.discovery import registry
from touchstone.conformance.faults import ALL
from touchstone.conformance.judging.judgement import FAILED, PASSED
from touchstone.conformance.spec.cases import plan

LANGUAGE = "triton"
FAULTS = registry.ROOT / "conformance" / "faults" / LANGUAGE
KERNEL = """

def kernel(*args, **options):
    return {launcher}(*args, **options, fault={fault!r})
"""
PLANTED = """from touchstone.conformance.discovery import registry

kernel = next(planted for planted in registry.planted({op!r}) if planted.name == {name!r}).make()
"""


class Made(NamedTuple):
    """A candidate's line, and the verdict that it owes where it is judged on all cases of the level; None: either."""

    line: dict[str, Any]
    owes: str | None


def kernels(whole: bool = False) -> Iterator[Made]:
    """Candidates that are confined."""
    for op in harness.NARROWED:
        honest = Candidate(harness.HEAD, op, "an honest kernel", "contained", op=op)
        yield Made(_line(f"honest/{op}", op, honest.source("planted", 0), whole), PASSED)
    for path in sorted(FAULTS.glob("[a-z]*.py")):
        tree = ast.parse(path.read_text())
        planting = [node for node in tree.body if _plants(node)]
        tree.body = [node for node in tree.body if node not in planting]
        for launcher, faults, options in (_planted(node, path.stem) for node in planting):
            source = needed(ast.unparse(tree), launcher)
            for fault, dtype in itertools.product(("none", *faults), ALL):
                kernel = KERNEL.format(launcher=launcher, fault=fault)
                line = _line(f"{path.stem}/{launcher}/{fault}/{dtype}", path.stem, source + kernel, whole, dtype)
                yield Made(line | options | {"language": LANGUAGE}, _owed(path.stem, fault, dtype) if whole else FAILED)
    for candidate in harness.candidates():
        if candidate.demand == "refused":  # what is contained may pass or not, as it meets a lock or not
            sizes = harness.sizes_of(candidate)
            line = _line(f"hostile/{candidate.id}", candidate.op, candidate.source("planted", 0), whole)
            yield Made(line | ({"sizes": sizes} if whole and sizes else {}), FAILED)


def planted(whole: bool = False) -> Iterator[Made]:
    """Candidates that are trusted: a confined one may not import the judge's own."""
    for op in registry.ops():
        for one in registry.planted(op):
            line = _line(f"{op}/{one.name}", op, PLANTED.format(op=op, name=one.name), whole)
            if whole:
                line |= {"dtypes": list(one.dtypes), "deterministic": one.deterministic}
            yield Made(line, PASSED if one.is_known_good else FAILED)


def _line(identifier: str, op: str, source: str, whole: bool, dtype: str = ALL[0]) -> dict[str, Any]:
    """Of one dtype; unless `whole`, narrowed to the size of its cheapest case, which takes about a second."""
    sizes = {} if whole else _smallest(op, dtype)
    narrowed = {"sizes": sizes} if sizes else {}
    return {"id": identifier, "op": op, "source": source, "function": "kernel", "dtypes": [dtype], **narrowed}


@functools.cache
def _kinds(op: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Of each planted kernel of an op in Triton: its kind, and the dtypes that it is wrong in."""
    registry.backend(LANGUAGE).prepare("cpu")
    return {one.name: (one.kind, one.dtypes) for one in registry.planted_kernels(LANGUAGE, op)}


def _owed(op: str, fault: str, dtype: str) -> str | None:
    kind, dtypes = _kinds(op).get(fault, ("known-good", ALL))
    if kind == "known-good":
        return PASSED
    return FAILED if dtype in dtypes else None


@functools.cache
def _smallest(op: str, dtype: str) -> dict[str, int]:
    contract = registry.contract(op)
    cases = [case for case in plan(contract, "quick", 0).cases if case.dtype == dtype and contract.work(case)]
    return {axis: n for axis, n in min(cases, key=contract.work).size.items() if isinstance(n, int)}


def _plants(node: ast.stmt) -> bool:
    """Whether a statement of a file of faults is a call of plant_kernels."""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) == "plant_kernels"


def _planted(node: ast.stmt, op: str) -> tuple[str, list[str], dict[str, Any]]:
    """The launcher of such a call, the faults, and the options that it gives."""
    assert isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    _, launcher, _, *named = node.value.args
    if any(isinstance(each, ast.Starred) for each in named):  # *KERNELS: all that the file plants
        faults = [name for name in _kinds(op) if name != "none"]
    else:
        faults = [ast.literal_eval(each) for each in named]
    options = {str(each.arg): ast.literal_eval(each.value) for each in node.value.keywords}
    return ast.unparse(launcher), faults, options


def main(arguments: Sequence[str]) -> None:
    asked = argparse.ArgumentParser(prog="python -m tests.referee.many", description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--whole", action="store_true", help="all cases of the level, and expected.json")
    given = asked.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    owed = {}
    for name, found in (("kernels.jsonl", list(kernels(given.whole))), ("planted.jsonl", list(planted(given.whole)))):
        (given.folder / name).write_text("".join(json.dumps(made.line) + "\n" for made in found))
        owed |= {made.line["id"]: made.owes for made in found if made.owes is not None}
        print(f"{name}: {len(found)} candidates")
    if given.whole:
        (given.folder / "expected.json").write_text(json.dumps(owed, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
