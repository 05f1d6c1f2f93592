"""Calls that are replayed: as the launcher's own, with other operands, and only where nothing else can come of them."""

import ctypes
import struct
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from touchstone.backends import prepared, replay, tensormaps
from touchstone.backends.replay import ALIGNMENT, TRIES, replayed


class OnGpu(torch.Tensor):
    """Says that it lies on a GPU, as what is allocated for it does."""

    is_cuda = property(lambda self: True)

    def get_device(self):
        return 0


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Driver:
    """Writes down what it is asked to launch."""

    def __init__(self, formats):
        self.launches, self.formats = [], formats

    def launch(self, function, *sizes_and_stream):
        *sizes, addresses, _ = sizes_and_stream
        kinds = {"P": ctypes.c_uint64, "i": ctypes.c_int32, "q": ctypes.c_int64, "f": ctypes.c_float}
        values = [
            ctypes.string_at(address, 128) if each == "128s" else kinds[each].from_address(address).value
            for address, each in zip(addresses, self.formats[function], strict=False)
        ]
        self.launches.append([function, *sizes, *values])
        return 0


@pytest.fixture
def driver(monkeypatch):
    driver = Driver({1: ["P", "P", "q", "i", "f"], 2: ["P", "128s"], 3: ["P"]})
    monkeypatch.setattr(prepared, "_driver", lambda: driver)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(torch._C, "_len_torch_function_stack", lambda: 0)
    monkeypatch.setattr(replay, "around_recording", [])
    monkeypatch.setattr(replay, "_on_gpu", lambda tensor: True)
    monkeypatch.setattr(tensormaps, "_encoder", lambda: encoder)
    return driver


def encoder(place, dtype, rank, address, *rest):
    ctypes.memmove(place, address.to_bytes(8, "little") * 16, 128)
    return 0


def on_gpu(*shape, dtype=torch.float32, offset=0, lead=0):
    """A tensor `offset` bytes behind a multiple of ALIGNMENT; `lead` multiples behind the first."""
    room = torch.empty(1 << 14, dtype=torch.uint8)
    begin = -room.data_ptr() % ALIGNMENT + lead * ALIGNMENT + offset
    size = torch.Size(shape).numel() * dtype.itemsize
    return room[begin : begin + size].view(dtype).view(shape).as_subclass(OnGpu)


def launch(function, formats, *values, watched=lambda: False, grid=(4, 1, 1), **how):
    one = prepared.Prepared(function, formats, None, watched)
    one.fill(values)
    one.launch(grid, (32, 1, 1), how.pop("shared", 0), 7, **how)


def scale(calls, watched=lambda: False):
    """A launcher that notes its calls: y = scale·x by two launches, with memory of its own between them."""

    def launcher(x, factor=1.0, flag=None):
        calls.append(x)
        between, y = x.new_empty(x.shape[0]), torch.empty_like(x)
        between.zero_()
        about = x.shape[0], int(x.stride(0)), float(factor)
        launch(1, ["P", "P", "q", "i", "f"], x.data_ptr(), between.data_ptr(), *about, watched=watched)
        launch(3, ["P"], y.data_ptr() + 8, watched=watched)
        return y, None, between[1:3]

    return replayed(launcher)


def test_a_call_is_the_launchers_until_it_was_recorded_and_then_one_with_other_addresses(driver):
    calls = []
    call = scale(calls)
    for number in range(5):
        x = on_gpu(6, 4, lead=number)
        driver.launches.clear()
        y, none, part = call(x, factor=2.5)
        assert len(calls) == min(number + 1, 2)
        assert none is None and y.shape == (6, 4) and part.shape == (2,) and part.tolist() == [0, 0]
        between = part.data_ptr() - 4
        assert driver.launches == [
            [1, 4, 1, 1, 32, 1, 1, 0, 7, x.data_ptr(), between, 6, 4, 2.5],
            [3, 4, 1, 1, 32, 1, 1, 0, 7, y.data_ptr() + 8],
        ]
        assert y.data_ptr() not in (x.data_ptr(), between)


@pytest.mark.parametrize(
    "change",
    [
        lambda: (dict(x=on_gpu(6, 4, dtype=torch.float16)), {}),
        lambda: (dict(x=on_gpu(6, 5)), {}),
        lambda: (dict(x=on_gpu(6, 8)[:, ::2]), {}),
        lambda: (dict(x=on_gpu(6, 4, offset=16)), {}),
        lambda: (dict(factor=3.5), {}),
        lambda: (dict(factor=2), {}),
        lambda: (dict(flag=False), {}),
    ],
    ids=["dtype", "shape", "strides", "alignment", "value", "type", "a parameter more"],
)
def test_what_differs_is_another_call(driver, change):
    calls = []
    call = scale(calls)
    usual = dict(x=on_gpu(6, 4), factor=2.0)
    for _ in range(3):
        call(**usual)
    assert len(calls) == 2
    for _ in range(3):
        call(**usual | change()[0])
    assert len(calls) == 4
    call(**usual)
    assert len(calls) == 4


def test_zero_and_minus_zero_are_two_parameters(driver):
    calls = []
    call = scale(calls)
    for _ in range(3):
        call(on_gpu(6, 4), factor=0.0)
    call(on_gpu(6, 4), factor=-0.0)
    assert len(calls) == 3 and str(driver.launches[-2][-1]) == "-0.0"


def test_descriptors_are_encoded_for_the_operands_that_are_given(driver):
    @replayed
    def call(x):
        made = tensormaps.encoded(7, x.data_ptr() + 32, [4], [], [4], 0, 2)
        launch(2, ["P", "128s"], x.data_ptr(), made)
        return x

    for number in range(4):
        x = on_gpu(64, lead=number)
        assert call(x) is x
        assert driver.launches[-1][9:] == [x.data_ptr(), (x.data_ptr() + 32).to_bytes(8, "little") * 16]


@pytest.mark.parametrize(
    "what",
    ["a read", "a library call", "other memory", "a first launch", "no launch", "a result", "an address in a struct"],
)
def test_a_call_of_which_more_can_come_stays_the_launchers(driver, what):
    kept, calls = on_gpu(4), []

    @replayed
    def call(x):
        calls.append(x)
        if what == "a read":
            float(x[0, 0])
        elif what == "a library call":
            x = x * 2
        elif what == "a first launch":
            replay.spoil(what)
        if what != "no launch":
            launch(3, ["P"], x.data_ptr())
        if what == "an address in a struct":
            launch(2, ["P", "128s"], x.data_ptr(), struct.pack("<qQ", 5, x.data_ptr() + 4).ljust(128, b"#"))
        if what == "other memory":
            launch(3, ["P"], kept.data_ptr())
        return {"y": x} if what == "a result" else None

    for _ in range(TRIES + 3):
        call(on_gpu(6, 4).zero_())
    assert len(calls) == TRIES + 3


def test_operands_that_share_memory_are_not_recorded(driver):
    calls = []

    @replayed
    def call(x, y):
        calls.append(x)
        launch(1, ["P", "P", "q", "i", "f"], x.data_ptr(), y.data_ptr(), 1, 1, 1.0)

    x = on_gpu(6, 4)
    for _ in range(4):
        call(x, x)
    assert len(calls) == 4
    for _ in range(3):
        one, other = on_gpu(6, 4), on_gpu(6, 4)
        call(one, other)
        assert driver.launches[-1][9:11] == [one.data_ptr(), other.data_ptr()] and len(calls) == 5
    call(x, x)
    assert driver.launches[-1][9:11] == [x.data_ptr()] * 2 and len(calls) == 5


def test_who_watches_gets_the_launchers_own_call(driver):
    calls, watching = [], []
    call = scale(calls, watched=lambda: bool(watching))
    for _ in range(3):
        call(on_gpu(6, 4))
    watching.append(True)
    call(on_gpu(6, 4))
    assert len(calls) == 3
    watching.clear()
    call(on_gpu(6, 4))
    with Watching():
        call(on_gpu(6, 4))
    assert len(calls) == 4
    replay.forget()
    call(on_gpu(6, 4))
    assert len(calls) == 5


def test_a_thread_has_calls_of_its_own(driver):
    calls = []
    call = scale(calls)
    for _ in range(3):
        call(on_gpu(6, 4))
    thread = threading.Thread(target=call, args=(on_gpu(6, 4),))
    thread.start()
    thread.join()
    assert len(calls) == 3


def test_on_the_cpu_each_call_is_the_launchers(driver):
    calls = []
    call = scale(calls)
    for _ in range(TRIES + 1):
        call(torch.empty(6, 4))
    assert len(calls) == TRIES + 1
