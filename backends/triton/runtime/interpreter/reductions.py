"""Reductions and scans, on whole tiles."""

import ast
import functools
import inspect

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import TensorHandle

from touchstone.backends.triton.runtime.interpreter.numerics import BF16
from touchstone.backends.triton.runtime.interpreter.registry import repair


@repair("reductions", "16-bit sums round at every addition; custom combine functions run on whole tiles, as a tree")
def _reductions() -> None:
    def min_max(self, input, val_reduce_op, idx_reduce_op=None):
        skipping = {np.nanmax: np.fmax.reduce, np.nanmin: np.fmin.reduce}  # no warning about a row of NaN
        return original_min_max(self, input, skipping.get(val_reduce_op, val_reduce_op), idx_reduce_op)

    def sum_(self, input):
        data = input.handle.data
        if data.dtype != np.float16 and data.dtype != BF16:
            return original_sum(self, input)
        flat = data.ravel() if self.axis is None else np.moveaxis(data, self.axis, 0)
        while len(flat) > 1:
            half = (len(flat) + 1) // 2
            flat = np.concatenate([flat[: len(flat) - half] + flat[half:], flat[len(flat) - half : half]])
        total = flat[0]
        if self.keep_dims:
            total = total.reshape([1] * data.ndim) if self.axis is None else np.expand_dims(total, self.axis)
        return self.to_tensor(total, input.dtype)

    def generic_reduce(self, input):
        if _branches(self.combine_fn):
            self.combine_fn = _AsKernel(self.combine_fn)
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
            self.combine_fn = _AsKernel(self.combine_fn)
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


class _AsKernel:
    """A combine function whose `fn` is what the interpreter makes of its source, as of any other device function: the
    source itself, as Triton's interpreter calls it, is Python of the kernel's author."""

    def __init__(self, combine_fn) -> None:
        self.fn = combine_fn.rewrite() if isinstance(combine_fn, stock.InterpretedFunction) else combine_fn.fn


def _axis_first(data: np.ndarray, axis: int | None) -> np.ndarray:
    return data.ravel() if axis is None else np.moveaxis(data, axis, 0)


def _combine(combine_fn, left: list[np.ndarray], right: list[np.ndarray], types: list) -> list[np.ndarray]:
    """One application of a combine function to every pair of a tile."""

    def tensor(data, ty):
        tile_type = getattr(stock.interpreter_semantic, "tile_type", tl.block_type)  # Gluon's have layouts
        return tl.tensor(TensorHandle(data, ty), tile_type(ty, list(data.shape)))

    operands = [tensor(data, ty) for side in (left, right) for data, ty in zip(side, types, strict=True)]
    result = _AsKernel(combine_fn).fn(*operands)
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
