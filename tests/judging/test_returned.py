"""Whatever a function returns or raises is a finding, never an error of the judge."""

import collections
import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from touchstone import check
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.trials import CaseTrial, ManyCalls, PropertyTrial, trials_of


class Plain(torch.Tensor):
    pass


class Hostile(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("hands off")


class Posing:
    __class__ = torch.Tensor


class PosingBadly:
    @property
    def __class__(self):
        raise RuntimeError("hands off")


class Pair(tuple):
    pass


class Unsayable(Exception):
    def __str__(self):
        raise ValueError

    __repr__ = __str__


class Endless(Exception):
    def __str__(self):
        return "x" * 10_000_000


Named = collections.namedtuple("Named", ["y"])


def softmax(x):
    return torch.softmax(x.float(), -1).to(x.dtype)


def fake(y):
    with FakeTensorMode():
        return torch.empty(y.shape, dtype=y.dtype)


def with_attribute(y):
    y.note = 1
    return y


def with_method(y):
    y.clone = lambda: torch.zeros(())
    return y


def compiled(y):
    y._dynamo_propagated_dynamic_indices = {0}
    return y


def freed(y):
    y.untyped_storage().resize_(0)
    return y


def escaped(y):
    kept = []
    torch.vmap(lambda row: kept.append(row * 1) or row)(y)
    return kept[0]


RETURNED = {
    "zeros": (lambda y: torch._efficientzerotensor(y.shape, dtype=y.dtype), "keeps without memory"),
    "meta": (lambda y: torch.empty_like(y, device="meta"), "without memory, on the device meta"),
    "sparse": (torch.Tensor.to_sparse, "layout torch.sparse_coo"),
    "compressed": (torch.Tensor.to_sparse_csr, "layout torch.sparse_csr"),
    "nested": (lambda y: torch.nested.nested_tensor([y]), "a nested tensor"),
    "jagged": (lambda y: torch.nested.nested_tensor([y], layout=torch.jagged), "NestedTensor"),
    "quantised": (lambda y: torch.quantize_per_tensor(y.float(), 0.01, 0, torch.qint8), "quantised tensor"),
    "mkldnn": (lambda y: y.float().to_mkldnn(), "layout torch._mkldnn"),
    "fake": (fake, "FakeTensor"),
    "expanded": (lambda y: torch.zeros(1, dtype=y.dtype).expand(2**20, 2**20), r"expected shape .*, got \(1048576,"),
    "subclass": (lambda y: y.as_subclass(Plain), r"test_returned\.Plain"),
    "hostile subclass": (lambda y: y.as_subclass(Hostile), r"test_returned\.Hostile"),
    "posing": (lambda y: Posing(), r"test_returned\.Posing"),
    "posing badly": (lambda y: PosingBadly(), r"test_returned\.PosingBadly"),
    "parameter": (torch.nn.Parameter, r"torch\.nn\.parameter\.Parameter"),
    "uninitialised": (lambda y: torch.nn.UninitializedParameter(), "UninitializedParameter"),
    "attribute": (with_attribute, "with attributes of its own: note"),
    "method": (with_method, "with attributes of its own: clone"),
    "freed": (freed, "memory was freed: 0 bytes are left"),
    "escaped": (escaped, "transform of torch.func that has ended"),
    "subclass of tuple": (lambda y: Pair([y]), r"returned .*test_returned\.Pair; expected a tuple"),
    "named tuple": (Named, r"returned .*test_returned\.Named; expected a tuple"),
    "nothing": (lambda y: None, "got NoneType"),
    "generator": (lambda y: (one for one in [y]), "got generator"),
    "type": (lambda y: torch.Tensor, "got .*type|got torch"),
    "negated": (lambda y: torch._neg_view(-y), "has yet to negate"),  # right to torch; who reads its memory gets -y
    "unsayable": (lambda y: Unsayable(), r"test_returned\.Unsayable"),
}


def judged(fn, **options):
    narrow = {"dtypes": ["float32"], "where": lambda case: 0 < case.size["rows"] < 4, "isolate": "none"} | options
    return check("softmax", fn, device="cpu", level="quick", **narrow)


@pytest.mark.filterwarnings("ignore")  # torch warns of some kinds of tensor as they are made
@pytest.mark.parametrize("name", RETURNED)
def test_what_is_no_plain_tensor_is_a_finding(name):
    made, message = RETURNED[name]
    report = judged(lambda x: made(softmax(x)))
    assert not report.passed and len(report.outcomes) > 2
    assert all(outcome.status == "failed" for outcome in report.outcomes if outcome.kind == "case")
    assert re.search(message, str(report)), str(report)


def test_what_torch_returns_several_results_in_is_a_tuple():
    def kernel(x):
        return torch.return_types.max((softmax(x), torch.logsumexp(x.float(), -1)))

    narrow = {"dtypes": ["float32"], "where": lambda case: 0 < case.size["rows"] < 4, "isolate": "none"}
    assert check("online_softmax", kernel, device="cpu", level="quick", **narrow).passed


@pytest.mark.parametrize("made", [lambda y: y, lambda y: (y,), lambda y: [y], compiled])
def test_plain_tensors_pass_alone_and_in_tuples_and_lists(made):
    assert judged(lambda x: made(softmax(x))).passed


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Unsayable(), r"raised: Unsayable: \(str\(\) of it raises ValueError\)"),
        (Endless(), "raised: Endless: xxx"),
        (SystemExit(Unsayable()), r"sys\.exit\(\(repr\(\) of it raises ValueError\)\) would have ended the process"),
        (GeneratorExit(), "GeneratorExit: no message .* would have ended the process"),
        (ExceptionGroup("group", [ValueError("x" * 10_000)]), r"raised: ExceptionGroup: group \(1 sub-exception\)"),
        (NotImplementedError(Unsayable()), r"declined \(\(str\(\) of it raises ValueError\)\)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_is_raised_is_a_finding_of_bounded_length(error, message):
    def raises(x):
        raise error

    report = judged(raises, isolate="fork")
    assert not report.passed
    text = "\n".join([str(report), *(str(outcome.reason) for outcome in report.outcomes)])
    assert re.search(message, text), text
    assert all(len(finding.message) < 4500 for finding in report.findings)


@pytest.mark.parametrize("kind", [CaseTrial, PropertyTrial, ManyCalls])
def test_later_calls_are_held_to_the_same(kind):
    calls = []

    def later(x):
        calls.append(x)
        return softmax(x).as_subclass(Hostile) if len(calls) > 1 else softmax(x)

    subject = Subject("softmax", later, "later", "user@cpu", "cpu")
    found, _ = trials_of(subject, "quick")
    for trial in (one for one in found if isinstance(one, kind)):
        calls.clear()
        outcome = judge.run(subject, trial)
        if len(calls) > 1:  # some properties call the kernel once
            break
    assert len(calls) > 1 and outcome.status == "failed"
    text = " ".join(finding.message for finding in outcome.findings)
    assert "expected a torch.Tensor, got tests.judging.test_returned.Hostile" in text and "hands off" not in text
