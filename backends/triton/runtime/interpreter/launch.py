"""A launch: its arguments, its grid, the language that its kernel sees."""

import bdb
import dataclasses
import functools
import hashlib
import inspect
import operator
import os
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch._library import triton as triton_operators
from triton import testing
from triton.language.semantic import TritonSemantic
from triton.runtime import autotuner
from triton.runtime import interpreter as stock
from triton.runtime.jit import JITFunction, KernelInterface

from touchstone import backends
from touchstone.backends import cuda_face
from touchstone.backends.triton.runtime.interpreter import calls, choices, programs
from touchstone.backends.triton.runtime.interpreter.compiled import InterpretedKernel
from touchstone.backends.triton.runtime.interpreter.loops import _typed_range
from touchstone.backends.triton.runtime.interpreter.memory import _Launch, _launches
from touchstone.backends.triton.runtime.interpreter.registry import (
    FOREIGN,
    KernelError,
    NotInterpreted,
    StaticAssertionError,
    active,
    redirect,
    repair,
)
from touchstone.backends.triton.runtime.interpreter.traces import traced

_SEMANTICS = TritonSemantic.__module__, "triton.experimental.gluon.language._semantic"


def schedule(grid: tuple[int, int, int]) -> Iterable[tuple[int, int, int]]:
    """The order in which the programs of a grid run; instruments.schedule puts another one here."""
    return np.ndindex(*grid)


watchers: list[Any] = []  # told of every launch; instruments._watching puts them here


@functools.cache
def launch_options() -> frozenset[str] | None:
    """What a launch accepts beside the kernel's own parameters."""
    try:
        from triton.backends.nvidia.compiler import CUDAOptions
    except ImportError:
        return None
    return frozenset(field.name for field in dataclasses.fields(CUDAOptions)) | {"instrumentation_mode"}


@repair("launch", "tensors are read and written in place; errors name kernel, line and program; bad options raise")
def _launch() -> None:
    def run(self, *args, grid, warmup, **kwargs):
        allowed, parameters = launch_options(), self.arg_names
        for name in kwargs:
            if allowed is not None and name not in parameters and name not in allowed:
                raise KeyError(f"{self.__name__}: {name!r} is neither a parameter nor a launch option")
        options = {name: value for name, value in kwargs.items() if name not in parameters}
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        kwargs = {name: value for name, value in kwargs.items() if name in parameters}
        executor = stock.GridExecutor(self.rewrite(), parameters, grid)
        executor.constexprs = [name for name in parameters if _is_constexpr(executor.fn.__annotations__.get(name))]
        given = inspect.getcallargs(self.fn, *args, **kwargs)
        if not warmup:
            executor(*args, **kwargs)
        return InterpretedKernel(self, options, {name: given[name] for name in executor.constexprs})

    def call(self, *args, **kwargs):
        host, host_kwargs = args, kwargs
        elsewhere = any(tensor.device.type != "cpu" for tensor in _tensors((args, tuple(kwargs.values()))))
        if elsewhere:
            host, host_kwargs = self._init_args_hst(args, kwargs)
        given = inspect.getcallargs(self.fn, *host, **host_kwargs)
        if cuda_face.answers():
            _refuse_host_tensors(given)
        _launches.append(launch := _Launch())
        try:
            converted = {}
            for name, value in given.items():
                launch.argument = name
                converted[name] = _constant(value) if name in self.constexprs else stock._implicit_cvt(value)
            self.grid = self.grid(given) if callable(self.grid) else self.grid
            sizes = _grid(self.fn, self.grid)
            with backends.running(launch.reached):
                _run_grid(self.fn, converted, sizes)
        finally:
            _launches.pop()
        if elsewhere:
            self._restore_args_dev(args, host, kwargs, host_kwargs)

    def device_call(self, *args, **kwargs):
        if not _launches:
            raise RuntimeError(f"{self.__name__}: a kernel is launched as kernel[grid](...), not called")
        function = self.rewrite()
        calls.enter(function)
        return function(*args, **kwargs)

    def attribute(self, name):
        """What only a kernel that is compiled has: `params`, `signature`, `src`, `cache_key`."""
        if name == "__globals__":
            return self.fn.__globals__
        if name.startswith("__") or name == "fn":
            raise AttributeError(name)
        compiled = _to_compile(self.fn)
        if name == "cache_key":  # Triton's own goes through what the kernel uses, which is repaired here
            return hashlib.sha256(compiled.src.encode()).hexdigest()
        return getattr(compiled, name)

    compiled = JITFunction.run

    def launch_compiled(self, *args, **kwargs):
        if type(self).__name__ != "GluonJITFunction":
            return compiled(self, *args, **kwargs)
        if not active("gluon"):
            raise NotInterpreted(f"{self.fn.__name__}: Gluon is not interpreted")
        from touchstone.backends.triton.runtime.interpreter import gluon  # which not every process needs

        return gluon.launch(self, *args, **kwargs)

    _patch_language()
    JITFunction.run = launch_compiled
    stock.GridExecutor.__call__ = call
    stock.InterpretedFunction.run, stock.InterpretedFunction.__call__ = run, device_call
    stock.InterpretedFunction.__getattr__ = attribute
    stock.InterpretedFunction.__bases__ = (_Kernel, *stock.InterpretedFunction.__bases__)
    torch.library.wrap_triton = triton_operators.wrap_triton = _wrapping(torch.library.wrap_triton)


def _wrapping(wrap_triton: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """torch's, for interpreted kernels too, which torch 2.11 refuses; there is nothing to trace in one."""

    @functools.wraps(wrap_triton)
    def wrap(triton_kernel: Any) -> Any:
        kernel = triton_kernel
        while isinstance(kernel, autotuner.Autotuner | autotuner.Heuristics):
            kernel = kernel.fn
        ours = type(kernel) is stock.InterpretedFunction or calls.is_gluon(kernel)
        return triton_kernel if ours else wrap_triton(triton_kernel)

    return wrap


class _Kernel(KernelInterface):
    """To other code an interpreted kernel is a JITFunction: launchers look for one below what is around it."""

    __class__ = property(lambda self: JITFunction if cuda_face.outside() else stock.InterpretedFunction)

    def __reduce__(self):
        """Without the class: pickle refuses an object whose `__class__` is another than that of what it makes anew."""
        return _blank, (), vars(self)


def _constant(value: Any) -> Any:
    """The compiler takes a number of NumPy for a parameter of compile time, and none for another one."""
    return value.item() if isinstance(value, np.generic) else value


def _is_constexpr(annotation: Any) -> bool:
    """Whether a parameter is one of compile time: `tl.constexpr`, which its module may know by another name."""
    name = annotation.split(".")[-1].strip() if isinstance(annotation, str) else None
    return annotation is tl.constexpr or name == "constexpr"


def _blank() -> stock.InterpretedFunction:
    return stock.InterpretedFunction.__new__(stock.InterpretedFunction)


_to_compile = functools.cache(JITFunction)


def _refuse_host_tensors(given: dict[str, Any]) -> None:
    """As Triton does on a GPU, where a tensor lies on the CPU."""
    for position, (name, value) in enumerate(given.items()):
        if isinstance(value, torch.Tensor) and value.numel() and cuda_face.on_host(value):
            raise ValueError(
                f"Pointer argument (at {position}) cannot be accessed from Triton (cpu tensor?): beside a GPU, {name} "
                "would lie on the CPU; allocate it with device="
            )


def _tensors(value) -> Iterator[torch.Tensor]:
    if isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(getattr(value, "base", None), torch.Tensor):
        yield value.base


def _grid(kernel, grid) -> tuple[int, int, int]:
    try:
        sizes = tuple(operator.index(size) for size in grid)
    except TypeError as error:  # n / BLOCK
        raise TypeError(f"{kernel.__name__}: grid {grid}: {error}") from None
    if not 1 <= len(sizes) <= 3:
        raise KernelError(f"{kernel.__name__}: a grid has 1 to 3 axes, not {len(sizes)}")
    sizes += (1,) * (3 - len(sizes))
    if sizes[0] >= 2**31 or max(sizes[1:]) > 65535:
        raise KernelError(f"{kernel.__name__}: grid {sizes} is larger than a GPU's limit (2147483647, 65535, 65535)")
    return sizes


def _run_grid(kernel, arguments: dict[str, Any], grid: tuple[int, int, int]) -> None:
    builder = stock.interpreter_builder
    builder.set_grid_dim(*grid)
    calls.begin(kernel, arguments.values())
    for watcher in watchers:
        watcher.begin(kernel.__name__)
    try:
        with np.errstate(all="ignore"):
            programs.run(schedule(grid), functools.partial(kernel, **arguments))
    except bdb.BdbQuit:
        raise
    except Exception as error:
        if triton.knobs.compilation.front_end_debugging:
            raise
        error = _lacking(error) or error
        kind = type(error) if isinstance(error, KernelError) else KernelError
        text = str(error) if isinstance(error, KernelError) else f"{type(error).__name__}: {error}"
        message = f"{kernel.__name__} ({_line(error)}), program {builder.grid_idx}: {text}"
        # With the traceback of the error itself, so that a debugger lands in the kernel.
        raise kind(message).with_traceback(error.__traceback__) from None
    for watcher in watchers:
        watcher.end()


def _lacking(error: Exception) -> NotInterpreted | None:
    """What the interpreter lacks, where it raised `error` for that."""
    if isinstance(error, AttributeError) and error.obj is stock.interpreter_builder:
        lacking = NotInterpreted(f"{error.name.removeprefix('create_')} is not interpreted")
        return lacking.with_traceback(error.__traceback__)
    if isinstance(error, NotImplementedError):
        return NotInterpreted(str(error)).with_traceback(error.__traceback__)
    return None


def _line(error: BaseException) -> str:
    """File and line of the innermost frame of an exception that is neither Triton's nor this package's."""
    found, trace = "?", error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not path.startswith(FOREIGN):
            found = f"{os.path.basename(path)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _patch_language() -> None:
    """Patch triton.language once; upstream swaps some 200 functions at every launch and every device call."""

    class Scope(stock._LangPatchScope):
        def restore(self):
            pass

    replaced: list[tuple[Any, str, types.FunctionType]] = []

    def patch_attr(obj, name, member, builder, scope):
        setattr(obj, name, operation(member))
        if obj is not tl.tensor and hasattr(member, "__wrapped__"):
            replaced.append((obj, name, member))

    scope = Scope()
    stock._patch_attr = patch_attr
    for language in (tl, tl.core):
        stock._patch_builtin(language, stock.interpreter_builder, scope)
        stock._patch_lang_tensor(language.tensor, scope)
        stock._patch_lang_core(language, scope)
    stock._patch_builtin(tl.math, stock.interpreter_builder, scope)
    stock._patch_builtin(tl.core.tensor_descriptor_base, stock.interpreter_builder, scope)
    for name, member in list(vars(tl.tensor).items()):  # of tl.math, which are no builtins of the tensor: x.exp()
        if isinstance(member, types.FunctionType) and "_semantic" in inspect.signature(member).parameters:
            setattr(tl.tensor, name, operation(member))
    stock._patch_lang = lambda fn: scope
    tl.tensor.__index__ = _index
    tl.tensor.__bool__ = _condition
    tl.static_assert = tl.core.static_assert = _static_assert
    if active("loops"):
        tl.range = tl.core.range = _typed_range
    for obj, name, member in replaced:
        redirect(member, getattr(obj, name))


def operation(builtin: Callable[..., Any]) -> Callable[..., Any]:
    """One of Triton's builtins, as a function that a kernel calls in the interpreter."""
    inner = getattr(builtin, "__wrapped__", builtin)  # without the check that _semantic is there

    def call(*args, **kwargs):
        kwargs["_semantic"] = stock.interpreter_semantic  # Triton's, or Gluon's while a kernel of Gluon's runs
        return inner(*args, **kwargs)

    return traced(call)


def _index(tensor) -> int:
    choices.decides()
    return int(tensor.handle.data.item())


def _condition(tensor) -> bool:
    """The truth of a scalar; to Triton's own code, which asks whether an optional tensor was given, all are true."""
    if sys._getframe(1).f_globals.get("__name__") in _SEMANTICS:
        return True
    data = tensor.handle.data
    if data.size != 1:
        raise KernelError(f"a tile of shape {data.shape} used as a condition; use tl.where")
    choices.decides()
    return bool(data.item())


def _static_assert(condition, message="") -> None:
    if not condition:
        raise StaticAssertionError(f"static_assert failed: {message}")


@repair("gluon", "kernels in Gluon run: partitions, mbarriers, TMA, cp.async, wgmma; races in shared memory raise")
def _gluon() -> None:
    pass  # what it needs is imported when such a kernel is launched


@repair("types", "speed: tile types are interned and a tensor takes its shape from its type")
def _types() -> None:
    made: dict[tuple, tl.block_type] = {}
    make_type, make_tensor = tl.block_type.__init__, tl.tensor.__init__
    broadcast = TritonSemantic.broadcast_impl_value

    def intern(cls, element_ty=None, shape=()):
        kind = (getattr(element_ty, "name", None), getattr(element_ty, "address_space", None))
        key = (*kind, *(getattr(size, "value", size) for size in shape))
        found = made.get(key)
        if found is None:
            found = made[key] = object.__new__(cls)
        return found

    def block_type(self, element_ty, shape):
        if "name" not in self.__dict__:
            make_type(self, element_ty, shape)

    def tensor(self, handle, type):
        fields = type.__dict__.get("_touchstone_fields")
        if fields is None:
            make_tensor(self, handle, type)
            type._touchstone_fields = {name: value for name, value in vars(self).items() if name != "handle"}
        else:
            self.__dict__.update(fields)
            self.handle = handle

    def broadcast_impl_value(self, lhs, rhs):
        if lhs.type is rhs.type or (not lhs.type.is_block() and not rhs.type.is_block()):
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    tl.block_type.__new__, tl.block_type.__init__ = intern, block_type
    tl.tensor.__init__ = tensor
    TritonSemantic.broadcast_impl_value = broadcast_impl_value


@repair("autotune", "of several configurations the first runs that pruning leaves and static_asserts allow")
def _autotune() -> None:
    def run(self, *args, **kwargs):
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        refused: StaticAssertionError | None = None
        try:
            key = _tuning_key(self, kwargs)
            new = key is not None and key not in self.cache
            configs = self.configs if key is None else self.prune_configs(kwargs) if new else [self.cache[key]]
            for config in configs:
                if new and (both := kwargs.keys() & config.kwargs.keys()):
                    raise ValueError(f"Conflicting meta-parameters: {', '.join(both)}")
                arguments = {**self.nargs, **kwargs, **config.all_kwargs()}
                if new:
                    self.pre_hook(arguments, reset_only=True)  # as after tuning, and not in later calls
                if config.pre_hook is not None:
                    config.pre_hook(arguments)
                try:
                    result = self.fn.run(*args, **kwargs, **config.all_kwargs())
                except StaticAssertionError as error:
                    refused = error
                    continue
                self.best_config = config
                if new:
                    self.cache[key] = config
                return result
        finally:
            self.nargs = None
        raise refused or ValueError(f"{self.base_fn.__name__}: no configuration is left after pruning")

    autotuner.Autotuner.run = run


def _tuning_key(tuner: autotuner.Autotuner, kwargs: dict[str, Any]) -> tuple | None:
    """What a configuration is chosen for, as Triton has it: values of the key arguments, and dtypes; None where there
    is nothing to choose."""
    if len(tuner.configs) < 2:
        return None
    given = {name: value for name, value in {**tuner.nargs, **kwargs}.items() if name in tuner.arg_names}
    chosen = [given[name] for name in tuner.keys if name in given]
    return (*chosen, *(str(value.dtype) for value in given.values() if hasattr(value, "dtype")))


@repair("timing", "do_bench calls the function once and gives its time on this machine's clock")
def _timing() -> None:
    def do_bench(fn, warmup=25, rep=100, grad_to_none=None, quantiles=None, return_mode="mean"):
        began = time.perf_counter()
        fn()
        took = (time.perf_counter() - began) * 1000
        if quantiles is not None:
            return [took] * len(quantiles) if len(quantiles) > 1 else took
        return [took] if return_mode == "all" else took

    def do_bench_cudagraph(fn, rep=20, grad_to_none=None, quantiles=None, return_mode="mean"):
        return do_bench(fn, grad_to_none=grad_to_none, quantiles=quantiles, return_mode=return_mode)

    testing.do_bench, testing.do_bench_cudagraph = do_bench, do_bench_cudagraph
