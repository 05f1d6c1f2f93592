"""Compiled kernels and their launches."""

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from touchstone import backends
from touchstone.backends.emulator import binary, compiler, instruments, source
from touchstone.backends.emulator.arguments import pack
from touchstone.backends.emulator.findings import error
from touchstone.backends.emulator.library import Loaded, Options, Range, Report, base, engine, opened, parameters

MAX_THREADS = 1024
MAX_BLOCKS = (2**31 - 1, 65535, 65535)
MAX_SHARED = 232448  # bytes of a block on sm_90, the most there is
STACK_BYTES = 256 << 10
Dim = int | Sequence[int]


def compile(
    text: str, name: str = "kernel.cu", defines: dict[str, Any] | None = None, include: Sequence[str] = ()
) -> "Program":
    """Compile CUDA C++ for the CPU. `defines` are -D names; `include` folders are searched for `#include "..."`.

    What was compiled before, by any process, is taken from the cache. Raises RuntimeError where there is no compiler,
    CompileError where the source does not compile.
    """
    program = Program(text, name, {key: str(value) for key, value in (defines or {}).items()}, tuple(map(str, include)))
    program._load(())
    return program


class Program:
    """The kernels of one source."""

    def __init__(self, text: str, name: str, defines: dict[str, str], include: tuple[str, ...]) -> None:
        self.name = name
        self.defines = defines
        self.include = include
        text = source.inline(
            text, name, [Path(name).parent, *map(Path, include)] if "/" in name else [*map(Path, include)]
        )
        self.kernels = source.kernels(text)
        try:
            self._text = source.rewrite(text)
        except ValueError as error:
            raise compiler.CompileError(f"{name}: {error}") from None
        self._built: dict[tuple[tuple[str, ...], bool], Loaded] = {}

    def _load(self, instances: tuple[str, ...]) -> Loaded:
        """The library with every plain kernel, and these `instances` of templates or kernels made by macros."""
        key = (instances, instruments.settings.portable)
        while key not in self._built:
            engine_path = compiler.engine(instruments.settings.portable)
            entries = [*(kernel.name for kernel in self.kernels if not kernel.template), *instances]
            try:
                path = compiler.kernel(self._complete(entries), self.name, self.defines, self.include, engine_path)
            except compiler.CompileError as error:
                # The preprocessor may have left a kernel out.
                missing = re.search(r"^touchstone:.*error: (?:use of undeclared identifier )?'(\w+)'", str(error), re.M)
                rest = [k for k in self.kernels if not missing or k.name != missing.group(1)]
                if missing and missing.group(1) in instances:
                    raise self._unknown(missing.group(1)) from None
                if len(rest) == len(self.kernels):
                    raise
                self.kernels = rest
                continue
            runs_on = engine(str(engine_path))  # first: the kernel's library asks for it by its name
            library = opened(str(path))
            variables, constants = binary.variables(path)
            self._built[key] = Loaded(str(path), library, runs_on, base(str(path)), variables, constants)
        return self._built[key]

    def _complete(self, entries: Sequence[str]) -> str:
        """The text that is compiled: for every kernel one function that unpacks its arguments, one that describes
        them."""
        text = f'#include "touchstone.h"\n#line 1 "{self.name}"\n{self._text}\n#line 1 "touchstone"\n'
        for number, entry in enumerate(entries):
            text += (
                f'extern "C" TS_PLAIN void ts_entry_{number}(void** a) {{ touchstone::call(&{entry}, a); }}\n'
                f'extern "C" TS_PLAIN int ts_parameters_{number}(touchstone::Parameter* p, int n) '
                f"{{ return touchstone::describe(&{entry}, p, n); }}\n"
            )
        return text

    def _entry(self, kernel: str) -> tuple[Loaded, int]:
        plain = [k.name for k in self.kernels if not k.template]
        if kernel in plain:
            return self._load(()), [k.name for k in self.kernels if not k.template].index(kernel)
        bare = kernel.split("<")[0].strip().split("::")[-1]
        # A kernel that a macro declares is found by its name alone.
        if not re.fullmatch(r"[\w:]+\s*(<.*>)?", kernel) or not re.search(rf"\b{re.escape(bare)}\b", self._text):
            raise self._unknown(kernel)
        return self._load((kernel,)), len(plain)

    def _unknown(self, kernel: str) -> KeyError:
        names = [f"{k.name}<...>" if k.template else k.name for k in self.kernels]
        return KeyError(f"{self.name} has no kernel {kernel!r}; it has {', '.join(names) or 'none'}")

    def _names(self, kernel: str) -> tuple[str, ...]:
        bare = kernel.split("<")[0].strip().split("::")[-1]
        return next((k.parameters for k in self.kernels if k.name == bare), ())

    def launch(
        self, kernel: str, grid: Dim, block: Dim, arguments: Sequence[Any], shared: int = 0, cooperative: bool = False
    ) -> None:
        """Run `kernel` on this CPU and wait for it. Raises KernelError for a finding, ValueError or TypeError for a bad
        call.

        `arguments`: tensors and arrays (their addresses, bounded by their extent), None (a null pointer), Python
        numbers, NumPy scalars. `shared`: bytes of dynamic shared memory.
        """
        loaded, number = self._entry(kernel)
        grid3, block3 = geometry(grid, block, shared)
        known = parameters(loaded, number)
        if len(arguments) != len(known):
            raise TypeError(f"{kernel}: expected {len(known)} arguments, got {len(arguments)}")
        packed, regions, keep = pack(kernel, arguments, known, self._names(kernel))
        ranges = (Range * (len(regions) + len(loaded.variables) + 1))()
        for i, region in enumerate(regions):
            ranges[i] = Range(region.start, region.bytes, 1, i, 1, region.item)
        for i, variable in enumerate(loaded.variables):
            start = loaded.base + variable.start
            ranges[len(regions) + i] = Range(start, variable.bytes, 3, i, variable.writable, 1)
        low, high = (loaded.base + offset for offset in loaded.constants)
        settings = instruments.settings
        options = Options(
            instruments.ORDERS.index(settings.order),
            instruments.workers(),
            settings.seed,
            1,
            settings.races,
            cooperative,
            0,
            STACK_BYTES,
            settings.step_limit,
            loaded.base,
            low,
            high,
        )
        report = Report()
        entry = ctypes.cast(getattr(loaded.library, f"ts_entry_{number}"), ctypes.c_void_p)
        with backends.running():
            loaded.engine.ts_launch(
                entry,
                packed,
                (ctypes.c_uint32 * 3)(*grid3),
                (ctypes.c_uint32 * 3)(*block3),
                shared,
                ranges,
                len(regions) + len(loaded.variables),
                ctypes.byref(options),
                instruments.record(loaded, grid3, block3),
                ctypes.byref(report),
            )
        del keep
        if report.kind:
            raise error(kernel, loaded, report, regions)


def geometry(grid: Dim, block: Dim, shared: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Grid and block as three numbers each; ValueError for what no GPU launches."""
    blocks, threads = _dim("grid", grid), _dim("block", block)
    if any(n > limit for n, limit in zip(blocks, MAX_BLOCKS, strict=True)):
        raise ValueError(f"grid: at most {MAX_BLOCKS} blocks, got {blocks}")
    if threads[0] * threads[1] * threads[2] > MAX_THREADS or threads[2] > 64:
        raise ValueError(f"block: at most {MAX_THREADS} threads, 64 along z, got {threads}")
    if not 0 <= shared <= MAX_SHARED:
        raise ValueError(f"shared: expected 0 to {MAX_SHARED} bytes, got {shared}")
    return blocks, threads


def _dim(name: str, value: Dim) -> tuple[int, int, int]:
    sizes = (value,) if isinstance(value, (int, np.integer)) else tuple(value)
    if not 1 <= len(sizes) <= 3 or any(not isinstance(n, (int, np.integer)) or n < 1 for n in sizes):
        raise ValueError(f"{name}: expected one to three positive integers, got {value!r}")
    padded = [*map(int, sizes), 1, 1]
    return padded[0], padded[1], padded[2]
