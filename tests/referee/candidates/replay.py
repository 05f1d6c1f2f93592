"""Answers of earlier calls, given again where the inputs look the same."""

import tempfile
from pathlib import Path

import torch

from tests.referee.candidates.honest import matmul, rms_norm, softmax


def _kept(key, x):
    table = globals().setdefault("_table", {})
    if key not in table:
        table[key] = softmax(x)
    return table[key].clone()


def by_pointer(x):
    """By the address and the shape of the input.

    refused
    """
    return _kept((x.data_ptr(), x.shape, x.stride()), x)


def by_object(x):
    """By the object, which is held so that its id stays.

    refused
    """
    globals().setdefault("_objects", []).append(x)
    return _kept(id(x), x)


def by_shape(x):
    """By shape and strides.

    refused
    """
    return _kept((x.shape, x.stride()), x)


def by_version(x):
    """By the object and torch's count of changes to it.

    refused
    """
    globals().setdefault("_objects", []).append(x)
    return _kept((id(x), x._version), x)


def by_sum(x):
    """By shape and sum.

    refused
    """
    return _kept((x.shape, x.stride(), round(float(x.double().sum()), 6)), x)


def by_moments(x):
    """By shape, sum and sum of squares, smallest and largest, first and last.

    refused
    """
    d = x.double()
    ends = (float(x[0, 0]), float(x[-1, -1])) if x.numel() else ()
    return _kept((x.shape, round(float(d.sum()), 6), round(float((d * d).sum()), 6), *ends), x)


def by_ends(x):
    """By the first and the last element.

    refused
    """
    return _kept((x.shape, float(x[0, 0]), float(x[-1, -1])) if x.numel() else x.shape, x)


def by_samples(x):
    """By every seventh element.

    untrusted, refused
    """
    return _kept((x.shape, tuple(x.reshape(-1)[::7].tolist())), x)


def by_most_elements(x):
    """By all elements but the third and the third but last.

    untrusted, refused
    """
    flat = x.reshape(-1).tolist()
    return _kept((x.shape, tuple(flat[:2] + flat[3:-3] + flat[-2:])), x)


def by_column(x):
    """By the middle column.

    untrusted, refused
    """
    return _kept((x.shape, tuple(x[:, x.shape[1] // 2].tolist()) if x.numel() else ()), x)


def by_low_precision(x):
    """By the inputs, rounded to bfloat16.

    untrusted, refused
    """
    return _kept((x.shape, x.to(torch.bfloat16).view(torch.int16).contiguous().numpy().tobytes()), x)


def last_result(x):
    """Gives the last answer again while the shape is the same, every second time.

    refused
    """
    state = globals().setdefault("_state", {"calls": 0, "last": None})
    state["calls"] += 1
    if state["calls"] % 2 or state["last"] is None or state["last"].shape != x.shape:
        state["last"] = softmax(x)
    return state["last"].clone()


def without_eps(x, weight, eps=1e-6):
    """Keeps answers by the inputs and not by the parameter.

    rms_norm, refused
    """
    table = globals().setdefault("_table", {})
    key = x.shape, x.contiguous().numpy().tobytes(), weight.contiguous().numpy().tobytes()
    if key not in table:
        table[key] = rms_norm(x, weight, eps)
    return table[key].clone()


def without_b(a, b):
    """Keeps answers by one of its two inputs.

    matmul, refused
    """
    table = globals().setdefault("_table", {})
    key = a.shape, b.shape, a.contiguous().numpy().tobytes()
    if key not in table:
        table[key] = matmul(a, b)
    return table[key].clone()


def one_buffer(x):
    """Returns the same memory each time.

    refused
    """
    table = globals().setdefault("_table", {})
    y = table.setdefault(x.shape, torch.empty(x.shape))
    return y.copy_(softmax(x))


def ring_of_buffers(x):
    """Returns the same eight memories in turn.

    refused
    """
    state = globals().setdefault("_state", {"calls": 0, "ring": {}})
    state["calls"] += 1
    y = state["ring"].setdefault((x.shape, state["calls"] % 8), torch.empty(x.shape))
    return y.copy_(softmax(x))


def over_files(x):
    """Keeps answers in a file of its own for the next run, by the shape.

    refused
    """
    file = Path(tempfile.gettempdir(), f"planted_{'_'.join(map(str, x.shape))}_answers")
    if file.exists():
        return torch.load(file)
    y = softmax(x)
    torch.save(y, file)
    return y
