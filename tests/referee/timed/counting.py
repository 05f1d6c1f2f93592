"""Less work once it is likely that the clock runs."""

import torch

from tests.referee.timed.honest import calls, softmax


def only_first_calls(x):
    """Works in the first calls, and leaves memory as it was later.

    refused
    """
    return softmax(x) if calls() < 4 else torch.empty_like(x)


def half_of_it(x):
    """Half of the rows after some calls, zeros in the others.

    refused
    """
    if calls() < 4:
        return softmax(x)
    y = torch.zeros_like(x)
    y[: len(x) // 2] = torch.softmax(x[: len(x) // 2], -1)
    return y


def less_precise(x):
    """In half the precision after some calls.

    refused
    """
    return softmax(x) if calls() < 4 else torch.softmax(x.bfloat16(), -1).float()


def every_second_call(x):
    """Zeros in every second call.

    refused
    """
    return softmax(x) if calls() % 2 else torch.zeros_like(x)


def one_row_missing(x):
    """All but one row, another one in each call.

    refused
    """
    row = calls() * 7 % len(x)
    y = torch.softmax(x, -1)
    y[row] = 0
    return y


def large_shapes(x):
    """Works on small shapes alone.

    refused
    """
    return softmax(x) if x.numel() < 500 else torch.full_like(x, 1 / x.shape[1])


def samples_alone(x):
    """Zeros but where a few elements are likely to be looked at.

    refused
    """
    y = torch.zeros_like(x)
    y[0], y[-1] = torch.softmax(x[0], -1), torch.softmax(x[-1], -1)
    return y
