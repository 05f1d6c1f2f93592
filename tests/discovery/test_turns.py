"""`--turns`: which variants of a ladder are judged at a commit, and that what has changed always is."""

import subprocess

import pytest

from touchstone.conformance.discovery import registry
from touchstone.conformance.suite import turns

LADDER = [f"variant{n}" for n in range(7)]


@pytest.fixture
def told(monkeypatch):
    """What git tells, to be changed."""
    found = {"commit": "0" * 40, "changed": frozenset()}
    monkeypatch.setattr(turns, "_commit", lambda: found["commit"])
    monkeypatch.setattr(turns, "_changed", lambda: found["changed"])
    return found


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7])
def test_each_variant_has_its_turn_once_in_as_many_commits(told, length):
    seen = []
    for commit in range(3):
        told["commit"] = f"{commit:08x}" + "f" * 32
        found = turns.in_turn("triton", "softmax", LADDER[:length], 3)
        assert 1 <= len(found) <= max(1, -(-length // 3))
        assert found == turns.in_turn("triton", "softmax", LADDER[:length], 3)  # of one commit
        seen += found
    assert set(seen) == set(LADDER[:length])


def test_all_have_it_where_one_in_one_is_asked_for_or_git_does_not_tell(told):
    assert turns.in_turn("cupy", "softmax", LADDER, 1) == LADDER
    for unknown in ("commit", "changed"):
        before, told[unknown] = told[unknown], None
        assert turns.in_turn("cupy", "softmax", LADDER, 3) == LADDER
        told[unknown] = before
    assert len(turns.in_turn("cupy", "softmax", LADDER, 3)) < len(LADDER)


@pytest.mark.parametrize(
    ("changed", "backend", "op"),
    [
        ("backends/cupy/softmax/online.cu", "cupy", "softmax"),
        ("backends/cupy/lib/common.cuh", "cupy", "softmax"),  # which its files include
        ("backends/cupy/lib/norms_backward_staged.cu", "cupy", "rms_norm_backward"),  # which a file of lib compiles
        ("backends/triton/lib/hopper.py", "triton", "attention"),
        ("backends/triton/matmul/__init__.py", "triton", "mlp"),  # an op that takes kernels of another
        ("backends/signatures/matmul.py", "numba", "matmul"),
        ("conformance/contracts/matmul.py", "numba", "matmul"),
        ("reference/softmax.py", "triton", "softmax"),
    ],
)
def test_what_has_changed_is_judged_at_once(told, changed, backend, op):
    assert (registry.ROOT / changed).is_file()
    told["changed"] = frozenset([changed])
    assert turns.in_turn(backend, op, LADDER, 3) == LADDER
    other = "triton" if backend == "cupy" else "cupy"
    shared = changed.startswith(("conformance", "reference", "backends/signatures"))
    assert (turns.in_turn(other, op, LADDER, 3) == LADDER) == shared


def test_what_an_op_does_not_use_does_not_count(told):
    told["changed"] = frozenset(["backends/cupy/matmul/__init__.py", "backends/cupy/lib/gemm.cuh", "README.md"])
    assert len(turns.in_turn("cupy", "softmax", LADDER, 3)) < len(LADDER)


def test_git_is_asked_of_the_last_commit_and_the_working_tree(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    monkeypatch.setattr(turns, "git", git)
    git("init")
    for name in ("first", "second", "third"):
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "-m", name)
        if name == "first":
            assert turns._changed.__wrapped__() is None  # there is nothing to compare with
    (tmp_path / "first").write_text("another")
    (tmp_path / "new").write_text("new")
    assert turns._changed.__wrapped__() == {"first", "third", "new"}
    assert turns._commit.__wrapped__() == git("rev-parse", "HEAD")
