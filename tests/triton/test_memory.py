"""The memory of a launch's arguments: which element an address is, what lies in bounds, and boxes of copies."""

import importlib

import numpy as np
import pytest
import torch

if not pytest.importorskip("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

import triton.language as tl
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import TensorHandle

from touchstone import backends
from touchstone.backends.triton.runtime.interpreter import instruments, launch, libdevice, memory
from touchstone.backends.triton.runtime.interpreter.registry import KernelError, OutOfBounds


def test_an_address_is_an_element_where_strides_tell_one():
    x = torch.zeros(4, 6)

    def named(view, offset):
        region = memory._Region("x", view)
        return memory.element(region, region.start + 4 * offset)

    assert named(x, 0) == "x[0, 0]" and named(x, 23) == "x[3, 5]" and named(x, 7) == "x[1, 1]"
    assert named(x.t(), 7) == "x[1, 1]" and named(x.t(), 6) == "x[0, 1]"
    assert named(x[:, ::2], 2) == "x[0, 1]" and named(x[:, ::2], 1) == "x at element offset 1"  # in a gap
    assert named(x[:, :3], 4) == "x at element offset 4"
    assert named(x, 24) == "x at element offset 24" and named(x[1:, 2:3], 6) == "x[1, 0]"
    assert named(torch.zeros(()), 0) == "x[]" and named(torch.zeros(1, 1, 5), 3) == "x[0, 0, 3]"
    assert named(torch.zeros(5).expand(3, 5), 2) == "x[0, 2]"
    assert memory.element(None, 0xABC) == "address 0xabc"


def test_a_region_ends_where_its_last_element_does():
    x = torch.zeros(4, 6, dtype=torch.float16)
    for view, count in ((x, 24), (x[:, ::2], 23), (x[1:3, 2:4], 8), (x[:0], 0), (x.t()[2:, 1:], 16), (x[3, 5], 1)):
        region = memory._Region("x", view)
        assert (region.start, region.end - region.start) == (view.data_ptr(), 2 * count)
        assert region.storage == x.data_ptr() and region.view(2).size == count
    assert str(memory._Region("x", x[:, ::2])) == "x, which has elements 0 to 22 (shape (4, 3), strides (6, 2))"
    assert "x, which has no elements (shape (0, 6)" in str(memory._Region("x", x[:0]))


def pointers(region, offsets, item=4):
    addresses = region.start + item * np.array(offsets, np.int64)
    return TensorHandle(addresses.astype(np.uint64), tl.pointer_type(tl.float32), {"region": region})


def test_a_pointer_that_is_moved_leads_into_the_argument_that_it_led_into():
    """Whatever the offset was computed from."""
    builder = stock.interpreter_builder
    region, other = (memory._Region(name, torch.zeros(8)) for name in "xy")
    plain = TensorHandle(np.array([1, 2], np.int64), tl.int64)
    of_other = TensorHandle(np.array([1, 2], np.int64), tl.int64, {"region": other})
    for offsets in (plain, of_other):
        moved = builder.create_addptr(pointers(region, [0, 3]), offsets)
        assert moved.attr["region"] is region and moved.data.tolist() == [region.start + 4, region.start + 20]
    unknown = TensorHandle(np.array([64, 64], np.uint64), tl.pointer_type(tl.float32))
    assert "region" not in builder.create_addptr(unknown, of_other).attr
    assert builder.create_splat(tl.block_type(tl.float32, [2]), pointers(region, 1)).attr["region"] is region


def test_every_active_lane_lies_in_its_argument(monkeypatch):
    x = torch.zeros(20)
    region = memory._Region("x", x[4:12])
    inside = pointers(region, [0, 7, 3])
    assert memory._region(inside, None, 4, "load") is region
    assert memory._region(pointers(region, []), None, 4, "load") is None
    for offsets, size, lane, at, more in [
        ([0, 8], 4, 1, 8, ""),
        ([-1, 0], 4, 0, -1, ""),
        ([7, 0], 8, 0, 7, ""),
        ([9, 0, 8, 3], 4, 0, 9, "; 1 more lanes"),
    ]:
        with pytest.raises(OutOfBounds, match=rf"^store of lane \[{lane}\] at element offset {at} of x.*\){more}"):
            memory._region(pointers(region, offsets), None, size, "store")
    lanes = np.array([True, False, True])
    assert memory._region(pointers(region, [0, 99, 7]), lanes, 4, "load") is region
    assert memory._region(pointers(region, [99, 99, 99]), np.zeros(3, bool), 4, "load") is None
    with pytest.raises(OutOfBounds, match=r"load of lane \[2\] at element offset 8 of x, [^;]*$"):
        memory._region(pointers(region, [0, 99, 8]), lanes, 4, "load")
    launch = memory._Launch()
    launch.regions = [region, memory._Region("y", x[12:]), memory._Region("z", torch.zeros(999))]
    monkeypatch.setattr(memory, "_launches", [launch])
    assert memory._region(pointers(region, [0, 8, 15]), None, 4, "load") is None  # in another view of its storage
    with pytest.raises(OutOfBounds, match=r"lane \[1\] at element offset 16 of x"):
        memory._region(pointers(region, [0, 16, 8]), None, 4, "load")
    reached = launch.reached()
    assert [(each.start, each.bytes) for each in reached[:2]] == [(region.start, 32), (region.end, 32)]


def test_a_write_by_a_pointer_of_nobodys_is_told(monkeypatch):
    told: list = []
    monkeypatch.setattr(backends, "strayed", [told.append])
    lost = TensorHandle(np.array([64, 128], np.uint64), tl.pointer_type(tl.float32))
    assert memory._region(lost, None, 4, "load") is None and told == []
    assert memory._region(lost, None, 4, "store") is None and told[0].tolist() == [64, 128]
    memory._region(lost, np.array([False, True]), 4, "atomic")
    assert told[1].tolist() == [128]


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64, np.uint64])
def test_what_is_stored_is_loaded(dtype):
    x = torch.zeros(40, dtype=torch.int64)
    region = memory._Region("x", x)
    item = np.dtype(dtype).itemsize
    at = TensorHandle(
        (region.start + item * np.array([3, 0, 2, 9])).astype(np.uint64), tl.pointer_type(tl.int8), {"region": region}
    )
    value = np.array([1, 2, 3, 4], dtype)
    memory._store(at, None, value)
    assert memory._load(at, None, np.zeros((), dtype), np.dtype(dtype)).tolist() == [1, 2, 3, 4]
    lanes = np.array([True, False, False, True])
    memory._store(at, lanes, value + dtype(4))
    assert memory._load(at, None, np.zeros((), dtype), np.dtype(dtype)).tolist() == [5, 2, 3, 8]
    assert memory._load(at, lanes, np.array(9, dtype), np.dtype(dtype)).tolist() == [5, 9, 9, 8]
    memory._store(at, None, np.array(6, dtype))
    assert memory._load(at, ~lanes, np.array([1, 2, 3, 4], dtype), np.dtype(dtype)).tolist() == [1, 6, 6, 4]
    assert x.view(torch.int8).count_nonzero() == np.count_nonzero(np.full(4, 6, dtype).view(np.int8))


def test_lanes():
    for mask in (None, np.array([True, True]), np.array([1, 1], np.int8)):
        assert memory._lanes(mask, (2,)) is None
    assert memory._lanes(np.array([1, 0], np.int32), (2,)).tolist() == [True, False]
    assert memory._lanes(TensorHandle(np.array([False]), tl.int1), (2, 2)).tolist() == [[False] * 2] * 2


def test_boxes_of_copies():
    for start, item, stores in (([0, 8], 2, True), ([-4, 4], 4, False), ([3, 16], 1, True), ([0, -8], 2, False)):
        memory.check_box(start, item, "copy", stores)
    for start, item, stores, message in (
        ([0, 4], 2, False, "copy: the last coordinate, 4, is no multiple of 16 bytes"),
        ([0, 2], 4, True, "the last coordinate, 2, is no"),
        ([-1, 0], 4, True, r"copy: the copy engine stores to no negative coordinates, as -1 is"),
        ([0, -8], 2, True, "negative coordinates"),
    ):
        with pytest.raises(KernelError, match=message):
            memory.check_box(start, item, "copy", stores)


def test_atomics_on_bfloat16_go_one_lane_after_another():
    kinds = memory.stock._ir.ATOMIC_OP
    x = torch.tensor([1.0, 2.0, 4.0], dtype=torch.bfloat16)
    region = memory._Region("x", x)
    at = TensorHandle(
        (region.start + 2 * np.array([0, 2, 0, 1])).astype(np.uint64), tl.pointer_type(tl.bfloat16), {"region": region}
    )
    value = np.array([1.0, 2.0, 3.0, 9.0]).astype(memory.BF16)
    lanes = np.array([True, True, True, False])
    for kind in (kinds.ADD, kinds.FADD):
        x.copy_(torch.tensor([1.0, 2.0, 4.0]))
        assert memory._bfloat16_rmw(kind, at, value, lanes).astype(float).tolist() == [1.0, 4.0, 2.0, 0.0]
        assert x.tolist() == [5.0, 2.0, 6.0]
    assert memory._bfloat16_rmw(kinds.XCHG, at, value, None).astype(float).tolist() == [5.0, 6.0, 1.0, 2.0]
    assert x.tolist() == [3.0, 9.0, 2.0]
    with pytest.raises(KernelError, match="is not available for bfloat16$"):
        memory._bfloat16_rmw(kinds.MAX, at, value, None)


def test_which_loads_are_volatile():
    assert memory.is_volatile((1, 2, True), {}) and not memory.is_volatile((1, 2, False), {})
    assert memory.is_volatile((False,), {"is_volatile": True}) and not memory.is_volatile((), {})
    assert memory.is_volatile((True,), {"is_volatile": False}) is False


def test_memory_that_is_known_to_nobody_is_read_and_written_too():
    x = torch.arange(4.0)
    at = TensorHandle(x.data_ptr() + 4 * np.array([2, 0], np.uint64), tl.pointer_type(tl.float32))
    assert memory._load(at, None, np.zeros((), np.float32), np.dtype(np.float32)).tolist() == [2.0, 0.0]
    lanes = np.array([False, True])
    assert memory._load(at, lanes, np.float32(9), np.dtype(np.float32)).tolist() == [9.0, 0.0]
    memory._store(at, lanes, np.array([7, 8], np.float32))
    assert x.tolist() == [8.0, 1.0, 2.0, 3.0]
    memory._store(at, None, np.array(5, np.float32))
    assert x.tolist() == [5.0, 1.0, 5.0, 3.0]


def test_what_is_undefined_at_a_line_is_told_once_of_each_kind(monkeypatch):
    undefined = importlib.import_module("touchstone.backends.triton.runtime.interpreter.undefined")

    monkeypatch.setattr(undefined, "place", lambda: "k.py:3")
    within = undefined._Within(["k.py:4"])
    shown = [within.shows("load", "a load"), within.shows("load", "a load again"), within.shows("store", "a store")]
    assert within.found == {"k.py:3": "a load; a store"} and shown == [False] * 3
    monkeypatch.setattr(undefined, "place", lambda: "k.py:4")
    assert within.shows("load", "a load")


def test_whom_a_kernel_tells_is_told_within_alone():
    before = list(launch.watchers)
    with instruments.races():
        assert len(launch.watchers) == len(before) + 1
    assert launch.watchers == before


def test_the_high_half_of_a_reciprocal():
    found = libdevice._high_reciprocal(np.array([4.0, -0.5, 3.0]))
    np.testing.assert_allclose(found, [0.25, -2.0, 1 / 3], rtol=2.0**-20)
    assert not (found.view(np.uint64) & np.uint64(0xFFFFFFFF)).any()
