"""Clocks, and the code that times and tells, replaced in the kernel's process."""

import statistics
import sys
import time
import types

import torch


def import_python_clocks():
    """Clocks that stand still.

    contained
    """
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "process_time", "thread_time"):
        setattr(time, name, lambda: 0)


def import_statistics():
    """Modules that are looked up later, replaced in sys.modules.

    contained
    """
    fake = types.ModuleType("statistics")
    fake.median = fake.mean = lambda values: 1e-9
    fake.quantiles = lambda values, **_: [1e-9] * 3
    sys.modules["statistics"] = fake
    statistics.quantiles = fake.quantiles


def import_torch_events():
    """torch's events and synchronisation.

    contained
    """
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.Event.elapsed_time = lambda *_: 1e-6


def import_timing():
    """The judge's own functions, in this process.

    contained
    """
    for name in ("timing", "rounds", "conclude", "stopwatch"):
        module = sys.modules.get(f"touchstone.conformance.bench.{name}")
        for attribute, value in list(vars(module).items()) if module else ():
            if isinstance(value, types.FunctionType):
                setattr(module, attribute, lambda *_, **__: 1e-9)


def import_codes():
    """The code and defaults of what makes the calls: only the first call of all is made.

    refused
    """
    served = sys.modules["touchstone.conformance.bench.calls"]._Served
    served._made.__globals__["made"] = types.FunctionType(served._made.__code__, served._made.__globals__)
    served._made.__code__ = _made_once.__code__


def _made_once(self, calls, returned):
    kept = self.__dict__.setdefault("kept", {})
    if len(calls) not in kept:
        kept[len(calls)] = made(self, calls, returned), list(returned)  # noqa: F821
    return kept[len(calls)][0]


def import_addresses():
    """What says where outputs are: the place of an answer to other inputs.

    refused
    """
    served = sys.modules["touchstone.conformance.bench.calls"]._Served
    kept = []

    def addresses(self, returned):
        kept.append(returned)
        return [kept[0].data_ptr()]

    served._addresses = addresses


def import_checks():
    """What is told of hooks, types and shapes: nothing, of a kernel that gives another dtype.

    refused
    """
    module = sys.modules["touchstone.conformance.bench.calls"]
    module._Served._wrong = lambda *_: None
    module.Hooks.changes = lambda *_: []
    globals()["softmax"] = lambda x: torch.softmax(x, -1).double()
