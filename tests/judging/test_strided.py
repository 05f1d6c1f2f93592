"""Of which operands the strides are said to make an output wrong."""

from dataclasses import replace

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import judge, reading, strided
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.cases import plain_case
from touchstone.reference.softmax_backward import torch_softmax_backward

CONTRACT = registry.contract("softmax_backward")


def case_of(**layouts):
    case = plain_case(CONTRACT, "float32", "normal", size=dict(rows=7, cols=33))
    return replace(case, layouts=tuple((name, layouts.get(name, kind)) for name, kind in case.layouts))


def by(strides, x):
    """Read from its memory by other strides, as far as it goes."""
    at = sum(torch.arange(n).view(-1, *[1] * i) * s for n, s, i in zip(x.shape, strides, (1, 0), strict=True))
    memory = x.as_strided((x.untyped_storage().size() // x.element_size() - x.storage_offset(),), (1,))
    return memory[at % len(memory)]


def told(fn, case, seconds=20.0):
    def call(other):
        arguments = CONTRACT.build(other).arguments
        return {"dx": fn(arguments["y"], arguments["dy"])}

    return strided.of_output(CONTRACT, case, "dx", call, seconds)


def right(y, dy):
    return torch_softmax_backward(y.double(), dy.double()).float()


def shared(y, dy):
    return right(y, by(y.stride(), dy))


def packed(y, dy):
    return right(y, by((y.shape[1], 1), dy))


SAME = "right where y and dy have the same strides"
ALONE = "right where dy is contiguous, all else being equal"


@pytest.mark.parametrize(
    ("fn", "layouts", "text"),
    [
        (shared, dict(y="sliced", dy="transposed"), SAME),
        (shared, dict(y="sliced"), SAME),
        (shared, dict(dy="step"), SAME),
        (shared, dict(dy="far0"), SAME),
        (shared, dict(y="step", dy="step"), None),  # right
        (shared, dict(), None),
        (packed, dict(y="sliced", dy="transposed"), ALONE),
        (packed, dict(dy="transposed"), None),  # the only one
        (packed, dict(y="step"), None),
        (lambda y, dy: 2 * right(y, dy), dict(y="sliced", dy="transposed"), None),  # whatever the strides
        (
            lambda y, dy: right(y, dy) * (2 if dy.data_ptr() % 16 else 1),
            dict(y="sliced", dy="offset"),
            "right where dy is at a multiple of 16 bytes, all else being equal",
        ),
    ],
)
def test_the_operands_whose_strides_make_it_wrong(fn, layouts, text):
    case = case_of(**layouts)
    assert told(fn, case) == text
    assert told(fn, case, seconds=-1.0) is None
    assert strided.of_output(CONTRACT, case, "dx", reading.nothing, 20.0) is None


def test_a_kernel_that_takes_the_strides_of_one_operand_for_another_is_told_so():
    def in_part(y, dy):
        return (y.double() * (dy.double() - (y.double() * by(y.stride(), dy).double()).sum(-1, keepdim=True))).float()

    for layouts in (dict(y="sliced", dy="transposed"), dict(dy="step")):
        outcome = judge.run(Subject("softmax_backward", in_part, "f", "f@cpu", "cpu"), CaseTrial(case_of(**layouts)))
        assert [SAME in (finding.diagnosis or "") for finding in outcome.findings] == [True]
