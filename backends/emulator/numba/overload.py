"""A kernel for one signature in a dispatcher of numba-cuda: what `@cuda.jit` compiles, eagerly or at the first call.

Import this module only where numba.cuda is numba-cuda's (front.prepare): it imports it.
"""

import functools
import math
from typing import Any

from numba.cuda import dispatcher

from touchstone.backends.emulator.numba import front, kernels
from touchstone.backends.emulator.numba.driver import ATTRIBUTES
from touchstone.backends.emulator.numba.errors import UnsupportedCode

_StockKernel: Any = dispatcher._Kernel


class EngineKernel(_StockKernel):
    """Runs on the engine. What a program asks of it beyond that (PTX, LLVM IR, types) is compiled for a GPU then."""

    def __init__(self, py_func: Any, argtypes: Any, **options: Any) -> None:
        if options.get("device"):
            raise RuntimeError("Cannot compile a device function as a kernel")
        self._begin(py_func, argtypes, options)
        self.compiled()

    def _begin(self, py_func: Any, argtypes: Any, options: dict[str, Any]) -> None:
        self.py_func, self.argtypes, self.targetoptions = py_func, tuple(argtypes), options
        self.__name__ = py_func.__name__
        self.debug, self.lineinfo = bool(options.get("debug")), bool(options.get("lineinfo"))
        self.extensions = options.get("extensions") or []
        self.entry_point, self.objectmode = None, False
        self.shared_memory_carveout = None
        if options.get("shared_memory_carveout") is not None:
            self.shared_memory_carveout = self._parse_carveout(options["shared_memory_carveout"])

    @classmethod
    def _rebuild(cls, py_func: Any, argtypes: Any, options: dict[str, Any]) -> "EngineKernel":
        made: EngineKernel = cls.__new__(cls)
        made._begin(py_func, argtypes, options)
        return made

    def _reduce_states(self) -> dict[str, Any]:
        return {"py_func": self.py_func, "argtypes": self.argtypes, "options": self.targetoptions}

    def compiled(self) -> kernels.Compiled:
        return kernels.compiled(self, self.argtypes)

    @functools.cached_property
    def _stock(self) -> Any:
        """The same kernel compiled for a GPU, which nothing runs."""
        return _StockKernel(self.py_func, self.argtypes, **self.targetoptions)

    @property
    def argument_types(self) -> tuple[Any, ...]:
        return self.argtypes

    @property
    def cooperative(self) -> bool:
        return self.compiled().native.cooperative

    launch_config_sensitive = False  # what depends on a launch's size is not told apart

    def bind(self) -> None:
        """Nothing is loaded to a device."""

    def max_cooperative_grid_blocks(self, blockdim: Any, dynsmemsize: int = 0) -> int:
        """As many as an H100 holds by its threads, whatever registers a GPU would need."""
        threads = math.prod(blockdim) if isinstance(blockdim, tuple) else blockdim
        by_threads = ATTRIBUTES["MAX_THREADS_PER_MULTIPROCESSOR"] // threads
        return min(by_threads, ATTRIBUTES["MAX_BLOCKS_PER_MULTIPROCESSOR"]) * ATTRIBUTES["MULTIPROCESSOR_COUNT"]

    @property
    def max_threads_per_block(self) -> int:
        return ATTRIBUTES["MAX_THREADS_PER_BLOCK"]

    def launch(self, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> None:
        after: list[Any] = []
        kinds, values = [], []
        for kind, value in zip(self.argtypes, args, strict=True):
            for extension in reversed(self.extensions):
                kind, value = extension.prepare_args(kind, value, stream=stream, retr=after)
            kinds.append(kind)
            values.append(value)
        front.launch_compiled(self, self.compiled(), kinds, values, griddim, blockdim, sharedmem)
        for write_back in after:
            write_back()


def _of_stock(name: str) -> property:
    return property(lambda self: getattr(self._stock, name))


def _of_a_cubin(name: str) -> property:
    def refuse(self: Any) -> Any:
        raise UnsupportedCode(f"{self.__name__}: {name} is known of code for a GPU only, which is not made here")

    return property(refuse)


for _name in ("signature", "_codelibrary", "_type_annotation", "call_helper", "entry_name", "target_context", "fndesc"):
    setattr(EngineKernel, _name, _of_stock(_name))
for _name in ("environment", "_referenced_environments"):
    setattr(EngineKernel, _name, _of_stock(_name))
for _name in ("regs_per_thread", "const_mem_size", "shared_mem_per_block", "local_mem_per_thread"):
    setattr(EngineKernel, _name, _of_a_cubin(_name))


def compute_thread_per_block(self: Any, kernel: Any) -> int:
    """Of `kernel.forall(n)`, where the program names none."""
    return self.thread_per_block or 128


def install() -> None:
    """Let dispatchers compile for the engine."""
    dispatcher._Kernel = EngineKernel
    dispatcher.ForAll._compute_thread_per_block = compute_thread_per_block
