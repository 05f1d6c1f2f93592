"""From a `@cuda.jit` kernel and its arguments to a launch on the engine."""

import collections
import contextlib
import ctypes
import functools
import gc
import linecache
import os
import re
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from touchstone import backends
from touchstone.backends.emulator import compiler, errors, findings, instruments
from touchstone.backends.emulator.arguments import Argument, _extent
from touchstone.backends.emulator.library import Loaded, Options, Range, Report
from touchstone.backends.emulator.library import engine as engine_library
from touchstone.backends.emulator.numba import build, cache, lines, linking, why_not
from touchstone.backends.emulator.program import STACK_BYTES, geometry

CAPABILITY = (9, 0)  # the GPU that kernels are typed and lowered for
_PATH = "numba"  # stands for the library in a Loaded


def _place(pc: int) -> tuple[str, int]:
    """The name of the file and the line that a number in a report stands for."""
    file, line = lines.sites.places[pc] if pc < len(lines.sites.places) else ("linked code", 0)
    return os.path.basename(file), line


class _Device:
    compute_capability = CAPABILITY
    name = b"Touchstone's emulator"


class _Lowering(threading.local):
    """Where lowering is: the array being indexed and the axes of its integer indices, yet to come."""

    def __init__(self) -> None:
        self.data: Any = None
        self.axes: list[int] = []


_lowering = _Lowering()
findings.front_ends[_PATH] = lambda pc: "{}:{}".format(*_place(pc))


@functools.cache
def _prepare() -> None:
    """Raise RuntimeError where numba-cuda's compiler is not there."""
    reason = why_not()
    if reason:
        raise RuntimeError(reason)
    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack  # numba-cuda 0.30 calls it in every compilation
    from numba import cuda

    if "numba_cuda" not in (cuda.__file__ or "") or "simulator" in getattr(cuda, "cudadrv", cuda).__name__:
        raise RuntimeError(
            "numba.cuda is not numba-cuda's: unset NUMBA_ENABLE_CUDASIM and install numba-cuda in site-packages"
        )


@contextlib.contextmanager
def _emulating() -> Iterator[None]:
    """Within, numba-cuda compiles without a driver, reports indices, and leaves shared memory to the engine.

    What it makes of device functions and of its own code is kept apart from what the same process compiles for a GPU.
    """
    from numba.cuda.core.compiler_lock import global_compiler_lock
    from numba.cuda.descriptor import cuda_target

    helpers = cuda_target.target_context, "cached_internal_func", _engine_overloads.helpers
    with global_compiler_lock, replaced(*_replacements(), helpers):
        try:
            yield
        finally:
            while _engine_overloads.lent:
                function, overloads = _engine_overloads.lent.popitem()
                function.overloads = overloads


class _EngineOverloads:
    """What numba-cuda has compiled for the engine and would look for where it keeps what it compiled for a GPU."""

    def __init__(self) -> None:
        self.helpers: dict[Any, Any] = {}  # numba-cuda's own functions, of conversions say
        self.overloads: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
        self.lent: dict[Any, dict[Any, Any]] = {}  # a device function's overloads for a GPU, while it has the engine's


_engine_overloads = _EngineOverloads()


@functools.cache
def _replacements() -> list[tuple[Any, str, Any]]:
    """(module or class, name, value while a kernel is compiled for the engine)."""
    from llvmlite import ir
    from numba.cuda import cgutils, cudaimpl, debuginfo, dispatcher, types
    from numba.cuda import compiler as numba_compiler
    from numba.cuda.core.errors import NumbaDebugInfoWarning
    from numba.cuda.cudadrv import nvvm
    from numba.cuda.np import arrayobj

    def current_device() -> Any:
        return _Device

    compile_cuda = numba_compiler.compile_cuda

    def compile_with_lines(*args: Any, **options: Any) -> Any:
        with warnings.catch_warnings():  # of functions that have no source, which it would like lines of
            warnings.simplefilter("ignore", NumbaDebugInfoWarning)
            return compile_cuda(*args, **{**options, "lineinfo": True, "cc": CAPABILITY})

    compile_device = dispatcher.CUDADispatcher.compile_device

    def compile_for_the_engine(self: Any, *args: Any, **options: Any) -> Any:
        if self not in _engine_overloads.lent:
            _engine_overloads.lent[self] = self.overloads
            self.overloads = _engine_overloads.overloads.setdefault(self, collections.OrderedDict())
        return compile_device(self, *args, **options)

    i32, i64, pointer = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()

    def site() -> Any:
        return ir.Constant(i64, lines.SITE)

    def check(builder: Any, data: Any, index: Any, extent: Any, axis: int) -> None:
        if index.type != i64:
            index = builder.sext(index, i64) if index.type.width < 64 else builder.trunc(index, i64)
        kind = ir.FunctionType(ir.VoidType(), (pointer, i64, i64, i32, i64))
        report = cgutils.get_or_insert_function(builder.module, kind, "ts_out_of_range")
        with cgutils.if_unlikely(builder, builder.icmp_unsigned(">=", index, extent)):
            where = builder.bitcast(data, pointer) if data is not None else ir.Constant(pointer, None)
            builder.call(report, (where, index, extent, ir.Constant(i32, axis), site()))

    basic_indexing = arrayobj.basic_indexing

    def indexing(
        context: Any, builder: Any, aryty: Any, ary: Any, kinds: Any, indices: Any, boundscheck: Any = None
    ) -> Any:
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
            return basic_indexing(context, builder, aryty, ary, kinds, indices, boundscheck)
        finally:
            _lowering.data, _lowering.axes = before

    numbas_index = arrayobj.fix_integer_index

    def fix_integer_index(context: Any, builder: Any, kind: Any, index: Any, extent: Any) -> Any:
        if context.fndesc.modname.startswith(
            "numba."
        ):  # Numba's own code, of `view` say, counts from the end by intent
            index = numbas_index(context, builder, kind, index, extent)
        else:
            index = context.cast(builder, index, kind, types.intp if kind.signed else types.uintp)
        axis = _lowering.axes.pop(0) if _lowering.axes else 0
        check(builder, _lowering.data, index, extent, axis)
        return index

    item_pointer2 = cgutils.get_item_pointer2

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
        if wraparound:  # of the callers only the atomics ask for it, who have checked nothing
            for axis, (index, extent) in enumerate(zip(inds, shape, strict=False)):
                check(builder, data, index, extent, axis)
        return item_pointer2(context, builder, data, shape, strides, layout, inds)

    generic_array = cudaimpl._generic_array

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
        made = generic_array(context, builder, shape, dtype, symbol_name, addrspace, can_dynsized, alignment)
        if addrspace != nvvm.ADDRSPACE_SHARED:
            return made
        # The variable that this declares stays unused: the engine gives every block an array of its own.
        view = context.make_array(types.Array(dtype, len(shape), "C"))(context, builder, value=made)
        item = context.get_abi_sizeof(context.get_data_type(dtype))
        if len(shape) == 1 and shape[0] <= 0:
            address = cgutils.get_or_insert_function(builder.module, ir.FunctionType(pointer, ()), "ts_dynamic_shared")
            size = cgutils.get_or_insert_function(builder.module, ir.FunctionType(i64, ()), "ts_dynamic_shared_bytes")
            data = builder.call(address, ())
            count = builder.udiv(builder.call(size, ()), ir.Constant(i64, item))
            view.shape = cgutils.pack_array(builder, [count])
            view.nitems = count
        else:
            described = _shared_site(builder, shape, item, max(alignment or 1, 16))
            kind = ir.FunctionType(pointer, (pointer,))
            address = cgutils.get_or_insert_function(builder.module, kind, "ts_shared")
            data = builder.call(address, (builder.bitcast(described, pointer),))
        view.data = builder.bitcast(data, view.data.type)
        return view._getvalue()

    def no_variable(*args: Any, **options: Any) -> None:
        """Lines are wanted, descriptions of variables are not, which take a tenth of a compilation."""

    location = debuginfo.CUDADIBuilder._di_location

    def location_once(self: Any, line: int) -> Any:
        """llvmlite finds an equal one by hashing all that it refers to, at every instruction."""
        known = vars(self).setdefault("_locations", {})
        key = line, id(self.subprograms[-1])  # which it keeps
        return known[key] if key in known else known.setdefault(key, location(self, line))

    return [
        (dispatcher, "get_current_device", current_device),
        (numba_compiler, "get_current_device", current_device),
        (dispatcher, "compile_cuda", compile_with_lines),
        (dispatcher.CUDADispatcher, "compile_device", compile_for_the_engine),
        (debuginfo.CUDADIBuilder, "_di_location", location_once),
        (debuginfo.CUDADIBuilder, "mark_variable", no_variable),
        (debuginfo.CUDADIBuilder, "update_variable", no_variable),
        (arrayobj, "basic_indexing", indexing),
        (arrayobj, "fix_integer_index", fix_integer_index),
        (cgutils, "get_item_pointer2", get_item_pointer2),
        (cudaimpl, "_generic_array", array),
    ]


def _shared_site(builder: Any, shape: Sequence[int], item: int, align: int) -> Any:
    """A constant of the kernel's module that tells the engine of a shared array: name, bytes, alignment, bytes of an
    element, and up to four extents."""
    from llvmlite import ir
    from numba.cuda import cgutils

    i32, i64, pointer = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
    name = cgutils.global_constant(
        builder.module, "ts_name", cgutils.make_bytearray(_variable_name(builder).encode() + b"\0")
    )
    extents = [ir.Constant(i32, extent) for extent in [*shape, 0, 0, 0, 0][:4]]
    fields = [
        name.bitcast(pointer),
        *(ir.Constant(i64, number) for number in (int(np.prod(shape)) * item, align, item)),
        ir.Constant(ir.ArrayType(i32, 4), extents),
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


class _Compiled(NamedTuple):
    native: build.NativeCode
    types: list[str]
    exceptions: dict[int, Any]  # from a status code to (class, arguments, place)


_compiled: "weakref.WeakKeyDictionary[Any, dict[Any, _Compiled]]" = weakref.WeakKeyDictionary()
_one_layout = False
_contiguous: "weakref.WeakSet[Any]" = weakref.WeakSet()  # code of kernels that do not compile for arrays of any layout


def _compile(kernel: Any, kinds: tuple[Any, ...]) -> _Compiled:
    from numba.core.errors import TypingError  # of the code that numba-cuda shares with Numba
    from numba.cuda.core.errors import TypingError as CudaTypingError

    known = _compiled.setdefault(kernel, {})
    code = kernel.py_func.__code__
    if _one_layout and code not in _contiguous:
        alike = tuple(map(_of_any_layout, kinds))
        try:
            return known[alike] if alike in known else known.setdefault(alike, _compiled_anew(kernel, alike))
        except (TypingError, CudaTypingError):  # an intrinsic that wants neighbours
            _contiguous.add(code)
    return known[kinds] if kinds in known else known.setdefault(kinds, _compiled_anew(kernel, kinds))


@contextlib.contextmanager
def one_layout() -> Iterator[None]:
    """Within, contiguous arrays are typed as others are, so that a kernel is compiled once for all layouts of its
    arguments.

    A kernel that does not compile so is compiled for the layouts as they are.
    """
    global _one_layout
    before, _one_layout = _one_layout, True
    try:
        yield
    finally:
        _one_layout = before


def _of_any_layout(kind: Any) -> Any:
    from numba.cuda import types

    return kind.copy(layout="A") if isinstance(kind, types.Array) else kind


@contextlib.contextmanager
def replaced(*places: tuple[Any, str, Any]) -> Iterator[None]:
    """Within, attributes have other values: (owner, name, value)."""
    missing = object()
    stock = [getattr(owner, name, missing) for owner, name, _ in places]
    for owner, name, value in places:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(places, stock, strict=True):
            delattr(owner, name) if value is missing else setattr(owner, name, value)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Without the collector of garbage, which looks through all of torch a dozen times in a compilation."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _compiled_anew(kernel: Any, kinds: tuple[Any, ...]) -> _Compiled:
    key = cache.key(kernel, kinds)
    entry = cache.load(key)
    if entry is None:
        with undisturbed(), _emulating():
            entry = _lowered(kernel, kinds)
        cache.keep(key, entry)
    return _Compiled(build.load(entry.built), entry.types, entry.exceptions)


def _lowered(kernel: Any, kinds: tuple[Any, ...]) -> cache.Entry:
    from numba.cuda import dispatcher, types

    options = kernel.targetoptions
    if options.get("device"):
        raise TypeError(f"{kernel.__name__}: is a device function; only kernels can be launched")
    made = dispatcher.compile_cuda(
        kernel.py_func,
        types.void,
        kinds,
        debug=bool(options.get("debug")),
        fastmath=options.get("fastmath"),
        forceinline=False,
        nvvm_options={"opt": 3},
    )
    library = made.library
    function = library.get_function(made.fndesc.llvm_func_name)
    texts = [str(module) for module in library.modules]
    linked = [*library._linking_files, *(options.get("link") or [])]
    argument_types = [str(argument.type) for argument in function.args[1:]]
    built = build.build(texts, function.name, argument_types, linked)
    return cache.Entry(built, argument_types, dict(made.call_helper.exceptions))


def _as_array(value: Any) -> Any:
    """A tensor of torch on the CPU as an array that shares its memory, with bfloat16 in 16 bits."""
    if type(value).__module__.split(".")[0] != "torch" or not hasattr(value, "data_ptr"):
        return value
    if value.device.type != "cpu":
        raise ValueError(f"a tensor on {value.device}; the emulator takes CPU tensors")
    import torch

    if value.requires_grad:
        value = value.detach()
    if value.dtype == torch.bfloat16:
        return _BrainFloats(value.view(torch.int16).numpy())
    return value.numpy()


class _BrainFloats(NamedTuple):
    bits: np.ndarray


def _type_of(value: Any) -> Any:
    from numba.cuda import types
    from numba.cuda.typing.typeof import Purpose, typeof

    if isinstance(value, _BrainFloats):
        plain = typeof(value.bits, Purpose.argument)
        return types.Array(types.bfloat16, plain.ndim, plain.layout)
    if isinstance(value, tuple) and any(isinstance(part, (_BrainFloats, tuple)) for part in value):
        return types.BaseTuple.from_types([_type_of(part) for part in value], type(value))
    return typeof(value, Purpose.argument)


class _Arguments:
    """A launch's arguments as the lowered function takes them, one cell each, and the memory they bound."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.cells: list[np.ndarray] = []
        self.regions: list[Argument] = []
        self.keep: list[Any] = []

    def cell(self, value: Any, dtype: str) -> None:
        self.cells.append(np.array(value, dtype=dtype))

    def region(self, array: np.ndarray, name: str) -> None:
        found = _extent(array, name)
        if found and found.bytes:
            self.regions.append(found)

    def add(self, kind: Any, value: Any, name: str) -> None:
        from numba.cuda import types

        if isinstance(kind, types.Array):
            array = value.bits if isinstance(value, _BrainFloats) else np.asarray(value)
            self.keep.append(array)
            self.region(array, name)
            for number in (0, 0, array.size, array.itemsize, array.ctypes.data, *array.shape, *array.strides):
                self.cell(number, "i8")
        elif isinstance(kind, types.Record):
            record = value if isinstance(value, np.ndarray) else np.asarray(value)
            if isinstance(value, np.void):
                record = np.ndarray((), value.dtype, value.data) if not value.flags.owndata else np.asarray(value)
            self.keep.append(record)
            raw = record.reshape(1).view(np.uint8).reshape(-1) if record.flags.c_contiguous else record
            self.region(raw, name)
            self.cell(record.ctypes.data, "i8")
        elif isinstance(kind, types.BaseTuple):
            for position, (part, item) in enumerate(zip(kind, value, strict=True)):
                self.add(part, item, f"{name}[{position}]")
        elif isinstance(kind, types.EnumMember):
            self.add(kind.dtype, value.value, name)
        elif isinstance(kind, (types.NPDatetime, types.NPTimedelta)):
            self.cell(np.asarray(value).view(np.int64), "i8")
        elif isinstance(kind, types.Boolean):
            self.cell(bool(value), "u1")
        elif isinstance(kind, types.Integer):
            self.cell(value, f"{'i' if kind.signed else 'u'}{kind.bitwidth // 8}")
        elif isinstance(kind, types.Float):
            self.cell(value, f"f{kind.bitwidth // 8}")
        elif isinstance(kind, types.Complex):
            self.cell(value.real, f"f{kind.bitwidth // 16}")
            self.cell(value.imag, f"f{kind.bitwidth // 16}")
        elif isinstance(kind, types.CPointer):
            self.cell(value, "u8")
        elif isinstance(kind, types.NoneType):
            self.cell(0, "i8")
        else:
            raise TypeError(f"{name}: a kernel takes no argument of type {kind}")


def launch(
    kernel: Any,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: Sequence[Any],
    shared: int = 0,
    cooperative: bool | None = None,
) -> None:
    """Run a `@cuda.jit` kernel on this CPU and wait for it.

    `arguments`: NumPy arrays and CPU tensors of torch, which the kernel writes in place; numbers; tuples; records.
    `shared`: bytes of dynamic shared memory. `cooperative`: whether all blocks are resident at once; None: where the
    kernel meets the whole grid. Raises KernelError for a finding, ValueError or TypeError for a bad call.
    """
    _prepare()
    from numba.cuda.dispatcher import CUDADispatcher

    if not isinstance(kernel, CUDADispatcher):
        raise TypeError(f"kernel: expected a function decorated with @cuda.jit, got {type(kernel).__name__}")
    grid3, block3 = geometry(grid, block, shared)
    names = list(kernel.py_func.__code__.co_varnames[: kernel.py_func.__code__.co_argcount])
    if len(arguments) != len(names):
        raise TypeError(f"{kernel.__name__}: expected {len(names)} arguments, got {len(arguments)}")
    values = [_as_array(value) for value in arguments]
    kinds = tuple(_type_of(value) for value in values)
    made = _compile(kernel, kinds)
    packed = _Arguments(names)
    for kind, value, name in zip(kinds, values, names, strict=True):
        packed.add(kind, value, name)
    if len(packed.cells) != len(made.types):
        raise TypeError(f"{kernel.__name__}: {len(packed.cells)} values for {len(made.types)} parameters")
    _run(
        kernel.__name__,
        made,
        packed,
        grid3,
        block3,
        shared,
        made.native.cooperative if cooperative is None else cooperative,
    )


def _run(
    name: str,
    made: _Compiled,
    packed: _Arguments,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared: int,
    cooperative: bool,
) -> None:
    library, path = linking.support()
    engine = engine_library(str(path))
    lines.sites.publish(library)
    pointers = (ctypes.c_void_p * max(1, len(packed.cells)))(*(cell.ctypes.data for cell in packed.cells))
    constants = made.native.constants
    ranges = (Range * (len(packed.regions) + len(constants) + 1))()
    for i, region in enumerate(packed.regions):
        ranges[i] = Range(region.start, region.bytes, 1, i, 1, region.item)
    for i, (start, size) in enumerate(constants):
        ranges[len(packed.regions) + i] = Range(start, size, 3, i, 0, 1)
    settings = instruments.settings
    options = Options(
        instruments.ORDERS.index(settings.order),
        instruments.workers(),
        settings.seed,
        1,
        settings.races,
        cooperative,
        0,
        STACK_BYTES,
        settings.step_limit,
        0,
        0,
        0,
    )
    report = Report()
    loaded = Loaded(
        _PATH, library, engine, 0, [compiler.Variable("const.array_like", 0, 0, False) for _ in constants], (0, 0)
    )
    with backends.running():
        engine.ts_launch(
            ctypes.c_void_p(made.native.entry),
            pointers,
            (ctypes.c_uint32 * 3)(*grid),
            (ctypes.c_uint32 * 3)(*block),
            shared,
            ranges,
            len(packed.regions) + len(constants),
            ctypes.byref(options),
            instruments.record(loaded, grid, block),
            ctypes.byref(report),
        )
    if report.kind:
        raise _error(name, made, loaded, report, packed.regions)


def _error(name: str, made: _Compiled, loaded: Loaded, report: Report, regions: list[Argument]) -> errors.KernelError:
    for place in (report.here, report.there):
        if place.pc:
            file, line = _place(place.pc)
            place.pc, place.file, place.line = 0, file.encode()[-199:], line
    if report.kind == 8 and report.text.startswith(b"exception "):
        return _raised(name, made, report)
    if report.kind == 1 and report.text == b"index":
        index = ctypes.c_int64(report.address).value
        if report.region_kind == 4:
            whose = "a local array"
        elif report.region_kind == 3:
            whose = "a constant array"
        else:
            whose = findings._name(loaded, report, regions) if report.region_kind else "an array"
        negative = " (Numba would count it from the end)" if index < 0 else ""
        message = (
            f"{findings._who(report.here)} uses index {index} in axis {report.item} of {whose}, which has "
            f"{report.size}{negative}"
        )
        return errors.OutOfBounds(f"{name} ({findings._line(loaded, report.here)}): {message}")
    return findings.error(name, loaded, report, regions)


def _raised(name: str, made: _Compiled, report: Report) -> errors.KernelError:
    """An exception or failed assertion; a GPU tells of it only if the kernel is compiled with debug=True."""
    unknown = (Exception, ("in a device function",), None)
    kind, arguments, place = made.exceptions.get(int(report.text.split()[1]), unknown)
    where = f"{os.path.basename(place[1])}:{place[2]}" if place else "line unknown"
    text = f"{kind.__name__}: {', '.join(map(str, arguments))}" if arguments else kind.__name__
    return errors.KernelError(f"{name} ({where}): {findings._who(report.here)} raises {text}")


def _on_a_gpu(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_on_a_gpu, value))
    return hasattr(value, "__cuda_array_interface__")  # which a tensor on the CPU has not


def install() -> None:
    """Make `kernel[grid, block, stream, shared](...)` of every `@cuda.jit` kernel of this process run here, unless one
    of its arguments lies on a GPU.

    `cuda.to_device`, `cuda.device_array` and `cuda.synchronize` then do without a driver too.
    """
    _prepare()
    from numba import cuda
    from numba.cuda import dispatcher
    from numba.cuda.core import config

    from touchstone.backends.emulator.numba import host

    if getattr(cuda, "touchstone_emulator", False):
        return
    on_gpu, for_all_on_gpu = dispatcher.CUDADispatcher.call, dispatcher.ForAll.__call__

    def call(self: Any, args: tuple[Any, ...], launch_config: Any) -> None:
        if _on_a_gpu(args):
            on_gpu(self, args, launch_config)
        else:
            launch(self, launch_config.griddim, launch_config.blockdim, args, launch_config.sharedmem)

    def for_all(self: Any, *args: Any) -> None:
        threads = self.thread_per_block or 128
        if _on_a_gpu(args):
            for_all_on_gpu(self, *args)
        elif self.ntasks:
            launch(self.dispatcher, -(-self.ntasks // threads), threads, args, self.sharedmem)

    dispatcher.CUDADispatcher.call = call
    dispatcher.ForAll.__call__ = for_all
    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
    host.install()
    cuda.touchstone_emulator = True
