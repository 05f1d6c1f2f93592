"""pytest --benchmark-only: which kernels are timed, each group once, and what the records say of the machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from touchstone.conformance.bench import cases, ceilings, run, timing
from touchstone.conformance.bench.group import Result
from touchstone.conformance.reporting import provenance
from touchstone.conformance.suite import plugin

_watch = run.guard()


class Clock:
    """Advances only by what is measured: what pytest-benchmark reads before and after a round."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class Timed:
    """One item: a variant or baseline of a group."""

    group: int
    target: str
    name: str
    clock: Clock


class Session:
    """The groups of a session; each is measured when its first item runs."""

    def __init__(self, config: pytest.Config):
        self.config, self.chosen = config, config.stash[plugin.SELECTION]
        shapes = "large" if self.chosen.device == "cuda" else "small"
        self.groups = cases.plan(self.chosen, shapes).groups
        self._results: dict[int, list[Result]] = {}
        self._timer: Any = None
        self._ceilings: Any = None  # on the CPU: what is timed is emulated

    def items(self) -> list[Any]:
        found = []
        for number, group in enumerate(self.groups):
            baselines = [(f"baseline@{self.chosen.device}", baseline.name) for baseline in group.baselines]
            for target, name in [*((s.target, s.name) for _, s in group.subjects), *baselines]:
                clock = Clock()
                mark = pytest.mark.benchmark(group=group.title, timer=clock, disable_gc=False, warmup=False)
                title = group.title.replace(", ", "-").replace(" ", "-")
                found.append(
                    pytest.param(Timed(number, target, name, clock), marks=mark, id=f"{target}-{name}-{title}")
                )
        return found

    def result(self, timed: Timed) -> Result:
        if self._timer is None:
            self._timer = timing.timer(self.chosen.device, timing.COLD)
            if self.chosen.device == "cuda":
                dtypes = sorted({group.case.dtype for group in self.groups} | {"float32"})
                self._ceilings = ceilings.measure(self._timer, dtypes)
        if timed.group not in self._results:
            seconds = float(self.config.option.benchmark_max_time)
            self._results[timed.group] = run.measure(
                self.groups[timed.group], self._timer, _watch, self._ceilings, seconds
            )
        return next(r for r in self._results[timed.group] if (r.target, r.name) == (timed.target, timed.name))


_SESSION = pytest.StashKey[Session]()


def _timing(config: pytest.Config) -> bool:
    return bool(getattr(config.option, "benchmark_only", False))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Nothing is timed unless pytest is asked to."""
    return True if collection_path.name == "test_benchmarks.py" and not _timing(config) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "timed" in metafunc.fixturenames:
        session = metafunc.config.stash.setdefault(_SESSION, Session(metafunc.config))
        metafunc.parametrize("timed", session.items())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --benchmark-only nothing else is there to be skipped one by one."""
    left = [item for item in items if "benchmark" not in getattr(item, "fixturenames", ())] if _timing(config) else []
    if left:
        gone = set(map(id, left))
        items[:] = [item for item in items if id(item) not in gone]
        config.hook.pytest_deselected(items=left)


@pytest.fixture
def result(timed: Timed, request: pytest.FixtureRequest) -> Result:
    """The measurement of an item, made with its whole group."""
    return request.config.stash[_SESSION].result(timed)


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Storage is by processor; what the numbers belong to is the GPU."""
    chosen = config.stash[plugin.SELECTION]
    machine_info["touchstone"] = provenance.machine(chosen.device)
