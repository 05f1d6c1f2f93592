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
