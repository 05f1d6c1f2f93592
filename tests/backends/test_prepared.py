"""Arguments of a launch that was made ready: each in its own place, as its type, or an error."""

import ctypes
import struct

import pytest

from touchstone.backends.prepared import Prepared


def test_arguments_lie_where_the_driver_is_told_to_read_them():
    prepared = Prepared(0, ["Q", "b", "i", "128s", "f", "H", "q"])
    for values in (
        (2**63 + 5, -7, -(2**31), bytes(range(128)), 0.5, 65535, -(2**63)),
        (0, 1, 2, b"x" * 128, -2.0, 3, 4),
    ):
        prepared.fill(values)
        assert prepared.filled() == values
        starts = prepared._addresses
        read = [ctypes.c_uint64, ctypes.c_int8, ctypes.c_int32, ctypes.c_char * 128, ctypes.c_float, ctypes.c_uint16]
        for start, kind, value in zip(starts, [*read, ctypes.c_int64], values, strict=True):
            found = kind.from_address(start)
            assert (found.raw if isinstance(value, bytes) else found.value) == value
    assert all(start % 8 == 0 for start in starts)


@pytest.mark.parametrize("values", [(1, 2**31), (1, 2.0), (1,), (1, 2, 3), (-1, 2), ("1", 2)])
def test_what_does_not_fit_is_an_error(values):
    with pytest.raises(struct.error):
        Prepared(0, ["Q", "i"]).fill(values)


def test_a_kernel_without_arguments():
    prepared = Prepared(0, [])
    prepared.fill(())
    assert prepared.filled() == ()
