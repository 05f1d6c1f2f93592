"""Who answers, what was asked, and who asks."""

import sys
from collections import Counter

from touchstone.backends.gpus import Gpu

INSIDE = ("torch", "touchstone", "triton", "numpy")  # whose own questions are answered truly

_gpu: Gpu | None = None  # in whose place questions are answered now
_answered: Counter[str] = Counter()  # what was asked by other code, and how often


def answers() -> Gpu | None:
    """The GPU in whose place questions are answered now, if any."""
    return _gpu


def begin(gpu: Gpu, asked: Counter[str]) -> None:
    """From now on `gpu` answers, and what is asked is counted in `asked`."""
    global _gpu, _answered
    _gpu, _answered = gpu, asked


def end() -> None:
    global _gpu
    _gpu = None


def note(what: str) -> None:
    """Count a question that was answered."""
    _answered[what] += 1


def outside(depth: int = 2) -> bool:
    """Whether the code that called the caller is neither torch's nor ours."""
    name = sys._getframe(depth).f_globals.get("__name__") or ""
    return name.partition(".")[0] not in INSIDE
