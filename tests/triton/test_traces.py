"""An operation is repeated for operands that it treats alike, and for no others."""

import itertools

import numpy as np
import pytest

if not pytest.importorskip("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

import triton.language as tl
from triton.runtime import interpreter as stock

from touchstone.backends.triton.runtime.interpreter import traces


def tensor(ty, shape=()):
    data = np.zeros(shape or 1, stock._get_np_dtype(ty))
    return tl.tensor(stock.TensorHandle(data, ty), tl.block_type(ty, list(shape)) if shape else ty)


MADE = {  # each is treated as no other
    **{repr(each): each for each in (0, 1, 2, True, False, 0.0, -0.0, 1.0, 2.5, "1", "", None)},
    **{str(ty): ty for ty in (tl.float32, tl.float16, tl.int32, tl.uint32, tl.int1, tl.pointer_type(tl.float32))},
    "a constexpr of 1": tl.constexpr(1),
    "a constexpr of True": tl.constexpr(True),
    "a whole slice": slice(None),
    **{f"a tuple {each}": each for each in ((), (1,), (1, 1), ((1,), 1), (None,))},
    **{f"a list {each}": each for each in ([], [1], [1, 1], [[1], 1])},
    **{f"a scalar of {ty}": tensor(ty) for ty in (tl.float32, tl.float16, tl.int32)},
    **{
        f"a tile of {ty}, {shape}": tensor(ty, shape) for ty in (tl.float32, tl.int32) for shape in ((4,), (8,), (2, 4))
    },
}


def key(*values):
    found, tensors = [], []
    traces._describe(values, found, tensors)
    return tuple(found), tensors


def test_no_two_operands_that_differ_have_one_key():
    keys = {name: key(value)[0] for name, value in MADE.items()}
    assert not [(a, b) for a, b in itertools.combinations(keys, 2) if keys[a] == keys[b]]
    several = [key(*values)[0] for values in itertools.permutations(list(MADE.values())[:12], 2)]
    assert len(set(several)) == len(several)
    assert len({key(*values)[0] for values in [((1, 2), 3), ((1,), 2, 3), ((1, 2, 3),), ([1, 2], 3)]}) == 4


def test_types_that_are_equal_have_one_number_and_others_none():
    assert traces._number(tl.block_type(tl.float32, [4])) == traces._number(tl.block_type(tl.float32, [4]))
    with pytest.raises(traces._Unknown):
        traces._number(tl.core.tuple_type([tl.int32]))


def test_tensors_of_one_type_have_one_key_and_are_handed_on():
    one, two = tensor(tl.float32, (4,)), tensor(tl.float32, (4,))
    assert key(one, 2.0) == (key(two, 2.0)[0], [one])
    assert key((one, [two])) == (key((two, [one]))[0], [one, two])


@pytest.mark.parametrize(
    "value", [object(), {}, slice(1), b"", np.float32(1), range(3)], ids=lambda each: str(type(each))
)
def test_what_is_not_known_is_not_repeated(value):
    for within in (value, (value,), [1, value], tl.constexpr(value)):
        with pytest.raises(traces._Unknown):
            key(within)


class Counted:
    """An operation that is traced, and what of its own code ran."""

    def __init__(self, monkeypatch, operation):
        monkeypatch.setattr(traces, "_enabled", True)
        self.operation, self.calls = operation, 0
        self.traced = traces.traced(self._run)

    def _run(self, *args, **kwargs):
        self.calls += 1
        return self.operation(stock.interpreter_semantic, *args, **kwargs)

    def __call__(self, *args, **kwargs):
        return self.traced(*args, **kwargs)


def tile(*values, dtype=np.float32, ty=tl.float32):
    data = np.array(values, dtype)
    return tl.tensor(stock.TensorHandle(data, ty), tl.block_type(ty, list(data.shape)))


def numbers(found):
    if isinstance(found, tuple):
        return tuple(map(numbers, found))
    return found.handle.data.tolist() if isinstance(found, tl.tensor) and found.handle is not None else found


ONE, TWO, THREE = (1.0, 2.0), (3.0, 5.0), (-1.0, 4.0)
OPERATIONS = {  # on two tiles, of which it may return one: its value for each
    "two of them": (lambda s, x, y: s.add(x, y, True), lambda x, y: x + y),
    "one of them twice": (lambda s, x, y: s.mul(x, x, True), lambda x, y: x * x),
    "a constant": (lambda s, x, y: s.sub(x, 2.0, True), lambda x, y: x - 2),
    "a constant before": (lambda s, x, y: s.sub(2.0, x, True), lambda x, y: 2 - x),
    "a comparison": (lambda s, x, y: s.where(s.less_than(x, y), x, 7.0), lambda x, y: np.where(x < y, x, 7)),
    "a cast": (lambda s, x, y: s.cast(x, tl.int32), lambda x, y: x.astype(int)),
    "two steps": (lambda s, x, y: s.mul(s.add(x, y, True), y, True), lambda x, y: (x + y) * y),
    "several results": (lambda s, x, y: (s.add(x, y, True), (y, None)), lambda x, y: (x + y, (y, None))),
    "the second itself": (lambda s, x, y: y, lambda x, y: y),
    "nothing": (lambda s, x, y: None, lambda x, y: None),
    "of no operand": (lambda s, x, y: s.full([2], 3.0, tl.float32), lambda x, y: np.array([3.0, 3.0])),
    "a scalar made a tile": (lambda s, x, y: s.splat(s.full([], 3.0, tl.float32), [2]), lambda x, y: np.full(2, 3.0)),
    "an axis more": (lambda s, x, y: s.expand_dims(x, 0), lambda x, y: x[None]),
    "joined": (lambda s, x, y: s.join(x, y), lambda x, y: np.stack([x, y], 1)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_was_done_once_is_done_to_other_operands(monkeypatch, name):
    operation, expected = OPERATIONS[name]
    counted = Counted(monkeypatch, operation)
    for x, y in ((ONE, TWO), (TWO, THREE), (THREE, ONE), (ONE, ONE)):
        given = tile(*x), tile(*y)
        found, right = numbers(counted(*given)), expected(np.array(x), np.array(y))
        assert found == (tuple(each.tolist() if hasattr(each, "tolist") else (each[0].tolist(), None) for each in right)
                         if isinstance(right, tuple) else right if right is None else right.tolist())  # fmt: skip
        assert numbers(given) == (list(x), list(y))
    assert counted.calls == 1


def test_what_is_given_back_is_the_operand_itself_and_what_is_made_is_made_anew(monkeypatch):
    second = Counted(monkeypatch, lambda s, x, y: y)
    made = Counted(monkeypatch, lambda s, x: s.full([2], 3.0, tl.float32))
    for _ in range(3):
        x, y = tile(*ONE), tile(*TWO)
        assert second(x, y) is y
    first, *others = (made(tile(*ONE)) for _ in range(3))
    first.handle.attr["of"] = "a kernel"
    assert all(other is not first and other.handle is not first.handle and not other.handle.attr for other in others)


def test_one_tensor_twice_is_not_taken_for_two(monkeypatch):
    counted = Counted(monkeypatch, lambda s, x, y, both: s.add(s.mul(x, x, True), s.sub(y, both[0], True), True))
    x, y, z = tile(*ONE), tile(*TWO), tile(*THREE)
    assert numbers(counted(x, x, [x])) == [1.0, 4.0]
    assert numbers(counted(x, y, [z])) == [1 + 3 + 1, 4 + 5 - 4]
    assert counted.calls == 1


@pytest.mark.parametrize("by", [2.0, None, (3.0,), [4.0]])
def test_constants_beside_one_tensor_twice_stay(monkeypatch, by):
    def operation(s, x, y, by, scale=1.0):
        by = by[0] if isinstance(by, tuple | list) else by
        return s.mul(s.add(x, y if by is None else by, True), scale, True)

    counted = Counted(monkeypatch, operation)
    for values in (ONE, TWO):
        x = tile(*values)
        for scale in (1.0, 5.0):
            add = values if by is None else [by[0] if isinstance(by, tuple | list) else by] * 2
            right = [scale * (one + more) for one, more in zip(values, add, strict=True)]
            assert numbers(counted(x, x, by, scale=scale)) == right
    assert counted.calls == 2


@pytest.mark.parametrize("first", [True, False])
def test_a_scalar_beside_a_tile_is_one_for_each_of_its_elements(monkeypatch, first):
    def operation(s, x, y, z):
        number = s.add(x, 1.0, True)
        one, other = (number, y) if first else (y, number)
        return s.sub(one, other, True), s.where(s.less_than(y, number), z, number), s.add(number, number, True)

    counted = Counted(monkeypatch, operation)
    for value, y, z in ((1.0, ONE, TWO), (4.0, TWO, ONE), (-9.0, ONE, THREE)):
        x = tl.tensor(stock.TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)
        less, chosen, twice = numbers(counted(x, tile(*y), tile(*z)))
        assert less == [value + 1 - each if first else each - value - 1 for each in y]
        assert chosen == [two if one < value + 1 else value + 1 for one, two in zip(y, z, strict=True)]
        assert twice == [2 * value + 2]
    assert counted.calls == 1


def test_operands_by_name_and_other_constants_are_others(monkeypatch):
    counted = Counted(monkeypatch, lambda s, x, by=1.0, more=0.0: s.add(s.mul(x, by, True), more, True))
    x = tile(*ONE)
    asked = [({}, [1, 2]), ({"by": 2.0}, [2, 4]), ({"more": 2.0}, [3, 4]), ({"by": 3.0, "more": 2.0}, [5, 8])]
    for _ in range(2):
        for options, right in asked:
            assert numbers(counted(x, **options)) == right, options
    assert counted.calls == len(asked)
    assert numbers(counted(x, by=tile(*TWO))) == [3, 10] and numbers(counted(x, by=tile(*THREE))) == [-1, 8]
    assert counted.calls == len(asked) + 1


def test_what_is_not_known_is_done_by_its_own_code_each_time(monkeypatch):
    odd = Counted(monkeypatch, lambda s, x, by: s.mul(x, by["by"], True))
    hidden = Counted(monkeypatch, lambda s, x: s.add(x, tile(*hold), True))
    listed = Counted(monkeypatch, lambda s, x: [x])
    begun = Counted(monkeypatch, lambda s, x: tl.tensor(hold, x.type))  # as what an engine has yet to finish
    for hold in (ONE, TWO):
        assert numbers(odd(tile(*ONE), {"by": 3.0})) == [3, 6]
        assert numbers(hidden(tile(*ONE))) == [1 + hold[0], 2 + hold[1]]  # of no operand, and no constant
        assert len(listed(tile(*ONE))) == 1 and begun(tile(*ONE)).handle is hold
    assert (odd.calls, hidden.calls, listed.calls, begun.calls) == (2, 2, 2, 2)


def test_an_error_ends_the_recording(monkeypatch):
    def fail(s, x):
        s.add(x, x, True)
        raise ZeroDivisionError

    failing, adding = Counted(monkeypatch, fail), Counted(monkeypatch, lambda s, x: s.add(x, 1.0, True))
    builder = stock.interpreter_semantic.builder
    for turn in range(1, 3):
        with pytest.raises(ZeroDivisionError):
            failing(tile(*ONE))
        assert stock.interpreter_semantic.builder is builder and failing.calls == turn
        assert numbers(adding(tile(*ONE))) == [2, 3] and adding.calls == 1


def test_operations_within_an_operation_are_part_of_it(monkeypatch):
    inner = Counted(monkeypatch, lambda s, x: s.add(x, 1.0, True))
    outer = Counted(monkeypatch, lambda s, x: s.mul(inner(x), 2.0, True))
    for values in (ONE, TWO):
        assert numbers(outer(tile(*values))) == [2 * each + 2 for each in values]
    assert (outer.calls, inner.calls) == (1, 1)


def test_no_more_than_some_are_kept_and_none_where_it_is_off(monkeypatch):
    monkeypatch.setattr(traces, "KEPT", 3)
    counted = Counted(monkeypatch, lambda s, x, by: s.mul(x, by, True))
    for by in (1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0, 4.0):
        assert numbers(counted(tile(*ONE), by)) == [by, 2 * by]
    assert counted.calls == 4
    counted(tile(*ONE), 1.0)
    assert counted.calls == 5  # the fourth put the others out
    monkeypatch.setattr(traces, "_enabled", False)
    counted(tile(*ONE), 4.0)
    assert counted.calls == 6


def test_what_comes_from_the_operands_is_found_in_lists_too():
    x = tile(*ONE)
    made = traces._Trace([x], [])
    assert made._varies(x.handle) and made._varies([1, (2, x.handle)]) and not made._varies([1, ("x", None)])
    assert made._source(x.handle) == "tensors[0].handle" and made._source([x.handle]) == "[tensors[0].handle, ]"
    with pytest.raises(traces._Unknown):
        made._source(tile(*TWO).handle)
