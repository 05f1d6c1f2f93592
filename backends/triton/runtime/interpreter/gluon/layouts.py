"""Layouts as the compiler infers them: asked of its own builder, once for each operation on operands of a type.

Values do not depend on them. A kernel computes with them (`x.type.layout`), and the compiler refuses operands whose
layouts differ.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

from triton._C.libtriton import gluon_ir, ir
from triton.experimental.gluon import language as gl

from touchstone.backends.triton.runtime.interpreter.registry import KernelError

_NATIVE: dict[type, Callable[..., Any]] = {}  # how each layout makes itself known to the compiler's builder


def keep(kind: type, make: Callable[..., Any]) -> None:
    """Remember `kind._to_ir` before another one takes its place."""
    _NATIVE.setdefault(kind, make)


def native(layout: Any, builder: Any) -> Any:
    """A layout as the compiler's builder knows it."""
    return _NATIVE[type(layout)](layout, builder)


@functools.cache
def _context() -> Any:
    from triton._C.libtriton import nvidia

    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    return context


def _module(warps: int) -> tuple[Any, Any]:
    """A builder of the compiler's and a module for what it builds, which nobody compiles."""
    builder = gluon_ir.GluonOpBuilder(_context())
    module = builder.create_module()
    module.set_attr("ttg.target", builder.get_string_attr("cuda:90"))
    for name, value in (("num-warps", warps), ("num-ctas", 1), ("threads-per-warp", 32)):
        module.set_attr(f"ttg.{name}", builder.get_int32_attr(value))
    return builder, module


def _on_value(warps: int, kind: Callable[[Any], Any], operation: Callable[..., Any]) -> Any:
    """What `operation(builder, value)` gives for a value of the type that `kind(builder)` is, a function's argument."""
    builder, module = _module(warps)
    function = builder.get_or_insert_function(
        module, "f", builder.get_function_ty([kind(builder)], []), "public", False
    )
    module.push_back(function)
    builder.set_insertion_point_to_start(function.add_entry_block())
    try:
        found = operation(builder, function.args(0))
    except RuntimeError as error:
        raise KernelError(f"the compiler refuses it: {error}") from None
    builder.ret([])
    if not module.verify():  # which has told why on stderr
        raise KernelError("the compiler refuses it, for the layout of the operand")
    return found


def _plain(layout: Any) -> bool:
    return isinstance(layout, gl.AutoLayout | gl.CoalescedLayout)


def _tile(builder: Any, layout: Any, shape: tuple[int, ...]) -> Any:
    return builder.get_distributed_ty(builder.get_float_ty(), list(shape), native(layout, builder))


def _of_tile(warps: int, layout: Any, shape: tuple[int, ...], operation: Callable[..., Any]) -> Any:
    if _plain(layout):
        return layout
    return _on_value(
        warps,
        lambda builder: _tile(builder, layout, shape),
        lambda builder, x: builder.get_gluon_layout_from_tensor(operation(builder, x)),
    )


@functools.cache
def check(warps: int, layout: Any, shape: tuple[int, ...]) -> None:
    """KernelError where a tile of that shape cannot have the layout."""
    if not _plain(layout):
        try:
            order = list(range(len(shape)))  # some operation on it, whose operand is looked at
            _on_value(
                warps, lambda builder: _tile(builder, layout, shape), lambda builder, x: builder.create_trans(x, order)
            )
        except KernelError:
            raise KernelError(f"the compiler refuses {layout} for {list(shape)} in {warps} warps") from None


@functools.cache
def reshaped(warps: int, layout: Any, shape: tuple[int, ...], to: tuple[int, ...]) -> Any:
    return _of_tile(warps, layout, shape, lambda builder, x: builder.create_reshape(x, list(to), False))


@functools.cache
def permuted(warps: int, layout: Any, shape: tuple[int, ...], order: tuple[int, ...]) -> Any:
    return _of_tile(warps, layout, shape, lambda builder, x: builder.create_trans(x, list(order)))


@functools.cache
def split(warps: int, layout: Any, shape: tuple[int, ...]) -> Any:
    return _of_tile(warps, layout, shape, lambda builder, x: builder.create_split(x)[0])


@functools.cache
def joined(warps: int, layout: Any, shape: tuple[int, ...]) -> Any:
    return _of_tile(warps, layout, shape, lambda builder, x: builder.create_join(x, x))


@functools.cache
def trivial(warps: int, before: Any, after: Any, shape: tuple[int, ...]) -> bool:
    """Whether no thread has to give an element to another one."""
    if _plain(before) or _plain(after):
        return True
    return _on_value(
        warps,
        lambda builder: _tile(builder, before, shape),
        lambda builder, x: builder.is_convert_layout_trivial(_tile(builder, after, shape), x),
    )


@functools.cache
def linear(layout: Any, shape: tuple[int, ...]) -> Any:
    builder, _ = _module(4)
    return builder.to_linear_layout(native(layout, builder), list(shape))


@functools.cache
def conflicts(tile: Any, shared: Any, shape: tuple[int, ...], bits: int) -> int:
    builder, _ = _module(4)
    return builder.get_shared_bank_conflicts(native(tile, builder), native(shared, builder), list(shape), bits)


def sliced(layout: Any, axis: int) -> Any:
    """Of a tile that is reduced along an axis."""
    return layout if _plain(layout) else gl.SliceLayout(axis, layout)


def _shared(builder: Any, layout: Any, shape: tuple[int, ...], of: tuple[int, ...]) -> Any:
    element = getattr(builder, f"get_int{getattr(layout, 'element_bitwidth', 16)}_ty")()
    return builder.get_shared_mem_desc_ty(element, list(shape), native(layout, builder), list(of))


def _of_shared(layout: Any, shape: tuple[int, ...], of: tuple[int, ...], operation: Callable[..., Any]) -> Any:
    return _on_value(
        4,
        lambda builder: _shared(builder, layout, shape, of),
        lambda builder, x: builder.get_gluon_layout_from_memdesc(operation(builder, x)),
    )


@functools.cache
def shared_permuted(layout: Any, shape: tuple[int, ...], of: tuple[int, ...], order: tuple[int, ...]) -> Any:
    return _of_shared(layout, shape, of, lambda builder, x: builder.create_memdesc_trans(x, list(order)))


@functools.cache
def shared_reshaped(layout: Any, shape: tuple[int, ...], of: tuple[int, ...], to: tuple[int, ...]) -> Any:
    return _of_shared(layout, shape, of, lambda builder, x: builder.create_memdesc_reshape(x, list(to)))


def check_permutation(order: tuple[int, ...], rank: int) -> None:
    """KernelError; the compiler's own code ends the process for such an order."""
    if sorted(order) != list(range(rank)):
        raise KernelError(f"{order} is no order of {rank} axes")


def check_reshape(shape: tuple[int, ...], to: tuple[int, ...]) -> None:
    if math.prod(shape) != math.prod(to):
        raise KernelError(f"a tile of shape {shape} has no room for shape {to}")
