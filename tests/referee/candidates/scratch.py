"""A kernel only moves the operand's numbers to where the launcher looks, Python works the answer out, and another
kernel copies it, so that an element of the output is one that a kernel wrote."""

import contextlib
import io
import re
import struct

import torch
import triton
import triton.language as tl
from triton.language.core import _aggregate

from tests.referee.candidates.honest import once, softmax
from touchstone.backends.triton.runtime.interpreter import instruments


@triton.jit
def _bits_kernel(y, x, count, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    given = tl.load(x + (place // cols) * row_stride + (place % cols) * col_stride, mask=place < count, other=0.0)
    tl.store(y + place, given.to(tl.int32, bitcast=True), mask=place < count)


@triton.jit
def _at_address_kernel(address, x, count, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    given = tl.load(x + (place // cols) * row_stride + (place % cols) * col_stride, mask=place < count, other=0.0)
    y = address.to(tl.pointer_type(tl.int32))
    tl.store(y + place, given.to(tl.int32, bitcast=True), mask=place < count)


@triton.jit
def _printing_kernel(y, x, row_stride, col_stride):
    given = tl.load(x + tl.program_id(0) * row_stride + tl.program_id(1) * col_stride)
    tl.store(y, 0)
    tl.device_print("bits", given.to(tl.int32, bitcast=True))


@triton.jit
def _one_kernel(y, x, place):
    tl.store(y, tl.load(x + place))


@triton.jit
def _floats_kernel(y, x, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(x + place, mask=place < count, other=0).to(tl.float32, bitcast=True)
    tl.store(y + place, found, mask=place < count)


def _moved(s, x, kernel=_bits_kernel):
    """The bits of x in s, moved by a kernel."""
    kernel[(triton.cdiv(x.numel(), 128),)](s, x, x.numel(), x.shape[1], x.stride(0), x.stride(1), BLOCK=128)
    return s


def _answer(bits, x):
    """The softmax of numbers that are given by their bits, worked out by Python and copied by a kernel."""
    numbers = struct.unpack(f"<{x.numel()}f", struct.pack(f"<{x.numel()}i", *bits))
    found = []
    for i in range(x.shape[0]):
        row = numbers[i * x.shape[1] : (i + 1) * x.shape[1]]
        weights = [2.718281828459045 ** (value - max(row)) for value in row]
        found += [weight / sum(weights) for weight in weights]
    words = struct.unpack(f"<{x.numel()}i", struct.pack(f"<{x.numel()}f", *found))
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    given = torch.tensor(words, dtype=torch.int32, device=x.device)
    _floats_kernel[(triton.cdiv(x.numel(), 128),)](y, given, x.numel(), BLOCK=128)
    return y


def in_integers(x):
    """By integers.

    untrusted, refused
    """
    if not x.numel():
        return softmax(x)
    return _answer(_moved(torch.empty(x.numel(), dtype=torch.int32, device=x.device), x).tolist(), x)


def in_integers_one_by_one(x):
    """By integers that are asked for one at a time.

    untrusted, refused
    """
    if not x.numel():
        return softmax(x)
    return _answer([int(bits) for bits in _moved(torch.empty(x.numel(), dtype=torch.int32, device=x.device), x)], x)


def in_single_numbers(x):
    """By a tensor of one number, into which each is moved in turn.

    untrusted, refused
    """
    if not x.numel():
        return softmax(x)
    one, bits = torch.empty((), dtype=x.dtype, device=x.device), []
    for i in range(x.numel()):
        _one_kernel[(1,)](one, x, i // x.shape[1] * x.stride(0) + i % x.shape[1] * x.stride(1))
        bits += struct.unpack("<i", struct.pack("<f", one.item()))
    return _answer(bits, x)


def in_a_list_s_tensor(x):
    """By a tensor that was made of a list, which no operator allocates.

    untrusted, refused
    """
    if not x.numel():
        return softmax(x)
    return _answer(_moved(torch.tensor([0] * x.numel(), dtype=torch.int32, device=x.device), x).tolist(), x)


def in_a_storage(x):
    """By a storage, which no operator allocates.

    untrusted, refused
    """
    if not x.numel():
        return softmax(x)
    s = torch.empty(0, dtype=torch.int32, device=x.device)
    s.set_(torch.UntypedStorage(4 * x.numel()), 0, (x.numel(),), (1,))
    return _answer(_moved(s, x).tolist(), x)


def in_memory_of_an_earlier_call(x):
    """By a tensor that was made in the first call.

    untrusted, refused
    """
    kept = globals().setdefault("_kept", torch.zeros(1 << 16, dtype=torch.int32, device=x.device))
    if once("kept") or not x.numel():
        return softmax(x)
    return _answer(_moved(kept[: x.numel()], x).tolist(), x)


def in_an_array_s_address(x):
    """By an array of NumPy's, of which a kernel gets the address as a number.

    untrusted, refused
    """
    import numpy as np

    if not x.numel():
        return softmax(x)
    s = np.zeros(x.numel(), np.int32)
    _moved(s.__array_interface__["data"][0], x, _at_address_kernel)
    return _answer(s.tolist(), x)


def in_what_it_prints(x):
    """By what a kernel prints, each number in a launch of its own.

    untrusted, refused
    """
    if not x.numel():
        return softmax(x)
    s, bits = torch.empty((), dtype=torch.int32, device=x.device), []
    for i in range(x.numel()):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            at = i // x.shape[1] * x.stride(0) + i % x.shape[1] * x.stride(1)
            _printing_kernel[(1, 1)](s, x.as_strided((1, 1), (1, 1), x.storage_offset() + at), 1, 1)
        bits += [int((re.findall(r"(-?\d+)\]?\s*$", text.getvalue()) or [0])[-1])]
    return _answer(bits, x)


def in_a_copy_by_the_library(x):
    """By a copy that the library makes of the operand, as integers.

    untrusted, refused
    """
    if not x.numel():
        return softmax(x)
    s = x.contiguous().view(torch.int32).clone()
    return _answer(s.flatten().tolist(), x)


def in_grown_memory(x):
    """By a tensor that the library moves to larger memory when a kernel has written it.

    untrusted, refused
    """
    if not x.numel():
        return softmax(x)
    s = _moved(torch.empty(x.numel(), dtype=torch.int32, device=x.device), x)
    return _answer(s.resize_(2 * x.numel() + 1024).tolist()[: x.numel()], x)


def in_grown_memory_before_its_view(x):
    """By what lies in a storage before the view that has the library move it.

    untrusted, refused
    """
    if not x.numel():
        return softmax(x)
    s = _moved(torch.empty(x.numel(), dtype=torch.int32, device=x.device), x)
    s[x.numel() :].resize_(1024)
    return _answer(s.tolist(), x)


def in_a_copy_into_what_is_given(x):
    """By a copy that the library makes into a tensor that is there, as integers.

    untrusted, refused
    """
    if not x.numel():
        return softmax(x)
    s = torch.empty(x.shape, dtype=torch.int32, device=x.device)
    torch.ops.aten.clone.out(x.view(torch.int32), out=s)
    return _answer(s.flatten().tolist(), x)


_seen = []


@_aggregate
class _Keeping:
    tile: tl.tensor

    def __init__(self, tile):
        _seen.append(tile.handle.data.copy())
        self.tile = tile


@triton.jit
def _aggregating_kernel(y, x, count, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    given = tl.load(x + (place // cols) * row_stride + (place % cols) * col_stride, mask=place < count, other=0.0)
    tl.store(y + place, _Keeping(given).tile.to(tl.int32, bitcast=True), mask=place < count)


class _KeepingTuple(tuple):
    def __new__(cls, tile):
        _seen.append(tile.handle.data.copy())
        return tuple.__new__(cls, (tile,))


@triton.jit
def _tuple_kernel(y, x, count, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    given = tl.load(x + (place // cols) * row_stride + (place % cols) * col_stride, mask=place < count, other=0.0)
    tl.store(y + place, _KeepingTuple(given)[0].to(tl.int32, bitcast=True), mask=place < count)


class _KeepingClass(type):
    def __instancecheck__(cls, tile):
        _seen.append(tile.handle.data.copy())
        return True


class _Part(metaclass=_KeepingClass):
    pass


@_aggregate
class _Checked:
    tile: _Part

    def __init__(self, tile):
        self.tile = tile


@triton.jit
def _checked_kernel(y, x, count, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    given = tl.load(x + (place // cols) * row_stride + (place % cols) * col_stride, mask=place < count, other=0.0)
    tl.store(y + place, _Checked(given).tile.to(tl.int32, bitcast=True), mask=place < count)


def _kept(x, kernel):
    """The softmax of the numbers of tiles that a kernel's objects were made of."""
    if not x.numel():
        return softmax(x)
    _seen.clear()
    s = torch.empty(x.numel(), dtype=torch.int32, device=x.device)
    kernel[(1,)](s, x, x.numel(), x.shape[1], *x.stride(), BLOCK=triton.next_power_of_2(x.numel()))
    numbers = [number for tile in _seen for number in tile.tolist()][: x.numel()]
    return _answer(struct.unpack(f"<{x.numel()}i", struct.pack(f"<{x.numel()}f", *numbers)), x)


def in_an_aggregate(x):
    """By an aggregate of Triton's that keeps the numbers of the tile it is made of.

    untrusted, refused: __init__ of its own
    """
    return _kept(x, _aggregating_kernel)


def in_a_tuple(x):
    """By a tuple of a class of its own, made of a tile.

    untrusted, refused: __new__ of its own
    """
    return _kept(x, _tuple_kernel)


def in_the_class_of_a_part(x):
    """By the class that a part of an aggregate is to be of, which is asked whether a tile is one.

    untrusted, refused: a class of classes
    """
    return _kept(x, _checked_kernel)


@triton.jit
def _marking_kernel(marks, x, count, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    given = tl.load(x + (place // cols) * row_stride + (place % cols) * col_stride, mask=place < count, other=0.0)
    bits = given.to(tl.int32, bitcast=True)
    for digit in tl.static_range(8):
        own = ((bits >> (4 * digit)) & 15) == tl.program_id(0)
        tl.store(marks + 8 * place + digit, place, mask=(place < count) & own)


def by_who_wrote_an_element(x):
    """By an instrument of Touchstone's, which says of each element of a scratch which program wrote it: the one whose
    number is a digit of a number.

    untrusted, refused: an instrument of the judge's
    """
    if not 0 < x.numel() <= 200:
        return softmax(x)
    marks = torch.empty(8 * x.numel(), dtype=torch.int32, device=x.device)
    with instruments.writers() as writers:
        block = triton.next_power_of_2(x.numel())
        _marking_kernel[(16,)](marks, x, x.numel(), x.shape[1], *x.stride(), BLOCK=block)
    said = [writers.of(marks.data_ptr() + 4 * place) or "(0" for place in range(len(marks))]
    digits = [int(re.search(r"[(](\d+)", text)[1]) for text in said]
    words = [sum(digits[8 * i + d] << (4 * d) for d in range(8)) for i in range(x.numel())]
    return _answer(struct.unpack(f"<{x.numel()}i", struct.pack(f"<{x.numel()}I", *words)), x)
