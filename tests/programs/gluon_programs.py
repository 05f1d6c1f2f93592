"""Kernels in Gluon against torch, and with faults planted; tests/triton/test_gluon.py runs this file with
TRITON_INTERPRET=1. With the argument "cuda" those about values run on a GPU, of sm_90, with "compile" their kernels are
compiled for one.

It prints what each program raised, None if it held.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_accumulator,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tests.programs import report
from touchstone.backends import triton as backend

MODE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
DEVICE = "cuda" if MODE == "cuda" else "cpu"
backend.prepare("cpu" if MODE == "cpu" else "cuda")
if MODE == "cpu":
    from touchstone.backends.triton.runtime import interpreter

from touchstone.backends.triton.lib.hopper import copy_in, copy_out  # noqa: E402 - by another name in 3.9

VALUES: list[Callable[[], None]] = []
FAULTS: list[Callable[[], None]] = []
# names that versions of Triton have or have not
cp_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
barrier = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.jit
def _new_barriers(batch: gl.constexpr):
    return gl.allocate_shared_memory(gl.int64, [batch, 1], mbarrier.MBarrierLayout())


new_barriers = getattr(mbarrier, "allocate_mbarrier", None) or _new_barriers


def value(function):
    VALUES.append(function)
    return function


def fault(function):
    FAULTS.append(function)
    return function


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype).to(DEVICE)


def described(x: torch.Tensor, block: list[int], padding: str = "zero") -> TensorDescriptor:
    element = {2: gl.float16, 4: gl.float32}[x.element_size()]
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, element), padding)


# --- tiles


@gluon.jit
def _tiles(x_ptr, y_ptr, sums_ptr, most_ptr, scan_ptr, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    tile: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    row: gl.constexpr = gl.SliceLayout(1, tile)
    m = gl.program_id(0) * BLOCK_M + gl.arange(0, BLOCK_M, row)
    n = gl.arange(0, BLOCK_N, gl.SliceLayout(0, tile))
    mask = (m < M)[:, None] & (n < N)[None, :]
    x = gl.load(x_ptr + m[:, None] * N + n[None, :], mask=mask, other=0.0)
    gl.store(y_ptr + m[:, None] * N + n[None, :], gl.where(x > 0, gl.exp(-x), x * 2), mask=mask)
    gl.store(sums_ptr + m, gl.sum(x, 1), mask=m < M)
    gl.store(most_ptr + m, gl.max(gl.where(mask, x, float("-inf")), axis=1), mask=m < M)
    gl.store(scan_ptr + m[:, None] * N + n[None, :], gl.associative_scan(x, 1, _plus), mask=mask)


@gluon.jit
def _plus(a, b):
    return a + b


@value
def loads_stores_reductions_and_scans_of_tiles():
    x = rand(37, 30)
    y, scan, sums, most = torch.empty_like(x), torch.empty_like(x), *x.new_empty(2, 37)
    _tiles[(3,)](x, y, sums, most, scan, 37, 30, BLOCK_M=16, BLOCK_N=32)
    torch.testing.assert_close(y, torch.where(x > 0, torch.exp(-x), x * 2))
    torch.testing.assert_close(sums, x.sum(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(most, x.amax(1))
    torch.testing.assert_close(scan, x.cumsum(1), rtol=1e-5, atol=1e-5)


@gluon.jit
def _moves(x_ptr, y_ptr, numbers_ptr, count_ptr, BLOCK: gl.constexpr):
    one: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    tile: gl.constexpr = gl.BlockedLayout([1, 2], [8, 4], [4, 1], [1, 0])
    i = gl.arange(0, BLOCK, one)
    x = gl.load(x_ptr + i)
    gl.static_assert(x.type.layout == one)
    pairs: gl.constexpr = gl.BlockedLayout([1, 2], [32, 1], [4, 1], [1, 0])
    even, odd = gl.split(gl.convert_layout(x.reshape([BLOCK // 2, 2]), pairs))
    back = gl.convert_layout(gl.join(odd, even).reshape([BLOCK]), one)
    gl.store(y_ptr + i, back)
    turned = gl.permute(gl.convert_layout(x.reshape([16, BLOCK // 16]), tile), (1, 0))
    flat = gl.convert_layout(turned.reshape([BLOCK]), one)
    gl.store(y_ptr + BLOCK + i, flat)
    gl.store(y_ptr + 2 * BLOCK + i, gl.gather(x, BLOCK - 1 - i, 0))
    gl.store(numbers_ptr + gl.arange(0, 16, one), gl.histogram(i % 16, 16, layout=one))
    before = gl.atomic_add(count_ptr, 2)
    gl.atomic_max(count_ptr + 1 + i * 0, i)
    gl.device_assert(before >= 0)


@gluon.jit
def _chosen_by_the_compiler(x_ptr, y_ptr, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i = gl.arange(0, BLOCK, layout)
    tile = gl.set_auto_layout(gl.full([BLOCK], 2.0, gl.float32, gl.AutoLayout()), layout)
    gl.static_assert(tile.type.layout == layout)
    gl.store(y_ptr + i, gl.load(x_ptr + i) * tile)


@value
def a_tile_whose_layout_was_left_to_the_compiler():
    x, y = rand(128), torch.empty(128, device=DEVICE)
    _chosen_by_the_compiler[(1,)](x, y, BLOCK=128)
    assert torch.equal(y, x * 2)


@value
def permutations_splits_joins_gathers_histograms_and_atomics():
    x = rand(256)
    y, numbers = x.new_empty(3, 256), torch.empty(16, dtype=torch.int32, device=DEVICE)
    count = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    _moves[(3,)](x, y, numbers, count, BLOCK=256)
    assert torch.equal(y[0], x.view(128, 2).flip(1).reshape(-1))
    assert torch.equal(y[1], x.view(16, 16).T.reshape(-1))
    assert torch.equal(y[2], x.flip(0))
    assert numbers.tolist() == [16] * 16 and count.tolist() == [6, 255]


@gluon.jit
def _shared(x_ptr, y_ptr, BLOCK: gl.constexpr):
    tile: gl.constexpr = gl.BlockedLayout([1, 2], [8, 4], [4, 1], [1, 0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])  # of one buffer of several, too
    i = gl.arange(0, BLOCK, gl.SliceLayout(1, tile))[:, None]
    j = gl.arange(0, BLOCK, gl.SliceLayout(0, tile))[None, :]
    memory = gl.allocate_shared_memory(gl.float32, [2, BLOCK, BLOCK], plain)
    x = gl.load(x_ptr + i * BLOCK + j)
    memory.index(0).store(x)
    memory.index(1).store(x + 1)
    barrier()
    gl.store(y_ptr + i * BLOCK + j, memory.index(0).permute((1, 0)).load(tile))
    half: gl.constexpr = BLOCK // 2
    upper = gl.arange(0, half, gl.SliceLayout(1, tile))[:, None]
    gl.store(y_ptr + BLOCK * BLOCK + upper * BLOCK + j, memory.index(1).slice(half, half, dim=0).load(tile))
    first = gl.allocate_shared_memory(gl.float32, [BLOCK, BLOCK], plain, x * 3)
    gl.store(y_ptr + 2 * BLOCK * BLOCK + i * BLOCK + j, first.load(tile))


@value
def shared_memory_is_stored_loaded_indexed_sliced_and_permuted():
    x = rand(32, 32)
    y = torch.full((3, 32, 32), -1.0, device=DEVICE)
    _shared[(1,)](x, y, BLOCK=32)
    assert torch.equal(y[0], x.T) and torch.equal(y[1, :16], x[16:] + 1) and torch.equal(y[2], x * 3)
    assert (y[1, 16:] == -1).all()


@gluon.jit
def _by_index(x_ptr, y_ptr, BLOCK: gl.constexpr, ATOMIC: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    i = gl.arange(0, BLOCK, layout)
    x = gl.load(x_ptr + i)
    memory = gl.allocate_shared_memory(gl.float32, [BLOCK], plain, x)
    gl.store(y_ptr + i, memory.gather(BLOCK - 1 - i, 0))
    memory.scatter(x, BLOCK - 1 - i, 0)
    gl.store(y_ptr + BLOCK + i, memory.load(layout))
    if ATOMIC:
        counts = gl.allocate_shared_memory(gl.int32, [BLOCK], plain, i * 0)
        counts.atomic_scatter_add(i * 0 + 1, i // 4, 0)
        gl.store(y_ptr + 2 * BLOCK + i, counts.load(layout).to(gl.float32))
        bits = memory.reinterpret(gl.int32)
        gl.store(y_ptr + 3 * BLOCK + i, bits.load(layout).to(gl.float32, bitcast=True))


@value
def shared_memory_by_index():
    if not hasattr(gl.shared_memory_descriptor, "gather"):  # since 3.7
        return
    atomic = hasattr(gl.shared_memory_descriptor, "atomic_scatter_add")  # since 3.9
    x, y = rand(128), torch.empty(4, 128, device=DEVICE)
    _by_index[(1,)](x, y, BLOCK=128, ATOMIC=atomic)
    assert torch.equal(y[0], x.flip(0)) and torch.equal(y[1], x.flip(0))
    if atomic:
        assert y[2].tolist() == [4] * 32 + [0] * 96 and torch.equal(y[3], x.flip(0))


@gluon.jit
def _by_other_types(x_ptr, y_ptr, BLOCK: gl.constexpr, FORM: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    tile: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    i = gl.arange(0, BLOCK, layout)
    memory = gl.allocate_shared_memory(gl.float32, [BLOCK], plain, gl.load(x_ptr + i))
    if FORM == "words":
        gl.store(y_ptr + i, memory._reinterpret(gl.int32, [BLOCK], plain).load(layout))
    elif FORM == "begin":
        half: gl.constexpr = BLOCK // 2
        gl.store(y_ptr + gl.arange(0, half, layout), memory._reinterpret(gl.int32, [half], plain).load(layout))
    elif FORM == "rows":
        m = gl.arange(0, 2, gl.SliceLayout(1, tile))[:, None]
        n = gl.arange(0, BLOCK // 2, gl.SliceLayout(0, tile))[None, :]
        pair = memory._reinterpret(gl.int32, [2, BLOCK // 2], flat).load(tile)
        gl.store(y_ptr + n * 2 + m, pair)
    elif FORM == "more":
        memory._reinterpret(gl.int32, [2 * BLOCK], plain)
    elif FORM == "column":
        square = gl.allocate_shared_memory(gl.float32, [2, BLOCK], flat)
        square.slice(0, BLOCK // 2, dim=1)._reinterpret(gl.int32, [BLOCK], plain)


@value
def shared_memory_is_read_as_another_type():
    if not hasattr(gl.shared_memory_descriptor, "_reinterpret"):  # later: reinterpret
        return
    x = rand(128)
    bits = x.view(torch.int32)
    for form, expected in (("words", bits), ("begin", bits[:64]), ("rows", bits.view(2, 64).T.reshape(-1))):
        y = torch.full((128,), -1, dtype=torch.int32, device=DEVICE)
        _by_other_types[(1,)](x, y, BLOCK=128, FORM=form)
        assert torch.equal(y[: len(expected)], expected) and (y[len(expected) :] == -1).all()


@gluon.constexpr_function
def _layout(rows, warps):
    return gl.BlockedLayout([1, 1], [32 // rows if rows < 32 else 1, min(rows, 32)], [warps, 1], [1, 0])


@gluon.jit
def _constants(y_ptr, sizes, FLAG: gl.constexpr, num_warps: gl.constexpr):
    layout: gl.constexpr = _layout(32, gl.num_warps())
    gl.static_assert(gl.num_warps() == num_warps)
    height, width = sizes
    rows: gl.constexpr = [num_warps] + [1]  # noqa: RUF005 - as kernels add a block shape
    total = 0
    for i in gl.static_range(rows[0]):
        total += i
    i = gl.arange(0, 8, gl.SliceLayout(1, layout))[:, None]
    j = gl.arange(0, 32, gl.SliceLayout(0, layout))[None, :]
    bits = gl.inline_asm_elementwise(
        "add.f32 $0, $1, $1;", "=f,f", [(i * width + j).to(gl.float32)], gl.float32, True, 1
    )
    if FLAG is None:
        gl.store(y_ptr + i * width + j, bits + total, mask=i < height)


@value
def constants_tuples_functions_of_constants_and_inline_ptx():
    y = torch.zeros(8, 32, device=DEVICE)
    _constants[(1,)](y, (5, 32), FLAG=None, num_warps=2)
    assert torch.equal(y[:5], 2 * torch.arange(160.0, device=DEVICE).view(5, 32) + 1) and not y[5:].any()


# --- copies


@gluon.jit
def _copied(x_ptr, y_ptr, N, BLOCK: gl.constexpr, WAIT: gl.constexpr = True):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    memory = gl.allocate_shared_memory(gl.float32, [2, BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    i = gl.arange(0, BLOCK, layout)
    cp_async(memory.index(0), x_ptr + i, i < N)
    async_copy.commit_group()
    cp_async(memory.index(1), x_ptr + BLOCK + i, BLOCK + i < N)
    async_copy.commit_group()
    async_copy.wait_group(1)
    gl.store(y_ptr + i, memory.index(0).load(layout))
    if WAIT:
        async_copy.wait_group(0)
    gl.store(y_ptr + BLOCK + i, memory.index(1).load(layout))


@value
def cp_async_by_groups():
    x, y = rand(200), torch.empty(256, device=DEVICE)
    _copied[(1,)](x, y, 200, BLOCK=128)
    assert torch.equal(y[:200], x) and not y[200:].any()


@gluon.jit
def _copied_by_barrier(x_ptr, y_ptr, BLOCK: gl.constexpr, ARRIVE: gl.constexpr = True):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    memory = gl.allocate_shared_memory(gl.float32, [BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    i = gl.arange(0, BLOCK, layout)
    cp_async(memory, x_ptr + i)
    if ARRIVE:
        async_copy.mbarrier_arrive(ready)
    mbarrier.arrive(ready)
    mbarrier.wait(ready, 0)
    gl.store(y_ptr + i, memory.load(layout))


@value
def cp_async_by_a_barrier():
    x, y = rand(128), torch.empty(128, device=DEVICE)
    _copied_by_barrier[(1,)](x, y, BLOCK=128)
    assert torch.equal(y, x)


@gluon.jit
def _tma(x_desc, y_desc, m, n, BYTES: gl.constexpr, WAIT: gl.constexpr, PHASE: gl.constexpr, REUSE: gl.constexpr):
    memory = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_type.shape, x_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, x_desc.block_type.nbytes + BYTES)
    copy_in(x_desc, [m, n], ready, memory)
    if WAIT:
        mbarrier.wait(ready, PHASE)
    layout: gl.constexpr = gl.BlockedLayout([1, 2], [8, 4], [4, 1], [1, 0])
    x = memory.load(layout)
    mbarrier.invalidate(ready)
    memory.store(x + 1)
    fence_async_shared()
    copy_out(y_desc, [gl.maximum(m, 0), n], memory)
    if REUSE:
        memory.store(x - 1)
    tma.store_wait(0)


def tma_call(x, y, m=0, n=0, bytes=0, wait=True, phase=0, reuse=False, padding="zero"):
    _tma[(1,)](
        described(x, [16, 32], padding), described(y, [16, 32]), m, n, BYTES=bytes, WAIT=wait, PHASE=phase, REUSE=reuse
    )


@value
def tma_fills_with_zeros_and_drops_what_lies_outside():
    x, y = rand(20, 40), torch.full((20, 40), 7.0, device=DEVICE)
    tma_call(x, y, 8, 32)
    expected = torch.full_like(y, 7.0)
    expected[8:, 32:] = x[8:, 32:] + 1
    assert torch.equal(y, expected)
    wide = torch.full((40, 80), 7.0, device=DEVICE)
    tma_call(x, wide, 8, 32)
    assert torch.equal(wide[8:20, 32:40], x[8:, 32:] + 1)
    assert (wide[8:24, 32:64][12:] == 1).all() and (wide[8:24, 40:64] == 1).all()
    tma_call(x, wide, -8, 16, padding="nan")
    assert torch.equal(wide[8:16, 16:40], x[:8, 16:] + 1) and wide[:8, 16:48].isnan().all()
    assert wide[8:16, 40:48].isnan().all()


@gluon.jit
def _described_on_the_device(x_ptr, y_ptr, M, N, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK, BLOCK], gl.float32)
    x_desc = tma.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [BLOCK, BLOCK], layout)
    y_desc = tma.make_tensor_descriptor(y_ptr, [M, N], [N, 1], [BLOCK, BLOCK], layout)
    memory = gl.allocate_shared_memory(gl.float32, [BLOCK, BLOCK], layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    phase = 0
    for n in range(0, N, BLOCK):
        mbarrier.expect(ready, x_desc.block_type.nbytes)
        copy_in(x_desc, [gl.program_id(0) * BLOCK, n], ready, memory)
        mbarrier.wait(ready, phase)
        phase ^= 1
        copy_out(y_desc, [gl.program_id(0) * BLOCK, n], memory)
        tma.store_wait(0)


@value
def descriptors_made_on_the_device():
    if DEVICE == "cuda":
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
    x, y = rand(70, 60), torch.zeros(70, 60, device=DEVICE)
    _described_on_the_device[(3,)](x, y, 70, 60, BLOCK=32)
    assert torch.equal(x, y)


# --- products


@gluon.jit
def _product(a_desc, b_desc, c_desc, K, IN_REGISTERS: gl.constexpr, ASYNC: gl.constexpr, WAIT: gl.constexpr):
    M: gl.constexpr = a_desc.block_type.shape[0]
    N: gl.constexpr = b_desc.block_type.shape[1]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 256 // a_desc.dtype.primitive_bitwidth])
    a = gl.allocate_shared_memory(a_desc.dtype, [2, M, BLOCK_K], a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [2, BLOCK_K, N], b_desc.layout)
    ready = new_barriers(batch=2)
    for i in gl.static_range(2):
        mbarrier.init(ready.index(i), count=1)
    acc = gl.full([M, N], float("nan"), gl.float32, layout)
    if ASYNC:  # what goes round the loop keeps its type
        acc = warpgroup_mma_init(acc)
    for k in range(0, K, BLOCK_K):
        stage = k // BLOCK_K % 2
        mbarrier.expect(ready.index(stage), a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        copy_in(a_desc, [0, k], ready.index(stage), a.index(stage))
        copy_in(b_desc, [k, 0], ready.index(stage), b.index(stage))
        mbarrier.wait(ready.index(stage), k // BLOCK_K // 2 & 1)
        if WAIT:
            acc = warpgroup_mma_wait(0, deps=[acc])
        left = a.index(stage)
        if IN_REGISTERS:
            left = left.load(gl.DotOperandLayout(0, layout, 32 // a_desc.dtype.primitive_bitwidth))
        acc = warpgroup_mma(left, b.index(stage), acc, use_acc=k > 0, is_async=ASYNC)
    acc = warpgroup_mma_wait(0, deps=[acc])
    c = gl.allocate_shared_memory(gl.float32, [M, N], c_desc.layout)
    c.store(acc)
    fence_async_shared()
    copy_out(c_desc, [0, 0], c)
    tma.store_wait(0)


def product(dtype=torch.float16, K=256, registers=False, asynchronous=True, wait=True):
    a, b, c = rand(64, K, dtype=dtype), rand(K, 32, dtype=dtype), torch.empty(64, 32, device=DEVICE)
    element = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}[dtype]
    layouts = [gl.NVMMASharedLayout.get_default_for(block, element) for block in ([64, 64], [64, 32])]
    a_desc = TensorDescriptor.from_tensor(a, [64, 64], layouts[0])
    b_desc = TensorDescriptor.from_tensor(b, [64, 32], layouts[1])
    _product[(1,)](a_desc, b_desc, described(c, [64, 32]), K, IN_REGISTERS=registers, ASYNC=asynchronous, WAIT=wait)
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-5, atol=1e-4)


@value
def products_of_warpgroups():
    for dtype in (torch.float16, torch.bfloat16):
        for registers in (False, True):
            product(dtype, registers=registers)
    product(asynchronous=False)


@gluon.jit
def _product_of_one_tile(a_desc, b_desc, c_ptr, DTYPE: gl.constexpr, num_warps: gl.constexpr):
    M: gl.constexpr = a_desc.block_type.shape[0]
    N: gl.constexpr = b_desc.block_type.shape[0]
    width: gl.constexpr = 256 // a_desc.dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, N, width])
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
    copy_in(a_desc, [0, 0], ready, a)
    copy_in(b_desc, [0, 0], ready, b)
    mbarrier.wait(ready, 0)
    acc = warpgroup_mma(a, b.permute((1, 0)), gl.full([M, N], 3, DTYPE, layout))
    i = gl.arange(0, M, gl.SliceLayout(1, layout))[:, None]
    gl.store(c_ptr + i * N + gl.arange(0, N, gl.SliceLayout(0, layout))[None, :], acc)


@value
def products_of_every_type_with_eight_warps():
    types = {
        torch.float16: (gl.float16, gl.float32, torch.float32),
        torch.bfloat16: (gl.bfloat16, gl.float32, torch.float32),
        torch.float32: (gl.float32, gl.float32, torch.float32),
        torch.float8_e4m3fn: (gl.float8e4nv, gl.float32, torch.float32),
        torch.float8_e5m2: (gl.float8e5, gl.float32, torch.float32),
        torch.int8: (gl.int8, gl.int32, torch.int32),
    }
    for dtype, (element, accumulator, result) in types.items():
        numbers = torch.Generator().manual_seed(1)
        a, b = (torch.randint(-4, 5, (rows, 64), generator=numbers).float() for rows in (128, 32))
        c = torch.empty(128, 32, dtype=result, device=DEVICE)
        a_desc, b_desc = (
            TensorDescriptor.from_tensor(
                x.to(dtype).to(DEVICE), [*x.shape], gl.NVMMASharedLayout.get_default_for([*x.shape], element)
            )
            for x in (a, b)
        )
        _product_of_one_tile[(1,)](a_desc, b_desc, c, DTYPE=accumulator, num_warps=8)
        assert torch.equal(c.cpu().float(), a @ b.T + 3), dtype


@tl.core._aggregate
class Accumulator:
    acc: warpgroup_mma_accumulator | gl.tensor
    used: gl.tensor

    @gluon.constexpr_function
    def __init__(self, acc, used):
        self.acc = acc
        self.used = used

    @gluon.jit
    def zero(M: gl.constexpr, N: gl.constexpr, layout: gl.constexpr):  # noqa: N805
        return Accumulator(gl.full([M, N], float("nan"), gl.float32, layout), gl.to_tensor(False))

    @gluon.jit
    def add(self, a, b):
        return Accumulator(warpgroup_mma(a, b, self.acc, use_acc=self.used, is_async=True), gl.to_tensor(True))

    @gluon.jit
    def wait(self, pending: gl.constexpr):
        return Accumulator(warpgroup_mma_wait(pending, deps=(self.acc,)), self.used)


def columns_first(GROUP):
    GROUP = gl.constexpr(GROUP)

    @tl.core._aggregate
    class Order:
        rows: gl.tensor

        @gluon.constexpr_function
        def __init__(self, rows):
            self.rows = rows

        @gluon.jit
        def begin(rows):  # noqa: N805
            return Order(gl.to_tensor(rows))

        @gluon.jit
        def tile(self, number):
            return number % self.rows, number // self.rows * GROUP // GROUP

    return Order


@gluon.jit
def _persistent_product(a_desc, b_desc, c_desc, M, N, K, IMPL: gl.constexpr, ORDER: gl.constexpr):
    BLOCK: gl.constexpr = a_desc.block_type.shape[0]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK, 16])
    STAGES: gl.constexpr = 3
    a = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK, BLOCK], a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK, BLOCK], b_desc.layout)
    c = gl.allocate_shared_memory(c_desc.dtype, [BLOCK, BLOCK], c_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    order = ORDER.begin(gl.cdiv(M, BLOCK))
    loaded, used = 0, 0
    for number in range(gl.program_id(0), gl.cdiv(M, BLOCK) * gl.cdiv(N, BLOCK), gl.num_programs(0)):
        m, n = order.tile(number)
        for k in gl.static_range(STAGES - 1):
            loaded = _issue(a_desc, b_desc, a, b, ready, loaded, m * BLOCK, n * BLOCK, k * BLOCK, k * BLOCK < K)
        product = IMPL.zero(BLOCK, BLOCK, layout)
        for k in range(0, K, BLOCK):
            mbarrier.wait(ready.index(used % STAGES), used // STAGES & 1)
            product = product.add(a.index(used % STAGES), b.index(used % STAGES)).wait(pending=0)
            used += 1
            ahead = k + (STAGES - 1) * BLOCK
            loaded = _issue(a_desc, b_desc, a, b, ready, loaded, m * BLOCK, n * BLOCK, ahead, ahead < K)
        tma.store_wait(0)
        c.store(product.acc.to(c_desc.dtype))
        fence_async_shared()
        copy_out(c_desc, [m * BLOCK, n * BLOCK], c)
    tma.store_wait(0)


@gluon.jit
def _issue(a_desc, b_desc, a, b, ready, number, m, n, k, pred, STAGES: gl.constexpr = 3):
    signal = ready.index(number % STAGES)
    mbarrier.expect(signal, a_desc.block_type.nbytes + b_desc.block_type.nbytes, pred=pred)
    copy_in(a_desc, [m, k], signal, a.index(number % STAGES), pred)
    copy_in(b_desc, [k, n], signal, b.index(number % STAGES), pred)
    return number + pred.to(gl.int32)


@value
def a_persistent_product_of_aggregates_and_closures():
    a, b = rand(150, 208, dtype=torch.float16), rand(208, 136, dtype=torch.float16)
    c = torch.empty(150, 136, dtype=torch.float16, device=DEVICE)
    descriptors = [described(x, [64, 64]) for x in (a, b, c)]
    _persistent_product[(2,)](*descriptors, 150, 136, 208, IMPL=Accumulator, ORDER=columns_first(2))
    torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=1e-3, atol=1e-2)


if hasattr(tma, "async_atomic_add"):  # since 3.9

    @gluon.jit
    def _added(x_desc, BLOCK: gl.constexpr):
        memory = gl.allocate_shared_memory(x_desc.dtype, [BLOCK, BLOCK], x_desc.layout)
        memory.store(gl.full([BLOCK, BLOCK], 2.0, gl.float32, gl.BlockedLayout([1, 2], [8, 4], [4, 1], [1, 0])))
        fence_async_shared()
        tma.async_atomic_add(x_desc, [0, 0], memory)
        tma.store_wait(0)


@value
def atomics_of_the_copy_engine():
    if hasattr(tma, "async_atomic_add"):
        x = torch.ones(32, 32, device=DEVICE)
        _added[(3,)](described(x, [32, 32]), BLOCK=32)
        assert (x == 7).all()


@gluon.jit
def _smaller_products(a_ptr, b_ptr, c_ptr, TENSOR: gl.constexpr):
    blocked: gl.constexpr = gl.BlockedLayout([1, 2], [8, 4], [4, 1], [1, 0])
    layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]) if TENSOR else blocked
    width: gl.constexpr = 2 if TENSOR else 0
    i = gl.arange(0, 64, gl.SliceLayout(1, blocked))[:, None]
    j = gl.arange(0, 64, gl.SliceLayout(0, blocked))[None, :]
    a = gl.convert_layout(gl.load(a_ptr + i * 64 + j), gl.DotOperandLayout(0, layout, width))
    b = gl.convert_layout(gl.load(b_ptr + i * 64 + j), gl.DotOperandLayout(1, layout, width))
    acc = gl.zeros([64, 64], gl.float32, layout)
    if TENSOR:
        acc = mma_v2(a, b, acc)
    else:
        acc = gl.dot_fma(a, b, acc)
    gl.store(c_ptr + i * 64 + j, gl.convert_layout(acc, blocked))


@value
def products_of_warps_and_of_threads():
    a, b, c = rand(64, 64), rand(64, 64), torch.empty(64, 64, device=DEVICE)
    _smaller_products[(1,)](a, b, c, TENSOR=False)
    torch.testing.assert_close(c, a @ b, rtol=1e-2 if DEVICE == "cpu" else 1e-5, atol=0.1 if DEVICE == "cpu" else 1e-4)
    a, b = a.half(), b.half()
    _smaller_products[(1,)](a, b, c, TENSOR=True)
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-5, atol=1e-4)


# --- partitions


@tl.core._aggregate
class Ring:
    tiles: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    count: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, tiles, full, empty, count):
        self.tiles = tiles
        self.full = full
        self.empty = empty
        self.count = gl.constexpr(count)

    @gluon.jit
    def stage(self, step):
        return step % self.count, step // self.count & 1


FAULT_NAMES = (
    *("none", "no wait", "no empty wait", "early empty", "too few bytes", "too many bytes", "wrong phase"),
    *("no arrival", "no fence", "no store_wait", "late arrival", "never stored"),
)


@gluon.jit
def _load_all(x_desc, ring, rows, FAULT: gl.constexpr):
    for step in range(rows):
        slot, phase = ring.stage(step)
        if FAULT != "no empty wait":
            mbarrier.wait(ring.empty.index(slot), phase ^ 1)
        extra: gl.constexpr = 16 if FAULT == "too many bytes" else -2048 if FAULT == "too few bytes" else 0
        mbarrier.expect(ring.full.index(slot), 2 * x_desc.block_type.nbytes + extra)
        half: gl.constexpr = x_desc.block_type.shape[0]
        copy_in(x_desc, [2 * half * step, 0], ring.full.index(slot), ring.tiles.index(slot).slice(0, half))
        copy_in(x_desc, [2 * half * step + half, 0], ring.full.index(slot), ring.tiles.index(slot).slice(half, half))


@gluon.jit
def _double_all(ring, out, done, rows, FAULT: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [gl.num_warps(), 1], [1, 0])
    total = 0.0
    for step in range(rows):
        slot, phase = ring.stage(step)
        if FAULT != "no wait":
            mbarrier.wait(ring.full.index(slot), phase ^ 1 if FAULT == "wrong phase" else phase)
        if FAULT == "early empty":
            mbarrier.arrive(ring.empty.index(slot), count=1)
        x = ring.tiles.index(slot).load(layout)
        if FAULT != "early empty" and FAULT != "no arrival":
            mbarrier.arrive(ring.empty.index(slot), count=1)
        total += gl.sum(gl.sum(x, 1), 0)
        mbarrier.wait(done.index(1), step & 1 ^ 1)
        if FAULT == "late arrival":
            mbarrier.arrive(done.index(0), count=1)
        if FAULT != "never stored":
            out.store(2 * x)
        if FAULT != "no fence":
            fence_async_shared()
        if FAULT != "late arrival":
            mbarrier.arrive(done.index(0), count=1)
    return (total,)  # a tuple, as Triton 3.6 wants it


@gluon.jit
def _store_all(y_desc, out, done, rows, FAULT: gl.constexpr):
    for step in range(rows):
        mbarrier.wait(done.index(0), step & 1)
        copy_out(y_desc, [y_desc.block_type.shape[0] * step, 0], out)
        if FAULT != "no store_wait":
            tma.store_wait(0)
        mbarrier.arrive(done.index(1), count=1)


@gluon.jit
def _partitioned(x_desc, y_desc, total_ptr, rows, STAGES: gl.constexpr, FAULT: gl.constexpr):
    ROWS: gl.constexpr = y_desc.block_type.shape[0]
    COLS: gl.constexpr = y_desc.block_type.shape[1]
    tiles = gl.allocate_shared_memory(x_desc.dtype, [STAGES, ROWS, COLS], x_desc.layout)
    out = gl.allocate_shared_memory(y_desc.dtype, [ROWS, COLS], y_desc.layout)
    full = new_barriers(batch=STAGES)
    empty = new_barriers(batch=STAGES)
    done = new_barriers(batch=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    mbarrier.init(done.index(0), count=1)
    mbarrier.init(done.index(1), count=1)
    fence_async_shared()
    ring = Ring(tiles, full, empty, STAGES)
    total = gl.warp_specialize(
        [
            (_double_all, (ring, out, done, rows, FAULT)),
            (_load_all, (x_desc, ring, rows, FAULT)),
            (_store_all, (y_desc, out, done, rows, FAULT)),
        ],
        [1, 1],
        [24, 24],
    )
    gl.store(total_ptr, total[0])


def partitioned(fault="none", rows=5, stages=2):
    x = rand(32 * rows, 32)
    y, total = torch.empty_like(x), x.new_empty(1)
    _partitioned[(1,)](described(x, [16, 32]), described(y, [32, 32]), total, rows, STAGES=stages, FAULT=fault)
    torch.testing.assert_close(total[0], x.sum(), rtol=1e-4, atol=1e-3)
    assert torch.equal(y, 2 * x)


@value
def partitions_pass_tiles_on_by_barriers():
    for stages in (1, 2, 3):
        partitioned(stages=stages)


# --- faults: each found under every order, whether engines are early or late


def under_every_schedule(call: Callable[[], None]) -> None:
    for order in ("forward", "reverse", "shuffled"):
        with interpreter.schedule(order):
            call()


def found(error: type, pattern: str, call: Callable[[], None]) -> None:
    def look():
        with pytest.raises(error, match=pattern or None):
            call()

    under_every_schedule(look)


def race(here: str, there: str, remedy: str) -> tuple[type, str]:
    """The error of a race: `here` at some line with `there` at another one, which `remedy` would put in order."""
    line = r"line \d+ of gluon_programs.py"
    return interpreter.RaceCondition, (
        rf"^_\w+ \(gluon_programs.py:\d+\), program \(0, 0, 0\): {line} {here} shared memory that {line} {there}, and "
        rf"nothing orders the two, as {remedy}.* would$"
    )


PHASE, ARRIVAL = "a wait for the phase of the mbarrier", "an mbarrier, at which its partition arrives"


@fault
def a_missing_wait_for_a_copy():
    found(*race("loads", "copies into", PHASE), lambda: partitioned("no wait"))
    found(*race("loads", "copies into", PHASE), lambda: tma_call(rand(16, 32), rand(16, 32), wait=False))


@gluon.jit
def _without_a_wait(x_ptr, y_ptr, BLOCK: gl.constexpr, HOW: gl.constexpr, WAIT: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    memory = gl.allocate_shared_memory(gl.float32, [BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    i = gl.arange(0, BLOCK, layout)
    cp_async(memory, x_ptr + i)
    async_copy.commit_group()
    if WAIT:
        async_copy.wait_group(0)
    if HOW == "load":
        gl.store(y_ptr + i, memory.load(layout))
    elif HOW == "gather":
        gl.store(y_ptr + i, memory.gather(i, 0))
    elif HOW == "store":
        memory.store(i.to(gl.float32))
    elif HOW == "scatter":
        memory.scatter(i.to(gl.float32), i, 0)
    else:
        memory.atomic_scatter_add(i.to(gl.float32), i, 0)


@fault
def whatever_touches_memory_before_a_copy_into_it_has_ended():
    x, y = rand(128), torch.empty(128)
    since = {"gather": "gather", "scatter": "scatter", "atomic": "atomic_scatter_add"}
    for how, verb in (("load", "loads"), ("gather", "loads"), ("store", "stores to"), ("scatter", "stores to"),
                      ("atomic", "stores to")):  # fmt: skip
        if hasattr(gl.shared_memory_descriptor, since.get(how, "load")):
            _without_a_wait[(1,)](x, y, BLOCK=128, HOW=how, WAIT=True)
            call = functools.partial(_without_a_wait[(1,)], x, y, BLOCK=128, HOW=how, WAIT=False)
            found(*race(verb, "copies into", "async_copy.wait_group"), call)


@fault
def shared_memory_that_cannot_be_read_as_another_type():
    if not hasattr(gl.shared_memory_descriptor, "_reinterpret"):
        return
    x, y = rand(128), torch.empty(128, dtype=torch.int32)
    with pytest.raises(interpreter.KernelError, match="1024 bytes of shared memory that has 512"):
        _by_other_types[(1,)](x, y, BLOCK=128, FORM="more")
    with pytest.raises(interpreter.NotInterpreted, match="reinterpretation of shared memory that is permuted or"):
        _by_other_types[(1,)](x, y, BLOCK=128, FORM="column")


@fault
def a_wait_for_the_wrong_phase():
    found(interpreter.KernelError, "nothing orders the two|deadlock", lambda: partitioned("wrong phase"))
    found(
        interpreter.KernelError,
        "nothing orders the two|deadlock",
        lambda: tma_call(rand(16, 32), rand(16, 32), phase=1),
    )


@fault
def a_stage_that_is_overwritten_before_it_is_read():
    found(*race("copies into", "loads", ARRIVAL), lambda: partitioned("early empty"))


@fault
def a_stage_that_nobody_waits_to_be_empty():
    found(
        interpreter.KernelError,
        "copies into|1 arrivals at .* this phase takes 0 more",
        lambda: partitioned("no empty wait"),
    )


@fault
def bytes_that_come_without_being_expected():
    found(*race("loads", "copies into", PHASE), lambda: partitioned("too few bytes"))


@fault
def bytes_that_are_expected_and_never_come():
    message = r"deadlock: all partitions wait: .* waits at line \d+ of gluon_programs.py for phase 0 of the mbarrier 0 "
    found(interpreter.Deadlock, message + ".*, which lacks 16 bytes", lambda: partitioned("too many bytes"))
    message = r"deadlock: program \(0, 0, 0\) waits .* which lacks 64 bytes$"
    found(interpreter.Deadlock, message, lambda: tma_call(rand(16, 32), rand(16, 32), bytes=64))


@fault
def an_arrival_that_is_missing():
    found(interpreter.Deadlock, "which lacks 1 of 1 arrivals", lambda: partitioned("no arrival"))


@fault
def an_arrival_before_what_it_tells_of():
    found(interpreter.RaceCondition, "stores", lambda: partitioned("late arrival"))


@fault
def memory_that_is_used_again_while_it_is_copied_out():
    found(*race("stores to", "copies out of", "tma.store_wait"), lambda: partitioned("no store_wait"))
    found(
        *race("stores to", "copies out of", "tma.store_wait"), lambda: tma_call(rand(16, 32), rand(16, 32), reuse=True)
    )


@fault
def a_fence_between_partitions_that_is_missing():
    found(interpreter.RaceCondition, "without fence_async_shared", lambda: partitioned("no fence"))


@gluon.jit
def _never_written(y_ptr, DTYPE: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    memory = gl.allocate_shared_memory(DTYPE, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    gl.store(y_ptr + gl.arange(0, 128, layout), memory.load(layout).to(gl.float32) * 0)


@fault
def shared_memory_that_was_never_written():
    found(AssertionError, "", lambda: partitioned("never stored"))
    for dtype in (gl.float32, gl.bfloat16, gl.float8e5):
        y = torch.zeros(128)
        _never_written[(1,)](y, DTYPE=dtype)
        assert y.isnan().all()


@gluon.jit
def _stores(memory, value):
    memory.store(gl.full([128], value, gl.float32, gl.BlockedLayout([1], [32], [gl.num_warps()], [0])))


@gluon.jit
def _after_partitions(y_ptr, WORKERS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    memory = gl.allocate_shared_memory(gl.float32, [2, 128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    memory.index(0).store(gl.full([128], 1.0, gl.float32, layout))
    if WORKERS == 1:
        gl.warp_specialize([(_stores, (memory.index(1), 7.0)), (_stores, (memory.index(0), 8.0))], [1], [24])
        gl.warp_specialize([(_stores, (memory.index(0), 3.0)), (_stores, (memory.index(1), 2.0))], [1], [24])
    else:
        gl.warp_specialize(
            [(_stores, (memory.index(1), 2.0)), (_stores, (memory.index(0), 3.0)), (_stores, (memory.index(0), 4.0))],
            [1, 1],
            [24, 24],
        )
    i = gl.arange(0, 128, layout)
    gl.store(y_ptr + i, memory.index(0).load(layout) + memory.index(1).load(layout))


@value
def what_precedes_and_follows_partitions_is_in_order():
    y = torch.empty(128, device=DEVICE)
    _after_partitions[(2,)](y, WORKERS=1)
    assert (y == 5).all()


@gluon.jit
def _relay(x_ptr, turn_ptr, ready, memory):
    while gl.atomic_add(turn_ptr, 0, sem="acquire") != gl.program_id(0):
        pass
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    i = gl.arange(0, 32, layout)
    memory.store(gl.load(x_ptr + i) + 1)
    mbarrier.arrive(ready, count=1)


@gluon.jit
def _pass_on(x_ptr, turn_ptr, ready, memory):
    mbarrier.wait(ready, 0)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i = gl.arange(0, 32, layout)
    gl.store(x_ptr + i, memory.load(layout) * 2)
    barrier()
    gl.atomic_add(turn_ptr, 1, sem="release")


@gluon.jit
def _relayed(x_ptr, turn_ptr):
    memory = gl.allocate_shared_memory(gl.float32, [32], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    gl.warp_specialize(
        [(_pass_on, (x_ptr, turn_ptr, ready, memory)), (_relay, (x_ptr, turn_ptr, ready, memory))], [1], [24]
    )


@value
def a_partition_of_one_program_waits_for_another_program():
    x, turn = torch.zeros(32, device=DEVICE), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    _relayed[(5,)](x, turn)
    assert (x == 62).all()


@fault
def a_program_that_waits_for_one_that_never_comes():
    turn = torch.full((1,), 9, dtype=torch.int32)
    found(interpreter.Deadlock, "for turn_ptr.* to change", lambda: _relayed[(3,)](torch.zeros(32), turn))


@fault
def partitions_that_store_to_the_same_memory():
    found(*race("stores to", "stores to", ARRIVAL), lambda: _after_partitions[(1,)](torch.empty(128), WORKERS=2))


@fault
def groups_of_cp_async_that_nobody_waits_for():
    x, y = rand(200), torch.empty(256)
    found(
        *race("loads", "copies into", "async_copy.wait_group"), lambda: _copied[(1,)](x, y, 200, BLOCK=128, WAIT=False)
    )
    found(
        *race("loads", "copies into", "async_copy.wait_group"),
        lambda: _copied_by_barrier[(1,)](x, y, BLOCK=128, ARRIVE=False),
    )


@fault
def operands_that_are_overwritten_while_they_are_multiplied():
    found(*race("copies into", "multiplies", "warpgroup_mma_wait"), lambda: product(wait=False))


@gluon.jit
def _uses_too_early(x_desc, y_ptr, PENDING: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    x = gl.allocate_shared_memory(gl.float16, [64, 64], x_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, x_desc.block_type.nbytes)
    copy_in(x_desc, [0, 0], ready, x)
    mbarrier.wait(ready, 0)
    acc = warpgroup_mma(x, x, gl.zeros([64, 64], gl.float32, layout), is_async=True)
    acc = warpgroup_mma_wait(PENDING, deps=[acc])
    i = gl.arange(0, 64, gl.SliceLayout(1, layout))[:, None]
    gl.store(y_ptr + i * 64 + gl.arange(0, 64, gl.SliceLayout(0, layout))[None, :], acc + 1)


@fault
def a_product_that_is_used_before_it_is_waited_for():
    x, y = rand(64, 64, dtype=torch.float16), torch.empty(64, 64)
    _uses_too_early[(1,)](described(x, [64, 64]), y, PENDING=0)
    torch.testing.assert_close(y, x.float() @ x.float() + 1)
    message = (
        r"the product that line \d+ of gluon_programs.py began is used before warpgroup_mma_wait has waited for it"
    )
    found(interpreter.KernelError, message, lambda: _uses_too_early[(1,)](described(x, [64, 64]), y, PENDING=1))


@gluon.jit
def _leaves_early(x_desc, WAIT: gl.constexpr, ROW: gl.constexpr = 0):
    memory = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_type.shape, x_desc.layout)
    memory.store(gl.full([16, 32], 1.0, gl.float32, gl.BlockedLayout([1, 2], [8, 4], [4, 1], [1, 0])))
    fence_async_shared()
    copy_out(x_desc, [ROW, 0], memory)
    if WAIT:
        tma.store_wait(0)


@fault
def a_program_that_ends_while_it_copies_out():
    x = torch.zeros(16, 32)
    _leaves_early[(1,)](described(x, [16, 32]), WAIT=True)
    assert (x == 1).all()
    found(
        interpreter.RaceCondition,
        "the program ends while line",
        lambda: _leaves_early[(2,)](described(x, [16, 32]), False),
    )


def _line_of(kernel: gluon._runtime.GluonJITFunction, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


@fault
def pointers_and_descriptors_that_lead_out_of_their_tensors():
    x, y = rand(199), torch.empty(256)
    message = r"load of lane \[71\] at element offset 199 of x_ptr"
    found(interpreter.OutOfBounds, message, lambda: _copied[(1,)](x, y, 200, BLOCK=128))
    x = rand(32, 64)
    message = "the copy engine stores to no negative coordinates, as -8 is"
    found(interpreter.KernelError, message, lambda: _leaves_early[(1,)](described(x, [16, 32]), WAIT=True, ROW=-8))
    message = "the last coordinate, 2, is no multiple of 16 bytes"
    found(interpreter.KernelError, message, lambda: tma_call(x, x.clone(), 0, 2))
    x = rand(16, 32)
    lying = described(x, [16, 32])
    lying.shape = [32, 32]
    found(interpreter.OutOfBounds, "load of lane", lambda: _tma[(1,)](lying, lying, 16, 0, 0, True, 0, False))
    found(
        interpreter.OutOfBounds,
        rf"^_tma \(gluon_programs.py:{_line_of(_tma, 'copy_out')}\), .*: store of lane",
        lambda: _tma[(1,)](described(rand(32, 32), [16, 32]), lying, 16, 0, 0, True, 0, False),
    )


@gluon.jit
def _refused(x_ptr, CASE: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    wide: gl.constexpr = gl.BlockedLayout([2], [32], [4], [0])
    i = gl.arange(0, 128, layout)
    memory = gl.allocate_shared_memory(gl.float32, [2, 128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    if CASE == "layouts":
        gl.store(x_ptr + i, gl.arange(0, 128, wide).to(gl.float32))
    elif CASE == "shapes":
        memory.index(0).store(gl.full([64], 1.0, gl.float32, layout))
    elif CASE == "types":
        memory.index(0).store(i)
    elif CASE == "index":
        memory.index(2).store(i.to(gl.float32))
    elif CASE == "split":
        gl.split(i.reshape([64, 2]))
    elif CASE == "warps":
        gl.arange(0, 128, gl.BlockedLayout([1], [32], [8], [0]))
    elif CASE == "full":
        gl.full([128], 1.0, gl.float32, gl.BlockedLayout([1], [32], [8], [0]))
    elif CASE == "loaded":
        memory.index(0).load(gl.BlockedLayout([1], [32], [8], [0]))
    elif CASE == "converted":
        gl.convert_layout(i, gl.BlockedLayout([1], [32], [8], [0]))
    elif CASE == "order":
        gl.permute(i.reshape([64, 2]), (1, 1))
    elif CASE == "axes":
        gl.permute(i.reshape([64, 2]), (0, 1, 2))
    elif CASE == "sizes":
        i.reshape([64, 4])
    elif CASE == "slices":
        memory.slice(1, 2, dim=0)
    elif CASE == "shared order":
        memory.permute((0, 0))
    elif CASE == "auto":
        gl.set_auto_layout(i, wide)
    elif CASE == "trivial":
        gl.convert_layout(i, wide, assert_trivial=True)
    elif CASE == "barrier":
        mbarrier.wait(ready, 0)
    elif CASE == "arrivals":
        mbarrier.init(ready, count=1)
        mbarrier.arrive(ready, count=2)


@fault
def what_the_compiler_refuses_or_hardware_does_not_define():
    for case, message in {
        "layouts": "Layout mismatch|layout",
        "shapes": r"source shape .* must match",
        "types": "source dtype int32 and destination dtype fp32 must match",
        "index": r"index 2 of shared memory of shape \(2, 128\)",
        **dict.fromkeys(
            ("warps", "full", "loaded", "converted"), r"the compiler refuses BlockedLayout.* for \[128\] in 4 warps"
        ),
        "split": "the compiler refuses",
        **dict.fromkeys(("order", "axes", "shared order"), "is no order of"),
        "sizes": r"has no room for shape \(64, 4\)",
        "slices": r"a slice from \[1, 0\] of shape \[2, 128\], of memory of shape \(2, 128\)",
        "trivial": "is not trivial",
        "auto": "set_auto_layout: the tile has the layout Blocked",
        "barrier": "an mbarrier is used that was not initialised",
        "arrivals": "2 arrivals at the mbarrier 0 that line",
    }.items():
        with pytest.raises(interpreter.KernelError, match=message) as caught:
            _refused[(1,)](rand(128), CASE=case)
        assert not isinstance(caught.value, interpreter.NotInterpreted)


@gluon.jit
def _refused_by_engines(x_desc, CASE: gl.constexpr):
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    other: gl.constexpr = gl.NVMMASharedLayout(32, 16, 2)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    if CASE == "swizzle":
        copy_in(x_desc, [0, 0], ready, gl.allocate_shared_memory(gl.float16, [64, 64], other))
    elif CASE == "shape":
        copy_in(x_desc, [0, 0], ready, gl.allocate_shared_memory(gl.float16, [64, 32], x_desc.layout))
    elif CASE == "rank":
        wide: gl.constexpr = gl.NVMMASharedLayout(128, 16, 3)
        copy_in(x_desc, [0, 0], ready, gl.allocate_shared_memory(gl.float16, [1, 64, 64], wide))
    elif CASE == "operands":
        plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        x = gl.allocate_shared_memory(gl.float16, [64, 64], plain)
        warpgroup_mma(x, x, gl.zeros([64, 64], gl.float32, layout))
    elif CASE == "accumulator":
        x = gl.allocate_shared_memory(gl.float16, [64, 64], x_desc.layout)
        blocked: gl.constexpr = gl.BlockedLayout([1, 2], [8, 4], [4, 1], [1, 0])
        warpgroup_mma(x, x, gl.zeros([64, 64], gl.float32, blocked))
    elif CASE == "rows":
        x = gl.allocate_shared_memory(gl.float16, [64, 64], x_desc.layout)
        warpgroup_mma(x.slice(0, 32), x, gl.zeros([32, 64], gl.float32, layout))


@fault
def what_the_compiler_refuses_of_copies_and_products():
    x = described(rand(64, 64, dtype=torch.float16), [64, 64])
    _refused_by_engines[(1,)](x, CASE="rank")  # which it takes
    for case, message in {
        "swizzle": "copy into shared memory: shared memory in .*=32.* a descriptor of .*=128",
        "shape": r"shared memory of shape \(64, 32\) for blocks of shape \(64, 64\)",
        "operands": "an operand in an NVMMASharedLayout, not Swizzled",
        "accumulator": "an accumulator in an NVMMADistributedLayout of version 3, not Blocked",
        "rows": "32 rows are no multiple of 64",
    }.items():
        with pytest.raises(interpreter.KernelError, match=message):
            _refused_by_engines[(1,)](x, CASE=case)


@gluon.jit
def _for_blackwell(x_ptr):
    layout: gl.constexpr = blackwell.TensorMemoryLayout([128, 128], 1)
    blackwell.allocate_tensor_memory(gl.float32, [128, 128], layout)


@fault
def what_hopper_has_not_is_not_run():
    with pytest.raises(
        interpreter.NotInterpreted, match="Gluon's allocate_tensor_memory is not interpreted.*Blackwell"
    ):
        _for_blackwell[(1,)](rand(1))
    with pytest.raises(interpreter.NotInterpreted, match="num_ctas=2: clusters of blocks are not interpreted"):
        _copied[(1,)](rand(256), torch.empty(256), 256, BLOCK=128, num_ctas=2)


@fault
def a_kernel_of_tritons_and_one_of_gluons_take_turns():
    @triton.jit
    def double(x_ptr, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(x_ptr + i, tl.load(x_ptr + i) * 2)

    x, y = rand(256), torch.empty(256)
    expected = x * 4
    for _ in range(2):
        double[(1,)](x, 256)
        _copied[(1,)](x, y, 256, BLOCK=128)
    assert torch.equal(y, expected)


@fault
def right_programs_are_right_under_every_schedule():
    def call():
        for each in VALUES:
            each()

    under_every_schedule(call)
    with interpreter.races():
        call()


def compiled(call: Callable[[], None]) -> None:
    """The kernels that `call` launches are compiled for sm_90; what it asserts of their values, which are none, is not
    looked at."""
    from touchstone.backends.triton.runtime import compiling

    with compiling.recording("sm_90") as launches, contextlib.suppress(AssertionError):
        call()
    errors = [compiling.compile_one(launch, "sm_90").get("error") for launch in launches]
    assert not any(errors), errors


def named(function: Callable[[], None]) -> Callable[[], None]:
    return functools.wraps(function)(functools.partial(compiled, function))


if __name__ == "__main__":
    report({"cpu": [*VALUES, *FAULTS], "cuda": VALUES, "compile": [*map(named, VALUES)]}[MODE])
