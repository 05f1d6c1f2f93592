"""Triton kernels compiled without a GPU: launches on CPU tensors are recorded, each specialisation becomes a cubin.

For a process that compiles (no TRITON_INTERPRET). Triton's own launch path runs up to the point where it would compile:
its binder decides what an argument is specialised on, as for a GPU; a CPU tensor that is off 16-byte alignment counts
as such.
"""

import importlib.util
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction

ARCHITECTURES = ("sm_80", "sm_90")  # what every rung compiles for unless its `needs` says otherwise
_RECORDED_FOR = "sm_90"


@dataclass(frozen=True)
class Launch:
    """One specialisation of a kernel: what Triton's compiler is given for a launch, without the architecture."""

    fn: JITFunction
    signature: dict[str, Any]  # parameter -> type
    constexprs: dict[tuple[int, ...], Any]  # path of the argument -> value
    attributes: dict[tuple[int, ...], Any]  # path of the argument -> divisibility
    options: dict[str, Any]  # what the launch set: num_warps and the like

    @property
    def kernel(self) -> str:
        return self.fn.__name__

    @property
    def key(self) -> str:
        """Equal for launches that run the same code."""
        parts = (sorted(self.signature.items()), sorted(self.constexprs.items()), sorted(self.attributes.items()))
        return f"{self.fn.cache_key} {parts} {sorted(self.options.items())}"

    def __str__(self) -> str:
        """The kernel with what it is specialised on, for messages."""
        names = list(self.signature)
        shown = []
        for index, (name, kind) in enumerate(self.signature.items()):
            if kind == "constexpr":
                shown.append(f"{name}={self.constexprs.get((index,))}")
            else:
                aligned = any(path[0] == index for path in self.attributes)
                shown.append(f"{name}: {kind}{' /16' if aligned else ''}")
        assert names
        shown += [f"{name}={value}" for name, value in self.options.items()]
        return f"{self.kernel}({', '.join(shown)})"


class _Recorder:
    """A driver of Triton that has a target and no device."""

    def __init__(self, arch: str):
        self.target = _target(arch)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return -1  # a key of its own in a kernel's caches

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_benchmarker(self) -> Callable[..., Any]:
        """An autotuned kernel launches each of its configurations, once."""

        def benchmark(call: Callable[[], Any], quantiles: Any = (0.5,), **_: Any) -> list[float]:
            call()
            return [0.0 for _ in quantiles or (0.5,)]

        return benchmark


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Record launches instead of running them; yields the list that they are appended to.

    Tensors on the CPU stand for those of a GPU; outputs keep what `torch.empty` left in them.
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("triton was imported to interpret; launches are recorded in a process without TRITON_INTERPRET")
    launches: list[Launch] = []
    target = _target(_RECORDED_FOR)
    usual = vars(make_backend(target).parse_options({}))

    def record(self, key, signature, device, constexprs, options, attrs, warmup):
        asked = {name: value for name, value in vars(options).items() if value != usual[name]}
        launches.append(Launch(self, signature, constexprs, attrs, asked))
        return None  # tells the launch path that there is nothing to run

    driver, stock = triton.runtime.driver, JITFunction._do_compile
    active = driver._active
    driver.set_active(_Recorder(_RECORDED_FOR))
    JITFunction._do_compile = record
    try:
        yield launches
    finally:
        JITFunction._do_compile = stock
        driver._active = active


def _target(arch: str) -> GPUTarget:
    return GPUTarget("cuda", int(arch.removeprefix("sm_").rstrip("af")), 32)
