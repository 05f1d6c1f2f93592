"""What a kernel calls: Triton's functions and other kernels, and Python's as the compiler calls them.

A function that is not Triton's is called once, while the kernel is compiled, and on constants: `math.log2(BLOCK)`.
To an interpreter all of it is Python, in which any function could work on tiles.
"""

import ast
import builtins
from numbers import Number
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as stock

from touchstone.backends.triton.runtime.interpreter.registry import FOREIGN, KernelError, repair

_FOLDERS = FOREIGN[0], FOREIGN[2]  # of Triton and of this interpreter
_PYTHON = frozenset(
    getattr(builtins, name) for name in ("len", "range", "isinstance", "getattr", "hasattr", "print", "min", "max")
)
_OF_VALUES = (tl.core.base_value, tl.dtype, list, tuple, dict, str)  # whose methods a kernel may call
_CONSTANTS = (Number, str, type(None), tl.constexpr, tl.dtype)


@repair("calls", "functions that are not Triton's are called on constants, once in a launch, and give constants")
def _calls() -> None:
    class Transformer(type(stock.FunctionRewriter.ast_transformer)):
        def visit_For(self, node):  # noqa: N802
            if isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) == "range":
                node.iter.of_loop = True  # it has another meaning there
            return getattr(super(), "visit_For", self.generic_visit)(node)

        def visit_Call(self, node):  # noqa: N802
            node = getattr(super(), "visit_Call", self.generic_visit)(node)
            match node.func:
                case ast.Name(id="_touchstone_extremum"):
                    node.args[0] = _checked(node.args[0])
                case ast.Name(id=name) if name.startswith("_touchstone_"):
                    pass
                case _ if not hasattr(node, "of_loop"):
                    node.func = _checked(node.func)
            return node

    stock._touchstone_called = _called
    stock.FunctionRewriter.ast_transformer = Transformer()


def _checked(function: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name("_touchstone_called", ast.Load()), [function], []), function)


def _called(function: Any) -> Any:
    """`function` where Triton's compiler has it work on tiles, else what calls it on constants."""
    return function if _is_language(function) else _OnConstants(function)


def _is_language(function: Any) -> bool:
    kind = type(function)
    if kind is FunctionType:
        return function.__code__.co_filename.startswith(_FOLDERS)
    if kind is MethodType:
        return isinstance(function.__self__, _OF_VALUES) or _is_language(function.__func__)
    if kind is BuiltinFunctionType:
        return isinstance(function.__self__, _OF_VALUES) or function in _PYTHON
    if isinstance(function, type):
        return function in _PYTHON or function.__module__.startswith("triton.") or issubclass(function, list | tuple)
    if kind.__name__ == "ConstexprFunction":
        return _is_language(function.fn)
    return kind is stock.InterpretedFunction or isinstance(function, tl.core.base_value)


_given: dict[Any, Any] = {}  # by functions of this launch, and their arguments


def forget() -> None:
    """A launch begins, for which a GPU's kernel may be compiled anew."""
    _given.clear()


class _OnConstants:
    """Calls a function as Triton's compiler does."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = getattr(self._function, "__qualname__", type(self._function).__qualname__)
        if not all(map(_is_constant, (*args, *kwargs.values()))):
            raise KernelError(f"{name} is no function of Triton's: a kernel cannot call it but on constants")
        key = self._function, *map(repr, args), repr(kwargs)
        if key not in _given:
            _given[key] = self._function(*args, **kwargs)
        if not _is_constant(_given[key]) and type(_given[key]) is not stock.InterpretedFunction:
            raise KernelError(f"{name} is no function of Triton's, and gives a kernel what is no constant")
        return _given[key]


def _is_constant(value: Any) -> bool:
    return all(map(_is_constant, value)) if isinstance(value, list | tuple) else isinstance(value, _CONSTANTS)
