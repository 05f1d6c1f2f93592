"""The wrong kernels of the backends that the emulator runs, and the same kernels with no fault switched on."""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.night import NIGHT, SEEDS
from touchstone.backends import emulator
from touchstone.backends.variants import attributes
from touchstone.conformance.discovery import registry, selection
from touchstone.conformance.discovery.subject import Subject, not_called
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.judgement import DECLINED, PASSED
from touchstone.conformance.judging.trials import CaseTrial, PropertyTrial, Trial, called_once, trials_of

SIZES = 5  # the smallest of a contract that a schedule or the race detector sees


def folder_of(backend: str) -> Path:
    return registry.ROOT / "conformance" / "faults" / backend


def ops_of(backend: str) -> list[str]:
    return sorted(path.stem for path in folder_of(backend).glob("[a-z]*.py"))


def launchers(module: ModuleType) -> list[str]:
    """The functions of a file that take a fault, and none by default: each has its op's signature besides."""
    own = {name: fn for name, fn in vars(module).items() if inspect.isfunction(fn) and fn.__module__ == module.__name__}
    faults = {name: inspect.signature(fn).parameters.get("fault") for name, fn in own.items()}
    return [name for name, fault in faults.items() if fault is not None and fault.default == "none"]


class Kernels:
    """The files conformance/faults/<backend>/<op>.py, whose kernels run in the emulator.

    `work`: of a case, in the contract's units; above it a kernel without a fault is not judged on it.
    """

    def __init__(self, backend: str, work: float):
        self.backend, self.work = backend, work
        registry.backend(backend).prepare("cpu")
        self.ops = ops_of(backend)
        self.planted = {(op, one.name): one for op in self.ops for one in registry.planted_kernels(backend, op)}
        self.mutants = [key for key, one in self.planted.items() if not one.is_known_good]
        self.sound = [(op, name) for op in self.ops for name in launchers(self.module(op))]

    def module(self, op: str) -> ModuleType:
        return importlib.import_module(f"touchstone.conformance.faults.{self.backend}.{op}")

    def declared(self) -> dict[str, dict[str, list[str]]]:
        """Op -> name -> kind, text, and what is found first."""
        found: dict[str, dict[str, list[str]]] = {op: {} for op in self.ops}
        for (op, name), one in self.planted.items():
            found[op][name] = [one.kind, one.about, one.found]
        return found

    @property
    def variants(self) -> list[tuple[str, str]]:
        """The backend's variants that run here, of one op; of all, which takes minutes, where many schedules are asked
        for."""
        ops = registry.kernel_ops(self.backend) if NIGHT else ["softmax"]
        lacks = registry.backend(self.backend).lacks
        return [
            (op, name)
            for op in ops
            for name, fn in registry.variants(self.backend, op).items()
            if attributes(fn).needs is None or lacks(attributes(fn).needs, "cpu") is None
        ]

    def without_fault(self, op: str, name: str) -> Callable[..., Any]:
        return getattr(self.module(op), name)

    def failure(
        self, op: str, fn: Callable[..., Any], found: Iterable[Trial], deterministic: bool = False
    ) -> str | None:
        """The first finding that is a failure, as text; None if there is none."""
        subject = Subject(op, fn, "planted", f"{self.backend}@cpu", "cpu", deterministic=deterministic, diagnosed=False)
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
            if judged == (SIZES if NIGHT else 1):
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
