"""A child process that judges the trials of one subject, forked or fresh, and what each trial may take of it."""

import contextlib
import dataclasses
from collections.abc import Sequence

import cloudpickle

from touchstone.conformance.discovery import importing, registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation.fork import fork
from touchstone.conformance.isolation.limits import Limits, Watch
from touchstone.conformance.isolation.processes import Child, Death
from touchstone.conformance.isolation.serve import serve
from touchstone.conformance.isolation.spawn import spawn
from touchstone.conformance.isolation.travel import CannotTravel, ways
from touchstone.conformance.judging.judgement import Outcome
from touchstone.conformance.judging.trials import Trial
from touchstone.conformance.spec.checks import Check

START_SECONDS = 300.0  # for a fresh process to import the function, which may compile


class TrialChild:
    """A `Child` that answers the index of a trial with its outcome, and the watch over it."""

    def __init__(self, process: Child):
        self.process = process
        self.watch = Watch(process)
        self.asked: list[int] = []  # indices of trials that were sent and not answered yet
        self.judged: list[int] = []  # and of those that were answered

    def judge(
        self, index: int, limits: Limits, following: int | None = None, idle: float | None = None
    ) -> Outcome | Death:
        """Have a trial judged, and send the following one. With `idle`, also stop after so many seconds without
        processor time. Raises what the judge raised.
        """
        try:
            if not self.asked:
                self._send(index)
            if self.asked[0] != index:
                raise ValueError(f"index: expected {self.asked[0]}, announced as the following one, got {index}")
            if following is not None:
                with contextlib.suppress(OSError):  # it has died since; then there may still be an answer
                    self._send(following)
            death = self.watch.wait(limits, idle)
        except OSError:
            return self.process.death()
        except BaseException:
            self.close()
            raise
        if death is not None:
            return death
        self.asked.pop(0)
        answer: Outcome | Death = self.process.answer()
        if isinstance(answer, Outcome):
            self.judged.append(index)
        return answer

    def _send(self, index: int) -> None:
        self.process.send(index)
        self.asked.append(index)

    def close(self) -> None:
        self.process.close()


def forked(subject: Subject, trials: Sequence[Trial]) -> TrialChild:
    return TrialChild(fork(lambda connection: serve(connection, subject, trials)))


def spawned(subject: Subject, trials: Sequence[Trial], fresh_import: bool) -> TrialChild:
    """A fresh process that has the function. Tries each way to send it; the first error is raised if none works.

    Raises ValueError, most often CannotTravel.
    """
    first: Exception | None = None
    for way in ways(subject.fn, fresh_import):
        try:
            return _spawned(subject, trials, way)
        except Exception as error:
            first = first or error
    if first is None:
        raise CannotTravel(f"fn: {importing.describe(subject.fn)} cannot be sent to another process")
    raise first


def _spawned(subject: Subject, trials: Sequence[Trial], way: tuple) -> TrialChild:
    without = dataclasses.replace(subject, fn=None)  # type: ignore[arg-type]
    request = (registry.op_file(subject.op), way, cloudpickle.dumps((without, list(trials))))
    name = importing.describe(subject.fn)
    child = TrialChild(spawn("touchstone.conformance.isolation.serve"))
    try:
        death = child.process.ask(request, START_SECONDS)
    except ValueError:
        child.close()
        raise
    except Exception as error:
        child.close()
        raise CannotTravel(
            f"fn: {name} cannot be imported in a fresh process: {type(error).__name__}: {error}; pass isolate='none'"
        ) from error
    except BaseException:
        child.close()
        raise
    if death is None:
        child.watch.begin()
        return child
    child.close()
    if death.check is Check.HANG:
        raise CannotTravel(
            f"fn: {name} was not imported in a fresh process within {START_SECONDS:.0f} s; pass isolate='none'"
        )
    raise CannotTravel(f"fn: {name} cannot be imported in a fresh process: {death.message}; pass isolate='none'")
