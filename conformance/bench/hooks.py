"""What runs beside the code that is called: hooks, handlers and timers of a process, compared with what they were."""

import gc
import signal
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

TIMERS = {"ITIMER_REAL": "SIGALRM", "ITIMER_VIRTUAL": "SIGVTALRM", "ITIMER_PROF": "SIGPROF"}


def _handlers() -> dict[str, Any]:
    return {number.name: signal.getsignal(number) for number in signal.Signals}


def _timers() -> list[str]:
    """Timers that are set, by the signal that they send."""
    known = {name: getattr(signal, name, None) for name in TIMERS}
    return [TIMERS[name] for name, which in known.items() if which is not None and signal.getitimer(which)[0]]


def _tools() -> list[Any]:
    """What is told of each line or call that Python runs, since 3.12 also through sys.monitoring."""
    monitoring = getattr(sys, "monitoring", None)
    return [monitoring.get_tool(number) for number in range(6)] if monitoring else []


_READ: dict[str, Callable[[], Any]] = {
    "the trace function": sys.gettrace,
    "the profile function": sys.getprofile,
    "the trace function of new threads": lambda: getattr(threading, "_trace_hook", None),
    "the profile function of new threads": lambda: getattr(threading, "_profile_hook", None),
    "the tools of sys.monitoring": _tools,
    "the garbage collector's callbacks": lambda: list(gc.callbacks),
    "the handlers of signals": _handlers,
    "timers of signals": _timers,
    "the interpreter's switch interval": sys.getswitchinterval,
    "torch's dispatch modes": lambda: torch._C._len_torch_dispatch_stack(),
    "torch's function modes": lambda: torch._C._len_torch_function_stack(),
    "torch's saved-tensor hooks": lambda: torch._C._autograd._top_saved_tensors_default_hooks(True) is not None,
    "anomaly detection": torch.is_anomaly_enabled,
}


class Hooks:
    """The hooks of this process, as they are when this is made."""

    def __init__(self) -> None:
        self._was = {name: read() for name, read in _READ.items()}

    def changes(self) -> list[str]:
        """Which differ now; from here on, what they are now counts."""
        now = {name: read() for name, read in _READ.items()}
        found = [name for name, value in now.items() if value != self._was[name]]
        self._was = now
        return found


class Code:
    """What a function does when it is called: its code, defaults and enclosed variables, as they are when this is
    made. A function whose `__code__` or `__defaults__` were replaced is still the same object under the same name."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        self._was = self._now()
        self._hash = hash(function.__code__)

    def changed(self) -> bool:
        """Whether any of it is another object now, or the code has other contents."""
        now = self._now()
        same = len(now) == len(self._was) and all(a is b for a, b in zip(now, self._was, strict=True))
        return not same or hash(self._function.__code__) != self._hash

    def restore(self) -> None:
        """Put code and defaults back."""
        self._function.__code__, self._function.__defaults__ = self._was[0], self._was[1]
        self._function.__kwdefaults__ = self._was[2]

    def _now(self) -> list[Any]:
        function = self._function
        defaults, by_name = function.__defaults__, function.__kwdefaults__
        cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        return [function.__code__, defaults, by_name, *(defaults or ()), *(by_name or {}).values(), *cells]


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
