"""What a call changes of the process: each setting is named and put back, what is only consumed is named."""

import contextlib
import ctypes
import gc
import os
import random
import resource
import signal
import sys
import threading

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from touchstone import backends, check
from touchstone.conformance.judging import instruments as probe


def rounding(mode):
    ctypes.CDLL("libm.so.6").fesetround(mode)


def _hooked(key):
    torch.utils.hooks.RemovableHandle.next_id = key
    torch.nn.modules.module.register_module_forward_pre_hook(lambda *given: None)


# name -> what changes it; each is put back by `State.changes`
SETTINGS = {
    "the default dtype from torch.float32 to torch.float64": lambda: torch.set_default_dtype(torch.float64),
    "the default device from None to meta": lambda: torch.set_default_device("meta"),
    "autocast from [('cpu', False), ('cuda', False)] to [('cpu', True), ('cuda', False)]": (
        lambda: torch.set_autocast_enabled("cpu", True)
    ),
    "flushing of denormal numbers from False to True": lambda: torch.set_flush_denormal(True),
    "the rounding mode from nearest to downwards": lambda: rounding(0x400),
    "the rounding mode from nearest to upwards": lambda: rounding(0x800),
    "the rounding mode from nearest to to zero": lambda: rounding(0xC00),
    "the float32 matmul precision from highest to medium": lambda: torch.set_float32_matmul_precision("medium"),
    "autograd's mode from True to False": lambda: torch._C._set_grad_enabled(False),
    "deterministic algorithms from False to True": lambda: torch.use_deterministic_algorithms(True),
    "torch's hooks of all modules from [] to [('forward_pre_hooks', 7)]": lambda: _hooked(7),
    "torch's detection of anomalies from False to True": lambda: torch.autograd.set_detect_anomaly(True),
    "cudnn.allow_tf32 from True to False": lambda: torch._C._set_cudnn_allow_tf32(False),
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of rounding modes are x86's")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_named_and_put_back(name):
    before = probe.State(random=False)
    assert before.changes() == ([], [])
    SETTINGS[name]()
    try:
        settings, consumed = before.changes()
    finally:
        torch.set_default_device(None)
    assert (settings, consumed) == ([name], [])
    assert before.changes() == ([], [])


def test_numpys_error_handling():
    before = probe.State()
    np.seterr(over="raise")
    settings, consumed = before.changes()
    assert len(settings) == 1 and settings[0].startswith("NumPy's error handling from") and consumed == []
    assert before.changes() == ([], [])


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("torch's dispatch modes from 0 to 1", Dispatches),
        ("torch's function modes from 0 to 1", Functions),
        ("inference mode from False to True", torch.inference_mode),
    ],
)
def test_a_mode_that_is_left_on_is_named(name, mode):
    """What stays on would see, or change, all later calls of the process; it ends with its own `with` alone."""
    before = probe.State(random=False)
    with mode():
        settings, consumed = before.changes()
    assert name in settings and consumed == []
    assert before.changes() == ([], [])


def test_the_number_of_threads_is_consumed_and_put_back():
    before = probe.State()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    assert before.changes() == ([], [f"the number of threads from {threads} to {threads + 1}"])
    assert torch.get_num_threads() == threads


@contextlib.contextmanager
def _collector():
    gc.disable()
    yield
    gc.enable()


@contextlib.contextmanager
def _recursion():
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 7)
    yield
    sys.setrecursionlimit(limit)


@contextlib.contextmanager
def _callback():
    gc.callbacks.append(print)
    yield
    gc.callbacks.remove(print)


@contextlib.contextmanager
def _mode():
    mode = os.umask(0o027)
    yield
    os.umask(mode)


@contextlib.contextmanager
def _folder():
    folder = os.getcwd()
    os.chdir("/")
    yield
    os.chdir(folder)


@contextlib.contextmanager
def _profile():
    kept = sys.getprofile()
    sys.setprofile(lambda *event: None)
    yield
    sys.setprofile(kept)


@contextlib.contextmanager
def _trace():
    kept = sys.gettrace()
    sys.settrace(lambda *event: None)
    yield
    sys.settrace(kept)


@contextlib.contextmanager
def _output():
    kept = sys.stdout
    sys.stdout = None
    yield
    sys.stdout = kept


@contextlib.contextmanager
def _thread():
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    yield
    ended.set()
    thread.join()


@contextlib.contextmanager
def _limits():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _signals():
    kept = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, kept)


CONSUMED = {
    "the garbage collector from on to off": _collector,
    "the garbage collector's callbacks from": _callback,
    "the recursion limit from": _recursion,
    "the mode of new files from": _mode,
    "the current folder from": _folder,
    "the profile function from False to True": _profile,
    "the trace function from False to True": _trace,
    "standard output from open to closed": _output,
    "Python's threads from": _thread,
    "the limits of its process from": _limits,
    "the signals blocked from [] to [10]": _signals,
}


@pytest.mark.parametrize("name", CONSUMED)
def test_what_of_the_process_is_changed_is_named_and_left(name):
    before = probe.State()
    with CONSUMED[name]():
        for _ in range(2):
            settings, consumed = before.changes()
            assert settings == [] and len(consumed) == 1 and consumed[0].startswith(name)
    assert before.changes() == ([], [])


def test_a_folder_that_is_gone(tmp_path):
    kept = os.getcwd()
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    try:
        before = probe.State()
        (tmp_path / "gone").rmdir()
        assert before.changes() == ([], [f"the current folder from {tmp_path / 'gone'} to none"])
    finally:
        os.chdir(kept)


GENERATORS = {
    "torch's generator": lambda: torch.rand(1),
    "NumPy's generator": lambda: np.random.rand(1),
    "random's generator": random.random,
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_that_is_drawn_from_is_named(name):
    before, without = probe.State(), probe.State(random=False)
    GENERATORS[name]()
    assert before.changes() == ([], [f"the state of {name}"])
    assert without.changes() == ([], [])


def test_variables_of_the_environment(monkeypatch):
    monkeypatch.setenv("TOUCHSTONE_B", "1")
    monkeypatch.setenv("TOUCHSTONE_C", "1")
    before, without = probe.State(), probe.State(random=False)
    monkeypatch.setenv("TOUCHSTONE_A", "1")
    monkeypatch.setenv("TOUCHSTONE_B", "2")
    monkeypatch.delenv("TOUCHSTONE_C")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "there")  # as torch does
    for state in (before, without):
        assert state.changes() == ([], ["environment variables TOUCHSTONE_A, TOUCHSTONE_B, TOUCHSTONE_C"])


def test_an_environment_that_is_replaced(monkeypatch):
    before = probe.State()
    monkeypatch.setattr(os, "environ", {})
    assert before.changes() == ([], ["what os.environ is"])


def test_watching_leaves_nothing_behind():
    before = list(backends.after_launch)
    with probe.Watch():
        assert len(backends.after_launch) == len(before) + 1
    assert backends.after_launch == before


def test_what_a_later_call_of_a_trial_leaves_is_found():
    """The next trial would take it for how things are."""
    calls = []

    def leaves(x):
        calls.append(x)
        if len(calls) == 3:  # one under an instrument
            torch.set_flush_denormal(True)
        with backends.running(engine=backends.EMULATOR):
            return torch.softmax(x.float(), -1).to(x.dtype).contiguous()

    try:
        report = check("softmax", leaves, device="cpu", level="quick", sizes={"cols": [24]}, isolate="none")
    finally:
        torch.set_flush_denormal(False)
    (found,) = {finding.message for finding in report.findings if finding.check == "state"}
    assert "left changed by a call after the first: flushing of denormal numbers from False to True" in found


def test_what_else_of_the_process_a_later_call_changes_is_noted_once():
    def changes(x):
        os.umask(os.umask(0) ^ 0o004)
        with backends.running(engine=backends.EMULATOR):
            return torch.softmax(x.float(), -1).to(x.dtype).contiguous()

    mode = os.umask(0o022)
    try:
        given = dict(device="cpu", level="quick", dtypes=["float32"])
        report = check("softmax", changes, isolate="none", **given)
    finally:
        os.umask(mode)
    notes = [finding for finding in report.findings if "a call after the first changes" in finding.message]
    assert notes and report.passed
    for note in notes:
        assert note.severity == "note" and note.check == "state" and note.message.count("mode of new files from") == 1
