"""What stands in numba-cuda's place while it compiles a kernel for the engine.

Import this module only where numba.cuda is numba-cuda's (front.prepare): it imports it.
"""

import collections
import contextlib
import linecache
import re
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda import cgutils, cudaimpl, debuginfo, dispatcher, types
from numba.cuda import compiler as numba_compiler
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.core.errors import NumbaDebugInfoWarning
from numba.cuda.cudadrv import nvvm
from numba.cuda.descriptor import cuda_target
from numba.cuda.np import arrayobj

from touchstone.backends.emulator.numba.lines import SITE
from touchstone.backends.emulator.numba.scopes import replaced

CAPABILITY = (9, 0)  # the GPU that kernels are typed and lowered for
_I32, _I64, _POINTER = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()

# numba-cuda's own, which the functions below call
_compile_cuda = numba_compiler.compile_cuda
_compile_device = dispatcher.CUDADispatcher.compile_device
_di_location = debuginfo.CUDADIBuilder._di_location
_basic_indexing = arrayobj.basic_indexing
_fix_integer_index = arrayobj.fix_integer_index
_get_item_pointer2 = cgutils.get_item_pointer2
_generic_array = cudaimpl._generic_array


class _EngineOverloads:
    """What numba-cuda has compiled for the engine and would look for where it keeps what it compiled for a GPU."""

    def __init__(self) -> None:
        self.helpers: dict[Any, Any] = {}  # numba-cuda's own functions, of conversions say
        self.overloads: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
        self.lent: dict[Any, dict[Any, Any]] = {}  # a device function's overloads for a GPU, while it has the engine's


_engine_overloads = _EngineOverloads()


class _Lowering(threading.local):
    """Where lowering is: the array being indexed and the axes of its integer indices, yet to come."""

    def __init__(self) -> None:
        self.data: Any = None
        self.axes: list[int] = []


_lowering = _Lowering()


class _Device:
    compute_capability = CAPABILITY
    name = b"Touchstone's emulator"


def current_device() -> Any:
    """numba-cuda asks a driver what to compile for; here there is none."""
    return _Device


def compile_with_lines(*args: Any, **options: Any) -> Any:
    """Lines of Python are kept, so that a finding names one."""
    with warnings.catch_warnings():  # of functions that have no source, which it would like lines of
        warnings.simplefilter("ignore", NumbaDebugInfoWarning)
        return _compile_cuda(*args, **{**options, "lineinfo": True, "cc": CAPABILITY})


def compile_for_the_engine(self: Any, *args: Any, **options: Any) -> Any:
    """A device function has other overloads for the engine than for a GPU."""
    if self not in _engine_overloads.lent:
        _engine_overloads.lent[self] = self.overloads
        self.overloads = _engine_overloads.overloads.setdefault(self, collections.OrderedDict())
    return _compile_device(self, *args, **options)


def location_once(self: Any, line: int) -> Any:
    """llvmlite finds an equal one by hashing all that it refers to, at every instruction."""
    known = vars(self).setdefault("_locations", {})
    key = line, id(self.subprograms[-1])  # which it keeps
    return known[key] if key in known else known.setdefault(key, _di_location(self, line))


def no_variable(*args: Any, **options: Any) -> None:
    """Lines are wanted, descriptions of variables are not, which take a tenth of a compilation."""


def no_parameter_types(self: Any, *args: Any) -> Any:
    """Nor are the types of a function's parameters, of which numba-cuda cannot describe an empty tuple's."""
    return self.module.add_debug_info("DISubroutineType", {"types": self.module.add_metadata([])})


def _check(builder: Any, data: Any, index: Any, extent: Any, axis: int) -> None:
    """A report if `index` lies outside 0 to `extent` - 1: numba-cuda itself checks nothing."""
    kind = ir.FunctionType(ir.VoidType(), (_POINTER, _I64, _I64, _I32, _I64))
    report = cgutils.get_or_insert_function(builder.module, kind, "ts_out_of_range")
    with cgutils.if_unlikely(builder, builder.icmp_unsigned(">=", index, extent)):
        where = builder.bitcast(data, _POINTER) if data is not None else ir.Constant(_POINTER, None)
        builder.call(report, (where, index, extent, ir.Constant(_I32, axis), ir.Constant(_I64, SITE)))


def indexing(
    context: Any, builder: Any, aryty: Any, ary: Any, kinds: Any, indices: Any, boundscheck: Any = None
) -> Any:
    """Notes which axes of the array `fix_integer_index` is about to be asked for."""
    axes, axis = [], 0
    new = sum(1 for kind in kinds if arrayobj.is_nonelike(kind))
    for kind in kinds:
        if kind is types.ellipsis:
            axis += aryty.ndim - len(kinds) + 1 + new
        elif not arrayobj.is_nonelike(kind):
            if isinstance(kind, types.Integer):
                axes.append(axis)
            axis += 1
    before = _lowering.data, _lowering.axes
    _lowering.data, _lowering.axes = ary.data, axes
    try:
        return _basic_indexing(context, builder, aryty, ary, kinds, indices, boundscheck)
    finally:
        _lowering.data, _lowering.axes = before


def fix_integer_index(context: Any, builder: Any, kind: Any, index: Any, extent: Any) -> Any:
    """An index is checked, and not counted from the end where it is negative."""
    if context.fndesc.modname.startswith("numba."):  # Numba's own code, of `view` say, counts from the end by intent
        index = _fix_integer_index(context, builder, kind, index, extent)
    else:
        index = context.cast(builder, index, kind, types.intp if kind.signed else types.uintp)
    axis = _lowering.axes.pop(0) if _lowering.axes else 0
    _check(builder, _lowering.data, index, extent, axis)
    return index


def get_item_pointer2(
    context: Any,
    builder: Any,
    data: Any,
    shape: Any,
    strides: Any,
    layout: Any,
    inds: Any,
    wraparound: bool = False,
    boundscheck: bool = False,
) -> Any:
    """The indices of atomics are checked."""
    if wraparound:  # of the callers only the atomics ask for it, who have checked nothing
        for axis, (index, extent) in enumerate(zip(inds, shape, strict=False)):
            _check(builder, data, index, extent, axis)
    return _get_item_pointer2(context, builder, data, shape, strides, layout, inds)


def array(
    context: Any,
    builder: Any,
    shape: Any,
    dtype: Any,
    symbol_name: str,
    addrspace: int,
    can_dynsized: bool = False,
    alignment: int | None = None,
) -> Any:
    """A shared array is memory that the engine gives every block, holds NaN and is watched."""
    made = _generic_array(context, builder, shape, dtype, symbol_name, addrspace, can_dynsized, alignment)
    if addrspace != nvvm.ADDRSPACE_SHARED:
        return made
    # The variable that this declares stays unused: the engine gives every block an array of its own.
    view = context.make_array(types.Array(dtype, len(shape), "C"))(context, builder, value=made)
    item = context.get_abi_sizeof(context.get_data_type(dtype))
    if len(shape) == 1 and shape[0] <= 0:
        address = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_POINTER, ()), "ts_dynamic_shared")
        size = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I64, ()), "ts_dynamic_shared_bytes")
        data = builder.call(address, ())
        count = builder.udiv(builder.call(size, ()), ir.Constant(_I64, item))
        view.shape = cgutils.pack_array(builder, [count])
        view.nitems = count
    else:
        described = _shared_site(builder, shape, item, max(alignment or 1, 16))
        kind = ir.FunctionType(_POINTER, (_POINTER,))
        address = cgutils.get_or_insert_function(builder.module, kind, "ts_shared")
        data = builder.call(address, (builder.bitcast(described, _POINTER),))
    view.data = builder.bitcast(data, view.data.type)
    return view._getvalue()


def _shared_site(builder: Any, shape: Sequence[int], item: int, align: int) -> Any:
    """A constant of the kernel's module that tells the engine of a shared array: name, bytes, alignment, bytes of an
    element, and up to four extents."""
    name = cgutils.global_constant(
        builder.module, "ts_name", cgutils.make_bytearray(_variable_name(builder).encode() + b"\0")
    )
    extents = [ir.Constant(_I32, extent) for extent in [*shape, 0, 0, 0, 0][:4]]
    fields = [
        name.bitcast(_POINTER),
        *(ir.Constant(_I64, number) for number in (int(np.prod(shape)) * item, align, item)),
        ir.Constant(ir.ArrayType(_I32, 4), extents),
    ]
    value = ir.Constant(ir.LiteralStructType([field.type for field in fields]), fields)
    made = ir.GlobalVariable(builder.module, value.type, builder.module.get_unique_name("ts_site"))
    made.initializer, made.linkage, made.global_constant = value, "internal", True  # one for each array, equal or not
    return made


def _variable_name(builder: Any) -> str:
    """What the source calls the shared array that is being lowered."""
    debug = builder.debug_metadata
    fields = dict(debug.operands) if debug is not None else {}
    line, scope = fields.get("line"), fields.get("scope")
    file = dict(scope.operands).get("file") if scope is not None else None
    if file is None or not line:
        return "shared"
    where = {key: str(value).strip('"') for key, value in file.operands}
    text = linecache.getline(f"{where.get('directory', '')}/{where.get('filename', '')}", int(line))
    found = re.match(r"\s*(\w+)\s*(?::[^=]*)?=", text)
    return found[1] if found else "shared"


# (module or class, name, value while a kernel is compiled for the engine)
PATCHES: tuple[tuple[Any, str, Any], ...] = (
    (dispatcher, "get_current_device", current_device),
    (numba_compiler, "get_current_device", current_device),
    (dispatcher, "compile_cuda", compile_with_lines),
    (dispatcher.CUDADispatcher, "compile_device", compile_for_the_engine),
    (debuginfo.CUDADIBuilder, "_di_location", location_once),
    (debuginfo.CUDADIBuilder, "mark_variable", no_variable),
    (debuginfo.CUDADIBuilder, "update_variable", no_variable),
    (debuginfo.CUDADIBuilder, "_di_subroutine_type", no_parameter_types),
    (arrayobj, "basic_indexing", indexing),
    (arrayobj, "fix_integer_index", fix_integer_index),
    (cgutils, "get_item_pointer2", get_item_pointer2),
    (cudaimpl, "_generic_array", array),
)


@contextlib.contextmanager
def emulating() -> Iterator[None]:
    """Within, numba-cuda compiles without a driver, reports indices, and leaves shared memory to the engine.

    What it makes of device functions and of its own code is kept apart from what the same process compiles for a GPU.
    """
    helpers = cuda_target.target_context, "cached_internal_func", _engine_overloads.helpers
    with global_compiler_lock, replaced(*PATCHES, helpers):
        try:
            yield
        finally:
            while _engine_overloads.lent:
                function, overloads = _engine_overloads.lent.popitem()
                function.overloads = overloads
