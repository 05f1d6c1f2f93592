"""Memory layouts: equal values, the strides and offset a layout is named for, and poison everywhere else."""

import itertools

import pytest
import torch

from tests.fixed import changeable
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.layouts import BROADCASTS, GAP_BYTE, GUARD_BYTES, PLANS, place, values_of

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FAR = layouts.FAR_LAYOUTS  # tests/judging/test_instruments.py
SHAPES = {
    "contiguous": [(5,), (3, 7), (2, 3, 4, 5)],
    "transposed": [(3, 7), (2, 3, 4, 5)],
    "heads_inside": [(2, 3, 4, 5)],
    "second_outside": [(3, 7), (2, 3, 5)],
    "channels_last": [(2, 3, 5), (2, 3, 4, 5)],
    "sliced": [(3, 7), (2, 3, 4, 5)],
    "transposed_sliced": [(3, 7), (2, 3, 4, 5)],
    "step": [(5,), (3, 7), (2, 3, 4, 5)],
    "interleaved": [(3, 7), (2, 3, 4, 5)],
    "offset": [(5,), (3, 7), (2, 3, 4, 5)],
    "broadcast": [(5,), (3, 7), (2, 3, 4, 5)],
    "broadcast_second": [(2, 3, 4, 5)],
    "broadcast_last": [(5,), (3, 7)],
}
ALL = [
    pytest.param(name, shape, id=f"{name}-{'x'.join(map(str, shape))}")
    for name, shapes in SHAPES.items()
    for shape in shapes
]


def sample(shape, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def start(placed) -> int:
    """Offset of the view's first element in the buffer, in bytes."""
    return placed.view.data_ptr() - placed.buffer.data_ptr()


def covered(placed) -> set[int]:
    """The elements of the buffer that the view reaches."""
    item = placed.view.element_size()
    indices = itertools.product(*map(range, placed.view.shape))
    return {start(placed) // item + sum(i * s for i, s in zip(at, placed.view.stride(), strict=True)) for at in indices}


def test_every_layout_is_tested_here():
    assert {*SHAPES, *FAR, *layouts.NEAR_LAYOUTS} == set(PLANS)
    assert {*layouts.MATRIX, *layouts.VECTOR, *layouts.HEADS, *layouts.PAGES, *BROADCASTS} <= set(PLANS)


def test_in_which_layouts_operands_are_tried():
    """The plainest first, which the plain cases have."""
    kinds = {
        layouts.MATRIX: {"transposed", "transposed_sliced", "sliced", "step", "offset", "broadcast", "broadcast_last"},
        layouts.VECTOR: {"step", "offset", "broadcast_last"},
        layouts.PAGES: {"interleaved", "heads_inside", "offset", "step"},
        layouts.HEADS: {"heads_inside", "transposed", "sliced", "step", "offset", "broadcast", "broadcast_second"},
        layouts.TABLE: {"transposed", "step", "sliced"},
    }
    for (first, *others), expected in kinds.items():
        assert first == "contiguous" and set(others) == expected and len(others) == len(expected)
    assert set(BROADCASTS) == {name for name in PLANS if name.startswith("broadcast")}
    assert [layouts.far_axis(name) for name in FAR] == [0, 1, 2, 3, 4] and layouts.far_axis("step") is None


@pytest.mark.parametrize(("name", "shape"), ALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_view_has_the_values(name, shape, dtype):
    values = sample(shape, dtype)
    view = place(values, name, "cpu").view
    assert view.dtype == dtype
    assert view.shape == values.shape
    assert torch.equal(view, values_of(values, name))
    if name not in BROADCASTS:
        assert torch.equal(view, values)


@pytest.mark.parametrize("name", PLANS)
def test_a_layout_is_writable_where_each_element_has_a_place_of_its_own(name):
    if name in FAR:
        assert name not in layouts.WRITABLE  # of each only a part is mapped
        return
    values = sample((2, 3, 4, 5, 2) if name == layouts.NEAR_LAYOUTS[4] else (2, 3, 4, 5))
    assert (len(covered(place(values, name, "cpu"))) == values.numel()) == (name in layouts.WRITABLE)


def test_a_broadcast_repeats_its_first_slice():
    values = sample((3, 7))
    assert torch.equal(values_of(values, "broadcast"), values[:1].expand(3, 7))
    assert torch.equal(values_of(values, "broadcast_last"), values[:, :1].expand(3, 7))


STRIDES = {
    ("contiguous", (3, 7)): ((7, 1), 0),
    ("transposed", (3, 7)): ((1, 3), 0),
    ("transposed", (2, 3, 4, 5)): ((60, 20, 1, 4), 0),
    ("heads_inside", (2, 3, 4, 5)): ((60, 5, 15, 1), 0),
    ("second_outside", (2, 3, 5)): ((5, 10, 1), 0),
    ("channels_last", (2, 3, 5)): ((15, 1, 3), 0),
    ("channels_last", (2, 3, 4, 5)): ((60, 1, 15, 3), 0),
    ("sliced", (3, 7)): ((23, 1), 0),
    ("sliced", (2, 3, 4, 5)): ((252, 84, 21, 1), 0),
    ("transposed_sliced", (3, 7)): ((1, 19), 0),
    ("transposed_sliced", (2, 3, 4, 5)): ((300, 100, 1, 20), 0),
    ("step", (5,)): ((2,), 0),
    ("step", (3, 7)): ((14, 2), 0),
    ("step", (3, 1)): ((2, 1), 0),
    ("step", (1, 1)): ((1, 1), 0),
    ("transposed", (1, 7)): ((7, 1), 0),
    ("offset", (3, 7)): ((7, 1), 1),
    ("broadcast", (3, 7)): ((0, 1), 0),
    ("broadcast", (2, 3, 4, 5)): ((0, 20, 5, 1), 0),
    ("broadcast_second", (2, 3, 4, 5)): ((20, 0, 5, 1), 0),
    ("broadcast_last", (3, 7)): ((1, 0), 0),
    ("broadcast_last", (5,)): ((0,), 0),
}


@pytest.mark.parametrize(("name", "shape"), STRIDES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_view_has_its_strides_and_offset(name, shape, dtype):
    strides, offset = STRIDES[name, shape]
    placed = place(sample(shape, dtype), name, "cpu")
    assert placed.view.stride() == strides
    assert start(placed) == GUARD_BYTES + offset * placed.view.element_size()


@pytest.mark.parametrize("dtype", DTYPES)
def test_alignment(dtype):
    """A view starts as aligned as an allocation does, so that vectorised loads are tried; `offset` is aligned to one
    element."""
    item = sample((1,), dtype).element_size()
    for name in set(SHAPES) - {"heads_inside", "channels_last", "offset"}:
        assert start(place(sample((3, 7), dtype), name, "cpu")) % 256 == 0
    assert start(place(sample((3, 7), dtype), "offset", "cpu")) % 16 == item
    assert place(sample((3, 7), dtype), "contiguous", "cpu").buffer.data_ptr() % 16 == 0


@pytest.mark.parametrize(("name", "shape"), ALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_everything_around_the_view_is_poison(name, shape, dtype):
    placed = place(sample(shape, dtype), name, "cpu")
    typed = placed.buffer.view(dtype)
    reached = covered(placed)
    gaps = [i for i in range(min(reached), max(reached)) if i not in reached]
    outside = [i for i in range(typed.numel()) if not min(reached) <= i <= max(reached)]
    assert typed[outside].isnan().all()
    assert (
        (typed[gaps].view(torch.uint8) == GAP_BYTE).all() and (typed[gaps] > 6e4).all() and typed[gaps].isfinite().all()
    )
    assert not typed[sorted(reached)].isnan().any()
    item = placed.view.element_size()
    assert min(reached) * item >= GUARD_BYTES
    assert len(placed.buffer) - (max(reached) + 1) * item >= GUARD_BYTES


def unchanged(placed, before):
    return layouts.changed({"x": placed}, {"x": before}) == []


@pytest.mark.parametrize(("name", "shape"), ALL)
def test_a_write_anywhere_is_seen(name, shape):
    """In the operand, one element before and after it, in its gaps and at the ends of the buffer."""
    placed = place(sample(shape), name, "cpu")
    before = placed.snapshot()
    assert unchanged(placed, before)
    reached = covered(placed)
    gaps = set(range(min(reached), max(reached))) - reached
    spots = {
        min(reached) - 1,
        min(reached),
        max(reached),
        max(reached) + 1,
        0,
        placed.buffer.numel() // 4 - 1,
        *list(gaps)[:3],
    }
    if name in ("sliced", "step"):
        assert gaps
    typed = placed.buffer.view(torch.float32)
    for spot in spots:
        kept = typed[spot].clone()
        typed[spot] = 7.0
        assert not unchanged(placed, before), spot
        typed[spot] = kept
        assert unchanged(placed, before)


@pytest.mark.parametrize(("axis", "others"), [(0, (5, 1)), (1, (5, 1)), (2, (4, 1))])
def test_the_other_axes_of_a_far_layout_lie_as_if_it_had_one_element(axis, others):
    shape, strides, offset = PLANS[FAR[axis]]((3, 4, 5))
    far = strides.pop(axis)
    assert (shape, tuple(strides), offset) == ((3, 4, 5), others, 0)
    assert far < 2**31 <= far * (shape[axis] - 1) and far % 64 == 0


@pytest.mark.parametrize("axis", range(3))
def test_a_near_layout_has_the_neighbours_of_the_far_one(axis):
    shape, strides, offset = PLANS[layouts.NEAR_LAYOUTS[axis]]((3, 4, 5))
    _, far, _ = PLANS[FAR[axis]]((3, 4, 5))
    others = [i for i in range(3) if i != axis]
    assert (shape, offset) == ((3, 4, 5), 0) and [strides[i] for i in others] == [far[i] for i in others]
    slices = [range(at * strides[axis], at * strides[axis] + 60 // shape[axis]) for at in range(shape[axis])]
    assert all(one.stop < other.start for one, other in itertools.pairwise(slices))


@pytest.mark.parametrize("at", [-512, -65, 84, 84 + 511])
def test_512_bytes_on_either_side_of_an_operand_are_looked_at(at):
    placed = place(sample((3, 7)), "contiguous", "cpu")
    before = placed.snapshot()
    placed.buffer[start(placed) + at] ^= 1
    assert not unchanged(placed, before)


def test_a_nan_for_a_nan_is_seen():
    placed = place(sample((3, 7)), "sliced", "cpu")
    before = placed.snapshot()
    placed.buffer.view(torch.int32)[GUARD_BYTES // 4 + 8] = 0x7FC00001  # another NaN
    assert not unchanged(placed, before)


def test_several_operands_are_compared_at_once():
    placed = {name: place(sample((3, 7)), "sliced", "cpu") for name in "abc"} | {"d": None}
    before = {name: one.snapshot() for name, one in placed.items() if one is not None}
    assert layouts.changed(placed, before) == []
    placed["b"].buffer[-1] ^= 1
    placed["c"].view[0, 0] = 5.0
    assert layouts.changed(placed, before) == ["b", "c"]
    pairs = [(one.buffer, before[name]) for name, one in placed.items() if one is not None]
    empty = (torch.zeros(0, dtype=torch.uint8), torch.zeros(0, dtype=torch.uint8))
    assert layouts.equal_each([*pairs, empty]) == [True, False, False, True]
    written, copies = layouts.changed_beside(placed, before, [placed["a"].view, torch.tensor(3)])
    assert written == ["b", "c"] and torch.equal(copies[0], sample((3, 7))) and int(copies[1]) == 3
    assert [int(x) for x in layouts.fetched([torch.tensor(3), torch.tensor(0)])] == [3, 0]


@pytest.mark.parametrize("limit", [0, 2**40])
def test_a_buffer_lies_where_it_is_to_lie_wherever_it_is_filled(monkeypatch, limit):
    plain = place(sample((3, 7)), "step", "cpu")
    monkeypatch.setattr(layouts, "SMALL", limit)
    placed = place(sample((3, 7)), "step", "meta")
    assert placed.view.device.type == placed.buffer.device.type == "meta"
    for name in ("shape", "dtype"):
        assert getattr(placed.view, name) == getattr(plain.view, name), name
    assert (placed.view.stride(), placed.view.storage_offset()) == (plain.view.stride(), plain.view.storage_offset())
    assert placed.buffer.shape == plain.buffer.shape
    assert placed.view.untyped_storage()._cdata == placed.buffer.untyped_storage()._cdata


def test_a_snapshot_is_a_copy():
    placed = place(sample((3, 7)), "contiguous", "cpu")
    before = placed.snapshot()
    placed.view.zero_()
    assert not unchanged(placed, before)
    assert before.data_ptr() != placed.buffer.data_ptr()


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
@pytest.mark.parametrize("name", layouts.MATRIX)
def test_empty_operands(name, shape):
    placed = place(torch.empty(shape), name, "cpu")
    assert placed.view.shape == shape
    assert len(placed.buffer) >= 2 * GUARD_BYTES


@pytest.mark.parametrize(("integer", "there"), [(None, 0x7B7B7B7B7B7B7B7B), (6, 6)])
def test_integers_lie_in_an_integer(integer, there):
    placed = place(torch.arange(6, dtype=torch.int64).reshape(2, 3), "sliced", "cpu", integer)
    assert placed.view.tolist() == [[0, 1, 2], [3, 4, 5]]
    held, seen = placed.buffer.view(torch.int64), covered(placed)
    assert all(int(value) == there for at, value in enumerate(held) if at not in seen)


def test_what_is_passed_on_cannot_be_changed():
    assert changeable(layouts.BufferView) == []
