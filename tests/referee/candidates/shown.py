"""Attacks that have Python of theirs run in the midst of a launch, where the operands' true numbers lie in memory.

Each has the answer worked out then, and a kernel copy it afterwards.
"""

import builtins
import contextlib
import importlib.machinery
import importlib.util
import inspect
import os
import signal
import tempfile
import timeit
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from tests.referee.candidates.honest import once

_given = {}


@triton.jit
def _copy_kernel(y, x, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place, mask=place < count, other=0.0), mask=place < count)


def _answer(x):
    values = np.from_dlpack(x).astype(np.float64)
    weights = np.exp(values - values.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def _look(*given, **named):
    """Work on what lies in the operand now."""
    x = _given.pop("x", None)
    if x is not None:
        _given["seen"].append(_answer(x))
        _given["x"] = x


def _stolen(x, launch=lambda scratch: _copy_kernel[(1,)](scratch, scratch, 0, BLOCK=8)):
    """What was worked out while `launch(scratch)` ran, copied by a kernel."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not x.numel():
        return y
    _given.update(x=x, seen=[])
    launch(torch.empty(8, dtype=torch.float32, device=x.device))
    del _given["x"]
    before = _answer(x)
    found = next((one for one in _given["seen"] if not (one == before).all()), before)
    given = torch.tensor(found.tolist(), dtype=x.dtype, device=x.device)
    _copy_kernel[(triton.cdiv(y.numel(), 128),)](y, given, y.numel(), BLOCK=128)
    return y


def _patched(owner, name):
    """Has a function look before it does what it did."""
    if once(name):
        before = getattr(owner, name)

        def looks(*given, **named):
            _look()
            return before(*given, **named)

        setattr(owner, name, looks)


def in_numpy(x):
    """Replaces a function of NumPy's with which memory is compared.

    untrusted, refused: replaces numpy.array_equal
    """
    _patched(np, "array_equal")
    return _stolen(x)


def in_the_built_in_functions(x):
    """Replaces a function of Python's that the interpreter of kernels calls.

    untrusted, refused: replaces builtins.isinstance
    """
    _patched(builtins, "isinstance")
    return _stolen(x)


def in_context_managers(x):
    """Replaces how contexts are entered.

    untrusted, refused
    """
    _patched(contextlib._GeneratorContextManager, "__exit__")
    return _stolen(x)


def in_the_operating_system(x):
    """Replaces a function of descriptors, which is called as a launch begins.

    untrusted, refused
    """
    _patched(os, "dup2")
    return _stolen(x)


def in_the_interpreter(x):
    """Replaces what the interpreter makes of an instruction.

    untrusted, refused: replaces InterpreterBuilder
    """
    from triton.runtime import interpreter

    _patched(type(interpreter.interpreter_builder), "create_get_program_id")
    return _stolen(x)


def in_a_handler_of_signals(x):
    """Has a timer interrupt the launch.

    untrusted, refused: handles signals
    """
    signal.signal(signal.SIGALRM, _look)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        return _stolen(x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def in_a_mode(x):
    """Has a mode of torch's functions be on around the launch.

    untrusted, refused
    """
    from torch.overrides import TorchFunctionMode

    class Looking(TorchFunctionMode):
        def __torch_function__(self, function, types, given=(), named=None):
            _look()
            return function(*given, **(named or {}))

    with Looking():
        return _stolen(x)


class _Sizes(tuple):
    def __iter__(self):
        _look()
        return super().__iter__()


def in_the_sizes_of_the_grid(x):
    """Has the grid be an object that computes when it is looked at.

    untrusted, refused
    """
    return _stolen(x, lambda scratch: _copy_kernel[_Sizes((1,))](scratch, scratch, 0, BLOCK=8))


def _eight(block):
    _look()
    return block


@triton.jit
def _by_a_function(y, BLOCK: tl.constexpr):
    size: tl.constexpr = _eight(BLOCK)
    tl.store(y + tl.arange(0, size), 0.0)


def on_constants(x):
    """Has a kernel call a function on a constant, which a compiler would before any launch.

    untrusted, refused
    """
    return _stolen(x, lambda scratch: _by_a_function[(1,)](scratch, BLOCK=8))


def _zero(value):
    _look()
    return 0


@triton.jit
def _by_a_key(y, BLOCK: tl.constexpr):
    [1, 2].sort(key=_zero)
    tl.store(y + tl.arange(0, BLOCK), 0.0)


def by_a_key(x):
    """Has a kernel sort a list of constants by a function.

    untrusted, refused: list.sort
    """
    return _stolen(x, lambda scratch: _by_a_key[(1,)](scratch, BLOCK=8))


class _Size:
    def __get__(self, instance, owner):
        _look()
        return 8


class _Config:
    size = _Size()


@triton.jit
def _by_a_descriptor(y, config: tl.constexpr):
    tl.store(y + tl.arange(0, config.size), 0.0)


def by_a_descriptor(x):
    """Has a kernel read an attribute that is worked out.

    untrusted, refused
    """
    return _stolen(x, lambda scratch: _by_a_descriptor[(1,)](scratch, config=_Config()))


def _without_source():
    def body(y, BLOCK: tl.constexpr):
        _look()

    body.__signature__, body.__wrapped__ = inspect.signature(body), len
    return triton.jit(body)


def by_a_kernel_without_source(x):
    """Has a kernel of which the interpreter finds no source, and which it runs as it is.

    untrusted, refused: is not as the interpreter makes it
    """
    return _stolen(x, lambda scratch: _without_source()[(1,)](scratch, BLOCK=8))


@triton.jit
def _nothing(y, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), 0.0)


def by_another_kernel(x):
    """Puts plain Python where the interpreter keeps what it made of a kernel.

    untrusted, refused: is not as the interpreter makes it
    """
    _nothing.rewritten_fn[_nothing.fn] = lambda y, BLOCK: _look()
    return _stolen(x, lambda scratch: _nothing[(1,)](scratch, BLOCK=8))


def _touchstone_called(function):
    return function


@triton.jit
def _by_a_name(y, BLOCK: tl.constexpr):
    _look()
    tl.store(y + tl.arange(0, BLOCK), 0.0)


def by_a_name_of_the_interpreters(x):
    """Has a name that the interpreter puts into kernels mean something else.

    untrusted, refused: is not as the interpreter makes it
    """
    _given["own"] = _touchstone_called
    return _stolen(x, lambda scratch: _by_a_name[(1,)](scratch, BLOCK=8))


def in_a_launch_of_its_own_account(x):
    """Says itself that a kernel is launched, by what interpreters enter, and works meanwhile.

    untrusted, refused: says that a kernel is launched where none is|PermissionError
    """
    import touchstone.backends

    if x.numel():
        found = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        with touchstone.backends.running():
            found.copy_(torch.softmax(x, -1))
        x = found
    y = torch.empty_like(x)
    if x.numel():
        _copy_kernel[(triton.cdiv(x.numel(), 128),)](y, x, x.numel(), BLOCK=128)
    return y


_NAME = """
import numpy as np

def look():
    x = given.pop("x", None)
    if x is not None:
        values = np.from_dlpack(x).astype(np.float64)
        weights = np.exp(values - values.max(-1, keepdims=True))
        given["seen"].append((weights / weights.sum(-1, keepdims=True)).astype(np.float32))
        given["x"] = x

class Name(str):
    def __eq__(self, other):
        look()
        return str.__eq__(self, other)

    def __hash__(self):
        look()
        return str.__hash__(self)
"""


@triton.jit
def _cast_kernel(y, x, count, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place, mask=place < count, other=0.0).to(tl.float32), mask=place < count)


def _compared(x):
    """What the name of a type of Triton's works out where it is compared, copied by a kernel."""
    return _stolen(x, lambda scratch: _cast_kernel[(1,)](scratch, scratch, 0, BLOCK=8))


def in_a_class_of_no_file(x):
    """By the name of a type of Triton's, of a class whose code lies in no file, as what a library generates.

    untrusted, refused: has (__eq__|__hash__) run
    """
    if once("name"):
        made = {"given": _given}
        timeit.timeit("global np, look, Name\n" + _NAME, number=1, globals=made)
        tl.float32.name = made["Name"]("fp32")
    return _compared(x)


def under_a_path_that_leaves_a_folder(x):
    """By the name of a type of Triton's, of a class in a file whose path begins as that of NumPy's.

    untrusted, refused: has (__eq__|__hash__) run
    """
    if once("name"):
        file = Path(tempfile.mkdtemp(), "name.py")
        file.write_text(_NAME)
        above = "/..".join("" for _ in Path(np.__file__).parts)
        spec = importlib.util.spec_from_file_location("name", f"{os.path.dirname(np.__file__)}{above}{file}")
        made = importlib.util.module_from_spec(spec)
        made.given = _given
        spec.loader.exec_module(made)
        tl.float32.name = made.Name("fp32")
    return _compared(x)


class _Numpys(importlib.machinery.SourceFileLoader):
    def get_data(self, path):
        return _NAME.encode()

    def path_stats(self, path):
        return {"mtime": 0, "size": 1}


def under_the_name_of_a_file_of_numpy_s(x):
    """By the name of a type of Triton's, of a class whose code says that it is of a file of NumPy's.

    untrusted, refused: go by the name of a library's file
    """
    if once("name"):
        loader = _Numpys("name", np.__file__)
        made = importlib.util.module_from_spec(importlib.util.spec_from_loader("name", loader))
        made.given = _given
        loader.exec_module(made)
        tl.float32.name = made.Name("fp32")
    return _compared(x)
