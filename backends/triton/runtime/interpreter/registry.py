"""The list of repairs, and the errors that repaired kernels raise."""

import dataclasses
import warnings
from collections.abc import Callable

import triton
import triton.language as tl
from triton.runtime import interpreter as stock

TESTED = ((3, 6), (3, 9))


class KernelError(stock.InterpreterError, RuntimeError):
    """Something went wrong inside a kernel; the message names kernel, source line and program."""


class OutOfBounds(KernelError):
    """A load, store or atomic of an active lane fell outside the tensor that its pointer was derived from."""


class IntegerOverflowError(KernelError):
    """An integer operation overflowed its type: addresses are to be computed in int64."""


class RaceCondition(KernelError):
    """Two programs of a launch touch one element, at least one writes it, and nothing orders them."""


class StaticAssertionError(KernelError):
    """A `tl.static_assert` does not hold: a GPU would refuse to compile this specialisation."""


@dataclasses.dataclass(frozen=True)
class Repair:
    """One repair: its name, what it makes true, the upstream issue it answers (if any), and how to install it."""

    name: str
    what: str
    answers: str
    install: Callable[[], None]


REPAIRS: list[Repair] = []
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
    for each in REPAIRS:
        if each.name not in without:
            _active.add(each.name)
            each.install()


def active(name: str) -> bool:
    """Whether the repair of that name is installed."""
    return name in _active
