"""Two thousand candidates for `judge`, made of the planted faults and of the hostile candidates.

`python -m tests.referee.many FOLDER` writes kernels.jsonl, which is judged as it is (Triton kernels with one fault or
none, in each dtype, hostile candidates, honest ones), and planted.jsonl, which takes --trusted: the planted torch
functions of every op.
"""

import ast
import functools
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.referee import harness
from tests.referee.harness import Candidate, needed
from touchstone.conformance.discovery import registry
from touchstone.conformance.faults import ALL
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


def kernels() -> Iterator[dict[str, Any]]:
    """Lines of candidates that are confined."""
    for op in harness.NARROWED:
        honest = Candidate(harness.HEAD, op, "an honest kernel", "contained", op=op)
        yield _line(f"honest/{op}", op, honest.source("planted", 0))
    for path in sorted(FAULTS.glob("[a-z]*.py")):
        tree = ast.parse(path.read_text())
        planting = [node for node in tree.body if _plants(node)]
        tree.body = [node for node in tree.body if node not in planting]
        for launcher, faults in map(_planted, planting):
            source = needed(ast.unparse(tree), launcher)
            for fault, dtype in itertools.product(("none", *faults), ALL):
                kernel = KERNEL.format(launcher=launcher, fault=fault)
                line = _line(f"{path.stem}/{launcher}/{fault}/{dtype}", path.stem, source + kernel, dtype)
                yield line | {"language": LANGUAGE}
    for candidate in harness.candidates():
        if candidate.demand == "refused":  # what is contained may pass or not, as it meets a lock or not
            yield _line(f"hostile/{candidate.id}", candidate.op, candidate.source("planted", 0))


def planted() -> Iterator[dict[str, Any]]:
    """Lines of candidates that are trusted: a confined one may not import the judge's own."""
    for op in registry.ops():
        for one in registry.planted(op):
            yield _line(f"{op}/{one.name}", op, PLANTED.format(op=op, name=one.name))


def _line(identifier: str, op: str, source: str, dtype: str = ALL[0]) -> dict[str, Any]:
    """Narrowed to a dtype and the size of its cheapest case, which takes about a second."""
    return {
        "id": identifier,
        "op": op,
        "source": source,
        "function": "kernel",
        "sizes": _smallest(op, dtype),
        "dtypes": [dtype],
    }


@functools.cache
def _smallest(op: str, dtype: str) -> dict[str, int]:
    contract = registry.contract(op)
    cases = [case for case in plan(contract, "quick", 0).cases if case.dtype == dtype and contract.work(case)]
    return {axis: n for axis, n in min(cases, key=contract.work).size.items() if isinstance(n, int)}


def _plants(node: ast.stmt) -> bool:
    """Whether a statement of a file of faults is a call of plant_kernels."""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) == "plant_kernels"


def _planted(node: ast.stmt) -> tuple[str, list[str]]:
    """The launcher and the faults of such a call."""
    assert isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    _, launcher, _, *faults = node.value.args
    return ast.unparse(launcher), [ast.literal_eval(fault) for fault in faults]


def main(folder: str) -> None:
    for name, lines in (("kernels.jsonl", kernels()), ("planted.jsonl", planted())):
        texts = [json.dumps(line) + "\n" for line in lines]
        Path(folder, name).write_text("".join(texts))
        print(f"{name}: {len(texts)} candidates")


if __name__ == "__main__":
    main(*sys.argv[1:])
