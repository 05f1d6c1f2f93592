"""What a kernel calls: Triton's functions and other kernels, and Python's as the compiler calls them.

A function that is not Triton's is called once, while the kernel is compiled, and on constants: `math.log2(BLOCK)`.
To an interpreter all of it is Python, in which any function could work on tiles, and so could an object's property or
operator.
"""

import abc
import ast
import builtins
import dis
import enum
import functools
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterable
from numbers import Number
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as stock

from touchstone import backends
from touchstone.backends.triton.runtime.interpreter import choices
from touchstone.backends.triton.runtime.interpreter.registry import FOREIGN, KernelError, repair, transformers

_FOLDERS = FOREIGN[0], FOREIGN[2]  # of Triton and of this interpreter
_PYTHON = frozenset(
    getattr(builtins, name)
    for name in ("len", "range", "isinstance", "getattr", "hasattr", "print", "min", "max", "breakpoint")
)
_OF_VALUES = (tl.core.base_value, tl.dtype, list, tuple, dict, str)  # whose methods a kernel may call
_PYTHONS = (list, tuple, dict, str)
_CONSTANTS = (Number, str, type(None), tl.constexpr, tl.dtype)
_INSIDES = (np.ndarray, *(kind for name, kind in vars(stock).items() if name.endswith("Handle")))  # what tiles hold
_LIBRARIES = {*sys.stdlib_module_names, "triton", "torch", "numpy", "touchstone", "pybind11_builtins"}
_PLAIN = frozenset(  # what classes have that hold constants
    f"__{name}__"
    for name in (
        *("module", "dict", "weakref", "doc", "init", "new", "post_init", "repr", "str", "eq", "ne", "hash", "slots"),
        *("annotations", "match_args", "dataclass_fields", "dataclass_params", "getnewargs", "reduce", "reduce_ex"),
        *("getstate", "setstate", "static_attributes", "firstlineno", "abstractmethods", "orig_bases", "parameters"),
        *("replace", "lt", "le", "gt", "ge", "copy", "deepcopy", "format", "sizeof", "set_name", "init_subclass"),
        *("call", "get", "set", "del"),  # a call is looked at when it is made
    )
)


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
                    node.args[0] = _wrapped("called", node.args[0])
                case ast.Name(id=name) if name.startswith("_touchstone_"):
                    pass
                case ast.Call(func=ast.Name(id="_touchstone_read"), args=[function]):
                    node.func = _wrapped("called", function)
                case _ if not hasattr(node, "of_loop"):
                    node.func = _wrapped("called", node.func)
            return node

        def visit_arguments(self, node):
            return node  # names of annotations decide

        def visit_AnnAssign(self, node):  # noqa: N802
            annotation = node.annotation
            node = getattr(super(), "visit_AnnAssign", self.generic_visit)(node)
            node.annotation = annotation
            return node

        def visit_Attribute(self, node):  # noqa: N802
            self.generic_visit(node)
            if not isinstance(node.ctx, ast.Load):
                node.value = _wrapped("stored", node.value)
                return node
            if node.attr.startswith("__"):
                node.value = _wrapped("inner", node.value)
            return _wrapped("constant", node.value) if node.attr == "value" else _wrapped("read", node)

        def visit_Subscript(self, node):  # noqa: N802
            self.generic_visit(node)
            if not isinstance(node.ctx, ast.Load):
                node.value = _wrapped("stored", node.value)
            return node

        def visit_AugAssign(self, node):  # noqa: N802
            self.generic_visit(node)
            if isinstance(node.target, ast.Name):
                node.value = _wrapped("added", node.value)
                node.value.args.insert(0, ast.copy_location(ast.Name(node.target.id, ast.Load()), node))
            return node

        def visit_FormattedValue(self, node):  # noqa: N802
            self.generic_visit(node)
            node.value = _wrapped("formatted", node.value)
            return node

        def visit_BinOp(self, node):  # noqa: N802
            self.generic_visit(node)
            if not isinstance(node.op, ast.Mod):
                return node
            call = ast.Call(ast.Name("_touchstone_remainder", ast.Load()), [node.left, node.right], [])
            return ast.copy_location(call, node)

        def visit_Global(self, node):  # noqa: N802
            return [ast.copy_location(ast.Expr(_wrapped("refused", ast.Constant(ast.unparse(node)))), node), node]

        def visit_Nonlocal(self, node):  # noqa: N802
            return self.visit_Global(node)[0]  # rewritten, a kernel closes over nothing

        def visit_Match(self, node):  # noqa: N802
            self.generic_visit(node)
            return [ast.copy_location(ast.Expr(_wrapped("refused", ast.Constant("match"))), node), node]

    original = stock.FunctionRewriter.rewrite_ast

    def rewrite_ast(self):
        """Triton's; what it has made of a source, by transformers of this interpreter, is known for that."""
        own = vars(self).keys() & vars(stock.FunctionRewriter).keys() - {"ast_transformer"}
        by = self.ast_transformer
        with backends.compiling():
            function = original(self)
        if own or type(self) is not stock.FunctionRewriter or type(by) not in transformers or vars(by):
            return function
        if function is self.fn or any(function is value for value in self.kwargs.values()):
            return function  # as it was: it has no source
        _note(function.__code__)
        used = set(_global_names(function.__code__)) - set(_global_names(self.fn.__code__))
        _interpreters[function.__code__] = {name: vars(stock)[name] for name in used if name in vars(stock)}
        return function

    stock._touchstone_called, stock._touchstone_read, stock._touchstone_constant = _called, _read, _constant
    stock._touchstone_stored, stock._touchstone_inner, stock._touchstone_added = _stored, _inner, _added
    stock._touchstone_formatted, stock._touchstone_remainder = _formatted, _remainder
    stock._touchstone_refused = _refused
    transformers.add(Transformer)
    stock.FunctionRewriter.ast_transformer = Transformer()
    stock.FunctionRewriter.rewrite_ast = rewrite_ast


@repair("aggregates", "methods of an aggregate may be kernels")
def _aggregates() -> None:
    original = tl.core._aggregate

    def aggregate(kind):
        made = original(kind)
        for name, member in inspect.getmembers(kind):
            if isinstance(member, stock.InterpretedFunction):
                setattr(made, name, member)
        return made

    tl.core._aggregate = aggregate
    stock.InterpretedFunction.__get__ = bound


def bound(kernel: Any, instance: Any, owner: Any = None) -> Any:
    """A kernel as a method of an aggregate, or as what it is of any other class."""
    return Method(kernel, instance) if isinstance(instance, tl.core.base_value) else kernel


class Method:
    """A kernel called on an aggregate."""

    def __init__(self, kernel: Any, instance: Any) -> None:
        self.__self__, self.__func__ = instance, kernel

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)


_interpreters: dict[CodeType, dict[str, Any]] = {}  # of a rewritten function the names that the interpreter put there


def _note(code: CodeType) -> None:
    backends.kernel_code.add(code)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _note(inner)


def _wrapped(how: str, value: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name(f"_touchstone_{how}", ast.Load()), [value], []), value)


def _called(function: Any) -> Any:
    """`function` where Triton's compiler has it work on tiles, else what calls it on constants."""
    if backends.before_launch and (strict := _strictly(function)) is not None:
        return strict
    return function if _is_language(function) else _OnConstants(function)


# Where numbers are kept from the launcher, none may leave a kernel but by its stores: neither a tile, put into an
# object that stays or asked for what the interpreter makes it of, nor as text.


def _strictly(function: Any) -> Any:
    """What is called in place of a function of Python's by which numbers could leave; None for any other."""
    if type(function) is MethodType and isinstance(function.__self__, _OF_VALUES):
        return function if _is_language(function.__func__) else _OnConstants(function)
    if isinstance(function, type) and (by := _maker(function)) is not None:
        _refused(f"a {function.__qualname__}, which {by} makes")
    if type(function) is not BuiltinFunctionType:
        return None
    if function is builtins.getattr:
        return _attribute
    if function is builtins.print:
        return _printed
    owner = function.__self__
    if function is builtins.breakpoint or isinstance(owner, str):
        return _OnConstants(function)
    for kind, unchanging in ((list, tuple), (dict, MappingProxyType)):
        if isinstance(owner, kind) and not hasattr(unchanging, function.__name__):
            _refused(f"{kind.__name__}.{function.__name__}")
    return None


def _maker(kind: type) -> str | None:
    """What of somebody's own is called when an object of a class is made, and does more there than to name its parts:
    it would be given tiles."""
    kinds = [kind]
    made_by = getattr(vars(kind).get("__new__"), "__func__", None)  # a static method
    if type(made_by) is FunctionType and made_by.__code__.co_filename.startswith(_FOLDERS) and made_by.__closure__:
        cells = zip(made_by.__code__.co_freevars, made_by.__closure__, strict=True)  # of an aggregate
        kinds += [cell.cell_contents for name, cell in cells if name == "cls"]
    for each in kinds:
        if _is_tritons(each):
            continue
        parts = vars(each).get("__annotations__") or {}
        if type(parts) is not dict or not all(map(_is_plain, (each, *parts.values()))):
            return "a class of classes"
        for owner in each.__mro__:
            for name in _MAKERS & vars(owner).keys():
                member = vars(owner)[name]
                member = member.__func__ if isinstance(member, staticmethod | classmethod) else member
                if type(member).__name__ == "ConstexprFunction":
                    member = member.fn
                own = not isinstance(member, _OF_C | FunctionType) or (
                    isinstance(member, FunctionType) and not member.__code__.co_filename.startswith(_KNOWN)
                )
                if own and not (isinstance(member, FunctionType) and _only_names(member)):
                    return f"{name} of its own"
    return None


_MAKERS = {f"__{name}__" for name in ("new", "init", "post_init", "setattr", "getattr", "getattribute", "del")}
_OF_C = BuiltinFunctionType | WrapperDescriptorType
_PLACES = (sysconfig.get_paths()["stdlib"], *map(os.path.dirname, (torch.__file__, str(backends.__file__))))
_KNOWN = (*FOREIGN, *(place + os.sep for place in _PLACES))  # where libraries' code lies


def _is_plain(kind: Any) -> bool:
    """Whether nobody's own code says what is of a class."""
    return not isinstance(kind, type) or type(kind) in (type, abc.ABCMeta, enum.EnumMeta) or _is_tritons(type(kind))


def _is_tritons(value: Any) -> bool:
    """Whether a module or class is of Triton's language."""
    if type(value) is ModuleType:
        return value.__name__.startswith("triton.") and sys.modules.get(value.__name__) is value
    if not isinstance(value, type) or not value.__module__.startswith("triton."):
        return False
    return vars(sys.modules[value.__module__]).get(value.__qualname__) is value


def _only_names(function: FunctionType) -> bool:
    """Whether a function does no more than to name its arguments, or what Triton makes of them."""
    for each in dis.get_instructions(function):
        match each.opname:
            case "LOAD_GLOBAL":
                value = function.__globals__.get(each.argval, getattr(builtins, str(each.argval), None))
                if not (
                    value in (len, isinstance, tuple.__new__) or isinstance(value, _CONSTANTS) or _is_tritons(value)
                ):
                    return False
            case "LOAD_ATTR" | "LOAD_METHOD" if each.argval not in ("constexpr", "static_assert"):
                return False
            case "STORE_GLOBAL" | "STORE_SUBSCR" | "STORE_DEREF" | "LOAD_DEREF" | "IMPORT_NAME" | "MAKE_FUNCTION":
                return False
    return True


def _attribute(value: Any, name: Any, *default: Any) -> Any:
    if isinstance(name, str) and name.startswith("__"):
        _inner(value)
    return _read(getattr(value, name, *default))


def _printed(*values: Any, **options: Any) -> None:
    if "file" in options:
        _refused("print to a file")
    print(*values, **options)


def _stored(value: Any) -> Any:
    """An object that an attribute or an element is assigned to."""
    _refused("an assignment to an element or an attribute")
    return value


def _inner(value: Any) -> Any:
    """An object of which a name with underscores is read."""
    if isinstance(value, tl.core.base_value):
        _refused("what Python knows of a tile")
    return value


def _added(value: Any, more: Any) -> Any:
    """What an assignment with an operator adds; to the compiler it changes a name, and no object."""
    if not isinstance(value, (tl.core.base_value, tuple, *_CONSTANTS)):
        _refused(f"a change of a {type(value).__name__} in place")
    return more


def _formatted(value: Any) -> Any:
    """What an f-string shows."""
    if not _is_constant(value):
        _refused("an f-string of what is no constant")
    return value


def _remainder(value: Any, by: Any) -> Any:
    if isinstance(value, str | bytes) and not _is_constant(by):
        _refused("a text made of what is no constant")
    return value % by


def _refused(what: str) -> None:
    """KernelError where somebody is told of launches; elsewhere a kernel is Python."""
    if backends.before_launch:
        raise KernelError(f"{what}: Triton does not compile it, and numbers could leave the kernel by it")


def _is_language(function: Any) -> bool:
    kind = type(function)
    if kind is FunctionType:
        return function.__code__.co_filename.startswith(_FOLDERS)
    if kind is MethodType:
        return isinstance(function.__self__, _OF_VALUES) or _is_language(function.__func__)
    if kind is BuiltinFunctionType:
        return isinstance(function.__self__, _OF_VALUES) or function in _PYTHON
    if isinstance(function, type):
        if function in _PYTHON or function.__module__.startswith("triton."):
            return True
        return issubclass(function, list | tuple | tl.core.base_value)
    if kind.__name__ == "ConstexprFunction":
        return _is_language(function.fn)
    if kind is functools.partial or kind is Method:
        return _is_language(function.__func__ if kind is Method else function.func)
    return kind is stock.InterpretedFunction or is_gluon(function) or isinstance(function, tl.core.base_value)


def is_gluon(function: Any) -> bool:
    return type(function).__name__ == "GluonJITFunction"


_given: dict[Any, Any] = {}  # by functions of this launch, and their arguments
_begun: set[CodeType] = set()  # what was looked at in this launch


def begin(kernel: Any, arguments: Iterable[Any]) -> None:
    """A launch of `kernel` begins, for which a GPU's may be compiled anew. KernelError where an argument or a global
    name is an object whose class computes."""
    _given.clear()
    _begun.clear()
    choices.begin(kernel.__code__)
    for value in arguments:
        _read(value)
    enter(kernel)


def enter(function: Any) -> None:
    """The same for what a function of the kernel's uses of its module; and where somebody is told of launches, which
    keeps numbers from the launcher, for a function that is plain Python: it has no source, or was put in the place."""
    code = function.__code__
    if code not in _begun:
        names = _interpreters.get(code, {})
        if any(function.__globals__.get(name) is not value for name, value in names.items()) or (
            backends.before_launch and code not in _interpreters
        ):
            raise KernelError(f"{function.__name__}: is not as the interpreter makes it of its source")
        _begun.add(code)
        for name in _global_names(code):
            _read(function.__globals__.get(name))


@functools.cache
def _global_names(code: CodeType) -> tuple[str, ...]:
    found = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return tuple(sorted(found.union(*map(_global_names, inner))))


def _read(value: Any) -> Any:
    """`value`, if it is none that computes when it is used."""
    if isinstance(value, _INSIDES):
        _refused(f"a {type(value).__name__}")
    if _computes(type(value)):
        raise KernelError(f"a {type(value).__qualname__} is nothing of Triton's: a kernel has no use for its class")
    return value


def _constant(value: Any) -> Any:
    """`value.value`: a constant, which the compiler wraps and the interpreter does not, is its own."""
    return value if isinstance(value, Number | str | None) else _read(value.value)


@functools.cache
def _computes(kind: type) -> bool:
    """Whether a class of somebody's has properties or operators."""
    if not _is_somebodys(kind) or (issubclass(kind, tl.core.base_value) and not issubclass(kind, tl.constexpr)):
        return False
    own = [each for each in kind.__mro__ if _is_somebodys(each)]
    members = {name: member for each in own for name, member in vars(each).items()}
    operators = [name for name in members if name.startswith("__") and name.endswith("__") and name not in _PLAIN]
    borrowed = [name for name in _COMPARED & members.keys() if not _is_of(members[name], kind)]
    return bool(operators or borrowed) or any(
        isinstance(member, property | functools.cached_property) for member in members.values()
    )


def _is_somebodys(kind: type) -> bool:
    """Whether a class is of no library's, by its name and by where its methods and properties were written."""
    if kind.__module__.partition(".")[0] not in _LIBRARIES:
        return True
    members = (getattr(each, "fget", None) or getattr(each, "func", each) for each in vars(kind).values())
    code = (each.__code__ for each in members if isinstance(each, FunctionType))
    return any(not each.co_filename.startswith((*_KNOWN, "<")) for each in code)


_COMPARED = {f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge", "get", "set")}


def _is_of(member: Any, kind: type) -> bool:
    """Whether a method was written for a class, or made for it by the standard library, and is none of another's."""
    return isinstance(member, FunctionType) and member.__module__ in {kind.__module__, "functools", "dataclasses"}


class _OnConstants:
    """Calls a function as Triton's compiler does."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = getattr(self._function, "__qualname__", type(self._function).__qualname__)
        if not all(map(_is_constant, (*args, *kwargs.values()))):
            raise KernelError(f"{name} is no function of Triton's: a kernel cannot call it but on constants")
        with backends.compiling():
            key = self._function, *map(repr, args), repr(kwargs)
            if key not in _given:
                choices.called(self._function, key)
                _given[key] = self._function(*args, **kwargs)
        if not _is_constant(_given[key]) and not _is_language(_given[key]):
            raise KernelError(f"{name} is no function of Triton's, and gives a kernel what is no constant")
        return _given[key]


def _is_constant(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_constant, value))
    return isinstance(value, _CONSTANTS) or is_layout(type(value)) or is_gluon(value)


@functools.cache
def is_layout(kind: type) -> bool:
    """Of Gluon's, which are constants."""
    return kind.__module__.startswith("triton.experimental.gluon.") and kind.__name__.endswith("Layout")
