"""A child process for the trials of one subject, forked or fresh, and what each trial may take of it.

The child makes the kernel's calls, and this process judges them.
"""

import contextlib
import dataclasses
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle

import cloudpickle
import psutil
import torch

from touchstone.conformance.discovery import importing, launching, registry
from touchstone.conformance.discovery.selection import CannotRun
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation.confined import Confined, confined
from touchstone.conformance.isolation.executing import execute
from touchstone.conformance.isolation.fork import fork
from touchstone.conformance.isolation.limits import Limits, Watch
from touchstone.conformance.isolation.processes import Child, Death, below, ended
from touchstone.conformance.isolation.remote import Died, Remote
from touchstone.conformance.isolation.serve import outcome_of
from touchstone.conformance.isolation.shared import NoSharedMemory, Shared
from touchstone.conformance.isolation.spawn import spawn
from touchstone.conformance.isolation.travel import CannotTravel, ways
from touchstone.conformance.judging.judgement import Outcome
from touchstone.conformance.judging.trials import Trial
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.returned import quoted

START_SECONDS = 300.0  # for a child to import the function, which may compile


class CallingChild:
    """A `Child` that makes the calls of trials that are judged here, and the watch over it."""

    _left = 0  # processes that the kernel's has left

    def __init__(self, process: Child, shared: Shared, subject: Subject, trials: Sequence[Trial]):
        self.process, self.shared, self.subject, self.trials = process, shared, subject, trials
        self.watch = Watch(process)
        self.remote = Remote(process, shared, self.watch, subject)
        self.judged: list[int] = []  # indices of trials

    @property
    def spent(self) -> bool:
        """Whether the child cannot make another call."""
        return self.remote.spent

    def judge(self, index: int, limits: Limits, idle: float | None = None) -> Outcome | Death:
        """Judge a trial. With `idle`, also stop after so many seconds without processor time. Raises what the judge
        raised."""
        self.remote.begin(limits, idle)
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(1)  # threads that wait for more work would take a core from the kernel's process
            outcome = outcome_of(self.subject, self.trials[index], here=True, executor=self.remote)
        except Died as died:
            return died.death
        except BaseException:
            self.close()
            raise
        finally:
            torch.set_num_threads(threads)
        self.judged.append(index)
        return outcome

    @property
    def notes(self) -> list[str]:
        """What a sandbox lacks here, and what it did; of a closed one that is in none, what it left."""
        if not isinstance(self.process, Confined):
            left = f"processes that the kernel's had started, that were there after it, and were ended: {self._left}"
            return [left] if self._left else []
        sandbox = self.process.sandbox
        return [*(f"sandbox without {what}" for what in sandbox.lacking), *sandbox.notes]

    def close(self) -> None:
        started = []
        if not isinstance(self.process, Confined) and self.process.exited() is None:
            for pid in below(self.process.process.pid):
                with contextlib.suppress(psutil.Error):
                    started.append(psutil.Process(pid))
        self.process.close()
        self._left += ended(started)
        self.shared.close()


def forked(
    subject: Subject,
    trials: Sequence[Trial],
    serve: Callable[[Connection, Shared, Subject], None] = execute,
    seconds: float = START_SECONDS,
) -> CallingChild:
    """A forked child that has the function, or imports its file within `seconds`, and runs `serve`; that of an
    untrusted one in a sandbox. Raises ValueError."""
    if isinstance(subject.fn, importing.FileFunction):  # a confined process has another current folder
        subject = dataclasses.replace(subject, fn=dataclasses.replace(subject.fn, path=subject.fn.path.resolve()))
    shared = shared_memory()

    def body(connection: Connection) -> None:
        serve(connection, shared, subject)

    process = confined(subject, shared, body) if subject.untrusted else fork(body)
    return _ready(CallingChild(process, shared, subject, trials), "forked child", seconds)


def shared_memory() -> Shared:
    """Memory to share with a child. Raises CannotRun where this machine has none."""
    try:
        return Shared()
    except NoSharedMemory as error:
        raise CannotRun(str(error)) from error


def _ready(child: CallingChild, where: str, seconds: float) -> CallingChild:
    """The child, once it has the function. Raises ValueError, most often CannotTravel, where it does not get it."""
    fn, name = child.subject.fn, importing.describe(child.subject.fn)
    try:
        answer = child.remote.ready(seconds)
    except BaseException:
        child.close()
        raise
    if not isinstance(answer, Death) and "ready" in answer:
        child.watch.begin()
        return child
    child.close()
    if not isinstance(answer, Death):
        if "missing" in answer:
            raise launching.MissingPackage(f"fn: {quoted(str(answer['missing']))}")
        if "refused" in answer:
            raise ValueError(quoted(str(answer["refused"])))
    why = f": {quoted(answer.message if isinstance(answer, Death) else str(answer.get('failed')))}"
    if isinstance(answer, Death) and answer.check is Check.HANG:
        why = f" within {seconds:g} s"
    if isinstance(fn, importing.FileFunction):
        raise ValueError(f"fn: {fn.path} does not import{why}")
    verb = "was not" if why.startswith(" within") else "cannot be"
    raise CannotTravel(f"fn: {name} {verb} imported in a {where}{why}; pass isolate='none'")


def spawned(subject: Subject, trials: Sequence[Trial], fresh_import: bool) -> CallingChild:
    """A fresh process that has the function. Tries each way to send it; the first error is raised if none works.

    Raises ValueError, most often CannotTravel.
    """
    first: Exception | None = None
    for way in ways(subject.fn, fresh_import):
        try:
            return calling(subject, trials, way)
        except Exception as error:
            first = first or error
    if first is None:
        raise CannotTravel(f"fn: {importing.describe(subject.fn)} cannot be sent to another process")
    raise first


def calling(subject: Subject, trials: Sequence[Trial], way: tuple, seconds: float = START_SECONDS) -> CallingChild:
    """A fresh process, to which the function goes in this `way`, which imports it within `seconds`, and makes calls."""
    without = dataclasses.replace(subject, fn=None)  # type: ignore[arg-type]
    request = (registry.op_file(subject.op), way, cloudpickle.dumps((without, [])))
    shared = shared_memory()
    child = CallingChild(spawn("touchstone.conformance.isolation.executing"), shared, subject, trials)
    with contextlib.suppress(OSError):  # it has died at once; its death says how
        send_handle(child.process.connection, shared.descriptor, child.process.process.pid)
        child.process.connection.send_bytes(pickle.dumps(request))
    return _ready(child, "fresh process", seconds)
