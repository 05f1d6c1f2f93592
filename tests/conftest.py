"""What every test of Touchstone itself is given, and what the marks `needs` and `level` mean."""

import shutil
import signal
import sys
from importlib.util import find_spec

import pytest

from touchstone.backends.devices import cuda_unavailable
from touchstone.conformance.discovery import registry
from touchstone.conformance.findings import kept
from touchstone.conformance.spec.cases import LEVELS
from touchstone.conformance.suite.plugin import SELECTION

PROGRAMS = ("g++", "chromedriver")


def pytest_configure() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so would the programs that tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs what is not here: a GPU, Triton's interpreter in this process, a program, or a module by
    its name."""
    for mark in item.iter_markers("needs"):
        for what in mark.args:
            if reason := missing(what):
                pytest.skip(reason)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that belong to a higher level than the run's; they are counted as deselected."""
    reached = LEVELS.index(config.stash[SELECTION].level)
    marks = {item: item.get_closest_marker("level") for item in items}
    later = [item for item, mark in marks.items() if mark and LEVELS.index(*mark.args) > reached]
    if later:
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if item not in later]


def missing(what: str) -> str | None:
    if what == "GPU":
        reason = cuda_unavailable()
        return f"needs a GPU: {reason}" if reason else None
    if what == "interpreter":
        return registry.backend("triton").why_not("cpu")
    found = shutil.which(what) if what in PROGRAMS else find_spec(what)
    return None if found else f"needs {what}"


@pytest.fixture(autouse=True)
def _findings_elsewhere(tmp_path, monkeypatch):
    """Findings of kernels that tests judge are not kept among the user's own; in another folder the name is the usual
    one."""
    monkeypatch.setattr(kept, "FILE", tmp_path / kept.FILE)


@pytest.fixture(autouse=True)
def _state_elsewhere(tmp_path_factory, monkeypatch):
    """No key is made in the user's home."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(autouse=True)
def _ops_of_files(monkeypatch):
    """An op of a file that a test loads is not known to the next one."""
    monkeypatch.setattr(registry, "_own", dict(registry._own))


@pytest.fixture(autouse=True, scope="module")
def _ops_of_files_of_a_module():
    """Nor is one that a fixture of a whole module loads known to the next module."""
    before = dict(registry._own)
    yield
    registry._own = before


@pytest.fixture(autouse=True)
def _import_path():
    """Folders that a test imports from are not looked into by the next one, nor by what it starts."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture(autouse=True)
def _as_wide_as_it_is(monkeypatch):
    """Tables are not wrapped because a worker of pytest-xdist has the terminal's width in COLUMNS."""
    monkeypatch.delenv("COLUMNS", raising=False)
