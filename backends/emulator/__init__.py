"""CUDA on the CPU: kernels in CUDA C++, compiled by g++ or clang++, every CUDA thread a fiber.

`compile(source)` gives a program whose `launch` runs a kernel on CPU tensors; what a GPU leaves undefined and hides is
raised as a KernelError. `schedule`, `races` and `zeroed_locals` are context managers. docs/emulator.md says what is
covered.
"""

from touchstone.backends.emulator.arguments import Address, Bytes, Texture
from touchstone.backends.emulator.compiler import CompileError, why_not
from touchstone.backends.emulator.errors import (
    Deadlock,
    DivergentBarrier,
    InactiveLanes,
    KernelError,
    Misaligned,
    OutOfBounds,
    RaceCondition,
    StaleShared,
    UninitialisedShared,
)
from touchstone.backends.emulator.instruments import Writers, races, schedule, strict, writers, zeroed_locals
from touchstone.backends.emulator.program import Program, compile
from touchstone.backends.emulator.tensormaps import TensorMap

__all__ = [
    "Address",
    "Bytes",
    "CompileError",
    "Deadlock",
    "DivergentBarrier",
    "InactiveLanes",
    "KernelError",
    "Misaligned",
    "OutOfBounds",
    "Program",
    "RaceCondition",
    "StaleShared",
    "TensorMap",
    "Texture",
    "UninitialisedShared",
    "Writers",
    "compile",
    "races",
    "schedule",
    "strict",
    "why_not",
    "writers",
    "zeroed_locals",
]
