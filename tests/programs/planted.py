"""What the tests of planted kernels share: a backend's wrong kernels, and the same kernels with no fault switched
on."""

import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from touchstone.backends import emulator
from touchstone.backends.variants import attributes
from touchstone.conformance.discovery import registry, selection
from touchstone.conformance.discovery.subject import Subject, not_called
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.judgement import DECLINED, PASSED
from touchstone.conformance.judging.trials import CaseTrial, PropertyTrial, Trial, called_once, trials_of

LAUNCHER = re.compile(r'^def (\w+)\([^)]*fault: str = "none"', re.MULTILINE)
SIZES = 5  # the smallest of a contract that a schedule or the race detector sees
FEW = 3  # schedules, unless TOUCHSTONE_SCHEDULES asks for more
SEEDS = range(int(os.environ.get("TOUCHSTONE_SCHEDULES", FEW)))


class Kernels:
    """The files conformance/faults/<backend>/<op>.py, whose kernels run in the emulator.

    `work`: of a case, in the contract's units; above it a kernel without a fault is not judged on it.
    """

    def __init__(self, backend: str, work: float):
        self.backend, self.work = backend, work
        self.folder = registry.ROOT / "conformance" / "faults" / backend
        self.ops = sorted(path.stem for path in self.folder.glob("[a-z]*.py"))
        self.planted = {(op, one.name): one for op in self.ops for one in registry.planted_kernels(backend, op)}
        self.mutants = [key for key, one in self.planted.items() if not one.is_known_good]
        self.sound = [(op, name) for op in self.ops for name in LAUNCHER.findall(self.text(op))]

    @property
    def variants(self) -> list[tuple[str, str]]:
        """The backend's variants that run here, of one op; of all, which takes minutes, where many schedules are asked
        for."""
        ops = registry.kernel_ops(self.backend) if len(SEEDS) > FEW else ["softmax"]
        lacks = registry.backend(self.backend).lacks
        return [
            (op, name)
            for op in ops
            for name, fn in registry.variants(self.backend, op).items()
            if attributes(fn).needs is None or lacks(attributes(fn).needs, "cpu") is None
        ]

    def text(self, op: str) -> str:
        return (self.folder / f"{op}.py").read_text()

    def without_fault(self, op: str, name: str) -> Callable[..., Any]:
        """A launcher as a function of the op's signature."""
        launcher = getattr(importlib.import_module(f"touchstone.conformance.faults.{self.backend}.{op}"), name)
        order = [operand for operand, made in registry.contract(op).operands.items() if made.positional]
        plain = {
            parameter.name: parameter.default if parameter.default is not parameter.empty else None
            for parameter in inspect.signature(launcher).parameters.values()
        }

        def fn(*args: Any, **rest: Any) -> Any:
            return launcher(**{**plain, **dict(zip(order, args, strict=False)), **rest})

        return fn

    def failure(
        self, op: str, fn: Callable[..., Any], found: Iterable[Trial], deterministic: bool = False
    ) -> str | None:
        """The first finding that is a failure, as text; None if there is none."""
        subject = Subject(
            op, fn, fn.__name__, f"{self.backend}@cpu", "cpu", deterministic=deterministic, diagnosed=False
        )
        for trial in found:
            if isinstance(trial, PropertyTrial) and trial.prop.bitwise and not deterministic:
                continue
            for finding in judge.run(subject, trial).findings:
                if finding.severity == "failure":
                    return f"{finding.check}: {finding.message}"
        return None

    def wrong_on_cases(self, op: str, name: str) -> str | None:
        """What is wrong with a launcher without a fault on the cases of level quick."""
        cases = [trial for trial in trials(op) if isinstance(trial, CaseTrial)]
        cases = [trial for trial in cases if registry.contract(op).work(trial.case) < self.work]
        return self.failure(op, self.without_fault(op, name), [replace(trial, watched=False) for trial in cases])

    def wrong_in_some_order(self, op: str, name: str) -> str | None:
        """What is wrong with it on small cases under the race detector and in the orders of several seeds."""
        small = [trial for trial in trials(op) if trial.case.filled and trial.case.dtype == "float32"][:SIZES]
        small = [called_once(trial) for trial in small]
        for within in orders():
            with within:
                if wrong := self.failure(op, self.without_fault(op, name), small):
                    return wrong
        return None

    def variant_in_all_orders(self, op: str, name: str) -> int:
        """How many cases a variant was judged on so; AssertionError at the first that it fails."""
        fn = registry.variants(self.backend, op)[name]
        wide = [trial for trial in trials(op) if isinstance(trial, CaseTrial) and trial.case.filled]
        wide = [trial for trial in wide if registry.contract(op).work(trial.case) > 100]
        subject, judged = selection.variant_subject(op, self.backend, name, fn, "cpu"), 0
        for trial in wide:
            for within in orders():
                with within:
                    outcome = judge.run(subject, called_once(trial))
                if outcome.status == DECLINED:
                    break
                assert outcome.status == PASSED, outcome.findings
            else:
                judged += 1
            if judged == (1 if len(SEEDS) <= FEW else SIZES):
                break
        return judged

    def rejected_for(self, op: str, name: str) -> str | None:
        """The first failure of a mutant at level quick, else at level default, which has the sizes and layouts of all
        mutants."""
        one = self.planted[op, name]
        levels = (
            [trial for trial in trials(op, level) if trial.case.dtype in one.dtypes] for level in ("quick", "default")
        )
        return next(filter(None, (self.failure(op, one.make(), mine, one.deterministic) for mine in levels)), None)


def orders() -> Sequence[AbstractContextManager[Any]]:
    return emulator.races(), *(emulator.schedule("shuffled", seed) for seed in SEEDS)


@functools.cache
def trials(op: str, level: str = "quick") -> list[Trial]:
    """The least work first."""
    subject = Subject(op, not_called, "planted", "planted@cpu", "cpu")
    found = trials_of(subject, level)[0]
    if level == "quick":
        judge.keep_answers(found)
    return sorted(found, key=lambda trial: registry.contract(op).work(trial.case))
