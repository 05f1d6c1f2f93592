"""Outputs and inputs that are not what they must be."""

import torch

from tests.referee.timed.honest import calls, softmax


def easier_inputs(x):
    """Makes the inputs of later calls easy.

    refused
    """
    y = softmax(x)
    x.data.zero_()
    return y


def in_place(x):
    """Writes the answer over the input and returns it.

    refused
    """
    return x.copy_(softmax(x))


def expanded(x):
    """One row, expanded to all.

    refused
    """
    return torch.softmax(x[:1], -1).expand_as(x) if calls() > 1 else softmax(x)


def transposed(x):
    """Right values, not contiguous.

    refused
    """
    return softmax(x).t().contiguous().t()


def another_dtype(x):
    """Right values, in float64.

    refused
    """
    return softmax(x).double()


def one_buffer(x):
    """All outputs in one memory.

    refused
    """
    kept = globals().setdefault("_kept", [])
    if not kept:
        kept.append(torch.empty_like(x))
    return kept[0].copy_(torch.softmax(torch.zeros_like(x), -1))


def shared(x):
    """The output in memory that other processes can map.

    refused
    """
    return softmax(x).share_memory_()


def too_many(x):
    """Two outputs in place of one.

    refused
    """
    return softmax(x), x


def nothing(x):
    """No output.

    refused
    """
    softmax(x)
