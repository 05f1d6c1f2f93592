"""Ladders beside each other: shared names in one order, and no variant that takes another's private parts."""

import ast
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import pytest

from touchstone.conformance.discovery import registry

BACKENDS = registry.ROOT / "backends"
# What a name stands for where it is the op's own: online_softmax as its definition says is `naive` in other ladders,
# and a block to a row of logits, which reads them once, `block`.
MEANT = {("online_softmax", "online"): "naive", ("cross_entropy", "online"): "block"}


def ladders() -> dict[str, list[str]]:
    """The names of every ladder by "backend.op", in order."""
    return {
        f"{backend}.{op}": [MEANT.get((op, name), name) for name in registry.ladder(backend, op)]
        for backend in registry.backends()
        for op in registry.kernel_ops(backend)
    }


def disagreements(found: dict[str, list[str]]) -> list[str]:
    """Each pair of names that ladders have in both orders, with those ladders."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for where, names in found.items():
        for pair in combinations(names, 2):
            places[pair].append(where)
    return [
        f"{one} before {other} in {', '.join(where)}; after it in {', '.join(places[other, one])}"
        for (one, other), where in sorted(places.items())
        if one < other and (other, one) in places
    ]


def private_imports(path: Path) -> list[str]:
    """The underscore names that a file imports from other modules of the backends, each as "line: module.name"."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("touchstone.backends."):
            found += [f"{node.lineno}: {node.module}.{a.name}" for a in node.names if a.name.startswith("_")]
    return found


def test_names_that_two_ladders_share_stand_in_the_same_order():
    """Whatever the op and the language. Neighbours may differ: a ladder leaves out what its language does not have."""
    assert disagreements(ladders()) == []


@pytest.mark.parametrize("op", registry.ops())
def test_ladders_of_threads_begin_alike(op):
    """In CUDA C and in Numba: the step that says what one thread does by itself, from which both ladders climb."""
    first = {registry.ladder(backend, op)[0] for backend in ("cupy", "numba") if op in registry.kernel_ops(backend)}
    assert len(first) == 1


def test_a_ladder_in_another_order_is_seen():
    found = {"a.x": ["naive", "warp", "block"], "b.x": ["naive", "block", "tma"], "b.y": ["block", "warp"]}
    assert disagreements(found) == ["block before warp in b.y; after it in a.x"]


@pytest.mark.parametrize("backend", registry.backends())
def test_no_variant_imports_a_private_name(backend):
    """What ops share has a public name, be its module public or, like `_launch`, the op's own."""
    files = [path for path in (BACKENDS / backend).rglob("*.py") if path.relative_to(BACKENDS).parts[1] != "runtime"]
    wrong = {str(path.relative_to(BACKENDS)): found for path in sorted(files) if (found := private_imports(path))}
    assert not wrong


def test_a_private_name_is_seen(tmp_path):
    path = tmp_path / "tma.py"
    path.write_text(
        "from touchstone.backends.triton.matmul.tiled import _grouped, tiled\n"
        "from touchstone.backends.signatures._add_norms import empty_outputs\n"
    )
    assert private_imports(path) == ["1: touchstone.backends.triton.matmul.tiled._grouped"]
