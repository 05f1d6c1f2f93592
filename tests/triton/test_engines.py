"""The parts that Gluon's programs are made of: shared memory and who may touch it, mbarriers, boxes of copies."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

if not pytest.importorskip("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

import triton.language as tl
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import TensorHandle

from touchstone.backends.triton.runtime.interpreter import memory as arguments
from touchstone.backends.triton.runtime.interpreter import programs
from touchstone.backends.triton.runtime.interpreter.gluon import machine, shared
from touchstone.backends.triton.runtime.interpreter.gluon.machine import Barrier, Engines, Product, Strand, _Tile
from touchstone.backends.triton.runtime.interpreter.gluon.shared import Access, Allocation, Event, Memory
from touchstone.backends.triton.runtime.interpreter.registry import (
    Deadlock,
    KernelError,
    NotInterpreted,
    OutOfBounds,
    RaceCondition,
)


def of(data, dtype=tl.float32, layout="plain"):
    return Memory(Allocation("here"), np.asarray(data), dtype, layout)


def handle(data, ty=tl.int32):
    return TensorHandle(np.asarray(data), ty)


# --- shared memory


@pytest.mark.parametrize(
    ("dtype", "value"), [(tl.int8, 85), (tl.uint8, 85), (tl.int16, 12345), (tl.int32, 12345), (tl.int64, 12345)]
)
def test_new_memory_holds_what_no_kernel_takes_for_an_answer(dtype, value):
    made = shared.allocated(dtype, (2, 3), "plain", "line 3")
    assert made.data.tolist() == [[value] * 3] * 2 and made.allocation.line == "line 3" and made.layout == "plain"


@pytest.mark.parametrize("dtype", [tl.float16, tl.bfloat16, tl.float32, tl.float64])
def test_new_memory_of_floats_is_nan(dtype):
    made = shared.allocated(dtype, (2, 3), "plain", "")
    assert made.data.shape == (2, 3) and np.isnan(made.data.astype(np.float64)).all()


def test_parts_of_memory_are_the_same_bytes():
    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    whole = of(data)
    assert whole.index(3).data.tolist() == data[3].tolist() and whole.index(0).allocation is whole.allocation
    part = whole.sliced([1, 2], (2, 4))
    assert part.data.tolist() == data[1:3, 2:6].tolist() and np.shares_memory(part.data, data)
    assert whole.sliced([0, 0], (4, 6)).data.shape == (4, 6)
    turned = whole.permuted((1, 0), "turned")
    assert turned.data.tolist() == data.T.tolist() and (turned.layout, turned.dtype) == ("turned", tl.float32)
    flat = whole.reshaped((24,), "flat")
    assert flat.data.tolist() == list(range(24)) and np.shares_memory(flat.data, data) and flat.layout == "flat"
    with pytest.raises(NotInterpreted, match="reshape of shared memory"):
        turned.reshaped((24,), "flat")
    words = whole.reinterpreted(tl.int16, (3, 4), "words")
    assert words.data.tolist() == data.view(np.int16).reshape(-1)[:12].reshape(3, 4).tolist()
    assert (words.dtype, words.layout) == (tl.int16, "words") and np.shares_memory(words.data, data)
    assert whole.reinterpreted(tl.int64, (12,), "").data.nbytes == 96
    with pytest.raises(NotInterpreted, match="reinterpretation of shared memory"):
        part.reinterpreted(tl.int16, (2,), "")
    with pytest.raises(KernelError, match="^104 bytes of shared memory that has 96$"):
        whole.reinterpreted(tl.int64, (13,), "")


@pytest.mark.parametrize(
    ("offsets", "shape"), [([0, 3], (1, 4)), ([-1, 0], (1, 1)), ([3, 0], (2, 6)), ([0, -1], (4, 6))]
)
def test_a_slice_lies_within_its_memory(offsets, shape):
    with pytest.raises(KernelError, match="a slice from"):
        of(np.zeros((4, 6))).sliced(offsets, shape)


@pytest.mark.parametrize("number", [-1, 4])
def test_an_index_outside_is_an_address_that_nothing_may_use(number):
    outside = of(np.zeros((4, 6))).index(number)
    further = outside.index(0).sliced([0], (1,)).permuted((0,), "").reshaped((1,), "").reinterpreted(tl.int8, (1,), "")
    with pytest.raises(KernelError, match=rf"^index {number} of shared memory of shape \(4, 6\)$"):
        further.data  # noqa: B018


def test_events_and_clocks():
    assert not Event().known({}) and not Event().known({None: 10**9})
    assert Event("a", 3).known({"a": 3}) and not Event("a", 3).known({"a": 2, "b": 9}) and Event("a", 0).known({})
    into = {"a": 3, "b": 1}
    shared.joined(into, {"a": 2, "b": 5, "c": 0, "d": 1})
    assert {key: number for key, number in into.items() if number} == {"a": 3, "b": 5, "d": 1}


def touch(memory, kind, number, key=0, clock=(), fenced=None, write=None, partition=None):
    access = Access(Event(key, number), kind, f"line {number}", key if partition is None else partition)
    writes = kind in ("store", "copy in", "cp.async") if write is None else write
    memory.write(access, dict(clock)) if writes else memory.read(access, dict(clock), fenced)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("store", "load", "an mbarrier, at which"),
        ("load", "store", "an mbarrier, at which"),
        ("store", "store", "an mbarrier, at which"),
        ("load", "load", None),
        ("copy in", "load", "a wait for the phase"),
        ("cp.async", "load", "async_copy.wait_group"),
        ("copy out", "store", "tma.store_wait"),
        ("copy out", "load", None),
        ("product", "store", "warpgroup_mma_wait"),
    ],
)
def test_two_accesses_one_of_which_writes_have_to_be_ordered(before, after, told):
    for overlap, known in ((True, False), (True, True), (False, False)):
        memory = of(np.zeros(8))
        touch(memory.sliced([0], (4,)), before, 5, key="other")
        place, clock = memory.sliced([3 if overlap else 4], (4,)), {"other": 5 if known else 4}
        if told is None or known or not overlap:
            touch(place, after, 1, clock=clock)
            continue
        with pytest.raises(RaceCondition, match=f"^line 1 .* shared memory that line 5 .*as {told}"):
            touch(place, after, 1, clock=clock)


def test_every_partition_s_last_load_counts():
    memory = of(np.zeros(4))
    touch(memory, "load", 1, key="a")
    touch(memory, "load", 7, key="b")
    touch(memory, "load", 2, key="a", clock={"a": 1})
    for clock in ({"a": 2}, {"a": 1, "b": 7}):
        with pytest.raises(RaceCondition):
            touch(memory, "store", 1, key="c", clock=clock)
    touch(memory, "store", 1, key="c", clock={"a": 2, "b": 7})
    touch(memory, "store", 1, key="d", clock={"c": 1})  # what was loaded before that store is done with


def test_an_engine_reads_what_was_fenced():
    def loaded(fenced, partition="b", kind="product"):
        memory = of(np.zeros(4))
        touch(memory, "store", 3, key="a")
        touch(memory, kind, 1, key="b", clock={"a": 3}, fenced=fenced, partition=partition)

    loaded({"a": 3})
    loaded(None)
    loaded({}, partition="a")  # its own the engine knows by another check
    with pytest.raises(RaceCondition, match="^line 1 multiplies shared memory that line 3 stores to in another"):
        loaded({"a": 2})
    copied = of(np.zeros(4))
    touch(copied, "copy in", 3, key="a")
    touch(copied, "product", 1, key="b", clock={"a": 3}, fenced={})  # an engine's own way


def test_one_part_is_known_again():
    memory = of(np.zeros((4, 4)))
    parts = [memory.index(1), memory.index(1), memory.sliced([1, 0], (1, 4)), memory.permuted((1, 0), "")]
    found = [memory.allocation.part(part.data) for part in parts]
    assert found[0] is found[1] and len({id(each) for each in found}) == 3
    assert all(len(each.overlapping) == 3 for each in found)
    apart = memory.allocation.part(memory.index(0).data)
    assert len(apart.overlapping) == 2 and len(found[3].overlapping) == 4 and len(found[0].overlapping) == 3


def test_columns_that_lie_between_one_another_are_apart():
    memory = of(np.zeros((4, 8)))
    even, odd = memory.of(memory.data[:, ::2]), memory.of(memory.data[:, 1::2])
    touch(even, "store", 1, key="a")
    touch(odd, "store", 1, key="b")
    with pytest.raises(RaceCondition):
        touch(memory, "load", 1, key="c", clock={"a": 1})
    touch(memory, "load", 1, key="c", clock={"a": 1, "b": 1})


# --- barriers


@pytest.mark.parametrize(("count", "right"), [(0, False), (1, True), (2**20 - 1, True), (2**20, False)])
def test_how_many_arrivals_an_mbarrier_takes(count, right):
    if right:
        assert Barrier("b", count).left == count
        return
    with pytest.raises(KernelError, match=f"count has to be 1 to 1048575, not {count}$"):
        Barrier("b", count)


def test_a_phase_is_complete_when_arrivals_and_bytes_have_come():
    barrier = Barrier("b", 2)
    assert barrier.passed(1) and not barrier.passed(0) and barrier.lacks() == "2 of 2 arrivals"
    barrier.arrive(({"a": 3}, {"a": 1}))
    barrier.expect(96)
    assert barrier.lacks() == "1 of 2 arrivals and 96 bytes" and barrier.released == ({}, {})
    barrier.arrive(({"a": 2, "b": 4}, {}))
    event = Event()
    assert barrier.lacks() == "96 bytes" and not barrier.passed(0)
    barrier.receive(128, event)
    assert barrier.lacks() == "an expectation of 32 bytes that have come" and not barrier.passed(0)
    assert (event.key, event.number) == (barrier, 1)
    barrier.expect(32)
    barrier._turn()
    assert barrier.passed(0) and not barrier.passed(1) and barrier.left == 2
    assert barrier.released == ({"a": 3, "b": 4, barrier: 1}, {"a": 1}) and barrier.gathering == ({}, {})
    with pytest.raises(KernelError, match="^3 arrivals at b, of which this phase takes 2 more$"):
        barrier.arrive(({}, {}), 3)
    barrier.arrive(({}, {}), 2)
    assert barrier.passed(1) and not barrier.passed(0) and barrier.released[0][barrier] == 2


@pytest.mark.parametrize("size", [2**20 - 1, -(2**20) + 1, 2**20, -(2**20)])
def test_how_many_bytes_an_mbarrier_counts(size):
    barrier = Barrier("b", 1)
    if abs(size) < 2**20:
        barrier.expect(size)
        assert barrier.bytes == size
        return
    with pytest.raises(KernelError, match=f"^b counts {size} bytes; an mbarrier counts up to 1048575$"):
        barrier.expect(size)


def test_where_an_mbarrier_is():
    with pytest.raises(KernelError, match="an mbarrier is one int64"):
        machine._address(of(np.zeros(2, np.int64), tl.int64))
    with pytest.raises(KernelError, match="an mbarrier is one int64"):
        machine._address(of(np.zeros(1, np.int32), tl.int32))
    place = of(np.zeros(1, np.int64), tl.int64)
    with pytest.raises(KernelError, match="that was not initialised"):
        machine._barrier(place)
    Engines.create_mbarrier_init(None, place, 3)
    assert machine._barrier(place).name == "the mbarrier 0 that here allocates" and machine._barrier(place).count == 3
    Engines.create_mbarrier_inval(None, place)
    with pytest.raises(KernelError, match="no longer valid"):
        Engines.create_mbarrier_inval(None, place)


def test_what_a_partition_knows():
    first = Strand(None, 0, 4)
    assert (first.clock, first.fenced, first.event.key, first.event.number) == ({0: 1}, {}, 0, 1)
    assert first.release() == ({0: 1}, {}) and first.clock == {0: 2} and first.event.number == 2
    second = Strand(None, 1, 8, first)
    assert second.clock == {0: 2, 1: 1} and second.fenced == {0: 2} and second.warps == 8
    second.acquire(({0: 5}, {0: 4, 1: 1}))
    assert second.clock == {0: 5, 1: 1} and second.fenced == {0: 4, 1: 1} and first.clock == {0: 2}
    one, other = second.began("product"), second.began("product")
    assert (one.key, one.number, other.number) == ((1, "product"), 1, 2)
    second.finished("product", 1)
    assert one.known(second.clock) and not other.known(second.clock)


# --- elements, products, types


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("ADD", np.add),
        ("FADD", np.add),
        ("MAX", np.maximum),
        ("UMAX", np.maximum),
        ("MIN", np.minimum),
        ("UMIN", np.minimum),
        ("AND", np.bitwise_and),
        ("OR", np.bitwise_or),
        ("XOR", np.bitwise_xor),
        ("XCHG", lambda old, new: new),
    ],
)
def test_atomics_on_shared_memory_go_one_lane_after_another(name, function):
    rng = np.random.default_rng(0)
    start, values = rng.integers(0, 99, (3, 4), np.int32), rng.integers(0, 99, (5, 4), np.int32)
    indices, mask = rng.integers(0, 3, (5, 4)), rng.random((5, 4)) < 0.7
    memory, expected, found = of(start.copy(), tl.int32), start.copy(), np.zeros((5, 4), np.int32)
    for row, column in np.ndindex(5, 4):
        if mask[row, column]:
            place = indices[row, column], column
            found[row, column] = expected[place]
            expected[place] = function(expected[place], values[row, column])
    lanes = handle(mask, tl.int1)
    given = SimpleNamespace(name=name), memory, handle(values), handle(indices), lanes, 0
    got = in_a_program(lambda: Engines.create_local_atomic_scatter_rmw(None, *given))
    assert got.data.tolist() == found.tolist() and memory.data.tolist() == expected.tolist()


def in_a_program(body):
    """What `body` returns in a program of four warps."""
    found = []

    def run():
        programs.current().strand = Strand(programs.team(), 0, 4)
        found.append(body())

    programs.run([(0, 0, 0)], run)
    return found[0]


def test_elements_by_index():
    data = np.arange(12).reshape(3, 4)
    memory = of(data, tl.int64)
    indices = np.array([[2, 0, 1, 2], [0, 0, 2, 1]])
    assert data[machine._elements(memory, handle(indices), 0)].tolist() == np.take_along_axis(data, indices, 0).tolist()
    along = np.array([[3, 0], [1, 1], [2, 3]])
    assert data[machine._elements(memory, handle(along), 1)].tolist() == np.take_along_axis(data, along, 1).tolist()
    for wrong in (-1, 3):
        with pytest.raises(KernelError, match="^an index of shared memory lies outside of its 3 elements$"):
            machine._elements(memory, handle([[0, wrong, 0, 0]]), 0)
    assert len(machine._elements(memory, handle(np.zeros((9, 4), int)), 0)) == 2  # as many along the axis as one likes
    with pytest.raises(KernelError, match=r"^indices of shape \(1, 5\) for shared memory of shape \(3, 4\)$"):
        machine._elements(memory, handle(np.zeros((1, 5), int)), 0)


def test_signs_make_no_other_type():
    assert machine._alike(tl.int32, tl.uint32) and machine._alike(tl.float16, tl.float16)
    for left, right in (
        (tl.int32, tl.int16),
        (tl.float16, tl.int16),
        (tl.int16, tl.bfloat16),
        (tl.float16, tl.bfloat16),
    ):
        assert not machine._alike(left, right)


@pytest.mark.parametrize(
    ("left", "right", "shape", "told"),
    [
        (((64, 16), tl.float16), ((16, 32), tl.float16), (64, 32), None),
        (((128, 16), tl.float8e5), ((16, 8), tl.float8e4nv), (128, 8), None),
        (((64, 16), tl.float16), ((16, 32), tl.bfloat16), (64, 32), "operands of fp16 and bf16"),
        (((64, 16), tl.float8e5), ((16, 32), tl.float16), (64, 32), "operands of fp8e5 and fp16"),
        (((96, 16), tl.float16), ((16, 32), tl.float16), (96, 32), "96 rows are no multiple of 64"),
        (((64, 16), tl.float16), ((8, 32), tl.float16), (64, 32), "does not give"),
        (((64, 16), tl.float16), ((16, 32), tl.float16), (64, 16), "does not give"),
        (((64, 16), tl.float16), ((16, 32), tl.float16), (128, 32), "does not give"),
        (((1, 64, 16), tl.float16), ((16, 32), tl.float16), (1, 32), "does not give"),
    ],
)
def test_which_products_a_warpgroup_forms(left, right, shape, told):
    a, b = (of(np.zeros(shape, np.float16), dtype) for shape, dtype in (left, right))
    for acc in (handle(np.zeros(shape), tl.float32), Product(tl.float32, shape, "line 1", lambda: None)):
        if told is None:
            machine._check_product(a, b, acc)
        else:
            with pytest.raises(KernelError, match=told):
                machine._check_product(a, b, acc)
    with pytest.raises(KernelError, match="b has to lie in shared memory"):
        machine._check_product(a, handle(b.data, right[1]), handle(np.zeros(shape), tl.float32))


def test_a_product_has_no_numbers_before_it_was_waited_for():
    formed = []
    product = Product(tl.float32, (64, 8), "line 7", lambda: formed.append(1) or np.ones(2))
    with pytest.raises(KernelError, match="^the product that line 7 began is used before"):
        product.data  # noqa: B018
    assert not hasattr(product, "other") and machine._numbers(product).tolist() == [1, 1]
    assert product.form() is product.form() and formed == [1]
    product.data = np.zeros(2)
    assert machine._numbers(product).tolist() == [0, 0]
    assert machine._numbers(handle([3])).tolist() == [3]


# --- boxes


def tile(x, start, block, ty=tl.float32, *, memory=None, padding=None, whole=None, stores=False, shape=None):
    """A box of a descriptor over `x`, whose argument is `whole`."""
    region = arguments._Region("x", x if whole is None else whole)
    base = TensorHandle(np.array(x.data_ptr(), np.uint64), tl.pointer_type(ty), {"region": region})
    sizes, strides = ([handle(n, tl.int64) for n in each] for each in (shape or x.shape, x.stride()))
    option = stock._ir.PADDING_OPTION
    made = stock.TensorDescHandle(base, sizes, strides, list(block), padding or option.PAD_ZERO)
    made.layout = "plain"
    if memory is None:
        memory = of(np.zeros(block, x.numpy().dtype), ty)
    return _Tile(made, [handle([at]) for at in start], memory, "copy", stores)


@pytest.mark.parametrize("start", [(0, 0), (1, 4), (4, 12), (-1, 0), (3, -4), (5, 0), (0, 16), (-2, 0), (2, -8)])
@pytest.mark.parametrize("strided", [False, True])
def test_a_box_is_what_of_it_lies_in_the_tensor(start, strided):
    x = torch.arange(5 * 16.0).view(5, 16)
    if strided:
        x = torch.arange(10 * 16.0).view(10, 16)[::2]
    expected = torch.zeros(2, 8)
    for row in range(2):
        for column in range(8):
            at = start[0] + row, start[1] + column
            if 0 <= at[0] < 5 and 0 <= at[1] < 16:
                expected[row, column] = x[at]
    assert tile(x, start, (2, 8)).read(np.dtype(np.float32)).tolist() == expected.tolist()
    padded = tile(x, start, (2, 8), padding=stock._ir.PADDING_OPTION.PAD_NAN).read(np.dtype(np.float32))
    inside = np.zeros((2, 8), bool)
    made = tile(x, start, (2, 8))
    inside[made.inside] = True
    assert np.array_equal(np.isnan(padded), ~inside) and made.empty == (not inside.any())
    made.write(np.full((2, 8), -1.0, np.float32))
    assert int((x == -1).sum()) == int(inside.sum())


def test_padding_of_float8_is_nan_by_its_bits():
    x = torch.zeros(2, 16, dtype=torch.uint8)
    padding = stock._ir.PADDING_OPTION.PAD_NAN
    assert tile(x, (0, 16), (2, 16), tl.uint8, padding=padding).read(np.dtype(np.uint8)).tolist() == [[255] * 16] * 2


@pytest.mark.parametrize(
    ("about", "told"),
    [
        (dict(start=(0, 2)), "copy: the last coordinate, 2, is no multiple of 16 bytes"),
        (dict(start=(-1, 0), stores=True), "copy: the copy engine stores to no negative coordinates"),
        (dict(start=(0,)), "copy: 1 coordinates for 2 axes"),
        (dict(memory=of(np.zeros((8, 2), np.float32))), "copy: shared memory of shape"),
        (dict(memory=of(np.zeros((3, 2, 8), np.float32))), "copy: shared memory of shape"),
        (dict(memory=of(np.zeros((2, 8), np.float32), layout="other")), "copy: shared memory in other"),
        (dict(memory=of(np.zeros((2, 8), np.int32), tl.int32)), "copy: shared memory of int32, a tensor of fp32"),
    ],
)
def test_what_a_copy_cannot_be(about, told):
    with pytest.raises(KernelError, match=f"^{told}"):
        tile(torch.zeros(4, 8), **{"start": (0, 0), "block": (2, 8), **about})


def test_a_box_of_more_axes_in_memory_has_one_element_along_each():
    memory = of(np.zeros((1, 1, 2, 8), np.float32), layout="other")
    assert tile(torch.ones(4, 8), (1, 0), (2, 8), memory=memory).read(np.dtype(np.float32)).tolist() == [[1.0] * 8] * 2


def test_a_box_beyond_its_argument_is_out_of_bounds():
    x = torch.zeros(4, 8)
    made = tile(x, (2, 0), (2, 8), whole=x[:3])
    with pytest.raises(OutOfBounds):
        made.check()
    tile(x, (1, 0), (2, 8), whole=x[:3]).check()
    tile(x, (4, 0), (2, 8), whole=x[:3]).check()  # nothing of it lies in the tensor


@pytest.mark.parametrize(
    ("ty", "kind", "function"),
    [
        (tl.float32, "ADD", np.add),
        (tl.int32, "ADD", np.add),
        (tl.int32, "MIN", np.minimum),
        (tl.int32, "MAX", np.maximum),
        (tl.uint32, "MAX", np.maximum),
        (tl.uint32, "MIN", np.minimum),
        (tl.int32, "AND", np.bitwise_and),
        (tl.int32, "OR", np.bitwise_or),
        (tl.int32, "XOR", np.bitwise_xor),
    ],
)
def test_a_copy_out_updates_what_is_there(ty, kind, function):
    kinds = {tl.float32: np.float32, tl.int32: np.int32, tl.uint32: np.uint32}
    rng = np.random.default_rng(0)
    start = rng.integers(0, 2**32, (3, 4), np.uint32).astype(np.int64)
    values = rng.integers(0, 2**32, (2, 4), np.uint32).astype(np.int64)
    start, values = (each.astype(np.uint32).astype(kinds[ty]) for each in (start, values))
    x = torch.from_numpy(start.copy())
    tile(x, (2, 0), (2, 4), ty).update(kind, values)
    start[2] = function(start[2], values[0])
    assert x.numpy().tolist() == start.tolist()


def test_an_update_that_no_gpu_has_is_not_interpreted():
    with pytest.raises(NotInterpreted, match="^Gluon's async_atomic_nand is not interpreted$"):
        tile(torch.zeros(2, 4), (0, 0), (2, 4)).update("NAND", np.zeros((2, 4), np.float32))


@pytest.mark.parametrize("prompt", [False, True])
def test_when_a_copy_out_leaves(monkeypatch, prompt):
    """As soon as it is begun, or when the program waits for it; a reduction adds once."""
    monkeypatch.setattr(programs, "prompt", prompt)
    x = torch.ones(4, 4)
    descriptor = tile(x, (0, 0), (2, 4)).descriptor
    memory, at = of(np.full((2, 4), 3, np.float32)), [handle([1]), handle([0])]

    def program():
        Engines.create_async_tma_copy_local_to_global(None, descriptor, at, memory)
        Engines.create_async_tma_reduce(None, SimpleNamespace(name="ADD"), descriptor, at, memory)
        seen = [x[:, 0].tolist()]
        Engines.create_async_tma_store_wait(None, 1)
        seen.append(x[:, 0].tolist())
        Engines.create_async_tma_store_wait(None, 0)
        return [*seen, x[:, 0].tolist()]

    begun, copied, added = [1.0, 1.0, 1.0, 1.0], [1.0, 3.0, 3.0, 1.0], [1.0, 6.0, 6.0, 1.0]
    assert in_a_program(program) == ([added] * 3 if prompt else [begun, copied, added])


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_copies_of_a_partition_arrive_at_an_mbarrier(monkeypatch, prompt, counted):
    """Each of its 128 threads arrives, or one more than is waited for, when the copies have."""
    monkeypatch.setattr(programs, "prompt", prompt)
    x = torch.arange(8.0)
    region = arguments._Region("x", x)
    addresses = x.data_ptr() + 4 * np.arange(8, dtype=np.uint64)
    pointers = TensorHandle(addresses.astype(np.uint64), tl.pointer_type(tl.float32), {"region": region})
    memory, place = of(np.zeros(8, np.float32)), of(np.zeros(1, np.int64), tl.int64)

    def program():
        Engines.create_mbarrier_init(None, place, 1 if counted else 128)
        barrier = machine._barrier(place)
        builder = stock.interpreter_builder
        Engines.create_async_copy_global_to_local(builder, memory, pointers, None, None)
        Engines.create_async_copy_mbarrier_arrive(None, place, counted)
        if counted:
            assert barrier.left == (1 if prompt else 2)
            Engines.create_mbarrier_arrive(None, place, 1, handle([1]))
        assert barrier.phases == int(prompt) and memory.data.any() == prompt
        Engines.create_mbarrier_wait(None, place, handle([0]), handle([1]), None)
        clock = machine.strand().clock
        return barrier.phases, memory.data.tolist(), clock[0, "cp.async"], clock[barrier]

    assert in_a_program(program) == (1, x.tolist(), 1, 1)


def test_an_mbarrier_is_waited_for_by_parity():
    def program(phase):
        place = of(np.zeros(1, np.int64), tl.int64)
        Engines.create_mbarrier_init(None, place, 1)
        Engines.create_mbarrier_wait(None, place, handle([phase]), handle([1]), None)
        Engines.create_mbarrier_wait(None, place, handle([0]), handle([0]), None)  # it is told not to
        Engines.create_mbarrier_arrive(None, place, 1, handle([0]))
        Engines.create_mbarrier_expect(None, place, 64, handle([0]))
        return machine._barrier(place).left, machine._barrier(place).bytes

    assert in_a_program(lambda: program(1)) == (1, 0)
    with pytest.raises(
        Deadlock, match="for phase 0 of the mbarrier 0 that here allocates, which lacks 1 of 1 arrivals"
    ):
        in_a_program(lambda: program(0))
    with pytest.raises(KernelError, match="^mbarrier.wait: a phase is 0 or 1, not 2$"):
        in_a_program(lambda: program(2))


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_when_a_product_is_formed(monkeypatch, prompt, keep):
    """Late, when it is waited for, of what is there by then; or at once."""
    monkeypatch.setattr(programs, "prompt", prompt)
    builder = SimpleNamespace(create_dot=lambda a, b, acc, *rest: handle(a.data @ b.data + acc.data, tl.float32))
    acc = handle(np.full((64, 8), 2, np.float32), tl.float32)

    def program():
        a, b = of(np.ones((64, 16), np.float32)), of(np.ones((16, 8), np.float32))
        product = Engines.create_warpgroup_mma(builder, a, b, acc, handle([keep]), None, 0, True)
        a.data[:] = 3
        Engines.create_warpgroup_mma_wait(None, [product], 1)
        assert "data" not in vars(product)
        assert Engines.create_warpgroup_mma_wait(None, [product], 0) == [product]
        return product.data

    assert in_a_program(program).tolist() == [[16.0 * (1 if prompt else 3) + 2 * keep] * 8] * 64


@pytest.mark.parametrize(
    ("rest", "known"), [((), True), ((False,), True), ((True, None), True), ((False, [1]), False), ((False, []), False)]
)
def test_copies_by_offsets_of_an_image_are_not_interpreted(rest, known):
    x = torch.arange(16.0).view(4, 4)
    memory, place = of(np.zeros((2, 4), np.float32)), of(np.zeros(1, np.int64), tl.int64)
    descriptor = tile(x, (0, 0), (2, 4)).descriptor

    def program():
        Engines.create_mbarrier_init(None, place, 1)
        Engines.create_mbarrier_expect(None, place, 32, handle([1]))
        given = descriptor, [handle([1]), handle([0])], place, memory
        Engines.create_async_tma_copy_global_to_local(None, *given, handle([0]), *rest)  # it is told not to
        Engines.create_async_tma_copy_global_to_local(None, *given, handle([1]), *rest)
        Engines.create_mbarrier_wait(None, place, handle([0]), handle([1]), None)
        return memory.data.tolist()

    if known:
        assert in_a_program(program) == x[1:3].tolist()
        return
    with pytest.raises(NotInterpreted, match="im2col copies are not interpreted"):
        in_a_program(program)


def test_stores_and_copies_of_another_form_are_refused():
    memory = of(np.zeros((2, 4), np.float32))
    with pytest.raises(KernelError, match=r"^a tile of shape \(4,\) for shared memory of shape \(2, 4\)$"):
        in_a_program(lambda: Engines.create_local_store(None, memory, handle(np.zeros(4, np.float32), tl.float32)))
    for ty in (tl.float16, tl.int32):
        pointers = TensorHandle(np.zeros((2, 4), np.uint64), tl.pointer_type(ty))
        with pytest.raises(KernelError, match=f"^async_copy: shared memory of fp32, pointers to {ty}$"):
            in_a_program(
                lambda pointers=pointers: Engines.create_async_copy_global_to_local(None, memory, pointers, None, None)
            )


def test_new_memory_holds_the_tile_that_it_is_given():
    ty = SimpleNamespace(element_ty=tl.float32, shape=(2,), layout="plain")
    builder = SimpleNamespace(create_local_store=lambda memory, value: Engines.create_local_store(None, memory, value))
    value = handle(np.array([3.0, 4.0], np.float32), tl.float32)
    assert in_a_program(lambda: Engines.create_local_alloc(builder, ty, value)).data.tolist() == [3.0, 4.0]
    assert np.isnan(in_a_program(lambda: Engines.create_local_alloc(builder, ty)).data).all()


def test_types_without_their_signs():
    assert machine._alike(tl.int32, tl.uint32) and machine._alike(tl.float16, tl.float16)
    assert not machine._alike(tl.int32, tl.int16) and not machine._alike(tl.float16, tl.bfloat16)
    assert not machine._alike(tl.int32, tl.float32)
