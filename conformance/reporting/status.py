"""The exit status of every command, and the verdict of a record: the same in a number and in words."""

import errno
from collections.abc import Iterable
from enum import IntEnum

from touchstone.conformance.judging.judgement import FAILED, INTERRUPTED, NOT_RUN, PARTIAL, PASSED

MACHINES_FAULT = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
}
BROKEN_PIPE = 141  # what a shell reports of a command that SIGPIPE ended: whoever read its output has seen enough


class Status(IntEnum):
    """How a command ended. docs/records.md has the table, and so has `--help`."""

    PASSED = 0
    FAILED = 1
    USAGE = 2
    NOT_RUN = 3
    PARTIAL = 4
    INTERRUPTED = 130  # what a shell reports of a command that SIGINT ended; of SIGTERM too, since a record is written

    @property
    def verdict(self) -> str | None:
        """The verdict of a record; None after wrong usage, which leaves no record."""
        return _VERDICTS.get(self)

    @property
    def about(self) -> str:
        """What it means, in a few words."""
        return _ABOUT[self]

    @classmethod
    def of(cls, verdict: str) -> "Status":
        """The status that a verdict gives."""
        return next(status for status, word in _VERDICTS.items() if word == verdict)

    @classmethod
    def combined(cls, verdicts: Iterable[str]) -> "Status":
        """That of several kernels: an interruption decides, then a failure, then what is partial; kernels that cannot
        be run here decide only where there are no others. Of none at all: failed, nothing was judged."""
        found = {cls.of(verdict) for verdict in verdicts} or {cls.FAILED}
        return next(status for status in _DECIDING if status in found)


def is_the_machines(error: BaseException) -> bool:
    """Whether an error says that the machine has no room, memory or descriptors left, and nothing of what was asked."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in MACHINES_FAULT)


_VERDICTS = {
    Status.PASSED: PASSED,
    Status.FAILED: FAILED,
    Status.NOT_RUN: NOT_RUN,
    Status.PARTIAL: PARTIAL,
    Status.INTERRUPTED: INTERRUPTED,
}
_DECIDING = (Status.INTERRUPTED, Status.FAILED, Status.PARTIAL, Status.PASSED, Status.NOT_RUN)
_ABOUT = {
    Status.PASSED: "passed",
    Status.FAILED: "failed, or nothing was judged",
    Status.USAGE: "wrong arguments",
    Status.NOT_RUN: "not judged, for a reason of the machine: no GPU, package or compiler, a full disk",
    Status.PARTIAL: "partial, nothing failed, but less of the trials was judged than --coverage asks for",
    Status.INTERRUPTED: "interrupted",
}
EXPLAINED = "Exit status: " + "; ".join(f"{int(status)} {status.about}" for status in Status) + "."
