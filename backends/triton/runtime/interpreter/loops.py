"""Python in a kernel: `for`, `and`, `or`, `max`, `min`, tuples of numbers, operators on constants."""

import ast
import builtins
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import TensorHandle

from touchstone.backends.triton.runtime.interpreter import choices
from touchstone.backends.triton.runtime.interpreter.registry import repair


@repair("loops", "a loop variable has the type its bounds promote to; Python's max and min take tiles", "triton#9171")
def _loops() -> None:
    class Transformer(type(stock.FunctionRewriter.ast_transformer)):
        def visit_For(self, node):  # noqa: N802
            self.generic_visit(node)
            match node.iter:
                case ast.Call(func=ast.Name(id="range") as name):
                    name.id = "_touchstone_range"
            return node

        def visit_BoolOp(self, node):  # noqa: N802
            self.generic_visit(node)
            none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
            operands = [ast.Lambda(args=none, body=value) for value in node.values]
            word = ast.Constant(isinstance(node.op, ast.And))
            return ast.copy_location(ast.Call(ast.Name("_touchstone_logical", ast.Load()), [word, *operands], []), node)

        def visit_Call(self, node):  # noqa: N802
            self.generic_visit(node)
            match node.func:
                case ast.Name(id="max" | "min"):
                    node.args.insert(0, node.func)
                    node.func = ast.copy_location(ast.Name("_touchstone_extremum", ast.Load()), node)
            return node

        def visit_Assign(self, node):  # noqa: N802
            if not hasattr(super(), "visit_Compare"):  # 3.9 visits the value itself
                node.value = self.visit(node.value)
            node = super().visit_Assign(node)
            node.value.func, node.value.args[1:] = ast.Name("_touchstone_assigned", ast.Load()), []
            return node

    stock._touchstone_range, stock._touchstone_logical = _typed_range, _logical
    stock._touchstone_extremum, stock._touchstone_assigned = _extremum, _assigned
    stock.FunctionRewriter.ast_transformer = Transformer()


def _typed_range(first, second=None, step=None, **options) -> Iterator[tl.tensor]:
    """`range` and `tl.range` in a kernel; the type of the variable is what the bounds and the step promote to."""
    semantic = stock.interpreter_semantic
    bounds = [0, first] if second is None else [first, second]
    bounds = [semantic.to_tensor(value) for value in (*bounds, 1 if step is None else step)]
    ty = bounds[0].dtype
    for bound in bounds:
        if not bound.dtype.is_int() or bound.type.is_block():
            raise TypeError(f"the bounds and the step of a loop are scalar integers, not {bound.type}")
        ty = semantic.integer_promote_impl(ty, bound.dtype)
    dtype = stock._get_np_dtype(ty)
    choices.decides()
    for value in range(*(int(bound.handle.data.item()) for bound in bounds)):
        yield tl.tensor(TensorHandle(np.array([value], dtype=dtype), ty), ty)


def _logical(conjunction: bool, *operands):
    """`and`, `or` in a kernel: elementwise on tensors, short-circuit on compile-time values."""
    result = None
    for operand in operands:
        value = operand()
        if not isinstance(value, tl.tensor):
            if bool(value) != conjunction:
                return value
            last = value
        elif result is None:
            result = value
        else:
            result = result.logical_and(value) if conjunction else result.logical_or(value)
    return last if result is None else result


def _extremum(function: Callable[..., Any], *values, **options):
    """A call of `max` or `min` in a kernel: Python's become Triton's where one of the values is a tensor."""
    if any(isinstance(value, tl.tensor) for value in values):
        if function is builtins.max:
            function = tl.core.builtin_max
        elif function is builtins.min:
            function = tl.core.builtin_min
    return function(*values, **options)


def _assigned(value):
    """What a variable holds after an assignment: numbers become tensors, those of a tuple, too."""
    if type(value) is tl.tensor:
        return value
    if isinstance(value, tuple):
        parts = [_assigned(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return stock.interpreter_semantic.to_tensor(value, False)


@repair("constants", "an operator with a tl.constexpr on its left works on tiles")
def _constants() -> None:
    for word in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
        _operate_on_tensors(f"__{word}__")
    for word in ("lt", "le", "gt", "ge", "eq", "ne"):
        _operate_on_tensors(f"__{word}__")


def _operate_on_tensors(name: str) -> None:
    """Make an operator of tl.constexpr apply its value to a tensor, and give a tensor."""
    constant, on_values = getattr(tl.constexpr, name), getattr(operator, name)

    def apply(self, other):
        return on_values(self.value, other) if isinstance(other, tl.tensor) else constant(self, other)

    setattr(tl.constexpr, name, apply)
