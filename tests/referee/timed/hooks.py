"""Right answers, and something left on that runs beside the calls to come."""

import gc
import signal
import sys
import threading

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.referee.timed.honest import softmax


class _Function(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def _once():
    return not globals().setdefault("_hooked", []) and not globals()["_hooked"].append(1)


def profile(x):
    """A profile function.

    refused
    """
    sys.setprofile(lambda *_: None)
    return softmax(x)


def trace(x):
    """A trace function.

    refused
    """
    sys.settrace(lambda *_: None)
    return softmax(x)


def threads_profile(x):
    """A profile function for threads to come.

    refused
    """
    threading.setprofile(lambda *_: None)
    return softmax(x)


def collector(x):
    """A callback of the garbage collector.

    refused
    """
    if _once():
        gc.callbacks.append(lambda *_: None)
    return softmax(x)


def timer(x):
    """A timer that sends signals to itself.

    refused
    """
    signal.signal(signal.SIGPROF, lambda *_: None)
    signal.setitimer(signal.ITIMER_PROF, 1000)
    return softmax(x)


def function_mode(x):
    """A mode that sees every function of torch.

    refused
    """
    if _once():
        _Function().__enter__()
    return softmax(x)


def dispatch_mode(x):
    """A mode that sees every operator of torch.

    refused
    """
    if _once():
        _Dispatch().__enter__()
    return softmax(x)
