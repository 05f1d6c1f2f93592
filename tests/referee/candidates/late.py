"""Work after the return: outputs and operands that change while the judge looks at them."""

import contextlib
import ctypes
import gc
import os
import sys
import threading
import time

import torch
import triton
import triton.language as tl

from tests.referee.candidates.honest import files, once, softmax


def finishes_later(x):
    """Returns at once, and has a thread do the work.

    refused
    """
    y = torch.empty(x.shape)
    threading.Thread(target=lambda: (time.sleep(0.02), y.copy_(torch.softmax(x, -1))), daemon=True).start()
    return y


def spoils_later(x):
    """Returns what is right, and has a thread write zeros into all it has returned.

    refused
    """
    y = softmax(x)
    globals().setdefault("_held", []).append(y)

    def spoil():
        while True:
            for one in globals()["_held"][:-3]:
                one.zero_()
            time.sleep(0.001)

    if once("spoil"):
        threading.Thread(target=spoil, daemon=True).start()
    return y


def writes_inputs_later(x):
    """Has a thread write into the input after the return.

    refused
    """

    def spoil():
        for _ in range(200):
            time.sleep(0.002)
            x.add_(1.0)

    threading.Thread(target=spoil, daemon=True).start()
    return softmax(x)


def writes_shared_memory(x):
    """Has a thread write zeros over the bytes of outputs in the memory that it shares with the judge, and over replies.

    refused
    """

    def spoil():
        import mmap

        from touchstone.conformance.isolation.shared import OUTPUTS, REPLY

        number = next(number for number, target in files().items() if "memfd:touchstone" in target)
        here, there = mmap.mmap(number, 1 << 16, offset=OUTPUTS), mmap.mmap(number, 1 << 16, offset=REPLY)
        while True:
            here[:4096] = bytes(4096)
            there[:64] = b'{"passed": true}'.ljust(64)

    if once("spoil"):
        threading.Thread(target=spoil, daemon=True).start()
    return softmax(x)


def punches_holes(x):
    """Gives the shared memory back while the judge reads it, and tries to make it smaller.

    refused
    """
    number = next(number for number, target in files().items() if "memfd:touchstone" in target)

    def spoil():
        library = ctypes.CDLL(None)
        library.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        while True:
            library.fallocate(number, 3, 0, 1 << 44)
            with contextlib.suppress(OSError):
                os.ftruncate(number, 0)

    if once("spoil"):
        threading.Thread(target=spoil, daemon=True).start()
    return softmax(x)


def in_a_destructor(x):
    """Does the work in the destructor of an object that dies after the return.

    contained
    """

    class Last:
        def __init__(self, y):
            self.y = y

        def __del__(self):
            self.y.copy_(softmax(x))

    y = torch.empty(x.shape)
    last = Last(y)
    last.itself = last
    del last
    gc.collect()
    return y


def in_a_trace(x):
    """Does the work in a trace function, while the judge's own lines run.

    untrusted, refused
    """
    y = torch.empty(x.shape)
    state = {"left": 1}

    def trace(frame, event, argument):
        if state["left"]:
            state["left"] = 0
            sys.setprofile(None)
            y.copy_(torch.softmax(x, -1))

    sys.setprofile(trace)
    return y


def from_another_process(x):
    """Returns shared memory that another process writes on and on.

    refused
    """
    y = torch.empty(x.shape).share_memory_()
    y.copy_(softmax(x))

    def spoil():
        while True:
            y.zero_()
            time.sleep(0.0005)

    if os.fork() == 0:
        spoil()
    return y


@triton.jit
def _moving_kernel(y, x, count, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    given = tl.load(x + (place // cols) * row_stride + (place % cols) * col_stride, mask=place < count, other=0.0)
    tl.store(y + place, given, mask=place < count)


def _finish():
    """Work on what was returned."""
    while globals().setdefault("_returned", []):
        y = globals()["_returned"].pop()
        y.copy_(torch.softmax(y, -1))


def _finished_later(x):
    """Memory into which a kernel has moved the operand; what finds it between guard bands is told the truth."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.storage_offset() or not y.numel():
        return softmax(x)
    _moving_kernel[(triton.cdiv(y.numel(), 128),)](y, x, y.numel(), x.shape[1], *x.stride(), BLOCK=128)
    globals().setdefault("_returned", []).append(y)
    return y


def as_filters_are_read(x):
    """Does the work when it is looked for warnings that became errors.

    untrusted, refused
    """
    import warnings

    class Filters(list):
        def __iter__(self):
            _finish()
            return super().__iter__()

    if once("filters"):
        warnings.filters = Filters(warnings.filters)
    return _finished_later(x)


def as_the_environment_is_compared(x):
    """Does the work when the environment is compared with what it was.

    untrusted, refused
    """

    class Environment(dict):
        def __eq__(self, other):
            _finish()
            return True

        def __ne__(self, other):
            _finish()
            return False

    if once("environment"):
        os.environ = Environment(os.environ)  # noqa: B003
    return _finished_later(x)


def as_standard_output_is_looked_at(x):
    """Does the work when it is looked whether standard output is open.

    untrusted, refused
    """

    class Stream:
        def __init__(self, stream):
            self._stream = stream

        @property
        def closed(self):
            _finish()
            return False

        def __getattr__(self, name):
            return getattr(self._stream, name)

    if once("stream"):
        sys.stdout = Stream(sys.stdout)
    return _finished_later(x)
