"""What kernels in Gluon for Hopper share: the copy engine's two words, barriers, descriptors of swizzled tiles."""

from functools import cache

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor as PlainDescriptor

ROWS = gl.constexpr(64)  # of a warpgroup's tile: one wgmma is 64 high
# later versions of Triton have other names for both than 3.7; 3.6 has another for the third
copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # of a partition's threads


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers, each through with a phase after so many arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(COUNT):
        mbarrier.init(made.index(each), count=ARRIVALS)
    return made


@gluon.jit
def room(desc, COUNT: gl.constexpr):
    """Shared memory for so many tiles."""
    shape: gl.constexpr = desc.block_type.shape
    return gl.allocate_shared_memory(desc.dtype, [COUNT, shape[0], shape[1]], desc.layout)


@gluon.jit
def place(tile, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr):
    """First row and column of a tile: down GROUP_M rows of tiles before right, so that those in flight share
    operands."""
    tiles_m, tiles_n = (M + BLOCK_M - 1) // BLOCK_M, (N + BLOCK_N - 1) // BLOCK_N
    first = tile // (GROUP_M * tiles_n) * GROUP_M
    height = gl.minimum(tiles_m - first, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return (first + within % height) * BLOCK_M, within // height * BLOCK_N


def swizzled(plain: PlainDescriptor, width: int = 128) -> TensorDescriptor:
    """The same descriptor, its tiles laid in shared memory as wgmma reads them: `width` bytes a row, the same for one
    descriptor each time."""
    made = vars(plain).get("swizzled")
    if made is None:
        layout = _swizzle(8 * plain.base.element_size(), len(plain.shape), width)
        made = TensorDescriptor(plain.base, plain.shape, plain.strides, plain.block_shape, layout)
        vars(plain)["swizzled"] = made
    return made


@cache  # making one checks it for 10 us
def _swizzle(bits: int, rank: int, width: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(swizzle_byte_width=width, element_bitwidth=bits, rank=rank)


def plain_rows(plain: PlainDescriptor) -> TensorDescriptor:
    """The same descriptor of float32, its rows laid in shared memory one after another."""
    return TensorDescriptor(plain.base, plain.shape, plain.strides, plain.block_shape, _UNSWIZZLED)


_UNSWIZZLED = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
