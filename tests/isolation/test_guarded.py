"""What is called while numbers are shown: what an author has put there is found, and what Touchstone has is not."""

import builtins
import functools
import signal
import sys
from collections import namedtuple
from types import MethodType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from touchstone import backends
from touchstone.conformance.isolation import guarded, hidden, tripwires

SOURCE = """
def look(*given, **named):
    return seen.append(True)

class Finder:
    @staticmethod
    def find_spec(*given):
        return None
"""


@pytest.fixture
def author():
    """The names of a kernel's file."""
    names = {"seen": []}
    exec(compile(SOURCE, "/author/kernel.py", "exec"), names)
    return names


@pytest.fixture
def told(monkeypatch):
    """What is noted from here on."""
    monkeypatch.setattr(tripwires, "_told", [])
    return tripwires._told


@pytest.mark.parametrize(
    ("owner", "name", "where"),
    [
        (np, "array_equal", "numpy.array_equal"),
        (builtins, "open", "builtins.open"),
        (torch.Tensor, "copy_", "Tensor.copy_"),  # which the class inherits
        (hidden, "len", f"{hidden.__name__}.len"),  # which would be found before the built-in function
        (hidden, "np", f"{hidden.__name__}.np"),
        (hidden.Host, "_known", "Host._known"),
    ],
)
def test_what_an_author_puts_in_the_place_of_a_librarys_is_found(author, told, monkeypatch, owner, name, where):
    guard = guarded.Guard()
    guard.look()
    assert told == []
    for put in (author["look"], functools.partial(author["look"])):
        told.clear()
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, put, raising=False)
            guard.look()
        assert told == [f"replaces {where}, which is called while its operands are shown"]


def test_what_touchstone_itself_puts_there_and_what_is_added_are_not(told, monkeypatch):
    guard = guarded.Guard()
    monkeypatch.setattr(torch.Tensor, "tolist", hidden._listed)
    monkeypatch.setattr(np, "another_name", abs, raising=False)
    guard.look()
    assert told == []


def test_what_torch_replaces_itself_is_not_the_authors(author, told, monkeypatch):
    """As its compiler is imported, which an operator of one's own has it do."""
    guard = guarded.Guard()
    monkeypatch.setattr(torch, "manual_seed", author["look"])
    guard.look()
    assert told == []


@pytest.mark.parametrize(
    "name", ["displayhook", "excepthook", "unraisablehook", "breakpointhook", "stdin", "stdout", "stderr"]
)
def test_what_shows_errors_and_takes_text_anybody_may_replace(author, told, monkeypatch, name):
    """Whatever it was before; of sys it is called by nobody who computes."""
    monkeypatch.setattr(sys, name, print)
    guard = guarded.Guard()
    monkeypatch.setattr(sys, name, author["look"])
    guard.look()
    assert told == []
    monkeypatch.setattr(sys, "intern", author["look"])
    guard.look()
    assert told == ["replaces sys.intern, which is called while its operands are shown"]


@pytest.mark.parametrize("name", ["before_launch", "after_launch", "failed_launch", "strayed", "on_constants"])
def test_who_is_told_of_launches_is_found(author, told, name):
    guard, listed = guarded.Guard(), getattr(backends, name)
    for what, found in ((author["look"], True), (hidden._listed, False)):
        listed.append(what)
        try:
            guard.look()
        finally:
            listed.remove(what)
        assert [note.startswith("has itself be called") for note in told] == [True] * found
        told.clear()


def test_what_is_told_of_imports_or_of_signals_is_found(author, told, monkeypatch):
    guard = guarded.Guard()
    for listed in (sys.meta_path, sys.path_hooks):
        listed.append(author["Finder"])
        guard.look()
        listed.remove(author["Finder"])
        assert told.pop().startswith("has itself be called") and not told
    before = signal.signal(signal.SIGUSR2, author["look"])
    try:
        guard.look()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert told == ["handles signals, which may come while its operands are shown"]


def test_numbers_are_hidden_while_an_authors_function_runs(author, monkeypatch):
    states: list[str] = []
    with guarded.unseeing(lambda name: states.append(f"hidden from {name}"), lambda: states.append("shown")):
        list(map(author["look"], range(2)))
        sorted([1], key=abs)  # nobody's
    assert states == ["hidden from look", "shown"] * 2 and sys.getprofile() is None
    monkeypatch.setattr(guarded, "_known", {})
    monkeypatch.setattr(backends, "kernel_code", {author["look"].__code__})
    states.clear()
    with guarded.unseeing(states.append, lambda: None):
        author["look"]()
    assert states == []


NAMELESS = "def look():\n    return seen.append(True)\n\n\ndef same(one, other):\n    return one is other\n"


def test_code_of_no_file_is_an_authors_unless_a_library_made_it_or_it_calls_nothing(monkeypatch):
    monkeypatch.setattr(guarded, "_known", {})
    mine: dict[str, Any] = {"seen": []}
    library = vars(guarded)
    exec(compile(NAMELESS, "<timeit-src>", "exec"), mine)
    exec(compile("def look():\n    return len('')\n", "<string>", "exec"), library, made := {})
    tuple_of_one = namedtuple("One", "one")
    states: list[str] = []
    with guarded.unseeing(states.append, lambda: None):
        mine["look"]()
        mine["same"](1, 2)
        made["look"]()
        tuple_of_one(1)
    assert states == ["look"] and mine["seen"] == [True]


def test_what_backends_call_is_guarded_too(monkeypatch):
    """Modules of names that they tell, and the classes that these define."""
    paper, other = ModuleType("paper_language.core"), ModuleType("paper_languages")
    own = type("Own", (), {"__module__": paper.__name__, "run": lambda self: None})
    paper.Own, paper.Other, paper.run = own, type("Other", (), {}), lambda: None
    for module in (paper, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    known = {id(owner) for owner, _ in guarded._owners()}
    assert not {id(paper), id(own)} & known
    monkeypatch.setattr(backends, "called", [r"paper_language(\.\w+)?"])
    found = {id(owner) for owner, _ in guarded._owners()} - known
    assert found == {id(paper), id(own)}


def test_what_is_touchstones_own():
    """However it is wrapped; nothing that only says so."""
    for function, ours in ((guarded.begin, True), (functools.reduce, False), (lambda: None, False)):
        for wrap in (lambda f: f, staticmethod, classmethod, property, lambda f: MethodType(f, sys)):
            assert guarded._is_ours(wrap(function)) is ours
    imposter = type("Guard", (), {"__module__": guarded.__name__})
    assert guarded._is_ours(guarded.Guard) and not guarded._is_ours(imposter) and not guarded._is_ours(int)
    assert not guarded._is_ours(None)


def test_what_torch_and_python_replace_themselves_counts_nowhere_else():
    hook, replaced = next(iter(guarded._HOOKS)), next(iter(guarded._REPLACED))
    assert not guarded._counts(sys, hook, print) and not guarded._counts(torch, replaced, print)
    for owner, name in ((sys, replaced), (torch, hook), (torch, "add"), (builtins, "print")):
        assert guarded._counts(owner, name, print)
