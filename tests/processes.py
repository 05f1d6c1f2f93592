"""Python in processes of their own, in an environment that the tests know."""

import os
import subprocess
import sys
from pathlib import Path

from touchstone.conformance.discovery import registry

QUICKER = {"PYTEST_ADDOPTS": "-p no:hypothesispytest"}  # whose report imports Hypothesis: 2 s of processor time
OWN = ("TRITON_", "NUMBA_", "CUPY_", "PYTEST_", "PYTHONPATH", "CHALK_")


def clean_environment(**changes: str) -> dict[str, str]:
    """This process's environment without what a test run or a target has put there."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OWN)} | QUICKER | changes


def with_touchstone(**changes: str) -> dict[str, str]:
    """A clean environment in which `import touchstone` finds this clone's from any folder."""
    path = os.pathsep.join(filter(None, [str(registry.ROOT), os.environ.get("PYTHONPATH")]))
    return clean_environment(PYTHONPATH=path, OMP_NUM_THREADS="1", **changes)


def run_python(arguments: list[str], folder: Path, timeout: float = 300, **options) -> subprocess.CompletedProcess:
    """`python arguments` in `folder`; `environment`: additions to a clean one."""
    environment = clean_environment(**options.pop("environment", {}))
    return _run(arguments, folder, environment, timeout, **options)


def run_touchstone(
    arguments: list[str], folder: Path = registry.ROOT, timeout: float = 300, **options
) -> subprocess.CompletedProcess:
    """The same where `import touchstone` finds this clone's."""
    environment = with_touchstone(**options.pop("environment", {}))
    return _run(arguments, folder, environment, timeout, **options)


def output_of(code: str, folder: Path = registry.ROOT, **environment: str) -> str:
    """What `code` prints there; AssertionError with what it says if it fails."""
    done = run_touchstone(["-W", "ignore", "-c", code], folder, environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def interpret(*arguments: str, **options) -> subprocess.CompletedProcess:
    """`python arguments` with Triton's interpreter."""
    return run_touchstone(["-W", "ignore", *arguments], environment={"TRITON_INTERPRET": "1"}, **options)


def _run(arguments, folder, environment, timeout, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        **options,
    )
