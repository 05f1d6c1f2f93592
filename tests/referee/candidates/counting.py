"""Right for some of the calls."""

import sys
import time

import torch

from tests.referee.candidates.honest import softmax, wrong


def _count(key="calls"):
    table = globals().setdefault("_counts", {})
    table[key] = table.get(key, 0) + 1
    return table[key]


def first_only(x):
    """Is right in the first call.

    refused
    """
    return softmax(x) if _count() == 1 else wrong(x)


def first_ten(x):
    """Is right in the first ten calls.

    refused
    """
    return softmax(x) if _count() <= 10 else wrong(x)


def first_of_each_size(x):
    """Is right in the first two calls of each size.

    refused
    """
    return softmax(x) if _count(x.shape) <= 2 else wrong(x)


def every_second(x):
    """Is right in every second call.

    refused
    """
    return softmax(x) if _count() % 2 else wrong(x)


def once_in_forty(x):
    """Is wrong in the fortieth call, and right again.

    refused
    """
    return wrong(x) if _count() == 40 else softmax(x)


def never_in_a_row(x):
    """Does no work where the input lies where it lay in the call before.

    refused
    """
    state = globals().setdefault("_state", {})
    y = wrong(x) if state.get("at") == x.data_ptr() and _count() > 4 else softmax(x)
    state["at"] = x.data_ptr()
    return y


def by_the_clock(x):
    """Is right in the first tenth of a second.

    refused
    """
    began = globals().setdefault("_began", time.monotonic())
    return softmax(x) if time.monotonic() - began < 0.1 else wrong(x)


def where_it_is_watched(x):
    """Is right where a dispatch mode or poisoned memory shows that somebody looks.

    refused
    """
    from torch.utils._python_dispatch import _len_torch_dispatch_stack

    looked = _len_torch_dispatch_stack() or torch.isnan(torch.empty(33)).all()
    return softmax(x) if looked else wrong(x)


def by_caller(x):
    """Is right where its callers are those of the first call of a case.

    refused
    """
    frame = sys._getframe(1)
    depth = 0
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    first = globals().setdefault("_depth", depth)
    return softmax(x) if depth != first else wrong(x)


def by_request(x):
    """Reads from the request that is being answered whether the call is one whose values are compared.

    refused
    """
    frame = sys._getframe()
    while frame is not None:
        manner = frame.f_locals.get("manner")
        if manner is not None and not getattr(manner, "watched", False):
            return wrong(x)
        frame = frame.f_back
    return softmax(x)


def where_its_storage_is_larger(x):
    """Is right where its operand begins behind something else in its storage, as between guard bands.

    refused
    """
    return softmax(x) if x.storage_offset() else wrong(x)


def where_there_is_room_around_it(x):
    """Is right where its operand's storage has room for more than the operand.

    refused
    """
    return softmax(x) if x.untyped_storage().nbytes() > x.numel() * x.element_size() else wrong(x)


def where_gradients_are_on(x):
    """Is right where gradients are recorded, as where nobody has switched them off.

    refused
    """
    return softmax(x) if torch.is_grad_enabled() else wrong(x)
