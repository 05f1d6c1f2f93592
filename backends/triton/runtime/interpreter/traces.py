"""Speed: what an operation does to operands of given types is worked out once.

Triton's own code for an operation (`x + 1.0`, `tl.load(p, mask=m)`) decides by the types of its operands, in some
hundred calls of Python functions, which methods of its builder to call: cast this, broadcast that, add. It never looks
at values, which a compiler does not have. So the first time the builder's calls are recorded, and for later operands of
the same types, and the same constants, they are repeated without Triton's code.
"""

import copy
import re
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import TensorHandle

from touchstone.backends.triton.runtime.interpreter.calls import is_layout
from touchstone.backends.triton.runtime.interpreter.registry import repair

KEPT = 4096  # traces of one operation; constants in a key may be many
# What the builder makes of constants alone stays the same.
FOLDED = ("get_", "create_splat", "create_make_range", "create_fp_", "create_int_cast", "create_si_to", "create_ui_to")
# Of two operands or, of a select, three; at least one of them has the shape of the result.
ELEMENTWISE = re.compile(
    r"create_(f?add|f?sub|f?mul|fdiv|addptr|(max|min)numf|and|or|xor|[if]cmp\w+|select|overflow_check)"
)
HANDLES = tuple(
    getattr(stock, name) for name in ("TensorHandle", "BlockPointerHandle", "TensorDescHandle") if hasattr(stock, name)
)

_enabled = False
_recording = False


class _Unknown(Exception):
    """An operand or a result that a trace has no name for."""


@repair("traces", "speed: what an operation does to operands of given types is worked out once")
def _traces() -> None:
    global _enabled
    _enabled = True

    def handle(self, data, dtype, attr=None):
        """Without the check of the size of `data`, which costs as much as the addition of a tile."""
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr

    TensorHandle.__init__ = handle


def traced(operation: Callable[..., Any]) -> Callable[..., Any]:
    """An operation of Triton's language whose builder calls are recorded and repeated."""
    traces: dict[tuple, Callable[..., Any] | None] = {}

    def call(*args, **kwargs):
        if not _enabled or _recording:
            return operation(*args, **kwargs)
        tensors: list[tl.tensor] = []
        key: list[Any] = []
        try:
            _describe(args, key, tensors)
            if kwargs:
                key.extend(kwargs)
                _describe(kwargs.values(), key, tensors)
        except _Unknown:
            return operation(*args, **kwargs)
        found = tuple(key)
        trace = traces.get(found, _recorded)
        if trace is None:
            return operation(*args, **kwargs)
        if trace is not _recorded:
            return trace(stock.interpreter_builder, tensors)
        result, trace = _recorded(operation, args, kwargs, tensors)
        if len(traces) >= KEPT:
            traces.clear()
        traces[found] = trace
        return result

    return call


_numbers: dict[tuple, int] = {}
_tensor = tl.tensor


def _number(ty: tl.dtype) -> int:
    """One number for equal types."""
    found = ty.__dict__.get("_touchstone_number")
    if found is None:
        key: tuple
        if isinstance(ty, tl.block_type):
            key = ("block", _number(ty.element_ty), *map(int, ty.shape), getattr(ty, "layout", None))
        elif isinstance(ty, tl.pointer_type):
            key = ("pointer", _number(ty.element_ty), ty.address_space, ty.const)
        elif type(ty) is tl.dtype:
            key = (ty.name,)
        else:
            raise _Unknown
        found = ty._touchstone_number = _numbers.setdefault(key, len(_numbers))
    return found


def _describe(values: Iterable[Any], key: list[Any], tensors: list[tl.tensor]) -> None:
    """Add to `key` what decides how an operation treats `values`, and to `tensors` the tensors among them."""
    for value in values:
        kind = type(value)
        if kind is _tensor:
            tensors.append(value)
            number = value.type.__dict__.get("_touchstone_number")
            key.append(_number(value.type) if number is None else number)
        elif kind is int or kind is str or value is None or kind is bool:
            key.append(kind)
            key.append(value)
        elif kind is float:
            key.append(kind)
            key.append(value if value else repr(value))  # 0.0 and -0.0 are equal, and so NaN is not
        elif kind is tl.constexpr:
            key.append(kind)
            _describe((value.value,), key, tensors)
        elif kind is tuple or kind is list:
            key.append(kind)
            key.append(len(value))
            _describe(value, key, tensors)
        elif kind is slice and value == slice(None):
            key.append(kind)
        elif isinstance(value, tl.dtype):
            key.append(tl.dtype)
            key.append(_number(value))
        elif is_layout(kind):
            key.append(value)
        else:
            raise _Unknown


class _Recorder:
    """Stands in for the builder, and notes what is called of it. While a call lasts the builder itself is in place:
    other programs may run then."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self.steps: list[tuple[str, tuple, dict[str, Any], Any]] = []

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._builder, name)
        if not callable(member):
            return member

        def call(*args, **kwargs):
            global _recording
            semantic = stock.interpreter_semantic
            semantic.builder, _recording = self._builder, False
            try:
                result = member(*args, **kwargs)
            finally:
                semantic.builder, _recording = self, True
            self.steps.append((name, args, kwargs, result))
            return result

        return call


def _recorded(operation, args, kwargs, tensors: list[tl.tensor]) -> tuple[Any, Callable[..., Any] | None]:
    """The result of an operation, and its trace; None where it cannot be repeated."""
    global _recording
    if len({id(tensor.handle) for tensor in tensors}) < len(tensors):  # x + x: the next ones may be two
        tensors = []
        args, kwargs = _copied(args, tensors), {name: _copied((value,), tensors)[0] for name, value in kwargs.items()}
    semantic = stock.interpreter_semantic
    builder = semantic.builder
    recorder = _Recorder(builder)
    semantic.builder, _recording = recorder, True
    try:
        result = operation(*args, **kwargs)
    finally:
        semantic.builder, _recording = builder, False
    try:
        return result, _Trace(tensors, recorder.steps).function(result)
    except _Unknown:
        return result, None


def _copied(values: Any, tensors: list[tl.tensor]) -> Any:
    """`values` with a tensor of its own, added to `tensors`, for each that is there."""
    if isinstance(values, tuple | list):
        return type(values)(_copied(value, tensors) for value in values)
    if type(values) is not tl.tensor:
        return values
    tensors.append(tl.tensor(copy.copy(values.handle), values.type))
    return tensors[-1]


class _Trace:
    """The source of a function that repeats the steps of an operation on other tensors."""

    def __init__(self, tensors: list[tl.tensor], steps: list[tuple[str, tuple, dict[str, Any], Any]]) -> None:
        self.tensors = tensors
        self.constants: dict[str, Any] = {"tensor": tl.tensor, "TensorHandle": TensorHandle}
        self.names = {id(tensor.handle): f"tensors[{i}].handle" for i, tensor in enumerate(tensors)}
        self.folded: dict[int, Any] = {}
        self.splats: dict[int, Any] = {}  # a scalar of the operands, by the tile that it was made to
        self.lines: list[str] = []
        for number, (name, args, kwargs, result) in enumerate(steps):
            self._step(f"v{number}", name, args, kwargs, result)

    def _step(self, variable: str, name: str, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        fold = name.startswith(FOLDED) and not any(self._varies(value) for value in (*args, *kwargs.values()))
        if fold:
            if isinstance(result, HANDLES):
                self.folded[id(result)] = result
            return
        if name == "create_splat":
            self.splats[id(result)] = args[1]
        elif ELEMENTWISE.fullmatch(name) and any(id(value) not in self.splats for value in args):
            args = tuple(self.splats.get(id(value), value) for value in args)  # NumPy broadcasts by itself
        given = [self._source(value) for value in args]
        given += [f"{keyword}={self._source(value)}" for keyword, value in kwargs.items()]
        self.lines.append(f"{variable} = builder.{name}({', '.join(given)})")
        for i, part in enumerate(result if isinstance(result, tuple) else (result,)):
            if isinstance(part, HANDLES):
                self.names.setdefault(id(part), f"{variable}[{i}]" if isinstance(result, tuple) else variable)

    def _varies(self, value: Any) -> bool:
        """Whether a value of a step comes from the operands."""
        if isinstance(value, tuple | list):
            return any(map(self._varies, value))
        return isinstance(value, HANDLES) and id(value) not in self.folded

    def _source(self, value: Any) -> str:
        """An expression for a value of a step."""
        if isinstance(value, HANDLES):
            if id(value) in self.names:
                return self.names[id(value)]
            if id(value) not in self.folded:
                raise _Unknown
        elif isinstance(value, tuple | list):
            parts = "".join(f"{self._source(part)}, " for part in value)
            return f"[{parts}]" if isinstance(value, list) else f"({parts})"
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def _returned(self, result: Any) -> str:
        """An expression for what the operation returns."""
        for i, tensor in enumerate(self.tensors):
            if result is tensor:
                return f"tensors[{i}]"
        if type(result) is tl.tensor and isinstance(result.handle, HANDLES):
            handle = self._source(result.handle)
            if id(result.handle) in self.folded:  # of its own, as a kernel may set attributes of it
                handle = f"TensorHandle({handle}.data, {handle}.dtype)"
            return f"tensor({handle}, {self._source(result.type)})"
        if type(result) is tuple:
            return f"({''.join(f'{self._returned(part)}, ' for part in result)})"
        if result is None or (type(result) is tl.tensor and result.handle is None):
            return self._source(result)
        raise _Unknown

    def function(self, result: Any) -> Callable[..., Any]:
        lines = [f"return {self._returned(result)}"]
        for line in reversed(self.lines):
            variable, _, made = line.partition(" = ")
            needed = not made.startswith("builder.create_splat") or re.search(rf"\b{variable}\b", "\n".join(lines))
            if needed:
                lines.insert(0, line)
        source = "def trace(builder, tensors):\n" + "".join(f"    {line}\n" for line in lines)
        code: CodeType = compile(source, __file__, "exec")  # frames of this file are no lines of a kernel
        exec(code, self.constants)
        return self.constants["trace"]
