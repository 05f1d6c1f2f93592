"""Kernels in Gluon (triton.experimental.gluon), by NumPy: for Hopper and before, on one block.

Gluon's own front end runs them, so its checks of types, shapes and layouts hold; layouts.py asks the compiler what
layouts become. language.py replaces what would build code by what computes, machine.py has a program's partitions,
barriers and engines, shared.py its shared memory with the order of accesses.
"""

import ast
import functools
import inspect
from types import FunctionType
from typing import Any

from triton.experimental.gluon._runtime import GluonJITFunction
from triton.runtime import interpreter as stock

from touchstone.backends.triton.runtime.interpreter import calls
from touchstone.backends.triton.runtime.interpreter.gluon import language
from touchstone.backends.triton.runtime.interpreter.launch import launch_options
from touchstone.backends.triton.runtime.interpreter.registry import transformers


def launch(kernel: GluonJITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    """Run a kernel for each program of a grid."""
    language.install()
    function = interpreted(kernel)
    function.pre_run_hooks = kernel.pre_run_hooks
    options = {name: kwargs[name] for name in launch_options() or () if name in kwargs}
    with language.spoken(options):
        return function.run(*args, grid=grid, warmup=warmup, **kwargs)


def interpreted(kernel: GluonJITFunction) -> stock.InterpretedFunction:
    """The function of a kernel, rewritten for the interpreter."""
    found = vars(kernel).get("_touchstone_interpreted")
    if found is None:
        found = kernel._touchstone_interpreted = stock.InterpretedFunction(_opened(kernel.fn))
        found.rewriter.ast_transformer = _transformer()
    return found


def _opened(function: FunctionType) -> FunctionType:
    """A function whose globals hold what it closes over: rewritten, it closes over nothing."""
    if function.__closure__ is None:
        return function
    closed = inspect.getclosurevars(function).nonlocals
    opened = FunctionType(
        function.__code__, {**function.__globals__, **closed}, function.__name__, None, function.__closure__
    )
    functools.update_wrapper(opened, function).__defaults__ = function.__defaults__
    return opened


@functools.cache
def _transformer() -> ast.NodeTransformer:
    class Transformer(type(stock.FunctionRewriter.ast_transformer)):
        def visit_List(self, node):  # noqa: N802
            """To the compiler a list is a tuple: it can be added to one."""
            self.generic_visit(node)
            if not isinstance(node.ctx, ast.Load):
                return node
            return ast.copy_location(ast.Call(ast.Name("_touchstone_list", ast.Load()), [node], []), node)

    transformers.add(Transformer)
    return Transformer()


class _List(list):
    def __add__(self, other):
        return _List([*self, *other])

    def __radd__(self, other):
        return _List([*other, *self])


stock._touchstone_list = _List


def _call(kernel: GluonJITFunction, *args: Any, **kwargs: Any) -> Any:
    return interpreted(kernel)(*args, **kwargs)


GluonJITFunction.__call__, GluonJITFunction.__get__ = _call, calls.bound
