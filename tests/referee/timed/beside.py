"""Work by what is not stopped, or not counted, with the process that is timed."""

import ctypes
import os
import pathlib
import queue
import signal
import subprocess
import threading
import time

import torch

from tests.referee.timed.honest import OWED, TAG, _thread_time, softmax

SIBLING = r"""
#include <cmath>
#include <sched.h>
#include <signal.h>
#include <unistd.h>
static volatile long count, done;
static volatile const float* from;
static volatile float* to;
static volatile long rows, cols;
static char stack[1 << 20];
static int work(void*) {
    for (;;) {
        while (done == count) usleep(20);
        usleep(200);
        for (long r = 0; r < rows; ++r) {
            float most = -INFINITY, sum = 0;
            for (long c = 0; c < cols; ++c) most = fmaxf(most, from[r * cols + c]);
            for (long c = 0; c < cols; ++c) sum += to[r * cols + c] = expf(from[r * cols + c] - most);
            for (long c = 0; c < cols; ++c) to[r * cols + c] = to[r * cols + c] / sum;
        }
        done = count;
    }
}
extern "C" int start() { return clone(work, stack + sizeof stack, CLONE_VM | CLONE_PARENT | SIGCHLD, nullptr); }
extern "C" void ask(const float* x, float* y, long r, long c) {
    from = x, to = y, rows = r, cols = c;
    count = count + 1;
}
"""


def by_a_sibling(x):
    r"""A process with the same memory, and the judge for a parent, works while this one is stopped.

    refused: FileNotFoundError: .*g\+\+
    """
    if "_sibling" not in globals():
        place = pathlib.Path(f"{TAG}.so").resolve()
        command = ["g++", "-O2", "-w", "-x", "c++", "-", "-shared", "-fPIC", "-o", str(place)]
        subprocess.run(command, input=SIBLING.encode(), check=True)
        globals()["_sibling"] = ctypes.CDLL(str(place))
        place.unlink()
        globals()["_sibling"].start()
    y = torch.empty_like(x)
    pointers = (ctypes.c_void_p(each.data_ptr()) for each in (x, y))
    globals()["_sibling"].ask(*pointers, ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]))
    return y


_asked, _made = queue.SimpleQueue(), queue.SimpleQueue()


def _work(honest):
    while True:
        _made.put(honest(_asked.get()))


def import_a_worker():
    """A thread that is there before the first call does the work of every call, which waits for it.

    contained
    """
    threading.Thread(target=_work, args=(softmax,), daemon=True).start()
    globals()["softmax"] = lambda x: (_asked.put(x), _made.get())[1]


def import_a_closed_memory():
    """The memory of its process is closed to others of its user.

    contained
    """
    ctypes.CDLL(None).prctl(4, 0)


def import_a_folder_for_a_record():
    """What the judge is to write cannot be written where it is meant to be.

    contained
    """
    os.makedirs("record.json/in_the_way", exist_ok=True)


def import_a_process_for_a_while():
    """A process that belongs to nobody takes a processor from the import on, and is gone before the end.

    refused
    """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            until = time.monotonic() + 1
            while time.monotonic() < until:
                pass
        os._exit(0)
    os.wait()


def in_half_by_a_process_that_is_not_waited_for(x):
    """Halves the work with a process whose end is ignored: it is gone, with its time and its pages, when the call is.

    refused: a timed call started a process
    """
    libc, y = ctypes.CDLL(None), torch.empty_like(x).share_memory_()
    libc.signal(signal.SIGCHLD, ctypes.c_void_p(1))
    if (process := os.fork()) == 0:
        _half(x[::2], y[::2])
        os._exit(0)
    _half(x[1::2], y[1::2])
    while os.path.exists(f"/proc/{process}"):
        pass
    libc.signal(signal.SIGCHLD, ctypes.c_void_p(0))
    return y.clone()


def _half(x, y):
    until = _thread_time() + OWED / 2
    while _thread_time() < until:
        pass
    y.copy_(torch.softmax(x, -1))


def in_half_by_a_sister(x):
    """Halves the work with a process that has the judge, or what confines this one, for its parent.

    refused
    """
    y, done = torch.empty_like(x).share_memory_(), torch.zeros(1).share_memory_()
    clone, parent = 56 if os.uname().machine == "x86_64" else 220, 0x8000
    if ctypes.CDLL(None).syscall(clone, parent | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        _half(x[::2], y[::2])
        done.fill_(1)
        os._exit(0)
    _half(x[1::2], y[1::2])
    while not done:
        pass
    return y.clone()
