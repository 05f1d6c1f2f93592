"""Judging in a child process: a crash, a hang or a memory blow-up of a kernel becomes a finding, and the run goes on.

A `Runner` judges the trials of one subject in a child that is used again for each trial until it dies; the next trial
then gets a new one. The child is forked from this process (CPU), so that lambdas, closures and stateful objects work,
or is a fresh interpreter that imports or unpickles the function (CUDA, which does not survive a fork).

Where a thread pool that the fork left behind is the reason for a forked child's death, repeating its trials in a fresh
process shows that, and nothing is held against the kernel.
"""

import os
import re
import sys
from collections.abc import Sequence

from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import compiled
from touchstone.conformance.isolation.child import CallingChild, forked, spawned
from touchstone.conformance.isolation.endings import ending
from touchstone.conformance.isolation.limits import DEFAULT_LIMITS, Limits
from touchstone.conformance.isolation.processes import Death
from touchstone.conformance.isolation.serve import outcome_of
from touchstone.conformance.isolation.travel import CannotTravel
from touchstone.conformance.judging import requirements
from touchstone.conformance.judging.judgement import Judgement, Outcome
from touchstone.conformance.judging.trials import Compiled, Trial
from touchstone.conformance.spec.checks import Check

MODES = ("auto", "fork", "spawn", "none")
HANGS = 3  # after which a subject's other trials are not run
CRASHES = 20  # likewise, of fresh processes: each takes seconds to start
IDLE_SECONDS = 5.0  # without processor time: then a forked child may be waiting for a thread that the fork left behind

_DOUBT = (
    " (in a forked child, where thread pools of the calling process are gone, and the function cannot be sent to "
    "a fresh process; isolate='none' tells whether that is why)"
)


class Runner:
    """Judges `trials` of `subject` one after another in a child process; a context manager.

    `mode` is "fork", "spawn", "none" (in this process) or "auto": fork on the CPU and for an untrusted function, spawn
    on CUDA or where there is no fork, none where the function cannot be sent to a fresh process. `fresh_import` has a
    spawned child import the function's file anew. Without `confirm` the crash of a forked child counts as a finding
    without a second run in a fresh process.
    `notes` says what the reader of a report should know; `stopped` is the reason why the other trials are not to be
    run, or None.

    Raises ValueError where the function cannot start in the child that was asked for.
    """

    def __init__(
        self,
        subject: Subject,
        trials: Sequence[Trial],
        mode: str = "auto",
        *,
        limits: Limits = DEFAULT_LIMITS,
        fresh_import: bool = False,
        confirm: bool = True,
    ):
        if mode not in MODES:
            raise ValueError(f"mode: expected one of {', '.join(map(repr, MODES))}, got {mode!r}")
        if mode == "fork" and subject.device == "cuda":
            raise ValueError(
                "isolate: 'fork' does not work with device 'cuda' (CUDA cannot be used in a forked child); use 'spawn'"
            )
        self.subject, self.trials, self.limits, self.fresh_import = subject, list(trials), limits, fresh_import
        self.notes: list[str] = []
        self.stopped: str | None = None
        self._modes: list[str] = []
        self._child: CallingChild | None = None
        self._hangs = self._crashes = 0
        self._fork_trusted = (
            not confirm or subject.untrusted
        )  # a fresh process has died as a forked one did, or could not be asked
        self._fork_untested = False  # the function cannot be sent to a fresh process
        self._start_first(mode)

    @property
    def mode(self) -> str:
        """ "fork", "spawn" or "none": where the next trial is judged."""
        return self._modes[-1]

    @property
    def how(self) -> str:
        """Where trials were judged, for a report."""
        words = {"fork": "forked child", "spawn": "fresh process", "none": "none"}
        return "isolation: " + ", then ".join(words[mode] for mode in self._modes)

    def outcome(self, index: int) -> Outcome:
        """Judge `trials[index]`. Errors of the judge itself are raised here."""
        if self.stopped:
            raise RuntimeError(f"{self.subject.name} is not judged any further: {self.stopped}")
        trial = self.trials[index]
        if isinstance(trial, Compiled):
            return compiled.outcome(self.subject, trial)
        if self.mode == "none":
            return outcome_of(self.subject, trial, here=True)
        late = self._late_death()
        answer = self._ask(index)
        if isinstance(answer, Outcome) and answer.displaced:
            answer = self._replaced(index, answer)
        if isinstance(answer, Death):
            judgement = Judgement(self.subject, trial)
            doubt = _DOUBT if answer.check is Check.HANG and self._fork_untested else ""
            judgement.find(answer.check, answer.message + doubt)
            self._count(answer.check)
        else:
            judgement = Judgement(self.subject, trial, answer)
        if late:
            judgement.find(Check.CRASH, late)
            self._count(Check.CRASH)
        if late or isinstance(answer, Death):
            requirements.settle(judgement, alone=False)
        return judgement.outcome

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
            self.notes += [note for note in self._child.notes if note not in self.notes]
            self._child = None

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def _start_first(self, mode: str) -> None:
        resolved = mode
        if mode == "auto" and os.name != "posix":
            resolved = "none"
            self.notes.append("not isolated, judged in the calling process: that takes Linux or macOS")
        elif mode == "auto":
            forks = sys.platform == "linux" and not self.fresh_import
            forks = forks and (self.subject.device == "cpu" or self.subject.untrusted)
            resolved = "fork" if forks else "spawn"
        self._modes.append(resolved)
        try:
            self._start()
        except CannotTravel as error:
            if mode != "auto":
                raise
            self._modes[-1] = "none"
            self.notes.append(f"not isolated, judged in the calling process: {error}")

    def _start(self) -> None:
        if self.mode == "fork":
            self._child = forked(self.subject, self.trials)
        elif self.mode == "spawn":
            self._child = spawned(self.subject, self.trials, self.fresh_import)

    def _late_death(self) -> str | None:
        """What to hold against the kernel when the child died between two trials."""
        child = self._child
        if child is None or (code := child.process.exited()) is None:
            return None
        message = f"{ending(code)}{child.process.place()}, after "
        self.close()
        return message + f"{self.trials[child.judged[-1]].id} had been judged" if child.judged else None

    def _ask(self, index: int) -> Outcome | Death:
        """The answer of the child, or of a fresh process where the fork may be to blame for that of a forked one."""
        if self._child is None:
            self._start()
        child = self._child
        assert child is not None
        doubted = self.mode == "fork" and not self._fork_trusted
        answer = child.judge(index, self.limits, idle=IDLE_SECONDS if doubted else None)
        blamed = _blames_fork(answer) if isinstance(answer, Outcome) else answer.check in (Check.CRASH, Check.HANG)
        if isinstance(answer, Death):
            self.close()
        elif child.spent:
            self.close()
            self._count(Check.CRASH)
        if not (doubted and blamed):
            return answer
        self._fork_trusted = True
        elsewhere = self._repeat([*child.judged, index] if isinstance(answer, Death) else child.judged)
        if isinstance(elsewhere, Death):
            return elsewhere
        if elsewhere is not None:
            what = answer.message if isinstance(answer, Death) else answer.findings[0].message
            self.notes.append(
                f"{what}: so in a forked child in {self.trials[index].id}, not in a fresh process, which judged "
                "it and what followed (thread pools of the calling process do not survive a fork)"
            )
            return elsewhere
        if isinstance(answer, Death) and answer.early:
            return self._ask(index)
        return answer

    def _replaced(self, index: int, answer: Outcome) -> Outcome | Death:
        """The answer of a fresh process, which sets kernels up for the device before it imports them, and is used from
        now on; the same `answer` where the function cannot be imported there."""
        if self.fresh_import or self.subject.untrusted:
            return answer
        self.fresh_import = True
        try:
            child = spawned(self.subject, self.trials, True)
        except ValueError as error:
            self.notes.append(f"kernels were set up for another device before, and {error}")
            return answer
        self.close()
        self._child = child
        self._modes.append("spawn")
        return self._ask(index)

    def _repeat(self, indices: Sequence[int]) -> Outcome | Death | None:
        """Judge these again in a fresh process. None where that is not possible, or shows no more than the forked one.

        Else what the last of them gives, and, if that is an outcome, the fresh process is used from now on.
        """
        try:
            child = spawned(self.subject, self.trials, self.fresh_import)
        except ValueError:
            self._fork_untested = True
            return None
        outcome = None
        try:
            for index in indices:
                answer = child.judge(index, self.limits)
                if isinstance(answer, Death):
                    child.close()
                    return answer if index == indices[-1] else None
                if _blames_fork(answer):
                    child.close()
                    return None
                outcome = answer
        except BaseException:
            child.close()
            raise
        self.close()
        self._child = child
        self._modes.append("spawn")
        return outcome

    def _count(self, check: Check) -> None:
        self._hangs += check is Check.HANG
        self._crashes += self.mode == "spawn" and check is not Check.HANG
        if self._hangs >= HANGS:
            self.stopped = f"after {HANGS} hangs"
        elif self._crashes >= CRASHES:
            self.stopped = f"after {CRASHES} crashes"


def try_start(subject: Subject) -> None:
    """Have a child import the function of `subject`, and end it. Raises ValueError where that cannot be done."""
    with Runner(subject, []):
        pass


def _blames_fork(outcome: Outcome) -> bool:
    """torch, among others, refuses in a forked child what it has begun in the parent, by an error that says so."""
    return any(finding.check == Check.RAISED and re.search(r"\bfork", finding.message) for finding in outcome.findings)
