"""A pytest plugin that ends the process when a test takes longer than the file named by TOUCHSTONE_LIMITS gives it."""

import faulthandler
import json
import os
from collections.abc import Generator

import pytest

LIMITS = "TOUCHSTONE_LIMITS"
STDERR = os.dup(2) if LIMITS in os.environ else 2  # before pytest captures it


class Limits:
    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        faulthandler.dump_traceback_later(self.seconds[item.nodeid], exit=True, file=STDERR)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


def pytest_configure(config: pytest.Config) -> None:
    with open(os.environ[LIMITS]) as file:
        config.pluginmanager.register(Limits(json.load(file)))
