"""pytest's options and the parametrisation of the conformance test live in conformance/suite/plugin.py."""

from pathlib import Path

import pytest

pytest_plugins = ["touchstone.pytest"]

CLONE = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    """Collect `conformance/...` as `touchstone/conformance/...`, the one name its modules are imported under."""
    config.args[:] = [_by_its_name(argument, config.invocation_params.dir) for argument in config.args]


def _by_its_name(argument: str, folder: Path) -> str:
    """An id as pytest prints it, relative to the clone, is one in any folder of the clone."""
    path, separator, item = argument.partition("::")
    full = Path(folder, path)
    if separator and not full.exists():
        full = CLONE / path
    if not full.exists():
        return argument
    inside = full.is_relative_to(CLONE / "conformance")
    return f"{CLONE / 'touchstone' / full.relative_to(CLONE) if inside else full}{separator}{item}"
