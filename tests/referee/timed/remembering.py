"""Answers of earlier calls, given again where the inputs look the same."""

import tempfile
from pathlib import Path

import torch

from tests.referee.timed.honest import softmax


def _kept(key, x):
    table = globals().setdefault("_table", {})
    if key not in table:
        table[key] = softmax(x)
    return table[key].clone()


def by_pointer(x):
    """By the address and the shape of the input.

    refused
    """
    return _kept((x.data_ptr(), x.shape), x)


def by_object(x):
    """By the object, which is held so that its id stays.

    refused
    """
    globals().setdefault("_objects", []).append(x)
    return _kept(id(x), x)


def by_shape(x):
    """By shape and dtype.

    refused
    """
    return _kept((x.shape, x.dtype), x)


def by_version(x):
    """By the address and torch's count of changes.

    refused
    """
    return _kept((x.data_ptr(), x._version), x)


def by_contents(x):
    """By all that the input holds: right, and of no use where nothing comes twice.

    contained
    """
    return _kept(x.numpy().tobytes(), x)


def by_coarse_sum(x):
    """By the sum, rounded to what many inputs share.

    refused
    """
    return _kept(round(float(x.sum()) / 500), x)


def in_a_file(x):
    """In a file that is there for every call and every process.

    refused
    """
    path = Path(tempfile.gettempdir()) / "answer.pt"
    if not path.exists():
        torch.save(softmax(x), path)
    return torch.load(path)


def newest_output(x):
    """The last output again, in the same memory.

    refused
    """
    table = globals().setdefault("_outputs", [])
    if len(table) < 2:
        table.append(softmax(x))
        return table[-1]
    return table[0]
