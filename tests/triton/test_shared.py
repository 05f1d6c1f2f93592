"""Shared memory of a program in Gluon: which accesses are in order, and what a part of it is."""

import numpy as np
import pytest

if not pytest.importorskip("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)
pytest.importorskip("triton.experimental.gluon")

import triton.language as tl

from touchstone.backends.triton.runtime.interpreter.gluon import shared
from touchstone.backends.triton.runtime.interpreter.gluon.shared import Access, Event
from touchstone.backends.triton.runtime.interpreter.registry import KernelError, NotInterpreted, RaceCondition


def memory(*shape, dtype=tl.float32):
    return shared.allocated(dtype, shape, "a layout", "line 3 of k.py")


def access(kind, key="p", number=1, partition=0):
    return Access(Event(key, number), kind, f"line {number} of k.py", partition)


def test_new_memory_holds_what_shows():
    for dtype in (tl.float32, tl.float16, tl.bfloat16, tl.float64, tl.float8e5):
        made = memory(3, 4, dtype=dtype)
        assert made.data.shape == (3, 4) and made.data.itemsize == dtype.primitive_bitwidth // 8
        assert (made.data.view(np.uint8) == 255).all(), dtype  # NaN of every format
    for dtype, number in ((tl.int32, 12345), (tl.int16, 12345), (tl.int64, 12345), (tl.int8, 85)):
        made = memory(2, 2, dtype=dtype)
        assert made.data.tolist() == [[number] * 2] * 2 and made.dtype is dtype
    assert made.layout == "a layout" and made.allocation.line == "line 3 of k.py"


def test_an_event_is_known_up_to_its_number():
    assert Event("p", 3).known({"p": 3}) and Event("p", 3).known({"p": 4, "q": 0})
    assert not Event("p", 3).known({"p": 2}) and not Event("p", 3).known({"q": 9}) and not Event("p").known({"p": 9})
    assert Event("p", 0).known({})


def test_a_clock_that_is_joined_knows_the_later_of_each():
    into = {"p": 3, "q": 1}
    shared.joined(into, {"p": 2, "q": 5, "r": 1})
    assert into == {"p": 3, "q": 5, "r": 1}


READ = {
    "load": "an mbarrier, at which its partition arrives afterwards,",
    "product": "warpgroup_mma_wait",
    "copy out": "tma.store_wait",
}
WRITTEN = {
    "store": "an mbarrier, at which its partition arrives afterwards,",
    "copy in": "a wait for the phase of the mbarrier that the copy completes",
    "cp.async": "async_copy.wait_group",
}


def races(function, verb, remedy):
    with pytest.raises(RaceCondition) as caught:
        function()
    said = str(caught.value)
    assert f"shared memory that line 1 of k.py {verb}, and nothing orders the two, as {remedy} would" in said


@pytest.mark.parametrize("kind", [*READ, *WRITTEN])
def test_an_access_that_is_not_known_of_races_with_another_where_one_writes(kind):
    verb = {"load": "loads", "product": "multiplies", "copy out": "copies out of", "store": "stores to"}.get(
        kind, "copies into"
    )
    for clock, in_order in (({}, False), ({"p": 0}, False), ({"q": 1}, False), ({"p": 1}, True), ({"p": 2}, True)):
        first, second = access(kind), access("store", "q", 2, 1)
        written = memory(4)
        (written.write if kind in WRITTEN else written.read)(first, {})
        if in_order:
            written.write(second, clock)
        else:
            races(lambda m=written, s=second, c=clock: m.write(s, c), verb, {**READ, **WRITTEN}[kind])
        read = memory(4)
        (read.write if kind in WRITTEN else read.read)(first, {})
        if in_order or kind in READ:
            read.read(access("load", "q", 2, 1), clock)
        else:
            races(lambda m=read, c=clock: m.read(access("load", "q", 2, 1), c), verb, WRITTEN[kind])


def test_a_write_comes_after_all_that_were_read_since_the_last():
    made = memory(4)
    for key in "abc":
        made.read(access("load", key), {})
    known = {"a": 1, "b": 1, "c": 1}
    for lost in "abc":
        races(lambda lost=lost: made.write(access("store", "d"), {**known, lost: 0}), "loads", READ["load"])
    made.write(access("store", "d"), known)
    made.write(access("store", "e"), {"d": 1})  # which need not know what came before that one
    made.read(access("load", "a", 1), {"e": 1})
    made.read(access("load", "a", 5), {"e": 1})  # the last of each is asked for
    with pytest.raises(RaceCondition, match="line 5 of k.py loads"):
        made.write(access("store", "e", 2), {"a": 4, "e": 1})
    made.write(access("store", "e", 2), {"a": 5, "e": 1})


def test_parts_that_overlap_are_one_and_others_are_apart():
    made = memory(4, 8)
    upper, lower, column = made.sliced([0, 0], (2, 8)), made.sliced([2, 0], (2, 8)), made.sliced([0, 3], (4, 1))
    upper.write(access("store", "a"), {})
    lower.write(access("store", "b"), {})
    made.sliced([0, 0], (2, 8)).read(access("load", "a", 2), {"a": 1})
    for part in (column, made, made.index(1), made.permuted((1, 0), None), made.reshaped((32,), None)):
        races(lambda part=part: part.read(access("load", "c"), {"b": 1}), "stores to", WRITTEN["store"])
    made.index(2).read(access("load", "c"), {"b": 1})
    races(lambda: lower.write(access("store", "a", 3), {"a": 9, "b": 1}), "loads", READ["load"])
    even, odd = made.of(made.data[:, ::2]), made.of(made.data[:, 1::2])  # which lie between one another
    known = {"a": 9, "b": 9, "c": 9}
    even.write(access("store", "d"), known)
    odd.write(access("store", "e"), known)
    races(lambda: even.write(access("store", "e", 2), {**known, "e": 9}), "stores to", WRITTEN["store"])


def test_an_engine_reads_what_another_partition_has_stored_after_a_fence():
    made = memory(4)
    made.write(access("store", "p", 3, 0), {})
    known = {"p": 3}
    for fenced, partition, right in (({"p": 3}, 1, True), ({"p": 2}, 1, False), ({}, 1, False), ({}, 0, True),
                                     (None, 1, True)):  # fmt: skip
        reading = access("copy out", "q", 1, partition)
        if right:
            made.read(reading, known, fenced)
        else:
            with pytest.raises(RaceCondition, match="line 3 of k.py stores to in another partition without fence_as"):
                made.read(reading, known, fenced)
    copied = memory(4)
    copied.write(access("copy in", "p", 1, 0), {})
    copied.read(access("copy out", "q", 1, 1), {"p": 1}, {})  # by an engine itself


def test_parts_of_memory_are_where_they_are_said_to_be():
    made = memory(3, 4)
    made.data[...] = np.arange(12).reshape(3, 4)
    assert made.index(2).data.tolist() == [8, 9, 10, 11] and made.index(0).layout == "a layout"
    assert made.sliced([1, 2], (2, 2)).data.tolist() == [[6, 7], [10, 11]]
    turned = made.permuted((1, 0), "another")
    assert made.reshaped((2, 6), "another").layout == "another" and made.layout == "a layout"
    assert turned.data.tolist() == made.data.T.tolist() and turned.layout == "another" and turned.dtype is tl.float32
    assert made.reshaped((2, 6), "another").data[1].tolist() == [6, 7, 8, 9, 10, 11]
    for part in (made.index(1), turned, made.reshaped((12,), None), made.reinterpreted(tl.int32, (12,), None)):
        assert np.shares_memory(part.data, made.data) and part.allocation is made.allocation
    with pytest.raises(NotInterpreted, match="reshape of shared memory that is permuted or sliced"):
        turned.reshaped((12,), None)
    for offsets, shape in (([0, 1], (3, 4)), ([-1, 0], (2, 4)), ([2, 0], (2, 4)), ([0, 4], (3, 1))):
        with pytest.raises(KernelError, match=rf"a slice from \[{offsets[0]}, {offsets[1]}\] of shape"):
            made.sliced(offsets, shape)
    assert made.sliced([3, 4], (0, 0)).data.size == 0 and made.sliced([0, 0], (3, 4)).data.shape == (3, 4)


def test_memory_is_read_as_another_type_of_as_many_bytes_or_fewer():
    made = memory(4, 4)
    made.data[...] = 1.0
    words = made.reinterpreted(tl.int32, (2, 8), "another")
    assert words.dtype is tl.int32 and words.layout == "another" and (words.data == 0x3F800000).all()
    assert made.reinterpreted(tl.float16, (32,), None).data.dtype == np.float16
    assert made.reinterpreted(tl.int8, (63,), None).data.size == 63
    with pytest.raises(KernelError, match="^68 bytes of shared memory that has 64$"):
        made.reinterpreted(tl.int32, (17,), None)
    with pytest.raises(NotInterpreted, match="reinterpretation of shared memory that is permuted or sliced"):
        made.sliced([0, 0], (4, 2)).reinterpreted(tl.int32, (8,), None)


def test_an_index_outside_is_an_address_that_nothing_may_use():
    made = memory(2, 4)
    for number in (-1, 2):
        outside = made.index(number)
        for part in (outside, outside.index(0), outside.sliced([0], (9,)), outside.permuted((0,), None).reshaped(3, 4),
                     outside.reinterpreted(tl.int8, (4,), None)):  # fmt: skip
            with pytest.raises(KernelError, match=rf"^index {number} of shared memory of shape \(2, 4\)$"):
                part.data  # noqa: B018
        with pytest.raises(KernelError, match="^index"):
            outside.read(access("load"), {})
