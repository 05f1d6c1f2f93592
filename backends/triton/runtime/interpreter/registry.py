"""The list of repairs, and the errors that repaired kernels raise."""

import dataclasses
import os
import warnings
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter as stock

from touchstone import backends
from touchstone.backends import NotRun

TESTED = ((3, 6), (3, 9))
FOREIGN = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (triton.__file__, np.__file__, __file__))


class KernelError(stock.InterpreterError, RuntimeError):
    """Something went wrong inside a kernel; the message names kernel, source line and program."""


class OutOfBounds(KernelError):
    """A load, store or atomic of an active lane fell outside the tensor that its pointer was derived from."""


class IntegerOverflowError(KernelError):
    """An integer operation overflowed its type: addresses are to be computed in int64."""


class RaceCondition(KernelError):
    """Two programs of a launch touch one element, at least one writes it, and nothing orders them; or two partitions or
    engines of a program do, in shared memory."""


class Deadlock(KernelError):
    """Every program of a launch waits for memory to change, and none is left to change it; or every partition of a
    program waits for an mbarrier."""


class StaticAssertionError(KernelError):
    """A `tl.static_assert` does not hold: a GPU would refuse to compile this specialisation."""


class NotInterpreted(KernelError, NotRun):
    """The kernel uses something that runs on a GPU and not in the interpreter: nothing is known about its results."""


@dataclasses.dataclass(frozen=True)
class Repair:
    """One repair: its name, what it makes true, the upstream issue it answers (if any), and how to install it."""

    name: str
    what: str
    answers: str
    install: Callable[[], None]


REPAIRS: list[Repair] = []
transformers: set[type] = set()  # of syntax trees, by which kernels become Python
_active: set[str] = set()


def repair(name: str, what: str, answers: str = "") -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register the function that installs a repair; they are installed in order of registration."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        REPAIRS.append(Repair(name, what, answers, function))
        return function

    return register


def install(without: frozenset[str] = frozenset()) -> None:
    """Install every repair except those named in `without` (tests show that each is needed); later calls do nothing.

    Raises RuntimeError where Triton was imported to compile. A Triton outside 3.6 to 3.9 gives a warning.
    """
    if _active:
        return
    if not isinstance(tl.standard.sum, stock.InterpretedFunction):
        raise RuntimeError("triton was imported to compile; set TRITON_INTERPRET=1 before its first import")
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if not TESTED[0] <= version <= TESTED[1]:
        warnings.warn(f"the interpreter's repairs are for Triton 3.6 to 3.9, not {triton.__version__}", stacklevel=2)
    backends.called.add(r"triton\.(?:runtime\.(?:interpreter|jit)|language(?:\.(?!extra)\w+)?)")
    for each in REPAIRS:
        if each.name not in without:
            _active.add(each.name)
            each.install()


def redirect(function: FunctionType, target: Callable[..., Any]) -> None:
    """Make `function` itself call `target`, for modules that imported it by name before it was replaced.

    Only for functions that close over one value or none; others stay as they are.
    """
    cells = len(function.__code__.co_freevars)
    if cells < 2:
        function.__code__ = (_forwarding(True) if cells else _forward).__code__
        function.__defaults__, function.__kwdefaults__ = None, {"_target": target}


def _forward(*args, _target, **kwargs):
    return _target(*args, **kwargs)


def _forwarding(cell: object) -> FunctionType:
    """`_forward` for the place of a function with a closure: Python wants as many free variables in its code."""

    def forward(*args, _target, **kwargs):
        return cell and _target(*args, **kwargs)

    return forward


def active(name: str) -> bool:
    """Whether the repair of that name is installed."""
    return name in _active


def place(frame: FrameType) -> str | None:
    """The line that a frame is at, "line 57 of softmax.py"; None in code of Triton, NumPy and the interpreter."""
    path = frame.f_code.co_filename
    return None if path.startswith(FOREIGN) else f"line {frame.f_lineno} of {os.path.basename(path)}"
