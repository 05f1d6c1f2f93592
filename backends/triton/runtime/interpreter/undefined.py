"""What Triton leaves undefined although every NVIDIA GPU gives the same: the masked lanes of a load without `other`
(0), and integers that overflow their type (they wrap).

By default each shows itself, as NaN or as an error, so that no kernel relies on it unnoticed. `undefined` gives what a
GPU gives, and tells where.
"""

import contextlib
import os
import sys
from collections.abc import Collection, Iterator

import numpy as np

from touchstone import backends
from touchstone.backends import overflow
from touchstone.backends.triton.runtime.interpreter.registry import FOREIGN, IntegerOverflowError, active, repair

MASKED_INTEGER = 12345  # of 16 bits and more: conspicuous, and small enough not to overflow in address arithmetic
MASKED = "a masked load without `other`: Triton does not define its masked lanes, which hold 0 on NVIDIA GPUs"


class _Within:
    """One `undefined` block: the places that are to show themselves (None: all), and those that were met."""

    def __init__(self, conspicuous: Collection[str] | None) -> None:
        self.conspicuous = conspicuous
        self.found: dict[str, str] = {}
        self._kinds: set[tuple[str, str]] = set()

    def shows(self, kind: str, what: str) -> bool:
        """Whether `what`, at the line of the kernel that runs, is to show itself; a line keeps the first of a kind."""
        where = place()
        if (where, kind) not in self._kinds:
            self._kinds.add((where, kind))
            self.found[where] = f"{self.found[where]}; {what}" if where in self.found else what
        return self.conspicuous is None or where in self.conspicuous


_blocks: list[_Within] = []


@contextlib.contextmanager
def undefined(conspicuous: Collection[str] | None = ()) -> Iterator[dict[str, str]]:
    """Within: what Triton does not define is what NVIDIA GPUs give, but at the `conspicuous` places (None: everywhere),
    where it is NaN (integers: 12345), or an IntegerOverflowError.

    Yields what is undefined by place, {"k.py:12": "a masked load without `other` ..."}, filled while kernels run.
    """
    backends.observing()
    _blocks.append(block := _Within(conspicuous))
    try:
        yield block.found
    finally:
        _blocks.remove(block)


@repair("masked lanes", "a masked load without `other` gives NaN (integers: 12345), not the zeros that hide its use")
def _masked_lanes() -> None:
    pass  # read by masked_value


def masked_value(dtype: np.dtype) -> np.ndarray:
    """What the masked lanes of a load without `other` hold."""
    if not active("masked lanes"):
        return np.zeros((), dtype)
    if _blocks and not _blocks[-1].shows("masked", MASKED):
        return np.zeros((), dtype)
    if dtype.kind in "iu":
        return np.array(MASKED_INTEGER if dtype.itemsize > 1 else 85, dtype)
    return np.array(True if dtype == np.bool_ else np.nan, dtype)


def overflows(operation: str, exact: int, wrapped: int) -> None:
    """The `exact` result of an integer `operation` ("int32 mul") is outside its type, in which it is `wrapped`. Raises
    IntegerOverflowError, or lets it wrap."""
    turned = f"the exact {exact} becomes {wrapped}"
    what = f"{operation} {overflow.WRAPS}: {turned}; compute addresses in int64"
    if not _blocks or _blocks[-1].shows(operation, what):
        raise IntegerOverflowError(what)


def place() -> str:
    """The line of the innermost frame that is neither Triton's nor the interpreter's: "k.py:12"."""
    frame = sys._getframe()
    while frame.f_code.co_filename.startswith(FOREIGN) and frame.f_back is not None:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
