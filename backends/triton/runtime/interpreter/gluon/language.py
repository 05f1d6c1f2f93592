"""Gluon's language over the interpreter's builder: its own front end, checks and types with it, and NumPy below."""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import _core, _layouts
from triton.experimental.gluon.language._semantic import GluonSemantic
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime import interpreter as stock

from touchstone.backends.triton.runtime.interpreter import launch, programs
from touchstone.backends.triton.runtime.interpreter.gluon import layouts, machine
from touchstone.backends.triton.runtime.interpreter.gluon.machine import Strand, strand
from touchstone.backends.triton.runtime.interpreter.registry import KernelError, NotInterpreted, redirect


class Semantic(GluonSemantic):
    """Gluon's own, but where it asks the compiler for a layout, or for the compiler's regions."""

    _inferred: Any = None  # the layout of the next result

    def tile_type(self, element: Any, shape: Any) -> Any:
        """Of a tile whose layout nobody has decided."""
        return gl.distributed_type(element, list(shape), gl.AutoLayout())

    def _wrap_handle_infer_layout(self, handle, scalar_ty, shape):
        if not shape:
            return self.tensor(handle, scalar_ty)
        return self.tensor(handle, gl.distributed_type(scalar_ty, list(shape), self._inferred))

    def arange(self, start, end, layout):
        _allowed(layout, (end - start,))
        return super().arange(start, end, layout)

    def full(self, shape, value, dtype, layout):
        _allowed(layout, tuple(shape))
        return super().full(shape, value, dtype, layout)

    def shared_load(self, mem_desc, layout):
        _allowed(layout, tuple(mem_desc.shape))
        return super().shared_load(mem_desc, layout)

    def expand_dims(self, input, axis):
        layout = getattr(input.type, "layout", None)
        self._inferred = getattr(layout, "parent", layout)
        return super().expand_dims(input, axis)

    def reshape(self, input, dst_shape, can_reorder):
        layouts.check_reshape(input.type.shape, to := tuple(map(int, dst_shape)))
        self._inferred = layouts.reshaped(strand().warps, input.type.layout, tuple(input.type.shape), to)
        return super().reshape(input, dst_shape, can_reorder)

    def permute(self, input, dims):
        layouts.check_permutation(order := tuple(map(int, dims)), len(input.type.shape))
        self._inferred = layouts.permuted(strand().warps, input.type.layout, tuple(input.type.shape), order)
        return super().permute(input, dims)

    def join(self, a, b):
        a, b = self.broadcast_impl_value(a, b)
        if a.type.is_block():
            self._inferred = layouts.joined(strand().warps, a.type.layout, tuple(a.type.shape))
        return super().join(a, b)

    def split(self, a):
        if a.type.shape[-1] != 2:
            raise KernelError(f"split: the last axis has 2 elements, not {a.type.shape[-1]}")
        self._inferred = layouts.split(strand().warps, a.type.layout, tuple(a.type.shape))
        return super().split(a)

    def broadcast_impl_shape(self, input, shape):
        before = input.type
        if not isinstance(before, gl.distributed_type) or tuple(shape) == tuple(before.shape):
            return super().broadcast_impl_shape(input, shape)
        if any(had not in (1, to) for had, to in zip(before.shape, shape, strict=True)):
            raise KernelError(f"a tile of shape {tuple(map(int, before.shape))} cannot be broadcast to {tuple(shape)}")
        ty = gl.distributed_type(before.scalar, list(shape), before.layout)
        return self.tensor(self.builder.create_broadcast(input.handle, tuple(shape)), ty)

    def convert_layout(self, value, layout, assert_trivial=False):
        if not isinstance(value.type, gl.distributed_type) or not isinstance(layout, _layouts.DistributedLayout):
            raise KernelError(f"convert_layout: a tile and a layout, not {value.type} and {layout}")
        _allowed(layout, tuple(value.type.shape))
        if assert_trivial and not layouts.trivial(strand().warps, value.type.layout, layout, tuple(value.type.shape)):
            raise KernelError(f"convert_layout: the conversion from {value.type.layout} to {layout} is not trivial")
        return self.tensor(value.handle, gl.distributed_type(value.type.element_ty, value.type.shape, layout))

    def set_auto_layout(self, value, layout):
        if not isinstance(value.type.layout, gl.AutoLayout):
            raise KernelError(f"set_auto_layout: the tile has the layout {value.type.layout}")
        return self.convert_layout(value, layout)

    def histogram(self, input, num_bins, mask, layout):
        if mask is not None:
            mask, input = self.broadcast_impl_value(mask, input)
        handle = self.builder.create_histogram(input.handle, num_bins, mask.handle if mask is not None else None)
        return self.wrap_tensor(handle, gl.int32, [num_bins], layout)

    def memdesc_trans(self, mem_desc, order):
        shape, of = tuple(mem_desc.shape), tuple(mem_desc.type.alloc_shape)
        layouts.check_permutation(tuple(order), len(shape))
        layout = layouts.shared_permuted(mem_desc.layout, shape, of, tuple(order))
        start = len(of) - len(shape)
        to = [*of[:start], *(of[start:][i] for i in order)]
        handle = mem_desc.handle.permuted(order, layout)
        return gl.shared_memory_descriptor(handle, mem_desc.dtype, [shape[i] for i in order], layout, to)

    def memdesc_reshape(self, mem_desc, shape):
        before, of = tuple(mem_desc.shape), tuple(mem_desc.type.alloc_shape)
        layouts.check_reshape(before, tuple(shape))
        layout = layouts.shared_reshaped(mem_desc.layout, before, of, tuple(shape))
        to = [*of[: len(of) - len(before)], *shape]
        return gl.shared_memory_descriptor(
            mem_desc.handle.reshaped(shape, layout), mem_desc.dtype, list(shape), layout, to
        )

    def to_linear_layout(self, layout, shape):
        linear = _layouts.DistributedLinearLayout, _layouts.SharedLinearLayout, gl.AutoLayout
        return layout if isinstance(layout, linear) else layouts.linear(layout, tuple(shape))

    def bank_conflicts(self, distr_ty, shared_ty):
        if tuple(distr_ty.shape) != tuple(shared_ty.shape) or distr_ty.element_ty != shared_ty.element_ty:
            raise KernelError(f"bank_conflicts: {distr_ty} and {shared_ty} differ")
        bits = distr_ty.element_ty.primitive_bitwidth
        return layouts.conflicts(distr_ty.layout, shared_ty.layout, tuple(distr_ty.shape), bits)

    def num_warps(self, generator=None):
        return gl.constexpr(strand().warps)

    def num_ctas(self):
        return gl.constexpr(self.builder.options.num_ctas)

    def warp_specialize(self, functions_and_args, worker_num_warps, worker_num_regs, generator=None):
        (default, given), *workers = functions_and_args
        if len(workers) != len(worker_num_warps):
            raise KernelError(f"warp_specialize: {len(workers)} workers and {len(worker_num_warps)} numbers of warps")
        if worker_num_regs is not None and len(workers) != len(worker_num_regs):
            raise KernelError(
                f"warp_specialize: {len(workers)} workers and {len(worker_num_regs)} numbers of registers"
            )
        if any(map(_has_tiles, (args for _, args in workers))):
            raise KernelError("warp_specialize: only the first partition takes tiles")
        here = strand()
        if here.team.state != [here] and not all(program.ended for program in here.team.members[1:]):
            raise KernelError("warp_specialize within a partition")
        strands = [Strand(here.team, len(here.team.state) + i, int(n), here) for i, n in enumerate(worker_num_warps)]
        here.team.state += strands
        here.release()
        bodies = [functools.partial(function, *args) for function, args in workers]
        partitions = programs.divide(bodies, strands)
        result = default(*given)
        programs.wait(lambda: all(each.ended for each in partitions), lambda: "for the other partitions to end")
        for each in strands:
            here.acquire((each.clock, each.clock))
        return result


def _allowed(layout: Any, shape: tuple[int, ...]) -> None:
    """KernelError where the compiler refuses the layout in a partition of so many warps."""
    if isinstance(layout, _layouts.DistributedLayout) and shape:
        layouts.check(strand().warps, layout, shape)


def _has_tiles(value: Any) -> bool:
    if isinstance(value, tuple | list | tl.tuple):
        return any(map(_has_tiles, value))
    return isinstance(value, tl.tensor) and value.type.is_block()


semantic = Semantic(stock.interpreter_builder)


@contextlib.contextmanager
def spoken(options: dict[str, Any]) -> Iterator[None]:
    """Within: kernels are Gluon's, and launched with these options."""
    builder = stock.interpreter_builder
    if options.get("num_ctas", 1) != 1:
        raise NotInterpreted(f"num_ctas={options['num_ctas']}: clusters of blocks are not interpreted in Gluon")
    before = stock.interpreter_semantic, builder.options
    fields = {name: getattr(builder.options, name) for name in dir(builder.options) if not name.startswith("_")}
    own = {"num_warps": 4, "num_ctas": 1, "enable_iisan": False, **options}
    stock.interpreter_semantic, builder.options = semantic, SimpleNamespace(**{**fields, **own})
    try:
        yield
    finally:
        stock.interpreter_semantic, builder.options = before


def descriptor(given: TensorDescriptor) -> Any:
    """A kernel's argument for the launcher's."""
    convert = stock._implicit_cvt
    base = convert(given.base)
    shape = [stock.interpreter_semantic.make_scalar(int(size), tl.int32) for size in given.shape]
    strides = [stock.interpreter_semantic.make_scalar(int(stride), tl.int64) for stride in given.strides]
    padding = semantic._str_to_padding_option(given.padding)
    signed = base.dtype.element_ty.is_int_signed()
    handle = stock.interpreter_builder.create_make_tensor_descriptor(
        base.handle, [x.handle for x in shape], [x.handle for x in strides], list(given.block_shape), signed, padding
    )
    block = gl.block_type(base.dtype.element_ty, list(given.block_shape))
    handle.layout = given.layout
    return tma.tensor_descriptor(handle, shape, strides, block, given.layout)


def _modules() -> Iterator[ModuleType]:
    """Of Gluon's language, all that are imported with it."""
    return (module for name, module in list(sys.modules.items()) if name.startswith(gl.__name__) and module is not None)


_SHARED = (  # with Triton's language, whose functions for the interpreter do
    *("static_range", "static_assert", "static_print", "multiple_of", "max_contiguous", "max_constancy"),
    *("reduce", "associative_scan"),
)
_OTHER = {"blackwell": "Blackwell", "rubin": "Rubin", "amd": "AMD"}  # GPUs whose operations Hopper has not
_LACKING = ("map_elementwise", "fp4_to_fp")


@functools.cache
def install() -> None:
    """Patch Gluon's language, once, when a kernel of Gluon's is launched first."""
    machine.install()
    replaced: dict[int, Any] = {}
    for module in _modules():
        for name, member in list(vars(module).items()):
            if name in _SHARED and module in (gl, _core):
                setattr(module, name, getattr(tl, name))
            elif tl.core.is_builtin(member) and inspect.isfunction(member):
                if id(member) not in replaced:
                    replaced[id(member)] = _operation(member, name)
                    redirect(member, replaced[id(member)])
                setattr(module, name, replaced[id(member)])
    for name, member in list(vars(gl.shared_memory_descriptor).items()):
        if inspect.isfunction(member) and (tl.core.is_builtin(member) or name == "slice"):
            setattr(gl.shared_memory_descriptor, name, launch.operation(member))
    _patch_types()
    _patch_reductions()
    original = stock._implicit_cvt
    stock._implicit_cvt = lambda arg: descriptor(arg) if isinstance(arg, TensorDescriptor) else original(arg)


def _operation(member: Callable[..., Any], name: str) -> Callable[..., Any]:
    parts = member.__module__.split(".")
    other = next((part for part in parts if part in _OTHER), None)
    if other is not None:
        return functools.partial(_refuse, f"Gluon's {name} is not interpreted: it is of {_OTHER[other]} GPUs")
    if name in _LACKING:
        return functools.partial(_refuse, f"Gluon's {name} is not interpreted")
    inner = getattr(member, "__wrapped__", member)
    if name == "warpgroup_mma":
        inner = _checked_product(inner)
    if "_generator" in inspect.signature(inner).parameters:
        inner = functools.partial(inner, _generator=None)
    return launch.operation(inner)


def _checked_product(multiply: Callable[..., Any]) -> Callable[..., Any]:
    """`warpgroup_mma`, whose operands are looked at as the compiler does."""

    def call(a, b, acc, **options):
        layout = getattr(acc.type, "tensor_type", acc.type).layout
        if not isinstance(layout, gl.NVMMADistributedLayout) or layout.version[0] != 3:
            raise KernelError(f"warpgroup_mma: an accumulator in an NVMMADistributedLayout of version 3, not {layout}")
        for operand in (a, b):
            kinds = gl.NVMMASharedLayout, _layouts.SharedLinearLayout, gl.DotOperandLayout
            if not isinstance(operand.type.layout, kinds):
                raise KernelError(f"warpgroup_mma: an operand in an NVMMASharedLayout, not {operand.type.layout}")
        return multiply(a, b, acc, **options)

    return call


def _refuse(message: str, *args: Any, **kwargs: Any) -> None:
    raise NotInterpreted(message)


def _patch_types() -> None:
    made: dict[tuple, Any] = {}
    make = gl.distributed_type.__init__

    def intern(cls, element_ty=None, shape=(), layout=None):
        layout = tl.core._unwrap_if_constexpr(layout)
        pointer = (getattr(element_ty, "address_space", None), getattr(element_ty, "const", False))
        sides = tuple(int(getattr(size, "value", size)) for size in tl.core._unwrap_if_constexpr(shape))
        key = (getattr(element_ty, "name", None), *pointer, sides, layout)
        found = made.get(key)
        if found is None:
            found = made[key] = object.__new__(cls)
        return found

    def distributed_type(self, element_ty, shape, layout):
        if "layout" not in self.__dict__:
            make(self, element_ty, shape, layout)

    gl.distributed_type.__new__, gl.distributed_type.__init__ = intern, distributed_type
    gl.distributed_type.to_ir = lambda self, builder: tl.block_type(self.element_ty, self.shape)
    gl.shared_memory_descriptor_type.to_ir = lambda self, builder: self
    kinds = [tma.tensor_descriptor_type, getattr(tma, "tensor_descriptor_im2col_type", tma.tensor_descriptor_type)]
    for kind in kinds:
        kind._to_ir = lambda self, builder: self
    for kind in vars(_layouts).values():
        if isinstance(kind, type) and "_to_ir" in vars(kind):
            _patch_layout(kind)
    _patch_layout(hopper.mbarrier.MBarrierLayout)


def _patch_layout(kind: type) -> None:
    make = kind._to_ir  # type: ignore[attr-defined]
    layouts.keep(kind, make)

    def to_ir(self, builder):
        return self if builder is stock.interpreter_builder else make(self, builder)

    kind._to_ir = to_ir  # type: ignore[attr-defined]


def _patch_reductions() -> None:
    reduced, scanned = stock.ReduceOps.apply, stock.ScanOps.apply
    plain = stock.ReduceScanOpInterface.to_tensor

    def to_tensor(self, ret, dtype):
        return _typed(plain(self, ret, dtype), gl.AutoLayout())

    def reduce(self, input):
        found = reduced(self, input)
        if not isinstance(input, tuple) or stock.interpreter_semantic is not semantic:
            return found
        layout = input[0].type.layout
        if not self.keep_dims and self.axis is not None:
            layout = layouts.sliced(layout, self.axis % len(input[0].type.shape))
        return tuple(_typed(each, layout) for each in found)

    def scan(self, input):
        found = scanned(self, input)
        if not isinstance(input, tuple) or stock.interpreter_semantic is not semantic:
            return found
        return tuple(_typed(each, input[0].type.layout) for each in found)

    stock.ReduceOps.apply, stock.ScanOps.apply = reduce, scan
    stock.ReduceScanOpInterface.to_tensor = to_tensor


def _typed(tensor: Any, layout: Any) -> Any:
    """The tensor, a tile of Gluon's with that layout while a kernel of Gluon's runs."""
    if stock.interpreter_semantic is not semantic or not tensor.type.is_block():
        return tensor
    return tl.tensor(tensor.handle, gl.distributed_type(tensor.type.scalar, list(tensor.type.shape), layout))
