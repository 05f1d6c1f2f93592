"""Two thousand candidates for `judge`, made of the planted faults and of the hostile candidates.

`python -m tests.referee.many FOLDER` writes kernels.jsonl, which is judged as it is (Triton kernels with a fault each,
in each dtype, hostile candidates, honest ones), and planted.jsonl, which takes --trusted: the planted torch functions
of every op.
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.referee import harness
from tests.referee.harness import Candidate, needed
from touchstone.conformance.discovery import registry
from touchstone.conformance.faults import ALL

LANGUAGE = "triton"
FAULTS = registry.ROOT / "conformance" / "faults" / LANGUAGE
PLANTED = """from touchstone.conformance.discovery import registry

kernel = next(planted for planted in registry.planted({op!r}) if planted.name == {name!r}).make()
"""


def kernels() -> Iterator[dict[str, Any]]:
    """Lines of candidates that are confined."""
    for op in harness.NARROWED:
        honest = Candidate(harness.HEAD, op, "an honest kernel", "contained", op=op)
        yield _line(f"honest/{op}", op, honest.source("planted", 0))
    for path in sorted(FAULTS.glob("[a-z]*.py")):
        for launcher, fault in _planted_in(path):
            source = needed(path.read_text(), launcher)
            source += f"\n\ndef kernel(*args, **options):\n    return {launcher}(*args, **options, fault={fault!r})\n"
            for dtype in ALL:
                yield _line(f"{path.stem}/{fault}/{dtype}", path.stem, source, dtype) | {"language": LANGUAGE}
    for candidate in harness.candidates():
        yield _line(f"hostile/{candidate.id}", candidate.op, candidate.source("planted", 0))


def planted() -> Iterator[dict[str, Any]]:
    """Lines of candidates that are trusted: a confined one may not import the judge's own."""
    for op in registry.ops():
        for one in registry.planted(op):
            yield _line(f"{op}/{one.name}", op, PLANTED.format(op=op, name=one.name))


def _line(identifier: str, op: str, source: str, dtype: str = ALL[0]) -> dict[str, Any]:
    """Narrowed to a dtype and the op's smallest size, which takes about a second."""
    smallest = {axis: n for axis, n in registry.contract(op).sizes[0].items() if isinstance(n, int)}
    return {"id": identifier, "op": op, "source": source, "function": "kernel", "sizes": smallest, "dtypes": [dtype]}


def _planted_in(path: Path) -> Iterator[tuple[str, str]]:
    """Launcher and fault of each kernel that a file of faults plants."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "plant_kernels":
            launcher = node.args[1]
            assert isinstance(launcher, ast.Name)
            for name in node.args[3:]:
                assert isinstance(name, ast.Constant)
                yield launcher.id, name.value


def main(folder: str) -> None:
    for name, lines in (("kernels.jsonl", kernels()), ("planted.jsonl", planted())):
        texts = [json.dumps(line) + "\n" for line in lines]
        Path(folder, name).write_text("".join(texts))
        print(f"{name}: {len(texts)} candidates")


if __name__ == "__main__":
    main(*sys.argv[1:])
