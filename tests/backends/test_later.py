"""Kernel libraries that a process sets up when a user's file imports them, and not before."""

import contextlib
import importlib
import sys
import textwrap

import pytest

from tests import processes
from touchstone.backends import numba, triton
from touchstone.backends.later import Later
from touchstone.conformance.discovery import registry

ROWS = {
    "numba": """
        import math
        import numba.cuda as cuda
        import torch

        @cuda.jit
        def rows(x, y):
            row = cuda.grid(1)
            if row < x.shape[0]:
                top, total = -math.inf, 0.0
                for i in range(x.shape[1]):
                    if x[row, i] > top:
                        top = x[row, i]
                for i in range(x.shape[1]):
                    total += math.exp(x[row, i] - top)
                for i in range(x.shape[1]):
                    y[row, i] = math.exp(x[row, i] - top) / total

        def softmax(x):
            y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
            if x.numel():
                rows[(x.shape[0] + 31) // 32, 32](x.float(), y)
            return y.to(x.dtype)
        """,
    "triton": """
        import torch
        import triton
        import triton.language as tl

        @triton.jit
        def rows(x, y, n, row, column, BLOCK: tl.constexpr):
            columns = tl.arange(0, BLOCK)
            place = x + tl.program_id(0).to(tl.int64) * row + columns.to(tl.int64) * column
            values = tl.load(place, columns < n, -float("inf")).to(tl.float32)
            e = tl.exp(values - tl.max(values, 0))
            tl.store(y + tl.program_id(0).to(tl.int64) * n + columns, e / tl.sum(e, 0), columns < n)

        def softmax(x):
            y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            if x.numel():
                rows[(x.shape[0],)](x, y, x.shape[1], *x.stride(), BLOCK=triton.next_power_of_2(x.shape[1]))
            return y
        """,
}
INSTRUMENTS = {"numba": ("threads in reverse", "programs in"), "triton": ("programs in reverse", "threads in")}
CHECK = ["-W", "ignore", "-m", "touchstone", "check", "softmax", "--device=cpu", "--quick", "--dtypes=float32"]


def checked(folder, body, *options):
    (folder / "mine.py").write_text(textwrap.dedent(body))
    done = processes.run_touchstone([*CHECK, "--kernel=mine.py:softmax", *options], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("language", ROWS)
@pytest.mark.parametrize(
    "body",
    [
        "from theirs import softmax",
        """
        def softmax(x):
            from theirs import softmax
            return softmax(x)
        """,
    ],
    ids=["at_import", "when_called"],
)
def test_a_file_that_does_not_speak_of_its_kernels_language_is_judged_as_one_that_does(tmp_path, language, body):
    """On the engine, and under its instruments alone."""
    if reason := registry.backend(language).why_not("cpu"):
        pytest.skip(reason)
    (tmp_path / "theirs.py").write_text(textwrap.dedent(ROWS[language]))
    own, other = INSTRUMENTS[language]
    said = checked(tmp_path, body)
    assert own in said and "races" in said and other not in said


def test_a_file_that_speaks_of_no_language_costs_the_import_of_none(tmp_path):
    body = """
        import sys

        import torch

        found = [name for name in ("numba", "triton") if name in sys.modules]

        def softmax(x):
            if found:
                raise ValueError(f"imported: {found}")
            return torch.softmax(x.float(), -1).to(x.dtype)
        """
    checked(tmp_path, body.replace('"numba"', '"num" + "ba"').replace('"triton"', '"tri" + "ton"'))


def test_a_library_is_set_up_once_and_when_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "crayon.py").write_text("COLOURS = 64")
    monkeypatch.syspath_prepend(tmp_path)
    done = []
    later = Later("crayon", lambda: done.append(sys.modules["crayon"].COLOURS))
    later.then = lambda: done.append("then")
    found = list(sys.meta_path)
    later.watch()
    later.watch()
    assert later.watching and len(sys.meta_path) == len(found) + 1
    import json.tool  # noqa: F401 - another library

    assert done == []
    import crayon  # type: ignore[import-not-found]

    assert done == [64, "then"] and crayon.COLOURS == 64
    assert not later.watching and sys.meta_path == found
    monkeypatch.delitem(sys.modules, "crayon")
    import crayon

    assert done == [64, "then"]


def test_a_library_that_is_not_there_is_not_found(monkeypatch):
    later = Later("crayon_that_is_not_there", lambda: 1 / 0)
    later.watch()
    with pytest.raises(ModuleNotFoundError, match="crayon_that_is_not_there"):
        import crayon_that_is_not_there  # noqa: F401
    assert later not in sys.meta_path and not later.watching


@pytest.mark.parametrize("backend", [numba, triton])
def test_nothing_is_watched_for_a_gpu(backend, monkeypatch):
    monkeypatch.setattr(backend, "_later", later := Later("numba", lambda: None))
    backend.expect("cuda")
    assert not later.watching


@pytest.mark.parametrize("backend", ["triton", "numba", "cupy"])
def test_a_kernel_of_neither_language_is_called_under_all_instruments(backend, tmp_path):
    """A torch function within `running()` launches on every engine, whose library nobody has imported by then."""
    code = f"""
import sys
import torch
from touchstone.backends import {backend} as language
if hasattr(language, "expect"):
    language.expect("cpu")
for name, instrument in language.instruments("cpu").items():
    with instrument():
        torch.ones(2).add_(1)
    print(name)
"""
    done = processes.run_touchstone(["-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    assert INSTRUMENTS["triton" if backend == "triton" else "numba"][0] in done.stdout


def test_what_waits_for_a_package_waits_no_longer_than_it_is_within(tmp_path, monkeypatch):
    """Also where what is within raises, as a file does that does not import."""
    (tmp_path / "late_package.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    steps = []

    @contextlib.contextmanager
    def made():
        steps.append("in")
        yield
        steps.append("out")

    later = Later("late_package", lambda: None)
    with later.within(made):
        assert not steps  # nobody watches
    later.watch()
    with pytest.raises(KeyError), later.within(made):
        raise KeyError
    with later.within(made):
        assert not steps
        importlib.import_module("late_package")
        assert steps == ["in"]
    assert steps == ["in", "out"]
    with later.within(made):
        assert steps == ["in", "out", "in"]
    monkeypatch.delitem(sys.modules, "late_package")
    later.watch()
    with pytest.raises(KeyError), later.within(made):
        raise KeyError
    importlib.import_module("late_package")
    assert steps == ["in", "out", "in", "out"]
    monkeypatch.delitem(sys.modules, "late_package")
