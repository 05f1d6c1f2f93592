"""Compile conformance: one item per op and backend, selected by --op, --backend and --variant, on whatever device.

At level quick some specialisations of each kernel stand for the others (`Compiler.check`); else all are compiled.
"""

import os
from functools import cache

import pytest

from touchstone.conformance.compiling import client as compiling
from touchstone.conformance.discovery import registry
from touchstone.conformance.suite.plugin import COMPILED, SELECTION
from touchstone.conformance.suite.turns import in_turn


def pytest_generate_tests(metafunc):
    if "compiled" not in metafunc.fixturenames:
        return
    chosen = metafunc.config.stash[SELECTION]
    items = []
    for op in chosen.ops if chosen.kernel is None else ():
        for backend in compiling.backends():
            names = [n for n in registry.ladder(backend, op) if chosen.variants is None or n in chosen.variants]
            names = in_turn(backend, op, names, metafunc.config.option.turns)
            if names and backend in (*chosen.backends, *chosen.skipped):
                items.append(pytest.param((op, backend, names), id=f"{op}-{backend}-compiles"))
    metafunc.parametrize("compiled", items or [pytest.param(None, id="nothing")])


@pytest.fixture(scope="module")
def compiler():
    """A function from the name of a backend to the process that compiles its kernels."""
    started = []

    @cache
    def start(backend):
        started.append(compiling.Compiler(backend))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.mark.conformance
def test_compile(compiled, compiler, request):
    op, backend, names = compiled
    chosen = request.config.stash[SELECTION]
    processes = max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    every, divide = chosen.level != "quick", request.config.option.divide
    answer = compiler(backend).check(op, names, every=every, processes=processes, divide=divide)
    if "missing" in answer:
        asked = bool(request.config.option.backend) and backend not in chosen.skipped
        (pytest.fail if asked else pytest.skip)(f"{backend} cannot compile here: {answer['missing']}")
    about = [{"op": op, "backend": backend, **row} for row in compiling.rows(answer["records"])]
    request.node.user_properties.append((COMPILED, about))
    print(compiling.table(about).plain())
    if answer["findings"]:
        pytest.fail("\n\n".join(answer["findings"]), pytrace=False)
