"""What the judge reads in the file of an untrusted kernel."""

import pytest

from touchstone.conformance.isolation import reading
from touchstone.conformance.isolation.reading import unneeded

KERNEL = """
import math, os, torch, triton
import triton.language as tl

@triton.jit
def helper(x):
    return tl.exp(x)

@triton.jit
def kernel(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, helper(tl.load(x + at, mask=at < n)), mask=at < n)

def fn(x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), B=128)
    return torch.compile(y) if os.environ.get("NEVER") else y
"""
FOUND = {
    "import gc": "imports gc",
    "import ctypes.util": "imports ctypes.util",
    "from touchstone.reference import softmax": "imports touchstone.reference.softmax",
    "from touchstone.backends import running": "imports touchstone.backends.running",
    "import sys\nsys.modules": "uses sys.modules",
    "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    e.__traceback__": "uses __traceback__",
    "exec('1')": "uses exec",
    "import touchstone.conformance.judging": "imports touchstone.conformance.judging",
    "from touchstone import conformance": "imports touchstone.conformance",
    "from touchstone.backends import launches": "imports touchstone.backends.launches",
    "from sys import _getframe": "imports sys._getframe",
    "import torch.utils._python_dispatch as d": "imports torch.utils._python_dispatch",
    "from llvmlite import binding": "imports llvmlite.binding",
    "import cffi": "imports cffi",
    "from numba.extending import get_cython_function_address": "imports numba.extending.get_cython_function_address",
    "x = 'eval'": "names eval",
    "x = 'touchstone.reference'": "names touchstone.reference",
    "getattr(torch._C, '_DisableTorchDispatch')": "names _DisableTorchDispatch",
    "__import__('touchstone.conformance.check')": "names touchstone.conformance.check",
}


def test_a_kernel_needs_none_of_it(tmp_path):
    (tmp_path / "k.py").write_text(KERNEL)
    assert unneeded(tmp_path / "k.py") == []


@pytest.mark.parametrize(("more", "found"), FOUND.items())
def test_what_no_kernel_needs_is_named_with_its_line(tmp_path, more, found):
    (tmp_path / "k.py").write_text(KERNEL + more + "\n")
    first = KERNEL.count("\n") + 1
    told = unneeded(tmp_path / "k.py")
    assert any(what.startswith(f"{found} (line ") and int(what.split("(line ")[1].split()[0]) >= first for what in told)


@pytest.mark.parametrize(
    "more",
    [
        "from touchstone.backends import Unsupported",
        "from llvmlite import ir",
        "from sys import argv",
        "import gcd",
        "x = 'gcd'",
        "import touchstone.backends",
        "math.modules",
        "def other(y):\n    return fn(torch.ones(1))",
        "@triton.jit\ndef other(y):\n    helper(y)",
    ],
)
def test_what_only_looks_like_it_is_not_named(tmp_path, more):
    (tmp_path / "k.py").write_text(KERNEL + more + "\n")
    assert unneeded(tmp_path / "k.py") == []


def test_a_text_is_read_in_its_encoding(tmp_path):
    """One that the kernel itself brings cannot be: what is in it is not known."""
    (tmp_path / "k.py").write_text("# coding: utf-7\nimport math\n# +AAo-import ctypes\n")
    assert unneeded(tmp_path / "k.py") == ["imports ctypes (line 4 of k.py)"]
    (tmp_path / "k.py").write_text("import codecs, beside\n")
    (tmp_path / "beside.py").write_text("# coding: of_my_own\n")
    assert unneeded(tmp_path / "k.py") == [
        "has code in beside.py in an encoding that Python does not have (the whole file)"
    ]


@pytest.mark.parametrize("text", ["def broken(", "\0", "\xff", "# coding: latin-1\ndef broken(", ""])
def test_a_file_that_is_no_python(tmp_path, text):
    (tmp_path / "k.py").write_text(text)
    assert unneeded(tmp_path / "k.py") == [] and unneeded(tmp_path / "missing.py") == []


def test_what_cannot_be_read_has_nothing_of_its_own(tmp_path, monkeypatch):
    """Nor what was read before it."""
    mine = tmp_path / "mine.py"
    mine.write_text("import gc\n")
    monkeypatch.setattr(reading.neighbours, "imported", lambda path: (tmp_path / "gone.py",))
    assert unneeded(mine) == ["imports gc (line 1 of mine.py)"]
    assert unneeded(tmp_path / "gone.py") == []


ATTRIBUTES = [
    "_getframe",
    "_current_frames",
    "tb_frame",
    "f_back",
    "f_locals",
    "f_globals",
    "f_builtins",
    "f_code",
    "gi_frame",
    "cr_frame",
    "ag_frame",
    "__code__",
    "__globals__",
    "__closure__",
    "__subclasses__",
    "__builtins__",
    "__traceback__",
    "_disable_current_modes",
    "_DisableTorchDispatch",
    "_disable_dispatch",
    "redispatch",
    "_len_torch_dispatch_stack",
    "_pop_torch_dispatch_stack",
    "_get_current_dispatch_mode",
    "_ExcludeDispatchKeyGuard",
    "getprofile",
    "setprofile",
    "gettrace",
    "settrace",
    "before_launch",
    "failed_launch",
    "strayed",
    "on_constants",
    "_set_dispatch_mode",
    "_unset_dispatch_mode",
    "_AutoDispatchBelowAutograd",
    "after_launch",
    "addaudithook",
]
NAMES = ["exec", "eval", "compile", "__import__", "__builtins__", "__loader__", "__spec__"]
MODULES = ["touchstone.conformance", "touchstone.reference", "gc", "ctypes", "torch.utils._python_dispatch"]
OF_BACKENDS = ["running", "compiling", "launches", "kernel_running", "kernel_code"]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([f"x.{name}" for name in ATTRIBUTES], [f"uses {name}" for name in ATTRIBUTES]),
        ([f"from x import {name}" for name in ATTRIBUTES], [f"imports x.{name}" for name in ATTRIBUTES]),
        (NAMES, [f"uses {name}" for name in NAMES]),
        ([f"import {name}" for name in MODULES], [f"imports {name}" for name in MODULES]),
        ([f"import {name}.of_it" for name in MODULES], [f"imports {name}.of_it" for name in MODULES]),
        ([f"import {name}_and_more" for name in MODULES], []),
        (
            [f"x = {name!r}" for name in (*ATTRIBUTES, *NAMES[:4], *MODULES)],
            [f"names {name}" for name in (*ATTRIBUTES, *NAMES[:4], *MODULES)],
        ),
        (
            [f"from touchstone.backends import {name}" for name in OF_BACKENDS],
            [f"imports touchstone.backends.{name}" for name in OF_BACKENDS],
        ),
        (["from sys import modules", "from os import modules"], ["imports sys.modules"]),
    ],
)
def test_each_name_that_no_kernel_needs(tmp_path, lines, told):
    file = tmp_path / "mine.py"
    file.write_text("\n".join(lines))
    found = [text.partition(" (line ")[0] for text in unneeded(file)]
    assert found == list(dict.fromkeys(told))


@pytest.mark.parametrize("error", [ValueError, RecursionError, MemoryError])
def test_what_is_too_much_to_read_is_said_of_each_file(tmp_path, monkeypatch, error):
    for name in ("mine.py", "beside.py"):
        (tmp_path / name).write_text("import gc\n")
    parsed = reading.neighbours.parsed
    monkeypatch.setattr(reading.neighbours, "imported", lambda path: (tmp_path / "beside.py",))
    said = "has code in {} that is too large or too deep to read (the whole file)"

    def told(*deep):
        files = iter(("mine.py", "beside.py"))

        def parse(raw):
            if next(files) in deep:
                raise error
            return parsed(raw)

        monkeypatch.setattr(reading.neighbours, "parsed", parse)
        return unneeded(tmp_path / "mine.py")

    assert told("mine.py", "beside.py") == [said.format("mine.py"), said.format("beside.py")]
    assert told("beside.py") == ["imports gc (line 1 of mine.py)", said.format("beside.py")]
    assert told("mine.py") == [said.format("mine.py"), "imports gc (line 1 of beside.py)"]
