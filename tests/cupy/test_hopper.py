"""What Hopper's copy engine is told about a matrix, which it takes, and what is said where it cannot."""

import ctypes

import pytest
import torch

from touchstone.backends import Unsupported, emulator, tensormaps
from touchstone.backends.cupy.runtime import hopper
from touchstone.backends.cupy.runtime.hopper import TensorMap, aligned, along_last, taken
from touchstone.backends.cupy.runtime.module import Module


class Driver:
    """In place of cuTensorMapEncodeTiled: keeps what it is told as numbers, and writes a pattern where it shall
    write."""

    def __init__(self, status=0):
        self.told, self.status = [], status

    def __call__(self, space, dtype, rank, address, sizes, pitches, box, steps, interleave, swizzle, promotion, fill):
        assert space % 64 == 0  # the driver's demand
        assert list(steps) == [1] * rank
        assert (interleave, swizzle, promotion, fill) == (0, 3, 3, 0)
        self.told.append((dtype, address, list(sizes), list(pitches), list(box)))
        ctypes.memmove(space, bytes(range(128)), 128)
        return self.status


@pytest.fixture
def driver(monkeypatch):
    one = Driver()
    monkeypatch.setattr(tensormaps, "_encoder", lambda: one)
    hopper._encoded.cache_clear()
    yield one
    hopper._encoded.cache_clear()


@pytest.mark.parametrize(("dtype", "number"), [(torch.float16, 6), (torch.float32, 7), (torch.bfloat16, 9)])
def test_sizes_and_boxes_go_from_the_contiguous_axis_outwards_and_pitches_in_bytes(driver, dtype, number):
    x = torch.empty(5, 3, 96, dtype=dtype)[:, :, :64]
    bytes_ = TensorMap(x, (2, 1, 32)).encoded()
    width = x.element_size()
    assert driver.told == [(number, x.data_ptr(), [64, 3, 5], [96 * width, 3 * 96 * width], [32, 1, 2])]
    assert bytes_ == bytes(range(128))


def test_the_stride_of_an_axis_of_one_element_is_replaced_by_one_that_the_driver_takes(driver):
    x = torch.empty(4096, dtype=torch.bfloat16).as_strided((1, 7, 20), (3, 24, 1))
    TensorMap(x, (1, 7, 64)).encoded()
    TensorMap(torch.empty(4096, dtype=torch.bfloat16).as_strided((7, 1, 20), (24, 3, 1)), (7, 1, 64)).encoded()
    (*_, first, _), (*_, second, _) = driver.told
    assert first == [48, 7 * 48]
    assert second == [48, 48]  # 20 elements, rounded up to whole 16 bytes


def test_the_same_matrix_is_encoded_once(driver):
    x = torch.empty(8, 64, dtype=torch.float16)
    first, again = TensorMap(x, (8, 64)).encoded(), TensorMap(x, (8, 64)).encoded()
    assert first is again and len(driver.told) == 1
    TensorMap(x, (4, 64)).encoded()
    TensorMap(x[4:], (4, 64)).encoded()
    assert len(driver.told) == 3


def test_a_refusal_of_the_driver_is_raised_with_what_it_was_told(driver):
    driver.status = 1
    x = torch.empty(8, 64, dtype=torch.float16)
    with pytest.raises(RuntimeError, match=r"cuTensorMapEncodeTiled: error 1 for \(64, 8\) elements of type 6 at 0x"):
        TensorMap(x, (8, 64)).encoded()


@pytest.mark.parametrize(
    ("shape", "strides", "right"),
    [
        ((8, 64), (64, 1), True),
        ((8, 20), (24, 1), True),
        ((8, 20), (20, 1), False),  # rows of 40 bytes
        ((8, 20), (0, 1), False),
        ((1, 20), (20, 1), True),
        ((8, 1), (24, 5), True),
        ((8, 20), (24, 2), False),
    ],
)
def test_what_the_copy_engine_takes(shape, strides, right):
    assert taken(torch.empty(4096, dtype=torch.bfloat16).as_strided(shape, strides)) == right


def test_a_matrix_is_taken_along_the_axis_that_is_contiguous():
    x = torch.empty(16, 64, dtype=torch.bfloat16)
    view, last = along_last("a", x)
    assert last and view is x
    view, last = along_last("a", x.t())
    assert not last and view.stride() == (64, 1)


def test_what_it_does_not_take_is_unsupported_with_the_reason():
    x = torch.empty(16, 64, dtype=torch.bfloat16)
    with pytest.raises(
        Unsupported, match="^b: strides \\(64, 2\\) of 2 bytes; the copy engine needs an axis of stride 1"
    ):
        along_last("b", x[:, ::2])
    for look in (along_last, aligned):
        with pytest.raises(Unsupported, match="^b: starts 2 bytes off; the copy engine needs 16-byte alignment"):
            look("b", x.flatten()[1:129].view(2, 64))


@pytest.mark.skipif(bool(emulator.why_not()), reason=emulator.why_not() or "")
def test_instructions_of_a_generation_that_the_emulator_lacks(tmp_path):
    (tmp_path / "none.cu").write_text('extern "C" __global__ void none(float* x) {}\n')
    with pytest.raises(Unsupported, match="none needs sm_100a; this is the emulator"):
        Module(str(tmp_path / "none.py"), "none.cu").launch(
            "none", 1, 1, torch.empty(1), dtype=torch.float32, arch="sm_100a"
        )
