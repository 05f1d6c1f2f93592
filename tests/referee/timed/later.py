"""Work that is done before the clock starts, or after it ended."""

import atexit
import gc
import os
import signal
import threading
import time
import weakref

import torch

from tests.referee.timed.honest import softmax


def in_a_thread(x):
    """Returns at once, and has a thread do the work.

    contained
    """
    y = torch.empty_like(x)
    threading.Thread(target=lambda: y.copy_(softmax(x)), daemon=True).start()
    return y


def in_a_thread_that_stays(x):
    """Returns at once, and has one thread do the work of all calls.

    refused
    """
    y = torch.empty_like(x)
    queue = globals().setdefault("_queue", [])

    def work():
        while True:
            if queue:
                made, given = queue.pop(0)
                made.copy_(softmax(given))
            time.sleep(1e-4)

    if not globals().get("_working"):
        globals()["_working"] = threading.Thread(target=work, daemon=True)
        globals()["_working"].start()
    queue.append((y, x))
    return y


def ahead(x):
    """A thread watches the memory of the inputs, and works before it is asked.

    contained
    """
    known = globals().setdefault("_ahead", {})

    def watch():
        while True:
            for given, _ in list(known.values()):
                seen = given.clone()
                if not torch.equal(seen, known[given.data_ptr()][1][0]):
                    known[given.data_ptr()] = given, (seen, softmax(seen))
            time.sleep(1e-4)

    if x.data_ptr() not in known:
        known[x.data_ptr()] = x, (x.clone(), softmax(x))
        if len(known) == 1:
            threading.Thread(target=watch, daemon=True).start()
    seen, answer = known[x.data_ptr()][1]
    return answer.clone() if torch.equal(seen, x) else softmax(x)


class Lazy(torch.Tensor):
    """Computes when it is looked at."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [torch.softmax(a.as_subclass(torch.Tensor), -1) if isinstance(a, Lazy) else a for a in args]
        return func(*plain, **(kwargs or {}))


def a_lazy_tensor(x):
    """A tensor of a class that computes when it is looked at.

    refused
    """
    return x.clone().as_subclass(Lazy)


def in_the_next_call(x):
    """Fills the output of a call at the beginning of the next one.

    refused
    """
    y, left = torch.empty_like(x), globals().setdefault("_left", [])
    while left:
        made, given = left.pop()
        made.copy_(torch.softmax(given, -1))
    left.append((y, x.clone()))
    return y


def at_exit(x):
    """Fills the outputs when the process ends.

    refused
    """
    y = torch.empty_like(x)
    atexit.register(lambda: y.copy_(softmax(x)))
    return y


def when_it_is_freed(x):
    """Fills the output once the input is freed.

    refused
    """
    y, given = torch.empty_like(x), x.clone()
    weakref.finalize(x, lambda: y.copy_(torch.softmax(given, -1)))
    return y


def by_a_timer(x):
    """Has a signal do the work later.

    refused
    """
    y = torch.empty_like(x)
    signal.signal(signal.SIGALRM, lambda *_: y.copy_(softmax(x)))
    signal.setitimer(signal.ITIMER_REAL, 0.002)
    return y


def when_garbage_is_collected(x):
    """Has the garbage collector do the work.

    refused
    """
    y = torch.empty_like(x)
    gc.callbacks.append(lambda *_: y.copy_(torch.softmax(x, -1)))
    return y


def in_another_process(x):
    """A process that shares the output's memory does the work.

    refused
    """
    y = torch.empty_like(x).share_memory_()
    if os.fork() == 0:
        y.copy_(softmax(x))
        os._exit(0)
    return y


def in_a_daemon(x):
    """A process that belongs to nobody, and shares the output's memory, does the work.

    refused
    """
    y = torch.empty_like(x).share_memory_()
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            y.copy_(softmax(x))
        os._exit(0)
    os.waitpid(child, 0)
    return y
