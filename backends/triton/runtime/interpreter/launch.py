"""A launch: its arguments, its grid, the language that its kernel sees."""

import bdb
import dataclasses
import functools
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import autotuner
from triton.runtime import interpreter as stock

from touchstone import backends
from touchstone.backends.triton.runtime.interpreter.loops import _typed_range
from touchstone.backends.triton.runtime.interpreter.memory import _Launch, _launches
from touchstone.backends.triton.runtime.interpreter.registry import KernelError, StaticAssertionError, active, repair

_SEMANTIC = vars(sys.modules[TritonSemantic.__module__])
_FOREIGN = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (triton.__file__, np.__file__, __file__))


def schedule(grid: tuple[int, int, int]) -> Iterable[tuple[int, int, int]]:
    """The order in which the programs of a grid run; instruments.schedule puts another one here."""
    return np.ndindex(*grid)


watchers: list[Any] = []  # told of every launch; instruments._watching puts them here


@functools.cache
def _launch_options() -> frozenset[str] | None:
    """What a launch accepts beside the kernel's own parameters."""
    try:
        from triton.backends.nvidia.compiler import CUDAOptions
    except ImportError:
        return None
    return frozenset(field.name for field in dataclasses.fields(CUDAOptions)) | {"instrumentation_mode"}


@repair("launch", "tensors are read and written in place; errors name kernel, line and program; bad options raise")
def _launch() -> None:
    def call(self, *args, **kwargs):
        options = _launch_options()
        for name in kwargs:
            if options is not None and name not in self.arg_names and name not in options:
                raise KeyError(f"{self.fn.__name__}: {name!r} is neither a parameter nor a launch option")
        kwargs = {name: value for name, value in kwargs.items() if name in self.arg_names}
        host, host_kwargs = args, kwargs
        elsewhere = any(tensor.device.type != "cpu" for tensor in _tensors((args, tuple(kwargs.values()))))
        if elsewhere:
            host, host_kwargs = self._init_args_hst(args, kwargs)
        for hook in self.pre_run_hooks:
            hook(*host, **host_kwargs)
        given = inspect.getcallargs(self.fn, *host, **host_kwargs)
        _launches.append(launch := _Launch())
        try:
            converted = {}
            for name, value in given.items():
                launch.argument = name
                converted[name] = value if name in self.constexprs else stock._implicit_cvt(value)
            self.grid = self.grid(given) if callable(self.grid) else self.grid
            with backends.running():
                _run_grid(self.fn, converted, _grid(self.fn, self.grid))
        finally:
            _launches.pop()
        if elsewhere:
            self._restore_args_dev(args, host, kwargs, host_kwargs)

    _patch_language()
    stock.GridExecutor.__call__ = call
    stock.InterpretedFunction.__call__ = lambda self, *args, **kwargs: self.rewrite()(*args, **kwargs)


def _tensors(value) -> Iterator[torch.Tensor]:
    if isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(getattr(value, "base", None), torch.Tensor):
        yield value.base


def _grid(kernel, grid) -> tuple[int, int, int]:
    sizes = tuple(int(size) for size in grid)
    if not 1 <= len(sizes) <= 3:
        raise KernelError(f"{kernel.__name__}: a grid has 1 to 3 axes, not {len(sizes)}")
    sizes += (1,) * (3 - len(sizes))
    if sizes[0] >= 2**31 or max(sizes[1:]) > 65535:
        raise KernelError(f"{kernel.__name__}: grid {sizes} is larger than a GPU's limit (2147483647, 65535, 65535)")
    return sizes


def _run_grid(kernel, arguments: dict[str, Any], grid: tuple[int, int, int]) -> None:
    builder = stock.interpreter_builder
    builder.set_grid_dim(*grid)
    for watcher in watchers:
        watcher.begin(kernel.__name__)
    try:
        with np.errstate(all="ignore"):
            for builder.grid_idx in schedule(grid):
                kernel(**arguments)
    except bdb.BdbQuit:
        raise
    except Exception as error:
        if triton.knobs.compilation.front_end_debugging:
            raise
        kind = type(error) if isinstance(error, KernelError) else KernelError
        text = str(error) if isinstance(error, KernelError) else f"{type(error).__name__}: {error}"
        message = f"{kernel.__name__} ({_line(error)}), program {builder.grid_idx}: {text}"
        # With the traceback of the error itself, so that a debugger lands in the kernel.
        raise kind(message).with_traceback(error.__traceback__) from None
    for watcher in watchers:
        watcher.end()


def _line(error: BaseException) -> str:
    """File and line of the innermost frame of an exception that is neither Triton's nor this package's."""
    found, trace = "?", error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not path.startswith(_FOREIGN):
            found = f"{os.path.basename(path)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _patch_language() -> None:
    """Patch triton.language once; upstream swaps some 200 functions at every launch and every device call."""

    class Scope(stock._LangPatchScope):
        def restore(self):
            pass

    def patch_attr(obj, name, member, builder, scope):
        inner = getattr(member, "__wrapped__", member)  # without the check that _semantic is there
        semantic = stock.interpreter_semantic

        def operation(*args, **kwargs):
            kwargs["_semantic"] = semantic
            return inner(*args, **kwargs)

        setattr(obj, name, operation)

    scope = Scope()
    stock._patch_attr = patch_attr
    for language in (tl, tl.core):
        stock._patch_builtin(language, stock.interpreter_builder, scope)
        stock._patch_builtin(language.tensor, stock.interpreter_builder, scope)
        stock._patch_lang_tensor(language.tensor, scope)
        stock._patch_lang_core(language, scope)
    stock._patch_builtin(tl.math, stock.interpreter_builder, scope)
    stock._patch_builtin(tl.core.tensor_descriptor_base, stock.interpreter_builder, scope)
    stock._patch_lang = lambda fn: scope
    tl.tensor.__index__ = lambda self: int(self.handle.data.item())
    tl.tensor.__bool__ = _condition
    tl.static_assert = tl.core.static_assert = _static_assert
    if active("loops"):
        tl.range = tl.core.range = _typed_range


def _condition(tensor) -> bool:
    """The truth of a scalar; to Triton's own code, which asks whether an optional tensor was given, all are true."""
    if sys._getframe(1).f_globals is _SEMANTIC:
        return True
    data = tensor.handle.data
    if data.size != 1:
        raise KernelError(f"a tile of shape {data.shape} used as a condition; use tl.where")
    return bool(data.item())


def _static_assert(condition, message="") -> None:
    if not condition:
        raise StaticAssertionError(f"static_assert failed: {message}")


@repair("types", "speed: tile types are interned and a tensor takes its shape from its type")
def _types() -> None:
    made: dict[tuple, tl.block_type] = {}
    make_type, make_tensor = tl.block_type.__init__, tl.tensor.__init__
    broadcast = TritonSemantic.broadcast_impl_value

    def intern(cls, element_ty=None, shape=()):
        pointer = (getattr(element_ty, "address_space", None), getattr(element_ty, "const", False))
        key = (getattr(element_ty, "name", None), *pointer, *(getattr(size, "value", size) for size in shape))
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
            for config in self.prune_configs(kwargs):
                if both := kwargs.keys() & config.kwargs.keys():
                    raise ValueError(f"Conflicting meta-parameters: {', '.join(both)}")
                if config.pre_hook is not None:
                    config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
                try:
                    result = self.fn.run(*args, **kwargs, **config.all_kwargs())
                except StaticAssertionError as error:
                    refused = error
                    continue
                self.best_config = config
                return result
        finally:
            self.nargs = None
        raise refused or ValueError(f"{self.base_fn.__name__}: no configuration is left after pruning")

    autotuner.Autotuner.run = run
