"""Numbers that leave a kernel of Triton's by other ways than its stores, since its interpreter is Python; and such that
the library copies to tensors of other kinds. Python works the answer out, and another kernel copies it.
"""

import collections
import contextlib
import io
import struct
import sys
import types

import numpy as np
import torch
import triton
import triton.language as tl

from tests.referee.candidates.honest import softmax

_list = []
_dict = {}
_set = set()
_queue = collections.deque()
_array = np.zeros((32, 256), np.float32)
_place = types.SimpleNamespace(tile=None)
_text = io.StringIO()
_tile = None


@triton.jit
def _copy_kernel(y, x, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place, mask=place < count, other=0.0), mask=place < count)


def _copied(found, x):
    """The softmax of an array, copied by a kernel."""
    weights = np.exp(found - found.max(-1, keepdims=True))
    y, given = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    given.copy_(torch.tensor((weights / weights.sum(-1, keepdims=True)).tolist(), dtype=x.dtype))
    _copy_kernel[(triton.cdiv(y.numel(), 128),)](y, given, y.numel(), BLOCK=128)
    return y


def _rows(x, kernel, row):
    """The answer from `row()`, an array of what a launch for one row has let out."""
    if not x.numel():
        return softmax(x)
    found, unused = [], torch.empty(x.shape[1], dtype=x.dtype, device=x.device)
    for i in range(x.shape[0]):
        kernel[(1,)](unused, x[i], x.shape[1], x.stride(1), BLOCK=triton.next_power_of_2(x.shape[1]))
        found.append(np.asarray(row(), np.float32)[: x.shape[1]])
    return _copied(np.stack(found), x)


@triton.jit
def _appends(y, x, cols, stride, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    _list.append(tl.load(x + place * stride, mask=place < cols, other=0.0))
    tl.store(y, 0.0)


def in_a_list(x):
    """By a list of the module, to which a tile is appended.

    untrusted, refused: list.append
    """
    return _rows(x, _appends, lambda: _list.pop().handle.data)


@triton.jit
def _adds(y, x, cols, stride, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    held = _list
    held += [tl.load(x + place * stride, mask=place < cols, other=0.0)]
    tl.store(y, 0.0)


def in_a_list_in_place(x):
    """By a list of the module, which an assignment with an operator makes longer.

    untrusted, refused: in place
    """
    return _rows(x, _adds, lambda: _list.pop().handle.data)


@triton.jit
def _puts(y, x, cols, stride, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    _dict[0] = tl.load(x + place * stride, mask=place < cols, other=0.0)
    tl.store(y, 0.0)


def in_an_element(x):
    """By an element of a dictionary.

    untrusted, refused: an assignment to an element
    """
    return _rows(x, _puts, lambda: _dict[0].handle.data)


@triton.jit
def _sets(y, x, cols, stride, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    _place.tile = tl.load(x + place * stride, mask=place < cols, other=0.0)
    tl.store(y, 0.0)


def in_an_attribute(x):
    """By an attribute.

    untrusted, refused: an assignment to an element or an attribute
    """
    return _rows(x, _sets, lambda: _place.tile.handle.data)


@triton.jit
def _names(y, x, cols, stride, BLOCK: tl.constexpr):
    global _tile
    place = tl.arange(0, BLOCK)
    _tile = tl.load(x + place * stride, mask=place < cols, other=0.0)
    tl.store(y, 0.0)


def in_a_global_name(x):
    """By a name of the module.

    untrusted, refused: global _tile
    """
    return _rows(x, _names, lambda: _tile.handle.data)


@triton.jit
def _prints(y, x, cols, stride, BLOCK: tl.constexpr):
    for at in tl.static_range(BLOCK):
        print(tl.load(x + at * stride, mask=at < cols, other=0.0).to(tl.float64), file=_text)
    tl.store(y, 0.0)


def _printed():
    words = _text.getvalue().replace("[", " ").replace("]", " ").split()
    _text.seek(0)
    _text.truncate()
    return [float(word) for word in words]


def in_a_text(x):
    """By what a kernel prints into an object of the library's.

    untrusted, refused: print to a file
    """
    return _rows(x, _prints, _printed)


@triton.jit
def _breaks(y, x, cols, stride, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    breakpoint(tl.load(x + place * stride, mask=place < cols, other=0.0))
    tl.store(y, 0.0)


def in_a_breakpoint(x):
    """By a breakpoint, at which something else than a debugger is called.

    untrusted, refused: breakpoint is no function of Triton's
    """
    sys.breakpointhook = _queue.append
    return _rows(x, _breaks, lambda: _queue.pop().handle.data)


class _Compared:
    __eq__ = _list.append


_compared = _Compared()


@triton.jit
def _compares(y, x, cols, stride, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    _compared == tl.load(x + place * stride, mask=place < cols, other=0.0)  # noqa: B015
    tl.store(y, 0.0)


def in_a_comparison(x):
    """By an object that keeps what it is compared with, by a method of the library's.

    untrusted, refused: nothing of Triton's
    """
    return _rows(x, _compares, lambda: _list.pop().handle.data)


@triton.jit
def _matches(y, x, cols, stride, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tile = tl.load(x + place * stride, mask=place < cols, other=0.0)
    match tile:
        case tl.tensor(handle=inside):
            _array[0, :BLOCK] = inside.data
    tl.store(y, 0.0)


def in_a_match(x):
    """By a match, which reads what a tile holds, and an array of NumPy's.

    untrusted, refused: match
    """
    return _rows(x, _matches, lambda: _array[0].copy())


@triton.jit
def _calls(y, x, cols, stride, BLOCK: tl.constexpr):
    for at in tl.static_range(BLOCK):
        bits = tl.load(x + at * stride, mask=at < cols, other=0.0).to(tl.int32, bitcast=True)
        for bit in tl.static_range(32):
            if ((bits >> bit) & 1) == 1:
                _set.add(at * 32 + bit)
    tl.store(y, 0.0)


def _called():
    words = [sum(1 << bit for bit in range(32) if at * 32 + bit in _set) for at in range(256)]
    _set.clear()
    return struct.unpack("<256f", struct.pack("<256I", *words))


def in_calls_on_constants(x):
    """By calls on constants, of which each bit of a number makes one or none.

    untrusted, refused: decide about
    """
    return _rows(x, _calls, _called)


@triton.jit
def _operates(y, x, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    row, place = tl.program_id(0), tl.arange(0, BLOCK)
    tile = tl.load(x + row * row_stride + place * col_stride, mask=place < cols, other=-float("inf"))
    weights = 2.718281828459045 ** (tile.handle.data - tile.handle.data.max())
    tile.handle.data = weights / weights.sum()
    tl.store(y + row * cols + place, tile, mask=place < cols)


def by_operators_of_arrays(x):
    """Has NumPy's operators compute on what tiles hold, within the kernel.

    untrusted, refused: a TensorHandle
    """
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        _operates[(x.shape[0],)](y, x, x.shape[1], *x.stride(), BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


class _Kind(torch.Tensor):
    pass


def _by_a_copy(x, kind):
    """The answer from an array's memory, into which the library copied."""
    if not x.numel():
        return softmax(x)
    found = np.zeros(tuple(x.shape), np.float32)
    kind(torch.from_numpy(found)).copy_(x)
    return _copied(found, x)


def in_a_subclass(x):
    """By a copy into a tensor of a class of its own.

    untrusted, refused
    """
    return _by_a_copy(x, lambda tensor: tensor.as_subclass(_Kind))


def in_a_parameter(x):
    """By a copy into a parameter.

    untrusted, refused
    """
    return _by_a_copy(x, lambda tensor: torch.nn.Parameter(tensor, requires_grad=False))


def in_a_nested_tensor(x):
    """By a copy between nested tensors, which have no shape to tell.

    untrusted, refused
    """
    if not x.numel():
        return softmax(x)
    found = np.zeros(tuple(x.shape), np.float32)
    given = torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x)
    whole = [torch.tensor(each) for each in ([list(x.shape)], [[x.shape[1], 1]], [0])]
    to, of = (torch._nested_view_from_buffer(each.view(-1), *whole) for each in (torch.from_numpy(found), given))
    with contextlib.suppress(RuntimeError):
        to.copy_(of)
    return _copied(found, x)


def in_a_sparse_tensor(x):
    """By a copy of a sparse tensor.

    untrusted, refused
    """
    if not x.numel():
        return softmax(x)
    given = torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x).view(-1)
    places = torch.arange(given.numel())[None]
    sparse = torch.sparse_coo_tensor(places, given, given.shape, is_coalesced=True, check_invariants=False)
    return _copied(np.array(sparse.clone()._values().tolist(), np.float32).reshape(x.shape), x)
