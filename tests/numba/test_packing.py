"""A launch's arguments as a lowered kernel takes them: their types, their numbers, and the memory that they bound."""

import ctypes
import enum
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import torch

from touchstone.backends import numba

if numba.why_not("cpu") or numba.simulated():
    pytest.skip(numba.why_not("cpu") or "NUMBA_ENABLE_CUDASIM is set", allow_module_level=True)

from numba import cuda
from numba.cuda import types

from touchstone.backends.emulator.numba import front, packing


@pytest.fixture(autouse=True, scope="module")
def _prepared():
    front.prepare()


class Lying:
    """Device memory of somebody's: what `__cuda_array_interface__` says of an array."""

    def __init__(self, array, strides=True, **more):
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "data": (array.ctypes.data, False),
            "typestr": array.dtype.str,
            **({"strides": array.strides} if strides else {}),
            **more,
        }


def test_an_array_of_anybodys_is_the_same_memory():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for view in (x, x[:, ::-1], x.transpose(2, 0, 1), x[1, :, 1:3], x[:, :, :0], x[0, 0, 0:1]):
        found = packing.as_array(Lying(view))
        assert np.array_equal(found, view) and found.dtype == view.dtype
        assert not view.size or (found.strides == view.strides and found.ctypes.data == view.ctypes.data)
    assert packing.as_array(Lying(x, strides=False)).strides == x.strides
    records = np.zeros(3, [("a", "i4"), ("b", "f8")])
    assert packing.as_array(Lying(records, descr=records.dtype.descr)).dtype.names == ("a", "b")
    assert packing.as_array(Lying(np.zeros((0, 3)))).shape == (0, 3)


def test_a_tensor_is_the_same_memory():
    x = torch.arange(6.0).reshape(2, 3)
    found = packing.as_array(x.t())
    assert found.shape == (3, 2) and found.ctypes.data == x.data_ptr()
    assert packing.as_array(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    brain = packing.as_array(torch.tensor([1.0, -2.0]).bfloat16())
    assert isinstance(brain, packing.BrainFloats) and brain.bits.tolist() == [0x3F80, -0x4000]
    assert packing.type_of(brain) == types.Array(types.bfloat16, 1, "C")
    pair = packing.type_of((brain, (brain, 1)))
    assert pair[0].dtype == types.bfloat16 and pair[1][0].dtype == types.bfloat16
    with pytest.raises(ValueError, match="a tensor on meta; the emulator takes CPU tensors"):
        packing.as_array(torch.ones(2, device="meta"))
    for other in (3, 2.5, None, "x", (1, 2)):
        assert packing.as_array(other) is other


def test_what_a_kernel_only_reads_is_a_copy():
    x = np.zeros(3)
    assert packing.as_array(cuda.In(x)) is not x and not np.shares_memory(packing.as_array(cuda.In(x)), x)
    for given in (cuda.Out(x), cuda.InOut(x)):
        assert np.shares_memory(packing.as_array(given), x)


def packed(kind, value):
    made = packing.Packed()
    made.add(kind, value, "x")
    return made, [(cell.dtype.str[1:], cell.tolist()) for cell in made.cells]


class Colour(enum.IntEnum):
    RED = 7


class Shade(enum.Enum):
    DARK = 2.5


class Two(NamedTuple):
    a: int
    b: float


@pytest.mark.parametrize(
    ("value", "cells"),
    [
        (3, [("u8", 3)]),
        (-1, [("u8", 2**64 - 1)]),
        (np.int8(-1), [("u1", 255)]),
        (np.uint16(9), [("u2", 9)]),
        (True, [("u1", 1)]),
        (np.bool_(False), [("u1", 0)]),
        (2.5, [("f8", 2.5)]),
        (np.float32(2.5), [("f4", 2.5)]),
        (1 + 2j, [("f8", 1.0), ("f8", 2.0)]),
        (np.complex64(1 + 2j), [("f4", 1.0), ("f4", 2.0)]),
        ((1, 2.5), [("u8", 1), ("f8", 2.5)]),
        (Two(1, 2.5), [("u8", 1), ("f8", 2.5)]),
        (((1, True), np.int16(4)), [("u8", 1), ("u1", 1), ("u2", 4)]),
        (Colour.RED, [("u8", 7)]),
        (Shade.DARK, [("f8", 2.5)]),
        (None, [("i8", 0)]),
        (np.datetime64("1970-01-02", "D"), [("i8", 1)]),
        (np.timedelta64(5, "s"), [("i8", 5)]),
    ],
    ids=repr,
)
def test_numbers_are_cells_of_their_own_types(value, cells):
    made, found = packed(packing.type_of(value), value)
    assert found == cells and made.regions == []


def test_an_array_is_its_memory_its_sizes_and_its_strides():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    made, found = packed(packing.type_of(x), x)
    assert [value for _, value in found] == [0, 0, 6, 4, x.ctypes.data, 3, 2, 16, 8]
    (region,) = made.regions
    assert (region.name, region.start, region.bytes) == ("x", x.ctypes.data, 4 * 11)
    made, found = packed(packing.type_of((x, 3)), (x, 3))
    assert made.regions[0].name == "x[0]" and found[-1] == ("u8", 3)
    assert packed(packing.type_of(x[:0]), x[:0])[0].regions == []
    brain = packing.as_array(torch.ones(5).bfloat16())
    made, found = packed(packing.type_of(brain), brain)
    assert [value for _, value in found] == [0, 0, 5, 2, brain.bits.ctypes.data, 5, 2]


def test_what_is_packed_lives_as_long():
    """As what `cuda.In` copies, which nobody else has."""
    array = np.ones(3)
    kind, alive = packing.type_of(array), weakref.ref(array)
    made, _ = packed(kind, array)
    del array
    assert alive() is not None
    del made
    assert alive() is None


def test_a_record_is_its_address():
    records = np.zeros(2, np.dtype([("a", "i4"), ("b", "f8")], align=True))
    made, found = packed(packing.type_of(records[1]), records[1])
    assert found == [("i8", records.ctypes.data + 16)]
    assert [(r.start, r.bytes) for r in made.regions] == [(records.ctypes.data + 16, 16)]
    alone = np.array((3, 4.5), records.dtype)[()]
    made, ((_, address),) = packed(packing.type_of(alone), alone)
    assert ctypes.c_int32.from_address(address).value == 3
    assert [kept.ctypes.data for kept in made.keep] == [address]  # which is of a copy


PAIR = packing.type_of(np.zeros(3, "i4,i4"))


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (
            types.Array(types.float32, 1, "C"),
            np.zeros(3),
            "expected an array of float32 with 1 axes, got one of float64",
        ),
        (types.Array(types.float32, 2, "C"), np.zeros(3, "f4"), "with 2 axes, got one of float32 with 1"),
        (types.Array(types.int32, 1, "C"), np.zeros(3, "f4"), "expected an array of int32"),
        (types.Array(types.int32, 1, "C"), np.zeros(3, "i8"), "expected an array of int32"),
        (types.Array(types.int32, 1, "C"), np.zeros(3, "u8"), "expected an array of int32"),
        (PAIR, np.zeros(3, "i4,i4,i4"), "expected an array of "),
        (PAIR, np.zeros((3, 3), "i4,i4"), "with 1 axes, got one of .* with 2"),
        (types.unicode_type, "x", "x: a kernel takes no argument of type unicode_type"),
    ],
    ids=str,
)
def test_what_a_kernel_would_take_for_something_else_is_refused(kind, value, says):
    with pytest.raises(TypeError, match=says):
        packed(kind, value)


def test_signs_of_integers_may_differ():
    assert packed(types.Array(types.int32, 1, "C"), np.zeros(3, np.uint32))[1][2] == ("i8", 3)
    assert packed(types.Array(types.uint8, 1, "C"), np.zeros(3, np.int8))[1][3] == ("i8", 1)
    for alike in (np.zeros(3, "i8"), np.zeros(3, [("a", "f4"), ("b", "f4")])):  # as long as a record
        assert packed(PAIR, alike)[1][2:4] == [("i8", 3), ("i8", 8)]


def test_a_pointer_bounds_the_allocation_that_it_leads_into(monkeypatch):
    room = np.zeros(40, np.uint8)
    pointer, address = types.CPointer(types.float32), room.ctypes.data + 8
    monkeypatch.setattr(packing, "allocation_at", lambda at: room if at == address else None)
    for value in (address, ctypes.c_void_p(address)):
        made = packing.Packed()
        made.add(pointer, value, "p")
        (region,), (cell,) = made.regions, made.cells
        assert (region.name, region.start, region.bytes, int(cell)) == ("p", room.ctypes.data, 40, address)
    for value in (None, 0, ctypes.c_void_p(None), address + 1):
        made = packing.Packed()
        made.add(pointer, value, "p")
        assert made.regions == [] and int(made.cells[0]) == int(getattr(value, "value", value) or 0)


def test_no_more_than_the_memory_of_an_array_is_taken():
    x = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    for view in (x, x[:, ::-1], x.transpose(2, 0, 1)[::-1], x[1, :, 1:3], x[::-1, ::-2, ::-1]):
        found = packing.as_array(Lying(view))
        low, high = np.lib.array_utils.byte_bounds(view)
        assert found.tolist() == view.tolist() and ctypes.sizeof(found.base) == high - low
    nowhere = Lying(x, data=(0, False))
    found = packing.as_array(nowhere)
    assert (found.shape, found.dtype) == (x.shape, x.dtype) and found.ctypes.data


def test_an_array_of_another_class_or_with_a_dtype_of_its_own():
    kept = np.ones(2).view(type("Kept", (np.ndarray,), {}))
    found = packing.as_array(kept)
    assert type(found) is np.ndarray and np.shares_memory(found, kept)
    records = np.zeros(2, [("a", "i4"), ("b", "f8")])
    held = Lying(records)
    held.dtype = records.dtype
    assert packing.as_array(held).dtype == records.dtype
    held.dtype = "anything else"
    assert packing.as_array(held).dtype.itemsize == 12 and packing.as_array(held).dtype.names is None
    for value in (3, 1.5, "x", (1, 2)):
        assert packing.as_array(value) is value
    with pytest.raises(ValueError, match="^a tensor on meta; the emulator takes CPU tensors$"):
        packing.as_array(torch.zeros(2, device="meta"))


def test_an_array_whose_elements_are_one_keeps_its_stride():
    """Numba leaves strides of 0 out of `__cuda_array_interface__`."""
    memory = np.arange(4, dtype=np.float32)
    described = {"typestr": "<f4", "shape": (4,), "strides": (0,), "data": (memory.ctypes.data, False), "version": 2}
    one = cuda.as_cuda_array(type("One", (), {"__cuda_array_interface__": described})())
    assert one.__cuda_array_interface__["strides"] is None
    assert packing.as_array(one).strides == (0,) and packing.as_array(one).tolist() == [0.0] * 4
