"""What the numbers of a kernel decide about Python: by which of its functions a kernel calls on constants, and by which
it does not, numbers could be told. A compiler calls the same for all numbers.
"""

from types import CodeType
from typing import Any

from touchstone import backends

_TELLS_NOBODY = {"math", "_operator"}  # modules of functions of which no call is known afterwards


class _Choice:
    """Of one kernel: what its last launches have called once a number had decided something."""

    def __init__(self) -> None:
        self.decided = False
        self._before: set[Any] = set()
        self._now: set[Any] = set()

    def begin(self) -> None:
        backends.chosen(len(self._before - self._now))
        self.decided, self._before, self._now = False, self._now, set()

    def called(self, key: Any) -> None:
        if self.decided:
            backends.chosen(key not in self._before)
            self._now.add(key)


_choices: dict[CodeType, _Choice] = {}
_running = _Choice()  # that of the kernel which runs


def begin(code: CodeType) -> None:
    """A launch of a kernel begins."""
    global _running
    _running = _choices.setdefault(code, _Choice())
    _running.begin()


def decides() -> None:
    """A number has become one of Python's: a condition, an index, the bound of a loop."""
    _running.decided = True


def called(function: Any, key: Any) -> None:
    """The kernel calls a function on constants; `key` tells both."""
    if getattr(function, "__module__", None) not in _TELLS_NOBODY:
        _running.called(key)
