"""What an output must be beside its values: one rule, each part of which is named by its check."""

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.spec import outputs
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.checks import Check

CONTRACT = registry.contract("online_softmax")
CASE = plain_case(CONTRACT, "float16", "normal", 0, {"rows": 4, "cols": 6})
MEMORY = torch.zeros(64, dtype=torch.float16)


def problems(name, got, **options):
    return outputs.problems(CONTRACT, CASE, name, got, "cpu", {"x": MEMORY, "absent": None}, **options)


def test_an_output_as_it_must_be():
    assert problems("y", torch.zeros(4, 6, dtype=torch.float16)) == []
    assert problems("lse", torch.zeros(4)) == []  # of a dtype of its own
    assert problems("lse", None, absent=True) == []


@pytest.mark.parametrize(
    ("got", "check", "told"),
    [
        (None, Check.RETURNS, "y: expected a torch.Tensor, got NoneType"),
        (torch.nn.Parameter(torch.zeros(4, 6)), Check.RETURNS, "y: expected a torch.Tensor, got Parameter"),
        (torch.zeros(6, 4).half(), Check.SHAPE, "y: expected shape (4, 6), got (6, 4)"),
        (torch.zeros(4, 6), Check.DTYPE, "y: expected torch.float16, got torch.float32"),
        (torch.zeros(4, 6, device="meta").half(), Check.DEVICE, "y: expected a tensor on cpu, got meta"),
        (torch.zeros(6, 4).half().t(), Check.STRIDES, "y: expected a contiguous tensor, got strides (1, 4)"),
        (MEMORY[40:].view(4, 6), Check.ALIAS, "y shares memory with the input x"),
    ],
)
def test_each_problem_has_its_check(got, check, told):
    (found,) = problems("y", got)
    assert (found.check, found.message, found.operand) == (check, told, "x" if check is Check.ALIAS else "")
    assert outputs.comparable([found]) is (check in (Check.STRIDES, Check.ALIAS))


def test_one_problem_hides_those_behind_it():
    assert [found.check for found in problems("y", MEMORY[:4])] == [Check.SHAPE]
    assert [found.check for found in problems("y", MEMORY[:24].view(6, 4).t())] == [Check.STRIDES, Check.ALIAS]


def test_an_output_that_must_be_absent():
    (found,) = problems("lse", torch.zeros(4), absent=True)
    assert found == outputs.Problem(Check.RETURNS, "lse must be None here, got Tensor")


def test_the_words_for_arrays_of_another_library():
    (found,) = problems("y", 3, library_type="numpy.ndarray", type_name=lambda value: f"the number {value}")
    assert found.message == "y: expected a numpy.ndarray, got the number 3"


def test_memory_overlaps_from_the_first_element_to_the_last():
    apart, after = MEMORY[:10:5], MEMORY[6:8]
    assert not outputs.overlap(apart, after) and not outputs.overlap(after, apart)
    assert outputs.overlap(apart, MEMORY[5:6]) and outputs.overlap(MEMORY[3:4], apart)
    assert not outputs.overlap(MEMORY[:0], MEMORY)
