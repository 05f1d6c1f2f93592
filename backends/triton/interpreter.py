"""Triton's interpreter made truthful: every repair of it, in this one place.

Installed once per process by `backends.triton.prepare("cpu")`, before any kernel runs. Works on Triton 3.6 to 3.9.
Each repair is one function, listed in REPAIRS with what it answers; docs/triton-on-cpu.md explains them.
"""

import inspect
import sys
import traceback
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle

from backends import Unsupported

TESTED = ((3, 6), (3, 7), (3, 8), (3, 9))
MASKED_INTEGER = 0x5A5A5A5A  # what a masked integer lane without `other` holds: large, odd, and easy to recognise

# Upstream keeps these as bit patterns in unsigned integers, so that `a + b` adds bit patterns.
NUMPY_TYPES = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp8e5": np.dtype(ml_dtypes.float8_e5m2),
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5b16": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "fp8e4b8": np.dtype(ml_dtypes.float8_e4m3fnuz),
}


class OutOfBounds(IndexError):
    """A load, store or atomic touched memory outside the tensors that the kernel was given."""


@dataclass(frozen=True)
class _Extent:
    """The bytes from the first to the last element that a tensor argument reaches."""

    low: int
    high: int
    base: int
    item: int


@dataclass
class _Launch:
    """The launch under way: its kernel, the arguments by position or name, and the extents of its tensors."""

    executor: GridExecutor
    args: tuple
    kwargs: dict
    extents: list[_Extent]
    unchecked: bool = False  # a pointer was made from an integer: its bounds cannot be known


_launches: list[_Launch] = []
_installed = False


def install() -> None:
    """Install every repair; once per process. Raises RuntimeError where Triton is already set up to compile."""
    global _installed
    if _installed:
        return
    if not triton.knobs.runtime.interpret:
        raise RuntimeError("triton was imported to compile; set TRITON_INTERPRET=1 before its first import, in a fresh process")
    for repair, _ in REPAIRS:
        repair()
    _installed = True


def installed() -> bool:
    return _installed


def _wrap(owner, name: str, make) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def _store_small_floats_as_themselves() -> None:
    """bfloat16 and float8 arrays hold values, not bit patterns, so NumPy's own operators, reductions and casts are right."""
    _wrap(interpreter, "_get_np_dtype", lambda stock: lambda ty: NUMPY_TYPES.get(ty.scalar.name) or stock(ty))

    def load(stock):
        def load(ptrs, mask, other, dtype):
            bits = _bits(np.dtype(dtype))
            loaded = stock(ptrs, mask, np.ascontiguousarray(other).view(bits) if bits else other, bits or dtype)
            return loaded.view(dtype) if bits else loaded

        return load

    def store(stock):
        def store(ptrs, value, mask):
            bits = _bits(value.dtype)
            return stock(ptrs, np.ascontiguousarray(value).view(bits) if bits else value, mask)

        return store

    memory = _Memory(load(interpreter._interpreter.load), store(interpreter._interpreter.store))
    interpreter._interpreter = memory

    def cast(self, src, dst_type, rounding_mode=None):
        to = interpreter._get_np_dtype(dst_type)
        toward_zero = rounding_mode is not None and rounding_mode == interpreter._ir.ROUNDING_MODE.RTZ
        return TensorHandle(_convert(src.data, to, toward_zero), dst_type.scalar)

    InterpreterBuilder.cast_impl = InterpreterBuilder.create_fp_to_fp = cast

    def fabs(self, arg):
        return TensorHandle(np.abs(arg.data), arg.dtype.scalar)

    def fma(self, x, y, z):
        wide = np.float32 if x.data.dtype.itemsize < 4 else np.float64
        exact = x.data.astype(wide) * y.data.astype(wide) + z.data.astype(wide)
        return TensorHandle(exact.astype(z.data.dtype), z.dtype.scalar)

    InterpreterBuilder.create_fabs, InterpreterBuilder.create_fma = fabs, fma


class _Memory:
    """Triton's native load, store and atomics, with `load` and `store` that know the small floats."""

    def __init__(self, load, store):
        self._stock, self.load, self.store = interpreter._interpreter, load, store

    def __getattr__(self, name):
        return getattr(self._stock, name)

    def atomic_rmw(self, op, ptrs, value, mask, sem):
        """Native, except for bfloat16, which it lacks: one lane after another, as the hardware serialises them."""
        if value.dtype != NUMPY_TYPES["bf16"]:
            return self._stock.atomic_rmw(op, ptrs, value, mask, sem)
        combine = {self._stock.RMW_OP.FADD: np.add, self._stock.RMW_OP.XCHG: lambda old, new: new}.get(op)
        if combine is None:
            raise Unsupported(f"atomic {op} on bfloat16 in the interpreter")
        old = np.zeros_like(value)
        for lane in np.ndindex(value.shape):
            if mask[lane]:
                here = ptrs[lane].reshape(1)
                one = np.ones(1, bool)
                old[lane] = self.load(here, one, np.zeros(1, value.dtype), value.dtype)[0]
                self.store(here, combine(old[lane], value[lane]).astype(value.dtype).reshape(1), one)
        return old


def _bits(dtype: np.dtype):
    """The unsigned integer type of a small float's bit pattern, or None for a type that the native code knows."""
    if dtype in NUMPY_TYPES.values():
        return np.dtype(f"u{dtype.itemsize}")
    return None


def _convert(data: np.ndarray, to: np.dtype, toward_zero: bool) -> np.ndarray:
    """Round to nearest even, or toward zero; float8 saturates as on the GPU."""
    small = to in NUMPY_TYPES.values()
    with np.errstate(over="ignore", invalid="ignore"):
        if small and to.itemsize == 1 and data.dtype.kind in "fV":
            largest = float(ml_dtypes.finfo(to).max)
            wide = data.astype(np.float32)
            data = np.where(np.isnan(wide), wide, np.clip(wide, -largest, largest))
        result = data.astype(to)
        if toward_zero and to.itemsize < data.dtype.itemsize:
            over = np.abs(result.astype(np.float64)) > np.abs(data.astype(np.float64))
            result = np.where(over, np.nextafter(result, np.zeros((), to)), result)
    return result


def _multiply_as_the_gpu_does() -> None:
    """`tl.dot` on values in float32, with the operands rounded as `input_precision` says: tf32 is the default for float32."""

    def dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        left, right = a.data, b.data
        precision = str(getattr(input_precision, "name", input_precision)).lower()
        if left.dtype.itemsize < 4 and left.dtype.kind != "i" and left.dtype.kind != "u":
            left, right = left.astype(np.float32), right.astype(np.float32)
            precision = "ieee"
        wide = d.data.dtype if left.dtype.kind in "iu" else np.promote_types(left.dtype, np.float32)
        product = 0
        for x, y in _pieces(left, right, precision):
            product = product + np.matmul(x, y, dtype=wide)
        return TensorHandle((product + d.data).astype(d.data.dtype), d.dtype.scalar)

    InterpreterBuilder.create_dot = dot


def _pieces(left: np.ndarray, right: np.ndarray, precision: str):
    """The pairs of rounded operands whose products make up a dot product in `precision`, small ones first."""
    if left.dtype != np.float32 or precision in ("ieee", "bf16x6"):
        return [(left, right)]
    if precision not in ("tf32", "tf32x3", "bf16x3"):
        raise Unsupported(f"input_precision {precision} in the interpreter")
    rounded = _to_bf16 if precision == "bf16x3" else to_tf32
    high_left, high_right = rounded(left), rounded(right)
    if precision == "tf32":
        return [(high_left, high_right)]
    with np.errstate(invalid="ignore"):  # inf - inf
        low_left, low_right = rounded(left - high_left), rounded(right - high_right)
    return [(high_left, low_right), (low_left, high_right), (high_left, high_right)]


def to_tf32(x: np.ndarray) -> np.ndarray:
    """float32 rounded to nearest even at 10 mantissa bits; NaN and infinities stay."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x)


def _to_bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def _let_run_time_values_be_loop_bounds() -> None:
    """A tensor of one element as a Python index, also where NumPy refuses `int(array of shape (1,))`."""

    def patched(stock):
        def patch_lang_tensor(*args):
            stock(*args)
            tl.tensor.__index__ = lambda self: int(self.handle.data.item())

        return patch_lang_tensor

    _wrap(interpreter, "_patch_lang_tensor", patched)


def _patch_the_language_once() -> None:
    """Upstream swaps some 200 functions of `triton.language` in and out at every launch and device call: here once."""
    seen: set[tuple[int, ...]] = set()

    class Nothing:
        def restore(self):
            pass

    def once(stock):
        def patch_lang(fn):
            modules = tuple(sorted(id(v) for v in fn.__globals__.values() if inspect.ismodule(v) and v in (tl, tl.core)))
            if modules not in seen:
                stock(fn)
                seen.add(modules)
            return Nothing()

        return patch_lang

    _wrap(interpreter, "_patch_lang", once)


def _check_asserts_and_overflow() -> None:
    """`tl.device_assert` is checked, and integer arithmetic that overflows its type raises instead of wrapping."""
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, debug=True, sanitize_overflow=True)


def _check_bounds() -> None:
    """Every active lane's address is compared with the tensor it was derived from; masked lanes without `other` hold NaN."""

    def call(stock):
        def __call__(self, *args, **kwargs):  # noqa: N807
            _launches.append(_Launch(self, args, kwargs, []))
            try:
                return stock(self, *args, **kwargs)
            except InterpreterError as error:
                cause = error.__cause__
                if cause is None or isinstance(cause, OutOfBounds):
                    raise (cause or error) from None
                raise InterpreterError(f"{type(cause).__name__}: {cause} {_place(self.fn, cause)}") from cause
            finally:
                _launches.pop()

        return __call__

    def convert(stock):
        def implicit_cvt(arg):
            made = stock(arg)
            if hasattr(arg, "data_ptr") and _launches:
                extent = _extent(arg)
                _launches[-1].extents.append(extent)
                made.handle.attr["extent"] = extent
            return made

        return implicit_cvt

    def load(stock):
        def create_masked_load(self, ptrs, mask, other, *rest):
            _check(self, "load", ptrs, mask.data if hasattr(mask, "data") else mask)
            if other is None:
                element = ptrs.get_element_ty()
                other = TensorHandle(_masked(ptrs.data.shape, interpreter._get_np_dtype(element)), element)
            return stock(self, ptrs, mask, other, *rest)

        return create_masked_load

    def store(stock):
        def create_masked_store(self, ptrs, value, mask, *rest):
            _check(self, "store", ptrs, mask.data if hasattr(mask, "data") else mask)
            return stock(self, ptrs, value, mask if hasattr(mask, "data") else TensorHandle(mask, tl.int1), *rest)

        return create_masked_store

    def rmw(stock):
        def create_atomic_rmw(self, op, ptr, val, mask, *rest):
            _check(self, "atomic", ptr, mask.data)
            return stock(self, op, ptr, val, mask, *rest)

        return create_atomic_rmw

    def cas(stock):
        def create_atomic_cas(self, ptr, *rest):
            _check(self, "atomic", ptr, np.ones(ptr.data.shape, bool))
            return stock(self, ptr, *rest)

        return create_atomic_cas

    def from_integer(stock):
        def create_int_to_ptr(self, *args):
            if _launches:
                _launches[-1].unchecked = True
            return stock(self, *args)

        return create_int_to_ptr

    _wrap(GridExecutor, "__call__", call)
    _wrap(interpreter, "_implicit_cvt", convert)
    _wrap(InterpreterBuilder, "create_masked_load", load)
    _wrap(InterpreterBuilder, "create_masked_store", store)
    _wrap(InterpreterBuilder, "create_atomic_rmw", rmw)
    _wrap(InterpreterBuilder, "create_atomic_cas", cas)
    _wrap(InterpreterBuilder, "create_int_to_ptr", from_integer)
    for name in ("create_addptr", "create_splat", "create_broadcast", "create_expand_dims", "create_reshape", "create_trans"):
        _wrap(InterpreterBuilder, name, _keep_extent)


def _keep_extent(stock):
    """Pointer arithmetic and shape operations pass on which tensor a pointer came from."""

    def operation(self, *args, **kwargs):
        made = stock(self, *args, **kwargs)
        for arg in args[:2]:
            extent = arg.attr.get("extent") if isinstance(arg, TensorHandle) else None
            if extent is not None:
                made.attr["extent"] = extent
        return made

    return operation


def _extent(tensor) -> _Extent:
    plain = getattr(tensor, "base", tensor)
    if not isinstance(plain, torch.Tensor):
        return _Extent(0, 1 << 63, 0, 1)
    base, item = plain.data_ptr(), plain.element_size()
    if plain.numel() == 0:
        return _Extent(base, base, base, item)
    spans = [(size - 1) * stride for size, stride in zip(plain.shape, plain.stride(), strict=True)]
    return _Extent(base + sum(min(s, 0) for s in spans) * item, base + (sum(max(s, 0) for s in spans) + 1) * item, base, item)


def _masked(shape, dtype: np.dtype) -> np.ndarray:
    if dtype.kind in "fV" or dtype in NUMPY_TYPES.values():
        return np.full(shape, np.nan, dtype)
    if dtype == np.bool_:
        return np.ones(shape, dtype)
    return np.full(shape, MASKED_INTEGER & np.iinfo(dtype).max, dtype)


def _check(builder, what: str, ptrs: TensorHandle, mask: np.ndarray) -> None:
    if not _launches or _launches[-1].unchecked:
        return
    launch = _launches[-1]
    addresses = ptrs.data
    item = max(ptrs.get_element_ty().primitive_bitwidth // 8, 1)
    mask = np.broadcast_to(mask, addresses.shape)
    active = addresses if mask.all() else addresses[mask]
    if active.size == 0:
        return
    low, high = int(active.min()), int(active.max()) + item
    own = ptrs.attr.get("extent")
    allowed = [own] if own is not None else launch.extents
    if any(e.low <= low and high <= e.high for e in allowed):
        return
    inside = np.zeros(addresses.shape, bool)
    for extent in allowed:
        inside |= (addresses >= extent.low) & (addresses + np.uint64(item) <= extent.high)
    bad = np.argwhere(mask & ~inside)
    if len(bad):
        raise OutOfBounds(_describe(builder, launch, what, addresses, bad, own, item))


def _describe(builder, launch: _Launch, what: str, addresses, bad, own: _Extent | None, item: int) -> str:
    lane = tuple(int(i) for i in bad[0])
    address = int(addresses[lane])
    extent = own or min(launch.extents, key=lambda e: min(abs(address - e.low), abs(address - e.high)), default=None)
    kernel = launch.executor.fn
    place = f"{what} out of bounds in {kernel.__name__}{_line(kernel)}, program {tuple(builder.grid_idx)}, lane {list(lane)}"
    if extent is None:
        return f"{place}: the kernel was given no tensor"
    count = (extent.high - extent.low) // max(extent.item, 1)
    offset = (address - extent.base) // max(extent.item, 1)
    name = _argument(launch, extent)
    relation = "of" if own else "nearest to"
    return f"{place}: element offset {offset} {relation} argument {name}, which reaches {count} elements ({len(bad)} lanes outside)"


def _place(kernel, error: Exception) -> str:
    """Where in a kernel an exception was raised."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == kernel.__code__.co_filename]
    line = f" ({kernel.__code__.co_filename.rsplit('/', 1)[-1]}:{lines[-1]})" if lines else ""
    return f"[in {kernel.__name__}{line}, program {tuple(interpreter.interpreter_builder.grid_idx or ())}]"


def _line(kernel) -> str:
    """The source line under way in the kernel's file."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == kernel.__code__.co_filename:
            return f" ({kernel.__code__.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno})"
        frame = frame.f_back
    return ""


def _argument(launch: _Launch, extent: _Extent) -> str:
    named = {**dict(zip(launch.executor.arg_names, launch.args, strict=False)), **launch.kwargs}
    for name, value in named.items():
        value = getattr(value, "base", value) if not isinstance(value, torch.Tensor) else value
        if isinstance(value, torch.Tensor) and value.data_ptr() == extent.base:
            return name
    return "?"


def _run_autotuned_kernels() -> None:
    """`@triton.autotune` with several configurations asks for a GPU to time them: here the first that survives pruning runs."""

    def run(self, *args, **kwargs):
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        config = next(iter(self.prune_configs(kwargs)))
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
        result = self.fn.run(*args, **kwargs, **config.all_kwargs())
        self.nargs = None
        return result

    Autotuner.run = run


REPAIRS = (
    (_store_small_floats_as_themselves, "bfloat16 and float8 arithmetic, casts and reductions (triton#11584, #11585)"),
    (_multiply_as_the_gpu_does, "tl.dot on bfloat16 values; tf32 rounding of float32 operands (triton#11584)"),
    (_let_run_time_values_be_loop_bounds, "loops to a run-time bound under NumPy >= 2.4 (triton#9171)"),
    (_patch_the_language_once, "speed: the language is patched once, not at every launch"),
    (_check_asserts_and_overflow, "device_assert checked, integer overflow detected"),
    (_check_bounds, "out-of-bounds accesses reported; NaN in masked lanes without `other`"),
    (_run_autotuned_kernels, "kernels with several autotune configurations run"),
)
