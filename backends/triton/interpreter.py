"""Triton's interpreter made truthful: every repair of it, in this one place, for Triton 3.6 to 3.9.

`install()` runs once per process, from `backends.triton.prepare("cpu")`, before any kernel runs. A repair answers an
upstream issue, or a way in which the stock interpreter accepts what a GPU does not, or gives another number than it.
`REPAIRS` lists them; `conformance doctor` prints the list.
"""

import ast
import bdb
import ctypes
import dataclasses
import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import autotuner
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

TESTED = ((3, 6), (3, 9))
MASKED_INTEGER = 12345  # of 16 bits and more: conspicuous, and small enough not to overflow in address arithmetic
BF16 = np.dtype(ml_dtypes.bfloat16)
FP8 = {
    "fp8e5": np.dtype(ml_dtypes.float8_e5m2),
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5b16": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "fp8e4b8": np.dtype(ml_dtypes.float8_e4m3fnuz),
}
_SEMANTIC = vars(sys.modules[TritonSemantic.__module__])
_HERE = os.path.abspath(__file__)
_TRITON = os.path.dirname(os.path.abspath(triton.__file__)) + os.sep


class KernelError(stock.InterpreterError, RuntimeError):
    """Something went wrong inside a kernel; the message names kernel, source line and program."""


class OutOfBounds(KernelError):
    """A load, store or atomic of an active lane fell outside the tensor that its pointer was derived from."""


class IntegerOverflowError(KernelError):
    """An integer operation overflowed its type: addresses are to be computed in int64."""


class StaticAssertionError(KernelError):
    """A `tl.static_assert` does not hold: a GPU would refuse to compile this specialisation."""


@dataclasses.dataclass(frozen=True)
class Repair:
    """One repair: its name, what it makes true, the upstream issue it answers (if any), and how to install it."""

    name: str
    what: str
    answers: str
    install: Callable[[], None]


REPAIRS: list[Repair] = []
_active: set[str] = set()


def _repair(name: str, what: str, answers: str = "") -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(function: Callable[[], None]) -> Callable[[], None]:
        REPAIRS.append(Repair(name, what, answers, function))
        return function

    return register


def install(without: frozenset[str] = frozenset()) -> None:
    """Install every repair except those named in `without` (tests show that each is needed); later calls do nothing.

    Raises RuntimeError where Triton was imported to compile. A Triton outside 3.6 to 3.9 gives a warning.
    """
    if _active:
        return
    if not isinstance(tl.standard.sum, stock.InterpretedFunction):
        raise RuntimeError("triton was imported to compile; set TRITON_INTERPRET=1 before its first import")
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if not TESTED[0] <= version <= TESTED[1]:
        warnings.warn(f"the interpreter's repairs are for Triton 3.6 to 3.9, not {triton.__version__}", stacklevel=2)
    for repair in REPAIRS:
        if repair.name not in without:
            _active.add(repair.name)
            repair.install()


def active(name: str) -> bool:
    """Whether the repair of that name is installed."""
    return name in _active


@_repair("bfloat16", "arithmetic, comparisons, reductions on values, not on bit patterns", "triton#11584, #11585")
def _bfloat16() -> None:
    types = {
        "int1": np.bool_, "int8": np.int8, "uint8": np.uint8, "int16": np.int16, "uint16": np.uint16,
        "int32": np.int32, "uint32": np.uint32, "int64": np.int64, "uint64": np.uint64,
        "fp16": np.float16, "fp32": np.float32, "fp64": np.float64,
        "bf16": BF16, "fp8e4b15": np.uint8, **dict.fromkeys(FP8, np.uint8),
    }  # fmt: skip
    numpy_types = {name: np.dtype(dtype) for name, dtype in types.items()}
    pointer = np.dtype(np.uint64)

    def get_np_dtype(ty):
        scalar = ty.scalar
        return pointer if isinstance(scalar, tl.pointer_type) else numpy_types[scalar.name]

    def get_bf16(self, value):
        return TensorHandle(np.array([value], dtype=BF16), tl.bfloat16)

    def fabs(self, arg):
        return TensorHandle(np.abs(arg.data), arg.dtype.scalar)

    stock._get_np_dtype = get_np_dtype
    InterpreterBuilder.get_bf16 = get_bf16
    InterpreterBuilder.create_fabs = fabs


@_repair("casts", "to nearest even or toward zero; float8 and integers saturate", "triton#11584, #11585")
def _casts() -> None:
    original = InterpreterBuilder.create_fp_to_fp

    def cast(self, src, dst_type, rounding_mode=None):
        source, target = src.dtype.scalar, dst_type.scalar
        if "fp8e4b15" in (source.name, target.name):
            return original(self, src, dst_type, rounding_mode)
        data = src.data
        if source.name in FP8 and data.dtype == np.uint8:
            data = data.view(FP8[source.name])
        if target.name in FP8:
            return TensorHandle(_to_fp8(data, FP8[target.name]).view(np.uint8), target)
        dtype = stock._get_np_dtype(target)
        if dtype.kind in "iu" and data.dtype.kind not in "iub":
            return TensorHandle(_to_integer(data, dtype), target)
        result = data.astype(dtype)
        if rounding_mode == stock._ir.ROUNDING_MODE.RTZ and result.dtype.itemsize < data.dtype.itemsize:
            over = np.abs(result.astype(np.float64)) > np.abs(data.astype(np.float64))
            result = np.where(over, np.nextafter(result, np.zeros((), result.dtype)), result)
        return TensorHandle(result, target)

    def cast_impl(self, src, dst_type):
        return cast(self, src, dst_type)

    InterpreterBuilder.create_fp_to_fp = cast
    InterpreterBuilder.cast_impl = cast_impl


def _to_integer(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Toward zero; out of range the nearest end, NaN 0 (int64: its minimum), 8 bits by way of 16: as an H200 does."""
    wide = np.dtype(f"{dtype.kind}{max(dtype.itemsize, 2)}")
    low, high = np.iinfo(wide).min, np.iinfo(wide).max
    values = data.astype(np.float64)
    inside = (values > low) & (values < high)  # false for NaN
    ends = np.where(values >= high, high, np.where(np.isnan(values) & (wide.itemsize < 8), 0, low)).astype(wide)
    return np.where(inside, np.where(inside, values, 0).astype(wide), ends).astype(dtype)


def _to_fp8(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    largest = float(ml_dtypes.finfo(dtype).max)
    return np.clip(data.astype(np.float32), -largest, largest).astype(dtype)  # clip lets NaN through


@_repair("dot", "tl.dot on values, operands cut as input_precision says: by default to TF32", "triton#11584")
def _dot() -> None:
    builder = stock.interpreter_builder
    allowed = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
    builder.options = dataclasses.replace(builder.options, allowed_dot_input_precisions=allowed)
    try:
        from triton.backends.compiler import GPUTarget
        from triton.backends.nvidia.compiler import min_dot_size
    except ImportError:
        pass
    else:
        builder.codegen_fns["min_dot_size"] = min_dot_size(GPUTarget("cuda", 90, 32))

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        left, right, acc = _dot_operand(a), _dot_operand(b), d.data
        if acc.dtype == np.float16:
            return TensorHandle(_half_accumulated(left, right, acc), d.dtype.scalar)
        if left.dtype.kind in "iu":  # exact: 127 · 127 · K stays below 2^53
            product = np.matmul(left.astype(np.float64), right.astype(np.float64)).astype(acc.dtype)
        elif a.dtype.scalar.name == "fp32":
            product = _float32_product(left, right, input_precision.name.lower())
        else:
            product = np.matmul(left, right)
        return TensorHandle((product + acc).astype(acc.dtype, copy=False), d.dtype.scalar)

    InterpreterBuilder.create_dot = create_dot


def _dot_operand(handle: TensorHandle) -> np.ndarray:
    """The values of an operand of tl.dot: integers as they are, floats of up to 32 bits as float32."""
    data, name = handle.data, handle.dtype.scalar.name
    if name in FP8:
        return data.view(FP8[name]).astype(np.float32)
    if data.dtype == BF16:
        return (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return data.astype(np.float32) if data.dtype == np.float16 else data


def _half_accumulated(left: np.ndarray, right: np.ndarray, acc: np.ndarray) -> np.ndarray:
    """left @ right + acc with a float16 accumulator, rounded after every 16 products as the tensor core does."""
    for k in range(0, left.shape[-1], 16):
        product = np.matmul(left[..., k : k + 16], right[..., k : k + 16, :])
        acc = (product + acc.astype(np.float32)).astype(np.float16)
    return acc


def _float32_product(left: np.ndarray, right: np.ndarray, precision: str) -> np.ndarray:
    """left @ right of float32 operands, each cut into the pieces that `precision` multiplies; small products first."""
    if precision == "ieee":
        return np.matmul(left, right)
    rounded = to_tf32 if precision.startswith("tf32") else _to_bf16
    pieces = {"tf32": 1, "tf32x3": 2, "bf16x3": 2, "bf16x6": 3}[precision]
    lefts, rights = _pieces(left, rounded, pieces), _pieces(right, rounded, pieces)
    product = None
    for order in reversed(range(pieces)):
        for i in range(order + 1):
            term = np.matmul(lefts[i], rights[order - i])
            product = term if product is None else product + term
        if order:
            product = np.where(np.isnan(product), np.float32(0), product)  # inf - inf of a small piece, as Triton does
    return product


def _pieces(x: np.ndarray, rounded: Callable[[np.ndarray], np.ndarray], count: int) -> list[np.ndarray]:
    found = []
    for _ in range(count):
        found.append(rounded(x))
        x = x - found[-1]
    return found


def to_tf32(x: np.ndarray) -> np.ndarray:
    """float32 cut to TF32's 10 mantissa bits, as the tensor core of an H200 reads its operands; inf and NaN stay."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    special = bits & np.uint32(0x7F800000) == np.uint32(0x7F800000)
    return np.where(special, bits, bits & np.uint32(0xFFFFE000)).view(np.float32)


def _to_bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(BF16).astype(np.float32)


@_repair("arithmetic", "tl.maximum and tl.minimum skip NaN, fma rounds once, int1 wraps: as on a GPU", "triton#10919")
def _arithmetic() -> None:
    def binary_op(self, lhs, rhs, op):
        left, right, scalar = lhs.data, rhs.data, lhs.dtype.scalar
        if left.dtype == np.bool_ and right.dtype == np.bool_ and op in (np.add, np.subtract, np.multiply):
            return TensorHandle((op(left.astype(np.int8), right.astype(np.int8)) & 1).astype(np.bool_), scalar)
        output = op(left, right)
        if not stock._validate_np_data_size(output, scalar):
            output = output.astype(stock._get_np_dtype(scalar))
        return TensorHandle(output, scalar)

    def clampf(self, arg, low, high, propagate_nan):
        if propagate_nan == stock._ir.PROPAGATE_NAN.ALL:
            return TensorHandle(np.minimum(np.maximum(arg.data, low.data), high.data), arg.dtype.scalar)
        return TensorHandle(np.fmin(np.fmax(arg.data, low.data), high.data), arg.dtype.scalar)

    def fma(self, x, y, z):
        dtype = z.data.dtype
        if dtype == np.float64 or dtype.kind in "iu":
            return TensorHandle(x.data * y.data + z.data, z.dtype.scalar)
        exact = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
        return TensorHandle(exact.astype(dtype), z.dtype.scalar)

    InterpreterBuilder.binary_op = binary_op
    InterpreterBuilder.create_minnumf = lambda self, lhs, rhs: binary_op(self, lhs, rhs, np.fmin)
    InterpreterBuilder.create_maxnumf = lambda self, lhs, rhs: binary_op(self, lhs, rhs, np.fmax)
    InterpreterBuilder.create_clampf = clampf
    InterpreterBuilder.create_fma = fma


@_repair("reductions", "16-bit sums round at every addition; custom combine functions run on whole tiles, as a tree")
def _reductions() -> None:
    def min_max(self, input, val_reduce_op, idx_reduce_op=None):
        skipping = {np.nanmax: np.fmax.reduce, np.nanmin: np.fmin.reduce}  # no warning about a row of NaN
        return original_min_max(self, input, skipping.get(val_reduce_op, val_reduce_op), idx_reduce_op)

    def sum_(self, input):
        data = input.handle.data
        if data.dtype != np.float16 and data.dtype != BF16:
            return original_sum(self, input)
        flat = data.reshape(-1) if self.axis is None else np.moveaxis(data, self.axis, 0)
        while len(flat) > 1:
            half = (len(flat) + 1) // 2
            flat = np.concatenate([flat[: len(flat) - half] + flat[half:], flat[len(flat) - half : half]])
        total = flat[0]
        if self.keep_dims:
            total = total.reshape([1] * data.ndim) if self.axis is None else np.expand_dims(total, self.axis)
        return self.to_tensor(total, input.dtype)

    def generic_reduce(self, input):
        if _branches(self.combine_fn):
            return original_reduce(self, input)
        shape, axis = input[0].handle.data.shape, self.axis
        arrays = [_axis_first(arg.handle.data, axis) for arg in input]
        types = [arg.dtype for arg in input]
        while len(arrays[0]) > 1:  # the sides of a tile are powers of two
            arrays = _combine(self.combine_fn, [a[0::2] for a in arrays], [a[1::2] for a in arrays], types)
        results = [a[0] for a in arrays]
        if self.keep_dims:
            results = [r.reshape([1] * len(shape)) if axis is None else np.expand_dims(r, axis) for r in results]
        return [self.to_tensor(r, ty) for r, ty in zip(results, types, strict=True)]

    def generic_scan(self, input):
        if _branches(self.combine_fn):
            return original_scan(self, input)
        types = [arg.dtype for arg in input]
        arrays = [_axis_first(arg.handle.data, self.axis) for arg in input]
        step, place = 1, np.arange(len(arrays[0])).reshape(-1, *(1,) * (arrays[0].ndim - 1))
        while step < len(place):
            combined = _combine(self.combine_fn, [np.roll(a, step, 0) for a in arrays], arrays, types)
            arrays = [np.where(place < step, a, c) for a, c in zip(arrays, combined, strict=True)]
            step *= 2
        return [self.to_tensor(np.moveaxis(a, 0, self.axis), ty) for a, ty in zip(arrays, types, strict=True)]

    original_min_max, original_sum = stock.ReduceOps.min_max, stock.ReduceOps.sum
    original_reduce, original_scan = stock.ReduceOps.generic_reduce, stock.ScanOps.generic_scan
    stock.ReduceOps.min_max, stock.ReduceOps.sum = min_max, sum_
    stock.ReduceOps.generic_reduce, stock.ScanOps.generic_scan = generic_reduce, generic_scan


def _axis_first(data: np.ndarray, axis: int | None) -> np.ndarray:
    return data.reshape(-1) if axis is None else np.moveaxis(data, axis, 0)


def _combine(combine_fn, left: list[np.ndarray], right: list[np.ndarray], types: list) -> list[np.ndarray]:
    """One application of a combine function to every pair of a tile."""

    def tensor(data, ty):
        return tl.tensor(TensorHandle(data, ty), tl.block_type(ty, list(data.shape)))

    operands = [tensor(data, ty) for side in (left, right) for data, ty in zip(side, types, strict=True)]
    result = combine_fn.fn(*operands)
    result = result if isinstance(result, tuple) else (result,)
    shape = left[0].shape
    return [
        np.broadcast_to(getattr(getattr(r, "handle", None), "data", r), shape).astype(stock._get_np_dtype(ty))
        for r, ty in zip(result, types, strict=True)
    ]


@functools.cache
def _branches(combine_fn) -> bool:
    """Whether a combine function has a branch in Python, which a whole tile cannot take: it then runs lane by lane."""
    try:
        source = ast.parse(stock.textwrap.dedent(inspect.getsource(combine_fn.fn)))
    except (OSError, TypeError, SyntaxError):
        return True
    return any(isinstance(node, ast.If | ast.IfExp | ast.While | ast.BoolOp) for node in ast.walk(source))


@_repair("loops", "a loop variable has the type its bounds promote to; run-time bounds with any NumPy", "triton#9171")
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

        def visit_Assign(self, node):  # noqa: N802
            if not hasattr(super(), "visit_Compare"):  # 3.9 visits the value itself
                node.value = self.visit(node.value)
            return super().visit_Assign(node)

    stock._touchstone_range, stock._touchstone_logical = _typed_range, _logical
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


@_repair("arguments", "float arguments are float32, bools int1, wide integers int64, as in a compiled kernel")
def _arguments() -> None:
    original = stock._implicit_cvt
    integers = ((-(2**31), 2**31, tl.int32), (-(2**63), 2**63, tl.int64), (0, 2**64, tl.uint64))

    def implicit_cvt(arg):
        if isinstance(arg, bool):
            return tl.tensor(TensorHandle(np.array([arg]), tl.int1), tl.int1)
        if isinstance(arg, int):
            for low, high, ty in integers:
                if low <= arg < high:
                    return tl.tensor(TensorHandle(np.array([arg], stock._get_np_dtype(ty)), ty), ty)
        if isinstance(arg, float):
            return tl.tensor(TensorHandle(np.array([arg], np.float32), tl.float32), tl.float32)
        return original(arg)

    stock._implicit_cvt = implicit_cvt


@functools.cache
def _launch_options() -> frozenset[str] | None:
    """What a launch accepts beside the kernel's own parameters."""
    try:
        from triton.backends.nvidia.compiler import CUDAOptions
    except ImportError:
        return None
    return frozenset(field.name for field in dataclasses.fields(CUDAOptions)) | {"instrumentation_mode"}


class _Region:
    """The bytes from the first to the last element that a tensor argument reaches."""

    __slots__ = ("end", "item", "name", "shape", "start", "storage", "strides", "views")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name, self.item = name, tensor.element_size()
        self.shape, self.strides = tuple(tensor.shape), tensor.stride()
        self.start = self.end = tensor.data_ptr()
        if tensor.numel():
            reach = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
            self.end = self.start + (reach + 1) * self.item
        self.storage = tensor.untyped_storage().data_ptr()
        self.views: dict[int, np.ndarray] = {}

    def view(self, size: int) -> np.ndarray:
        """The region as a flat array of words of `size` bytes."""
        if size not in self.views:
            count = (self.end - self.start) // size
            memory = (ctypes.c_ubyte * (count * size)).from_address(self.start)
            self.views[size] = np.frombuffer(memory, dtype=f"u{size}")
        return self.views[size]

    def __str__(self) -> str:
        last = (self.end - self.start) // self.item - 1
        reach = f"elements 0 to {last}" if last >= 0 else "no elements"
        return f"{self.name}, which has {reach} (shape {self.shape}, strides {self.strides})"


class _Launch:
    """The launch under way: the argument being converted and the regions of all tensor arguments so far."""

    def __init__(self) -> None:
        self.argument = ""
        self.regions: list[_Region] = []


_launches: list[_Launch] = []


@_repair("bounds", "an active lane outside the tensor that its pointer came from raises OutOfBounds")
def _bounds() -> None:
    convert = stock._implicit_cvt

    def implicit_cvt(arg):
        made = convert(arg)
        if _launches and hasattr(arg, "data_ptr"):
            tensor = stock._unwrap_tensor(arg)
            if isinstance(tensor, torch.Tensor):
                region = _Region(_launches[-1].argument, tensor)
                _launches[-1].regions.append(region)
                made.handle.attr["region"] = region
        return made

    stock._implicit_cvt = implicit_cvt
    for name in ("splat", "unsplat", "broadcast", "expand_dims", "reshape", "trans", "addptr", "bitcast"):
        _keep_region(f"create_{name}")

    select = InterpreterBuilder.create_select

    def create_select(self, condition, left, right):
        made = select(self, condition, left, right)
        if left.attr.get("region") is right.attr.get("region") is not None:
            made.attr["region"] = left.attr["region"]
        return made

    InterpreterBuilder.create_select = create_select

    materialize = stock.TensorDescHandle.materialize_pointers

    def materialize_pointers(self, offsets):
        pointers, mask = materialize(self, offsets)
        if "region" in self.base.attr:
            pointers.attr["region"] = self.base.attr["region"]
        return pointers, mask

    stock.TensorDescHandle.materialize_pointers = materialize_pointers


def _keep_region(name: str) -> None:
    """Make an operation on a pointer pass on which argument it was derived from."""
    original = getattr(InterpreterBuilder, name)

    def operation(self, *args, **kwargs):
        made = original(self, *args, **kwargs)
        for arg in args:
            if isinstance(arg, TensorHandle) and "region" in arg.attr:
                made.attr["region"] = arg.attr["region"]
                break
        return made

    setattr(InterpreterBuilder, name, operation)


@_repair("memory", "loads, stores and atomics in place, through NumPy where the argument is known; bfloat16 atomics")
def _memory() -> None:
    def masked_load(self, ptrs, mask, other, *rest, **policy):
        dtype = stock._get_np_dtype(ptrs.get_element_ty())
        mask = _lanes(mask, ptrs.data.shape)
        fill = _masked_value(dtype) if other is None else other.data
        return TensorHandle(_load(ptrs, mask, fill, dtype), ptrs.get_element_ty())

    def masked_store(self, ptrs, value, mask, *rest, **policy):
        dtype = stock._get_np_dtype(ptrs.get_element_ty())
        _store(ptrs, _lanes(mask, ptrs.data.shape), value.data.astype(dtype, copy=False))

    def atomic_rmw(self, op, ptr, val, mask, sem, scope):
        lanes = _lanes(mask, ptr.data.shape)
        _region(ptr, lanes, val.data.dtype.itemsize, "atomic")
        if val.data.dtype == BF16:
            value = np.broadcast_to(val.data, ptr.data.shape)
            return TensorHandle(_bfloat16_rmw(op, ptr, value, lanes), val.dtype.scalar)
        return original_rmw(self, op, ptr, val, mask, sem, scope)

    def atomic_cas(self, ptr, cmp, val, sem, scope):
        _region(ptr, None, val.data.dtype.itemsize, "atomic")
        return original_cas(self, ptr, cmp, val, sem, scope)

    original_rmw, original_cas = InterpreterBuilder.create_atomic_rmw, InterpreterBuilder.create_atomic_cas
    InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = masked_load, masked_store
    InterpreterBuilder.create_load = lambda self, ptr, *rest, **policy: masked_load(self, ptr, None, None)
    InterpreterBuilder.create_store = lambda self, ptr, val, *rest, **policy: masked_store(self, ptr, val, None)
    InterpreterBuilder.create_atomic_rmw, InterpreterBuilder.create_atomic_cas = atomic_rmw, atomic_cas


@_repair("masked lanes", "a masked load without `other` gives NaN (integers: 12345), not the zeros that hide its use")
def _masked_lanes() -> None:
    pass  # read by _masked_value


def _masked_value(dtype: np.dtype) -> np.ndarray:
    if "masked lanes" not in _active:
        return np.zeros((), dtype)
    if dtype.kind in "iu":
        return np.array(MASKED_INTEGER if dtype.itemsize > 1 else 85, dtype)
    return np.array(True if dtype == np.bool_ else np.nan, dtype)


def _lanes(mask: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """The active lanes as a bool array, None where all are; Triton passes a handle or (block loads of 3.7) an array."""
    if mask is None:
        return None
    lanes = mask if isinstance(mask, np.ndarray) else mask.data
    lanes = lanes if lanes.dtype == np.bool_ else lanes.astype(np.bool_)
    if lanes.all():
        return None
    return lanes if lanes.shape == shape else np.broadcast_to(lanes, shape)


def _region(ptrs: TensorHandle, lanes: np.ndarray | None, size: int, what: str) -> _Region | None:
    """The region that every active lane lies in whole; None where there is no active lane or no one region is known.

    A lane outside the argument that its pointer was derived from is in bounds if it lies in another argument of the
    same storage. Raises OutOfBounds.
    """
    region = ptrs.attr.get("region")
    addresses = ptrs.data
    if region is None or not addresses.size:
        return None
    low, high = int(addresses.min()), int(addresses.max())
    if region.start <= low and high + size <= region.end:
        return region
    if lanes is not None:
        active = addresses[lanes]
        if not active.size:
            return None
        low, high = int(active.min()), int(active.max())
        if region.start <= low and high + size <= region.end:
            return region
    outside = np.ones(addresses.shape, bool) if lanes is None else lanes.copy()
    for other in _launches[-1].regions if _launches else [region]:
        if other.storage == region.storage:
            outside &= (addresses < other.start) | (addresses + np.uint64(size) > other.end)
    if not outside.any():
        return None
    lane = tuple(int(i) for i in np.argwhere(outside)[0])
    offset = (int(addresses[lane]) - region.start) // region.item
    count = int(outside.sum())
    more = f"; {count - 1} more lanes are outside" if count > 1 else ""
    raise OutOfBounds(f"{what} of lane {list(lane)} at element offset {offset} of {region}{more}")


def _words(ptrs: TensorHandle, region: _Region | None, size: int) -> tuple[np.ndarray, np.ndarray] | None:
    """A region as words and the index of every lane's word; None where NumPy cannot address the lanes."""
    if region is None or size not in (1, 2, 4, 8):
        return None
    offsets = (ptrs.data - np.uint64(region.start)).view(np.int64)
    if size > 1:
        if size != region.item and (offsets & (size - 1)).any():
            return None
        offsets = offsets >> (size.bit_length() - 1)
    return region.view(size), offsets


def _load(ptrs: TensorHandle, lanes: np.ndarray | None, fill: np.ndarray, dtype: np.dtype) -> np.ndarray:
    bits = np.dtype(f"u{dtype.itemsize}")
    words = _words(ptrs, _region(ptrs, lanes, dtype.itemsize, "load"), dtype.itemsize)
    if words is not None:
        memory, index = words
        if lanes is None:
            return memory.take(index).view(dtype)
        loaded = memory.take(np.where(lanes, index, 0)).view(dtype)
        np.copyto(loaded, fill.astype(dtype, copy=False), where=~lanes)
        return loaded
    shape = ptrs.data.shape
    fill = np.ascontiguousarray(np.broadcast_to(fill.astype(dtype, copy=False), shape)).view(bits)
    active = np.ones(shape, bool) if lanes is None else lanes
    return stock._interpreter.load(ptrs.data, active, fill, bits).view(dtype)


def _store(ptrs: TensorHandle, lanes: np.ndarray | None, value: np.ndarray) -> None:
    size = value.dtype.itemsize
    words = _words(ptrs, _region(ptrs, lanes, size, "store"), size)
    shape = ptrs.data.shape
    value = value if value.shape == shape else np.broadcast_to(value, shape)
    bits = np.ascontiguousarray(value).view(f"u{size}")
    if words is None:
        stock._interpreter.store(ptrs.data, bits, np.ones(shape, bool) if lanes is None else lanes)
        return
    memory, index = words
    if lanes is None:
        memory[index] = bits
    else:
        memory[index[lanes]] = bits[lanes]


def _bfloat16_rmw(op, ptrs: TensorHandle, value: np.ndarray, lanes: np.ndarray | None) -> np.ndarray:
    """An atomic on bfloat16, which the native code lacks: one lane after another, as the hardware serialises them."""
    add = op in (stock._ir.ATOMIC_OP.ADD, stock._ir.ATOMIC_OP.FADD)
    if not add and op != stock._ir.ATOMIC_OP.XCHG:
        raise KernelError(f"{op} is not available for bfloat16")
    previous = np.zeros(value.shape, BF16)
    for lane in np.ndindex(value.shape):
        if lanes is None or lanes[lane]:
            here = TensorHandle(ptrs.data[lane].reshape(1), ptrs.dtype, ptrs.attr)
            old = _load(here, None, np.zeros(1, BF16), BF16)
            _store(here, None, old + value[lane] if add else value[lane].reshape(1))
            previous[lane] = old[0]
    return previous


@_repair("assertions", "tl.device_assert is checked, and integer arithmetic that overflows its type raises")
def _assertions() -> None:
    builder = stock.interpreter_builder
    builder.options = dataclasses.replace(builder.options, debug=True, sanitize_overflow=True)
    TritonSemantic.binary_op_sanitize_overflow_impl = _check_overflow

    def create_assert(self, condition, message):
        if not condition.data.all():
            raise KernelError(f"device_assert failed: {message}")

    InterpreterBuilder.create_assert = create_assert


def _check_overflow(self, lhs, rhs, binary_op) -> None:
    """Raise IntegerOverflowError where `binary_op` leaves the operands' type; exact only if the extremes might."""
    scalar = lhs.type.scalar
    if scalar.int_bitwidth >= 64 or scalar.int_bitwidth == 1:
        return
    left, right = lhs.handle.data, rhs.handle.data
    name = binary_op.__name__
    a = (left.item(),) * 2 if left.size == 1 else (int(left.min()), int(left.max()))
    b = (right.item(),) * 2 if right.size == 1 else (int(right.min()), int(right.max()))
    if name == "add":
        ends, exact = (a[0] + b[0], a[1] + b[1]), np.add
    elif name == "sub":
        ends, exact = (a[0] - b[1], a[1] - b[0]), np.subtract
    else:
        ends, exact = (a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1]), np.multiply
    low, high = scalar.get_int_min_value(), scalar.get_int_max_value()
    if low <= min(ends) and max(ends) <= high:
        return
    wide = exact(left.astype(np.int64), right.astype(np.int64))
    outside = (wide < low) | (wide > high)
    if outside.any():
        raise IntegerOverflowError(f"{scalar.name} {name} gives {wide[outside].flat[0]}; compute addresses in int64")


@_repair("launch", "tensors are read and written in place; errors name kernel, line and program; bad options raise")
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
    try:
        with np.errstate(all="ignore"):
            for builder.grid_idx in np.ndindex(*grid):
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


def _line(error: BaseException) -> str:
    """File and line of the innermost frame of an exception that is neither Triton's nor this module's."""
    found, trace = "?", error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not path.startswith((_TRITON, os.path.dirname(np.__file__) + os.sep)) and path != _HERE:
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
    if "loops" in _active:
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


@_repair("types", "speed: tile types are interned and a tensor takes its shape from its type")
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


@_repair("autotune", "of several configurations the first runs that pruning leaves and static_asserts allow")
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
