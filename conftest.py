"""pytest's options and the parametrisation of the conformance test live in conformance/suite/plugin.py."""

from pathlib import Path

import pytest

pytest_plugins = ["touchstone.pytest"]

CLONE = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    """Collect `conformance/...` as `touchstone/conformance/...`, the one name its modules are imported under."""
    config.args[:] = [_by_its_name(argument, config.invocation_params.dir) for argument in config.args]


def _by_its_name(argument: str, folder: Path) -> str:
    path, separator, item = argument.partition("::")
    full = Path(folder, path)
    inside = full.is_relative_to(CLONE / "conformance") and full.exists()
    return f"{CLONE / 'touchstone' / full.relative_to(CLONE)}{separator}{item}" if inside else argument
