"""What a run of a reference sees of its operations, and what it gives where one is changed."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.fixed import changeable
from touchstone.conformance.judging import operations
from touchstone.conformance.judging.operations import Alteration, Run, expression_of, outputs_of, place_of
from touchstone.reference import _philox

X = torch.tensor([[1.0, 4.0], [9.0, 16.0]], dtype=torch.float64)


@pytest.fixture(autouse=True)
def _references_are_here(monkeypatch):
    monkeypatch.setattr(operations, "FOLDER", str(Path(__file__).parent))


def run_of(reference, mode=None, outputs=("y",), params=None, **operands):
    mode = Run() if mode is None else mode
    contract = SimpleNamespace(outputs=outputs)
    return mode, outputs_of(contract, reference, operands, SimpleNamespace(param=params or {}), mode)


def changed(run, name, step):
    """The outputs where the first operation of this name gives something else."""
    (site,) = [site for site in run.seen if site[1] == name][:1]
    return Run(Alteration("", {site: step}))


def root(x):
    return x.sqrt()  # a comment


def both(x, by):
    y = root(x) + by
    return y.mT @ root(y)


def test_each_operation_is_seen_with_its_expression_and_place():
    run, found = run_of(both, x=X, params={"by": 1.0})
    expected = (X.sqrt() + 1).mT @ (X.sqrt() + 1).sqrt()
    assert torch.equal(found["y"], expected)
    shown = {(site[1], len(site[0])): expression_of(site) for site in run.seen}
    assert shown == {("sqrt", 2): "x.sqrt()", ("add", 1): "root(x) + by", ("matmul", 1): "y.mT @ root(y)"}
    assert [site[1] for site in run.seen].count("sqrt") == 2  # one for each place that calls it
    assert [expression_of(site) for site in run.views] == ["y.mT"]
    (add,) = [site for site in run.seen if site[1] == "add"]
    first = next(site for site in run.seen if site[1] == "sqrt")
    line, of_both = root.__code__.co_firstlineno + 1, both.__code__.co_firstlineno + 1
    here = "judging/test_operations.py"
    assert (place_of(add), place_of(first)) == (f"{here}:{of_both}", f"{here}:{line}")
    assert place_of(first, outer=True) == f"{here}:{line}, from {here}:{of_both}"


def test_who_made_an_argument_is_known():
    run, _ = run_of(both, x=X, params={"by": 1.0})
    add = next(operation for site, operation in run.seen.items() if site[1] == "add")
    assert (
        add.maker().site[1] == "sqrt" and add.maker().maker() is None and add.maker(1) is None and add.maker(7) is None
    )
    assert torch.equal(add.of(X), X + 1.0) and torch.equal(add.of(X, 3.0), X + 3.0)
    assert run.operands["x"] is X and all(run.latest[site] is operation.out for site, operation in run.seen.items())


def test_an_operation_is_changed_wherever_its_site_comes_up():
    run, plain = run_of(lambda x: torch.stack([root(row) for row in x]), x=X)
    assert torch.equal(plain["y"], X.sqrt())
    assert len([site for site in run.seen if site[1] == "sqrt"]) == 1  # the first call stands for all
    mode = changed(run, "sqrt", lambda operation: 2 * operation.out)
    _, found = run_of(lambda x: torch.stack([root(row) for row in x]), mode, x=X)
    assert torch.equal(found["y"], X.sqrt())  # another function: another site
    again = lambda x: torch.stack([root(row) for row in x])  # noqa: E731
    run, _ = run_of(again, x=X)
    _, found = run_of(again, changed(run, "sqrt", lambda operation: 2 * operation.out), x=X)
    assert torch.equal(found["y"], 2 * X.sqrt())


def test_what_follows_sees_what_was_changed():
    run, _ = run_of(both, x=X, params={"by": 1.0})
    mode = changed(run, "add", lambda operation: operation.args[0])
    _, found = run_of(both, mode, x=X, params={"by": 1.0})
    assert torch.equal(found["y"], X.sqrt().mT @ X.sqrt().sqrt())
    made = {operation.site[1]: operation for operation in mode.seen.values()}
    assert torch.equal(made["add"].out, X.sqrt()) and made["matmul"].maker().site[1] == "get"


def test_a_change_that_fails_gives_nothing():
    run, _ = run_of(both, x=X, params={"by": 1.0})

    def fails(operation):
        raise LookupError

    assert run_of(both, changed(run, "add", fails), x=X, params={"by": 1.0})[1] is None
    assert run_of(lambda x: (x, x), x=X)[1] is None  # of another number of outputs
    _, found = run_of(lambda x: (x.float(), None), outputs=("y", "lse"), x=X)
    assert found.keys() == {"y"} and found["y"].dtype is torch.float64


def test_nothing_of_other_code_is_an_operation(monkeypatch):
    monkeypatch.setattr(operations, "FOLDER", "/nowhere")
    run, found = run_of(both, x=X, params={"by": 1.0})
    assert not run.seen and not run.made and found is not None


def test_what_is_assigned_is_no_operation():
    def reference(x):
        y = x.clone()
        y.data = 2 * x
        return y

    run, _ = run_of(reference, x=X)
    assert {site[1] for site in run.seen} == {"clone", "mul"}


def test_random_words_are_replaced_within_and_no_longer():
    def words(index, seed, offset):
        return index * 10 + seed + offset

    def reference(x, seed):
        return torch.from_numpy(_philox.words(4, seed, 2, 3).astype(np.float64))

    _, found = run_of(reference, Run(Alteration("", {}, words)), x=X, params={"seed": 1})
    assert found["y"].tolist() == [33, 43, 53, 63]
    assert _philox.words is operations.words_of

    def fails(x):
        raise LookupError

    run_of(fails, Run(Alteration("", {}, words)), x=X)
    assert _philox.words is operations.words_of


def test_a_statement_is_no_expression():
    def reference(x):
        x = x.clone()
        x += 1
        return x

    run, _ = run_of(reference, x=X)
    shown = {site[1]: expression_of(site) for site in run.seen}
    assert shown == {"clone": "x.clone()", "add": None}


def test_what_is_passed_on_cannot_be_changed():
    assert changeable(Alteration) == []
