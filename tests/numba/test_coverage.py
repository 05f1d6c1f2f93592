"""What Numba CUDA offers inside a kernel, on the emulator, against NumPy."""

import math

import numpy as np
import psutil
import pytest
import torch

from touchstone.backends import emulator, numba

if numba.why_not("cpu") or numba.simulated():
    pytest.skip(numba.why_not("cpu") or "NUMBA_ENABLE_CUDASIM is set", allow_module_level=True)

from llvmlite import ir
from numba import cuda, float32, float64, int32
from numba.cuda import types
from numba.cuda.core import config
from numba.cuda.extending import intrinsic

from touchstone.backends.emulator.errors import Deadlock
from touchstone.backends.emulator.numba import install, launch, narrow, one_layout

FULL = 0xFFFFFFFF
TURNED = np.arange(257)[::-1]
TABLE = np.array([1, 2, 4, 8], np.float32)
RECORD = np.dtype([("x", "f4"), ("n", "i4"), ("v", "f8", (3,))], align=True)
bfloat16 = types.bfloat16


@cuda.jit
def places(out):
    i, j, k = cuda.grid(3)
    gx, gy, _ = cuda.gridsize(3)
    out[k, j, i, 0] = i + gx * (j + gy * k)
    out[k, j, i, 1] = cuda.threadIdx.x + cuda.blockDim.x * cuda.blockIdx.x
    out[k, j, i, 2] = cuda.threadIdx.y + cuda.blockDim.y * cuda.blockIdx.y
    out[k, j, i, 3] = cuda.threadIdx.z + cuda.blockDim.z * cuda.blockIdx.z
    out[k, j, i, 4] = cuda.gridDim.x * 100 + cuda.gridDim.y * 10 + cuda.gridDim.z


def test_places_in_three_dimensions():
    out = np.full((6, 4, 6, 5), -1, np.int64)
    launch(places, (2, 2, 3), (3, 2, 2), (out,))
    k, j, i = np.indices((6, 4, 6))
    assert np.array_equal(out[..., 0], i + 6 * (j + 4 * k))
    assert np.array_equal(out[..., 1:4], np.stack([i, j, k], -1))
    assert (out[..., 4] == 223).all()


@cuda.jit
def shuffles(out):
    i = cuda.threadIdx.x
    out[0, i] = cuda.shfl_sync(FULL, i, 3)
    out[1, i] = cuda.shfl_up_sync(FULL, i, 2)
    out[2, i] = cuda.shfl_down_sync(FULL, i, 5)
    out[3, i] = cuda.shfl_xor_sync(FULL, i, 6)
    out[4, i] = int(cuda.shfl_xor_sync(FULL, float32(i) * float32(0.5), 1) * 2)
    out[5, i] = int(cuda.shfl_down_sync(FULL, float64(i) * 0.25, 1) * 4)
    out[6, i] = cuda.shfl_up_sync(FULL, i * 5_000_000_000, 1)


def test_shuffles():
    out = np.zeros((7, 64), np.int64)
    launch(shuffles, 1, 64, (out,))
    i = np.arange(64)
    lane, first = i % 32, i // 32 * 32
    down = np.where(lane + 1 < 32, i + 1, i)
    assert np.array_equal(out[0], first + 3)
    assert np.array_equal(out[1], np.where(lane >= 2, i - 2, i))
    assert np.array_equal(out[2], np.where(lane + 5 < 32, i + 5, i))
    assert np.array_equal(out[3], i ^ 6)
    assert np.array_equal(out[4], i ^ 1)
    assert np.array_equal(out[5], down)
    assert np.array_equal(out[6], np.where(lane >= 1, i - 1, i) * 5_000_000_000)


@cuda.jit
def votes(out):
    i = cuda.threadIdx.x
    out[0, i] = cuda.ballot_sync(FULL, i % 2 == 0) & FULL
    out[1, i] = cuda.all_sync(FULL, i < 64)
    out[2, i] = cuda.all_sync(FULL, i < 40)
    out[3, i] = cuda.any_sync(FULL, i == 40)
    out[4, i] = cuda.eq_sync(FULL, i < 32)
    out[5, i] = cuda.match_any_sync(FULL, int32(i // 8)) & FULL
    _, same = cuda.match_all_sync(FULL, int32(i // 32))
    out[6, i] = same
    out[7, i] = cuda.lanemask_lt()
    out[8, i] = cuda.laneid
    out[9, i] = cuda.warpsize
    if i % 2:
        out[10, i] = cuda.activemask() & FULL
    cuda.syncwarp()


def test_votes_and_masks():
    out = np.zeros((11, 64), np.int64)
    launch(votes, 1, 64, (out,))
    i = np.arange(64)
    assert (out[0] == 0x55555555).all() and (out[1] == 1).all()
    assert np.array_equal(out[2], i < 32) and np.array_equal(out[3], i >= 32) and (out[4] == 1).all()
    assert np.array_equal(out[5], 0xFF << (i % 32 // 8 * 8)) and (out[6] == 1).all()
    assert np.array_equal(out[7], (1 << (i % 32)) - 1) and np.array_equal(out[8], i % 32) and (out[9] == 32).all()
    assert (out[10][1::2] == 0xAAAAAAAA).all()


@cuda.jit
def counting(out):
    i = cuda.threadIdx.x
    out[0, i] = cuda.syncthreads_count(int32(i % 3 == 0))
    out[1, i] = cuda.syncthreads_and(int32(i < 5))
    out[2, i] = cuda.syncthreads_or(int32(i == 47))


def test_barriers_that_count():
    out = np.zeros((3, 48), np.int64)
    launch(counting, 1, 48, (out,))
    assert (out[0] == 16).all() and (out[1] == 0).all() and (out[2] != 0).all()


@cuda.jit
def bits(x, out):
    out[0] = cuda.popc(x)
    out[1] = cuda.clz(x)
    out[2] = cuda.ffs(x)
    out[3] = cuda.brev(np.uint32(x))
    out[4] = cuda.selp(x > 3, 10, 20)
    out[5] = x.bit_count()


def test_bits():
    out = np.zeros(6, np.int64)
    launch(bits, 1, 1, (np.int32(40), out))
    assert out.tolist() == [2, 26, 4, int(f"{40:032b}"[::-1], 2), 10, 2]


@cuda.jit
def functions(x, out):
    out[0] = cuda.fma(x, x, x)
    out[1] = math.exp(x)
    out[2] = math.sqrt(x)
    out[3] = math.tanh(x)
    out[4] = math.erf(x)
    out[5] = math.log(x)
    out[6] = cuda.cbrt(x)
    out[7] = cuda.libdevice.rsqrtf(x)
    out[8] = cuda.libdevice.fast_expf(x)
    out[9] = math.floor(x)
    out[10] = math.pow(x, float32(2.5))
    out[11] = max(x, float32(2.0)) + min(x, float32(1.0))
    out[12] = math.log1p(x) + math.expm1(x)
    out[13] = math.atan2(x, float32(2.0))


def test_functions_of_libdevice():
    out = np.zeros(14, np.float32)
    x = 1.5
    launch(functions, 1, 1, (np.float32(x), out))
    expected = [
        x * x + x,
        math.exp(x),
        math.sqrt(x),
        math.tanh(x),
        math.erf(x),
        math.log(x),
        x ** (1 / 3),
        x**-0.5,
        math.exp(x),
        1.0,
        x**2.5,
        3.0,
        math.log1p(x) + math.expm1(x),
        math.atan2(x, 2),
    ]
    np.testing.assert_allclose(out, expected, rtol=3e-7)


@cuda.jit
def atomics(f, d, i, u, u8, i8):
    k = cuda.grid(1)
    cuda.atomic.add(f, 0, 1.5)
    cuda.atomic.sub(f, 1, 1.0)
    cuda.atomic.max(f, 2, float32(k))
    cuda.atomic.min(f, 3, float32(-k))
    cuda.atomic.nanmax(f, 4, float32(k))
    cuda.atomic.nanmin(f, 5, float32(k))
    cuda.atomic.max(f, 6, float32(k))
    cuda.atomic.add(d, (0, 1), 2.0)
    cuda.atomic.max(d, (1, 0), float64(k))
    cuda.atomic.add(i, 0, 1)
    cuda.atomic.and_(i, 1, ~k)
    cuda.atomic.or_(i, 2, k)
    cuda.atomic.xor(i, 3, k)
    cuda.atomic.exch(i, 4, 9)
    cuda.atomic.max(i, 5, k)
    cuda.atomic.min(i, 6, -k)
    cuda.atomic.sub(i, 7, 1)
    cuda.atomic.inc(u, 0, 9)
    cuda.atomic.dec(u, 1, 9)
    cuda.atomic.max(u, 2, np.uint32(0x80000000) + np.uint32(k))
    cuda.atomic.inc(u8, 0, 9)
    cuda.atomic.dec(u8, 1, 9)
    cuda.atomic.cas(i8, 0, k, k + 1)
    cuda.atomic.compare_and_swap(i8[1:], 0, 7)
    cuda.atomic.add(i8, 2, 1)


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
def test_atomics(order):
    f, d = np.zeros(8, np.float32), np.zeros((2, 2))
    f[4:7] = np.nan
    i, u = np.array([0, -1, 0, 0, 0, 0, 0, 0], np.int32), np.zeros(3, np.uint32)
    u8, i8 = np.zeros(2, np.uint64), np.zeros(3, np.int64)
    with emulator.schedule(order, seed=5), emulator.races():
        launch(atomics, 2, 32, (f, d, i, u, u8, i8))
    assert f[:4].tolist() == [96, -64, 63, -63] and f[4] == 63 and f[5] == 0 and np.isnan(f[6])
    assert d.tolist() == [[0, 128], [63, 0]]
    assert i.tolist() == [64, ~63, 63, np.bitwise_xor.reduce(np.arange(64)), 9, 63, -63, -64]
    assert u.tolist() == [4, 6, 0x8000003F] and u8.tolist() == [4, 6]
    assert i8[1:].tolist() == [7, 64] and i8[0] >= 1


@cuda.jit
def dynamic(x):
    row = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    row[i] = x[i]
    cuda.syncthreads()
    x[i] = row[row.size - 1 - i]


def test_dynamic_shared_memory():
    x = np.arange(32, dtype=np.float32)
    launch(dynamic, 1, 32, (x,), shared=128)
    assert np.array_equal(x, np.arange(32)[::-1])
    with pytest.raises(emulator.OutOfBounds, match="index 31 in axis 0 of the dynamic shared memory, which has 31"):
        launch(dynamic, 1, 32, (x,), shared=124)


@cuda.jit
def constants(x):
    table = cuda.const.array_like(TABLE)
    i = cuda.threadIdx.x
    x[i] = table[i % 4] * table[3]


def test_constants():
    x = np.zeros(8, np.float32)
    launch(constants, 1, 8, (x,))
    assert np.array_equal(x, np.tile(TABLE, 2) * 8)


def test_arrays_that_a_kernel_makes(monkeypatch):
    """8 MB of them one after another, each freed by the reference count that Numba keeps."""
    monkeypatch.setattr(config, "CUDA_ENABLE_NRT", True, raising=False)

    @cuda.jit
    def copies(out):
        for i in range(len(out)):
            turned = TURNED.copy()
            out[i] = turned[i % 257]

    out = np.zeros(4096, np.int64)
    before = resident()
    launch(copies, 1, 1, (out,))
    assert np.array_equal(out, 256 - np.arange(4096) % 257)
    assert resident() - before < 4 << 20


def resident():
    """Bytes of memory that this process holds."""
    return psutil.Process().memory_info().rss


@cuda.jit("void(int32[:])")
def counts_down(x):
    cuda.atomic.sub(x, cuda.threadIdx.x, 1)


def test_integers_of_the_other_sign():
    """A kernel that was declared for int32 takes the bits of uint32, as on a GPU."""
    x = np.array([1, 2**31 + 5], np.uint32)
    launch(counts_down, 1, 2, (x,))
    assert x.tolist() == [0, 2**31 + 4]


@cuda.jit(device=True)
def both(a, b):
    return a * b + 1, a


@cuda.jit(device=True, inline="always")
def bump(array, i):
    array[i] += 1


def scaled(n, function):
    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        y, z = both(x[i], 2)
        x[i] = function(y + z) * n
        bump(x, i)

    return kernel


@cuda.jit(device=True)
def square(v):
    return v * v


def test_device_functions_and_closures():
    x = np.ones(8, np.float32)
    launch(scaled(3, square), 2, 4, (x,))
    assert (x == 49).all()
    launch(scaled(2, square), 2, 4, (x,))
    assert (x == (49 * 3 + 1) ** 2 * 2 + 1).all()


@cuda.jit(device=True)
def total(value):
    held = cuda.shared.array(32, float32)
    held[cuda.threadIdx.x] = value
    cuda.syncthreads()
    found = float32(0)
    for i in range(32):
        found += held[i]
    cuda.syncthreads()
    return found


@cuda.jit(device=True)
def twice_the_total(value):
    return total(value) * float32(2)


@cuda.jit
def on_two_ways(x, out):
    i = cuda.threadIdx.x
    out[i] = total(x[i]) + twice_the_total(x[i])


def test_a_device_function_with_shared_memory_that_is_called_on_two_ways():
    """Its code is linked once, and so is its array, a name that may not be defined twice."""
    x, out = torch.arange(32.0), torch.zeros(32)
    launch(on_two_ways, 1, 32, (x, out))
    assert (out == 3 * x.sum()).all()


@cuda.jit
def tuples(pair, number):
    (a, b), s = pair, number
    i = cuda.threadIdx.x
    a[i] = b[i] * s[1] + s[0]


@cuda.jit
def records(one, many):
    i = cuda.threadIdx.x
    many[i].x = one.x + many[i].n
    many[i]["v"][1] = 2.5


def test_tuples_and_records():
    a, b = np.zeros(8, np.float32), np.ones(8)
    launch(tuples, 1, 8, ((a, b), (3, 0.5)))
    assert (a == 3.5).all()
    with pytest.raises(emulator.OutOfBounds, match=r"index 8 in axis 0 of pair\[1\]"):
        launch(tuples, 1, 9, ((np.zeros(9), b), (3, 0.5)))
    one, many = np.zeros(1, RECORD)[0], np.zeros(4, RECORD)
    one["x"], many["n"] = 3, np.arange(4)
    launch(records, 1, 4, (one, many))
    assert np.array_equal(many["x"], 3 + np.arange(4)) and (many["v"][:, 1] == 2.5).all()


@cuda.jit
def halves(x, y, z):
    i = cuda.grid(1)
    y[i] = x[i] * x[i] + x[i] / np.float16(3)
    z[i] = cuda.fp16.hfma(x[i], x[i], x[i])
    if x[i] > np.float16(0.5):
        z[i] = -x[i]


@cuda.jit
def brain(x, y, z):
    i = cuda.grid(1)
    y[i] = x[i] * x[i] - bfloat16(0.5)
    z[i] = bfloat16(float32(x[i]) * float32(3))


def test_half_and_bfloat16_round_as_torch_does():
    x = torch.linspace(-3, 3, 64).half()
    y, z = torch.empty_like(x), torch.empty_like(x)
    launch(halves, 2, 32, (x, y, z))
    assert torch.equal(y, x * x + x / torch.tensor(3.0).half())
    assert torch.equal(z, torch.where(x > 0.5, -x, (x.double() * x.double() + x.double()).half()))
    x = torch.linspace(-3, 3, 64).bfloat16()
    y, z = torch.empty_like(x), torch.empty_like(x)
    launch(brain, 2, 32, (x, y, z))
    assert torch.equal(y, x * x - 0.5) and torch.equal(z, (x.float() * 3).bfloat16())


@cuda.jit
def first_waits_for_last(flag):
    if cuda.threadIdx.x == 0 and cuda.blockIdx.x == 0:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
    elif cuda.threadIdx.x == 0 and cuda.blockIdx.x == cuda.gridDim.x - 1:
        cuda.atomic.add(flag, 0, 1)


@pytest.mark.parametrize("cooperative", [None, False])
def test_blocks_are_resident_at_once_where_that_is_asked_for(cooperative):
    """More of them than a GPU holds."""
    launch(first_waits_for_last, 3000, 32, (np.zeros(1, np.int32),), cooperative=True)
    with pytest.raises(Deadlock, match="waits in a loop for memory that no thread changes"):
        launch(first_waits_for_last, 3000, 32, (np.zeros(1, np.int32),), cooperative=cooperative)


_NARROW = ("6__half", "13__nv_bfloat16")


def test_narrow_floats_are_defined_under_the_names_they_have():
    known = narrow.definitions()
    assert {name for name, text in known.items() if f'i32 @"{name}"(ptr %' not in text} == set()
    assert {"_ZN6__halfC1Ef_nbst", "_ZN13__nv_bfloat16C1Ed_nbst", "_ZmlRK6__halfS1__nbst"} <= set(known)
    operators = {f"_Z{name}RK{kind}S1__nbst" for name in ("pl", "mi", "ml", "dv") for kind in _NARROW}
    assert operators <= set(known)


@cuda.jit
def widths(x, out):
    literal = 0.0
    narrow = float32(0.0)
    for j in range(x.size):
        literal += x[j]
        narrow += x[j]
    out[0] = literal
    out[1] = narrow


def test_a_float_literal_makes_float64_as_on_a_gpu():
    x, out = np.full(10, 0.1, np.float32), np.zeros(2)
    launch(widths, 1, 1, (x, out))
    assert out[0] == x.astype(np.float64).sum() and out[1] == np.cumsum(x, dtype=np.float32)[-1] != out[0]


@cuda.jit
def views(x):
    i = cuda.threadIdx.x
    row = x[i, :]
    row[0] = 1
    x[i][1] = 2
    x[i, 2:][0] = 5


def test_views_and_strides():
    x = np.zeros((4, 4), np.float32)
    launch(views, 1, 4, (x,))
    assert np.array_equal(x, np.tile([1, 2, 5, 0], (4, 1)))
    x = np.zeros((8, 8), np.float32)
    launch(views, 1, 4, (x.T[::2, ::2],))
    assert np.array_equal(x[:, 0], [1, 0, 2, 0, 5, 0, 0, 0]) and x.sum() == 4 * 8
    x = torch.zeros(4, 4)
    launch(views, 1, 4, (x.t(),))
    assert torch.equal(x, torch.tensor([1.0, 2, 5, 0])[:, None].expand(4, 4))


@cuda.jit
def words(x, y):
    i = cuda.threadIdx.x
    y[i] = x.view(np.int32)[0, i]


def test_numbas_own_code_counts_from_the_end_where_it_likes():
    x = np.arange(64, dtype=np.float32).reshape(4, 16)
    y = np.zeros(8, np.int32)
    launch(words, 1, 8, (x[:, :8], y))  # `view` looks at the last stride as strides[-1]
    assert np.array_equal(y, x.view(np.int32)[0, :8])


@cuda.jit
def scalars(out, flag, z, n):
    if flag:
        out[0] = z.real
    out[1] = z.imag + n


def test_scalars():
    out = np.zeros(2)
    launch(scalars, 1, 1, (out, True, 3 + 4j, np.int8(-2)))
    assert out.tolist() == [3, 2]


@cuda.jit
def hinted(x, y):
    i = cuda.threadIdx.x
    cuda.stcs(y, i, cuda.ldcg(x, i))
    cuda.threadfence()
    cuda.threadfence_block()
    cuda.threadfence_system()
    cuda.nanosleep(np.uint32(10))


def test_cache_hints_and_fences():
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    launch(hinted, 1, 4, (x, y))
    assert np.array_equal(x, y)


@cuda.jit
def printing(x):
    print("thread", cuda.threadIdx.x, x[0])


def test_print(capfd):
    launch(printing, 1, 2, (np.full(1, 2.5),))
    assert capfd.readouterr().out == "thread 0 2.500000\nthread 1 2.500000\n"


@cuda.jit
def doubled(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


def test_the_usual_launch_and_host_functions():
    install()
    x = np.arange(100, dtype=np.float32)
    d = cuda.to_device(x)
    doubled[4, 32](d)
    doubled[(4, 1), (32, 1), cuda.stream(), 0](d)
    doubled.forall(100)(d)
    cuda.synchronize()
    assert np.array_equal(d.copy_to_host(), x * 8) and x[1] == 1
    assert np.isnan(cuda.device_array(3)).all() and cuda.device_array_like(d).shape == (100,)


def test_one_compilation_for_one_set_of_types(monkeypatch):
    from touchstone.backends.emulator.numba import build

    compiled = []
    load = build.load
    monkeypatch.setattr(build, "load", lambda built: compiled.append(built) or load(built))
    kernel = cuda.jit(doubled.py_func)
    for array in (np.zeros(3, np.float32), np.zeros(5, np.float32), np.zeros(3), np.zeros(6)[::2]):
        launch(kernel, 1, 32, (array,))
    assert len(compiled) == 3
    with one_layout():
        for array in (np.ones(4), np.ones(6)[::2]):
            launch(kernel, 1, 32, (array,))
            assert (array == 2).all()
    assert len(compiled) == 3  # as for the array with a step


@intrinsic
def mma(typingctx, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """mma.sync of a 16 x 16 by a 16 x 8 tile of bfloat16, fragments as the PTX ISA lays them out."""
    signature = types.UniTuple(types.float32, 4)(*[types.uint32] * 6, *[types.float32] * 4)

    def lower(context, builder, signature, arguments):
        i32, f32 = ir.IntType(32), ir.FloatType()
        result = ir.LiteralStructType([f32] * 4)
        code = (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, "
            "{$10,$11,$12,$13};"
        )
        kind = ir.FunctionType(result, [i32] * 6 + [f32] * 4)
        asm = ir.InlineAsm(kind, code, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", side_effect=True)
        made = builder.call(asm, arguments)
        return context.make_tuple(builder, signature.return_type, [builder.extract_value(made, i) for i in range(4)])

    return signature, lower


@intrinsic
def load4(typingctx, array, index):
    """Four neighbouring floats by one access of 16 bytes."""
    signature = types.UniTuple(types.float32, 4)(array, types.int64)

    def lower(context, builder, signature, arguments):
        f32 = ir.FloatType()
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        kind = ir.FunctionType(ir.LiteralStructType([f32] * 4), [f32.as_pointer()])
        asm = ir.InlineAsm(kind, "ld.global.v4.f32 {$0,$1,$2,$3}, [$4];", "=f,=f,=f,=f,l", side_effect=True)
        made = builder.call(asm, [builder.gep(data, [arguments[1]])])
        return context.make_tuple(builder, signature.return_type, [builder.extract_value(made, i) for i in range(4)])

    return signature, lower


@intrinsic
def unknown(typingctx):
    def lower(context, builder, signature, arguments):
        return builder.call(ir.InlineAsm(ir.FunctionType(ir.IntType(32), []), "mov.u32 $0, %smid;", "=r"), [])

    return types.int32(), lower


@cuda.jit
def tensor_core(a, b, c):
    group, member = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    d0, d1, d2, d3 = mma(
        a[group, member],
        a[group + 8, member],
        a[group, member + 4],
        a[group + 8, member + 4],
        b[group, member],
        b[group, member + 4],
        float32(1),
        float32(1),
        float32(1),
        float32(1),
    )
    c[group, 2 * member] = d0
    c[group, 2 * member + 1] = d1
    c[group + 8, 2 * member] = d2
    c[group + 8, 2 * member + 1] = d3


def test_tensor_cores_through_inline_ptx():
    a, b = torch.randn(16, 16).bfloat16(), torch.randn(16, 8).bfloat16()
    c = torch.zeros(16, 8)
    words = lambda t: t.contiguous().view(torch.int32).numpy().view(np.uint32)  # noqa: E731
    launch(tensor_core, 1, 32, (words(a), words(b.t()), c))
    torch.testing.assert_close(c, a.float() @ b.float() + 1, rtol=1e-5, atol=1e-5)
    with pytest.raises(emulator.KernelError, match="mma.sync in a block whose last warp is not full"):
        launch(tensor_core, 1, 16, (words(a), words(b.t()), c))


@cuda.jit
def wide(x, y):
    i = cuda.threadIdx.x
    a, b, c, d = load4(x, 4 * i)
    y[i] = a + b + c + d


def test_wide_loads_are_checked_as_a_whole():
    x, y = np.arange(33, dtype=np.float32), np.zeros(8, np.float32)
    launch(wide, 1, 8, (x[:32], y))
    assert np.array_equal(y, x[:32].reshape(8, 4).sum(1))
    with pytest.raises(emulator.OutOfBounds, match=r"test_coverage.py:\d+.*thread \(7, 0, 0\) reads 16 bytes"):
        launch(wide, 1, 8, (x[:31], y))
    with pytest.raises(emulator.Misaligned, match="no multiple of 16"):
        launch(wide, 1, 8, (x[1:], y))


@cuda.jit
def asking(x):
    x[0] = unknown()


def test_what_has_no_twin_is_named():
    with pytest.raises(emulator.KernelError, match="inline PTX without a twin in the emulator: mov.u32 .*%smid"):
        launch(asking, 1, 1, (np.zeros(1),))
