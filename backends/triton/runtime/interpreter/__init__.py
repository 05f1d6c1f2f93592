"""Triton's interpreter patched to match GPU semantics: every patch, in this one place, for Triton 3.6 to 3.9.

`install()` runs once per process, from `touchstone.backends.triton.prepare("cpu")`, before any kernel runs. A repair
answers an upstream issue, or a way in which the stock interpreter accepts what a GPU does not, or gives another number
than it.
`REPAIRS` lists them; `touchstone doctor` prints the list.

`schedule`, `races` and `writers` are context managers that watch kernels, or run their programs in another order;
within `undefined` kernels get what a GPU gives where Triton defines nothing.
"""

# isort: off
from touchstone.backends.triton.runtime.interpreter.registry import (
    REPAIRS,
    Deadlock,
    IntegerOverflowError,
    KernelError,
    NotInterpreted,
    OutOfBounds,
    RaceCondition,
    Repair,
    StaticAssertionError,
    active,
    install,
)

# In the order in which their repairs are installed: later ones build on what earlier ones replaced.
from touchstone.backends.triton.runtime.interpreter import (  # noqa: F401
    numerics,
    reductions,
    loops,
    calls,
    memory,
    launch,
    libdevice,
    ptx,
)
from touchstone.backends.triton.runtime.interpreter.instruments import Writers, races, schedule, writers
from touchstone.backends.triton.runtime.interpreter.undefined import undefined
# isort: on

__all__ = [
    "REPAIRS",
    "Deadlock",
    "IntegerOverflowError",
    "KernelError",
    "NotInterpreted",
    "OutOfBounds",
    "RaceCondition",
    "Repair",
    "StaticAssertionError",
    "Writers",
    "active",
    "install",
    "races",
    "schedule",
    "undefined",
    "writers",
]
