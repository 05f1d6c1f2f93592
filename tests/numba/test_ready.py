"""Launches that are made ready: as numba-cuda's own, and only where they are like an earlier one."""

import ctypes

import numpy as np
import pytest
import torch

from touchstone.backends import numba
from touchstone.backends.devices import cuda_unavailable

if numba.why_not("cpu"):
    pytest.skip(numba.why_not("cpu"), allow_module_level=True)
numba.restore_row_stack()
cuda = pytest.importorskip("numba.cuda")

from touchstone.backends.numba.runtime import ready  # noqa: E402
from touchstone.backends.numba.runtime.launching import launch  # noqa: E402

needs_gpu = pytest.mark.skipif(bool(cuda_unavailable()), reason=f"needs a GPU: {cuda_unavailable()}")


@cuda.jit
def _scale(x, y, factor, n, strides, doubled):
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i * strides[0] // strides[1]] * factor
        if doubled:
            y[i] *= 2


@needs_gpu
def test_later_launches_are_as_the_first():
    x = torch.arange(6.0, device="cuda")

    half = np.float32(0.5)

    def launched(x=x, factor=half, n=3, strides=(2, 1), doubled=False):
        y = torch.full((4,), -1.0, device="cuda")
        launch(_scale, 1, 32, x, y, factor, n, strides, doubled)
        return y.tolist()

    for _ in range(3):
        assert launched() == [0.0, 1.0, 2.0, -1.0]
        assert launched(x=x + 1) == [0.5, 1.5, 2.5, -1.0]
        assert launched(doubled=True) == [0.0, 2.0, 4.0, -1.0]
        assert launched(n=2) == [0.0, 1.0, -1.0, -1.0]
        assert launched(strides=(2, 2)) == [0.0, 0.5, 1.0, -1.0]
        assert launched(factor=2.0, n=np.int32(1)) == [0.0, -1.0, -1.0, -1.0]
        assert launched(x=torch.arange(12.0, device="cuda")[::2]) == [0.0, 2.0, 4.0, -1.0]
        with torch.cuda.stream(torch.cuda.Stream()):
            assert launched() == [0.0, 1.0, 2.0, -1.0]
    of_this = [made for key, made in ready.made().items() if key[0] is _scale]
    assert len(of_this) == 4 and None not in of_this


@needs_gpu
def test_who_asks_what_is_launched_is_told():
    x, y = torch.arange(6.0, device="cuda"), torch.zeros(4, device="cuda")

    def call():
        launch(_scale, 1, 32, x, y, np.float32(1), 3, (1, 1), False)

    call()
    assert len(numba.launched(call)) == 1


def test_the_letters_of_numbers_as_numba_cuda_gives_them():
    for given, letter in [
        (ctypes.c_int32(1), "i"),
        (ctypes.c_uint64(1), "Q"),
        (ctypes.c_int8(1), "b"),
        (ctypes.c_float(1), "f"),
        (ctypes.c_double(1), "d"),
        (True, "?"),
    ]:
        assert ready._letter(given) == letter
    for given in (ctypes.c_bool(True), "1", None):
        with pytest.raises(ready.NotReady):
            ready._letter(given)


def test_strides_are_fixed_and_other_tuples_are_not():
    assert ready._is_fixed((1, 2)) and ready._is_fixed(())
    assert not any(map(ready._is_fixed, ((1.0,), (True,), [1], torch.Size, 3)))
