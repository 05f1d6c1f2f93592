"""What counts as a tensor that a kernel returned, and how what its author says is shown."""

import collections

import pytest
import torch

from touchstone.conformance.spec import returned
from touchstone.conformance.spec.returned import SAID, SHOWN, in_line, kind_of, quoted, said, strange, visible


def with_attributes(**about):
    tensor = torch.ones(3)
    tensor.__dict__.update(about)
    return tensor


def cut(size, offset=0, shape=(3,), strides=(1,)):
    """A tensor of which so many bytes are left."""
    tensor = torch.ones(64).as_strided(shape, strides, offset)
    tensor.untyped_storage().resize_(size)
    return tensor


class Posing:
    __class__ = torch.Tensor


YET = "a view whose numbers torch has yet to negate or conjugate: its memory holds others"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (torch.ones(3), None),
        (torch.ones(3, 4).t()[1:], None),
        (torch.ones(0, 3), None),
        (None, None),
        (3.0, None),
        (with_attributes(_dynamo_propagated=1), None),
        (with_attributes(note=1, _dynamo_x=2), "a tensor with attributes of its own: note"),
        (with_attributes(**{"n" * 200: 1}), f"a tensor with attributes of its own: {'n' * SHOWN}"),
        (torch.nn.Parameter(torch.ones(3)), "torch.nn.parameter.Parameter"),
        (Posing(), f"{__name__}.Posing"),
        (torch.ones(2, 2).to_sparse(), "a tensor of layout torch.sparse_coo"),
        (torch.ones(3, device="meta"), "a tensor without memory, on the device meta"),
        (torch._neg_view(torch.ones(3)), YET),
        (torch.ones(3, dtype=torch.complex64).conj(), YET),
        (cut(12), None),
        (cut(11), "a tensor whose memory was freed: 11 bytes are left"),
        (cut(20, 2), None),
        (cut(19, 2), "a tensor whose memory was freed: 19 bytes are left"),
        (cut(36, 0, (2, 3), (6, 1)), None),
        (cut(35, 0, (2, 3), (6, 1)), "a tensor whose memory was freed: 35 bytes are left"),
        (cut(0, 0, (0, 3), (3, 1)), None),
    ],
)
def test_what_is_no_plain_tensor(value, told):
    assert strange(value) == told


def test_what_does_not_say_whether_it_is_a_tensor_is_none():
    class Silent:
        @property
        def __class__(self):
            raise RuntimeError("hands off")

    assert strange(Silent()).endswith("Silent")


def test_the_kind_of_a_value():
    assert (kind_of(3), kind_of(None), kind_of([])) == ("int", "NoneType", "list")
    assert kind_of(collections.OrderedDict()) == "collections.OrderedDict"


def test_characters_that_show_nothing_are_written_out():
    """Ends of lines and tabs stay, but where all has to be one line."""
    assert visible("plain") == in_line("plain") == "plain"
    text = "a\x1b[2Jb\u202ec\nd\te"
    assert visible(text) == "a\\x1b[2Jb\\u202ec\nd\te"
    assert in_line(text) == "a\\x1b[2Jb\\u202ec\\nd\\te"
    assert quoted("a\nb\nc") == "a\n    | b\n    | c" and quoted("a") == "a"


def test_what_an_error_says_has_an_end():
    """However long it is, or becomes by what is written out."""
    assert said(ValueError("so")) == "so" and said("so", repr) == "'so'"
    assert said("x" * (SAID + 1)) == "x" * SAID
    assert said("\x00" * SAID) == ("\\x00" * SAID)[:SAID]


def test_an_error_that_cannot_be_said():
    class Unsayable(Exception):
        def __str__(self):
            raise KeyError("no")

    assert said(Unsayable()) == "(str() of it raises KeyError)"
    assert returned.said(Unsayable(), lambda value: 1 // 0) == "(<lambda>() of it raises ZeroDivisionError)"
