"""Every intrinsic of the emulator against what CUDA says of it, worked out in NumPy or torch."""

import re

import numpy as np
import pytest
import torch

from tests.night import some
from tests.programs import PROGRAMS
from touchstone.backends import emulator

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

SOURCE = (PROGRAMS / "emulator_semantics.cu").read_text()


@pytest.fixture(scope="module")
def program():
    return emulator.compile(SOURCE, "semantics.cu")


@pytest.fixture(params=["forward", "reverse", "shuffled"], autouse=True)
def order(request):
    with emulator.schedule(request.param, seed=5):
        yield request.param


def test_places(program):
    grid, block = (3, 2, 4), (5, 4, 3)
    out = np.full((4 * 2 * 3, 60, 8), -1, np.int32)
    program.launch("places", grid, block, (out,))
    out = out.reshape(4, 2, 3, 3, 4, 5, 8)
    bz, by, bx, tz, ty, tx = np.indices(out.shape[:-1])
    for i, expected in enumerate((bx, by, bz, tx, ty, tz)):
        assert (out[..., i] == expected).all()
    assert (out[..., 7].ravel() == np.arange(24 * 60)).all()


def test_numbers_of_16_bits(program):
    """Every half and bfloat16, what lies between two of them, on either side of that, and beyond the largest."""
    with np.errstate(over="ignore", invalid="ignore"):
        words = np.arange(1 << 16, dtype=np.uint16)
        known = [words.view(np.float16).astype(np.float32), (words.astype(np.uint32) << 16).view(np.float32)]
        middles = [(np.sort(x[np.isfinite(x)])[1:] / 2 + np.sort(x[np.isfinite(x)])[:-1] / 2) for x in known]
        between = np.concatenate([*middles, np.float32([65504, 65519.996, 65520, 3.4e38, np.inf, np.nan])])
        x = np.concatenate(
            [*known, between, np.nextafter(between, np.float32(0)), np.nextafter(between, np.float32(9e9))]
        )
        x = np.concatenate([x, -x]).astype(np.float32)
        expected = x.astype(np.float16)
    half, brain, back = np.zeros(x.size, np.uint16), np.zeros(x.size, np.uint16), np.zeros(x.size, np.float32)
    program.launch("narrowed", -(-x.size // 256), 256, (x, half, brain, back, x.size))
    number = ~np.isnan(x)
    assert np.array_equal(half[number], expected.view(np.uint16)[number])
    rounded = torch.from_numpy(x).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(brain[number], rounded[number])
    assert np.array_equal(back, half.view(np.float16).astype(np.float32), equal_nan=True)
    assert (half[~number] == 0x7FFF).all() and (brain[~number] == 0x7FFF).all()


def test_barriers(program):
    out = np.zeros(4 * 96, np.int32)
    program.launch("barriers", 1, 96, (out, 40))
    assert (out[:96] == np.arange(96)[::-1]).all()
    assert (out[96:192] == 40).all() and (out[192:288] == 0).all() and (out[288:] == 1).all()
    program.launch("barriers", 1, 96, (out, 96))
    assert (out[192:288] == 1).all() and (out[288:] == 0).all()


@pytest.mark.parametrize("width", [32, 16, 8, 4])
def test_shuffles(program, width):
    x, out, t = np.arange(32, dtype=np.int32) * 3 + 1, np.zeros(224, np.int32), np.arange(32)
    program.launch("shuffles", 1, 32, (x, out, width))
    base, lane = t // width * width, t % width
    out = out.reshape(7, 32)
    assert (out[0] == x[base + (t * 7 + 3) % width]).all()
    assert (out[1] == np.where(lane - 3 >= 0, x[t - 3], x)).all()
    assert (out[2] == np.where(lane + 5 < width, x[np.minimum(t + 5, 31)], x)).all()
    assert (out[3] == np.where((t ^ 6) < base + width, x[t ^ 6], x)).all()
    assert (out[4] == x[t ^ 1]).all()
    assert (out[5] == np.where(lane + 1 < width, x[np.minimum(t + 1, 31)], x)).all()
    assert (out[6] == x[base + 2]).all()


def test_votes(program):
    x, out, t = (np.arange(32) * 7 % 5).astype(np.int32), np.zeros(448, np.uint32), np.arange(32)
    program.launch("votes", 1, 32, (x, out))
    out = out.reshape(14, 32)
    half = np.where(t < 16, 0xFFFF, 0xFFFF0000)
    assert (out[0] == sum(1 << int(i) for i in t[x > 1])).all()
    assert (out[1] == (t < 16)).all() and (out[2] == (t >= 16)).all()
    assert (out[3] == [sum(1 << int(i) for i in t[x == v]) for v in x]).all()
    assert (out[4] == half).all() and (out[5] == 1).all() and (out[6] == 0).all() and (out[7] == 0).all()
    assert (out[8] == np.where(t < 16, x[:16].sum(), x[16:].sum())).all()
    assert (out[9].view(np.int32) == -2).all() and (out[10] == 2**32 - 1).all()
    expected = int(np.bitwise_and.reduce(x | 8)) + int(np.bitwise_or.reduce(x)) * 100 + (2**32 - 1) // 1000
    assert (out[11] == expected).all() and (out[12] == 1).all() and (out[13] == 2**32 - 1).all()


def test_atomics(program):
    n = 96
    i = np.array([0, 0, 5, 5, 0, -1, 0, 0, 5, 5], np.int32)
    u = np.array([0, 3, 3, 0, 99], np.uint32)
    wide, f, d = np.zeros(2, np.uint64), np.zeros(2, np.float32), np.zeros(1)
    h, b, h2, b2 = torch.zeros(1).half(), torch.zeros(1).bfloat16(), torch.zeros(2).half(), torch.zeros(2).bfloat16()
    program.launch("atomics", 3, 32, (i, u, wide, f, d, h, b, h2, b2))
    odd = 0
    for t in range(n):
        odd ^= 1 << t % 31
    assert i.tolist() == [2 * n, -sum(range(n)), 1 - n, n - 1, 7, -(2**31), 2**31 - 1, odd, 9, 5]
    up, down = 3, 3
    for _ in range(n):
        up = 0 if up >= 9 else up + 1
        down = 9 if down == 0 or down > 9 else down - 1
    assert u.tolist() == [3 * n, up, down, n - 1, 0]
    assert wide.tolist() == [n << 33, (n - 1) << 40]
    assert f.tolist() == [n / 2, 2.5] and d[0] == n / 4
    assert h.item() == n / 2 and b.item() == n / 2 and h2.tolist() == [n, 2 * n] and b2.tolist() == [n, 2 * n]


def test_bits(program):
    x = np.array([0, 1, -1, 0x12345678, -0x7FFFFFFF, 0x00F0F000, 77, -5], np.int32)
    out = np.zeros((11, 8), np.int32)
    program.launch("bits", 1, 8, (x, out))
    u = [int(v) & 0xFFFFFFFF for v in x]
    text = [f"{v:032b}" for v in u]
    assert out[0].tolist() == [t.count("1") for t in text]
    assert out[1].tolist() == [len(t) - len(t.lstrip("0")) for t in text]
    assert out[2].tolist() == [t[::-1].find("1") + 1 for t in text]
    assert out[3].view(np.uint32).tolist() == [int(t[::-1], 2) for t in text]
    assert out[4].tolist() == [int(v) * 123456789 >> 32 for v in x]
    assert out[5].view(np.uint32).tolist() == [v * 123456789 >> 32 for v in u]
    assert out[6].view(np.uint32).tolist() == [
        (0x33 << 24) | ((v >> 8 & 255) << 16) | (0x44 << 8) | (v & 255) for v in u
    ]
    assert out[7].view(np.uint32).tolist() == [((0x80000001 << 32 | v) << 5 >> 32) & 0xFFFFFFFF for v in u]
    signed = [[(v >> 8 * k & 255) - 2 * (v >> 8 * k & 128) for k in range(4)] for v in u]
    assert out[8].tolist() == [7 + 4 * s[0] + 3 * s[1] + 2 * s[2] + s[3] for s in signed]
    assert out[9].tolist() == x.tolist()
    assert out[10].tolist() == [max(int(v), 3) + min(w, 5) for v, w in zip(x, u, strict=True)]


def test_functions(program):
    x = torch.cat([torch.linspace(-8, 8, 63), torch.tensor([0.5, 1.5, 2.5])])
    n = len(x)
    out = torch.zeros(17, n)
    program.launch("functions", 1, 32, (x, out, n))
    d = x.double()
    exact = {
        0: d.exp(),
        1: d.exp(),
        2: d.abs().log(),
        3: d.abs().rsqrt(),
        4: d.exp2(),
        5: d.tanh(),
        6: d.erf(),
        7: d / 3,
        8: 1 / d,
        9: d * d + 1,
        10: d * 3 + d,
        12: d.clamp(0, 1),
        13: d.exp(),
    }
    for row, expected in exact.items():
        torch.testing.assert_close(out[row].double(), expected, rtol=3e-7, atol=1e-45, equal_nan=True)
    assert torch.equal(out[9], (d * d + 1).float())  # fused: one rounding
    assert torch.equal(out[15], x * x + x)  # not contracted: two
    assert torch.equal(out[11], x)  # fmaxf drops a NaN
    assert torch.equal(out[14], d.round().float() + d.trunc().float() * 100)
    low, high = -(2.0**31), 2.0**31
    saturated = torch.where(x * 1e30 > high, high, torch.where(x * 1e30 < low, low, (x * 1e30).round()))
    assert torch.equal(out[16], saturated + (-x).trunc().clamp(min=0))


@pytest.mark.parametrize(("kernel", "dtype"), [("halves", torch.float16), ("brains", torch.bfloat16)])
def test_narrow_types(program, kernel, dtype):
    x = torch.randn(500, generator=torch.Generator().manual_seed(1)).to(dtype)
    n = len(x)
    out = torch.zeros(6, n, dtype=dtype)
    program.launch(kernel, 1, 32, (x, out, n))
    a, b, c = (x[i : n - 2 + i].double() for i in range(3))
    got = out[:, : n - 2]
    assert torch.equal(got[0], (a * b + c).to(dtype))
    assert torch.equal(got[1], x[: n - 2].float().exp().to(dtype))
    assert torch.equal(got[2], ((a * b).to(dtype).double() + c).to(dtype))
    assert torch.equal(got[3], torch.maximum(a, b).to(dtype))
    torch.testing.assert_close(got[4], a.abs().rsqrt().to(dtype))
    assert torch.equal(got[5], x[: n - 2])


SHAPES = {
    "wmma_16x16x16_half": (16, 16, 16, torch.float16, torch.float32, "rr"),
    "wmma_16x16x16_halfout": (16, 16, 16, torch.float16, torch.float16, "rc"),
    "wmma_32x8x16_half": (32, 8, 16, torch.float16, torch.float32, "cr"),
    "wmma_8x32x16_bf16": (8, 32, 16, torch.bfloat16, torch.float32, "rc"),
    "wmma_16x16x16_bf16": (16, 16, 16, torch.bfloat16, torch.float32, "cc"),
    "wmma_16x16x8_tf32": (16, 16, 8, torch.float32, torch.float32, "rr"),
}


@pytest.mark.parametrize("kernel", some(list(SHAPES), 2))
def test_wmma(program, kernel):
    m, n, k, dtype, out_dtype, layouts = SHAPES[kernel]
    draw = torch.Generator().manual_seed(2)
    a = torch.randint(-8, 9, (m, k), generator=draw).to(dtype)
    b = torch.randint(-8, 9, (k, n), generator=draw).to(dtype)
    c = torch.randint(-8, 9, (m, n), generator=draw).to(out_dtype)
    stored_a = a if layouts[0] == "r" else a.t().contiguous()
    stored_b = b if layouts[1] == "r" else b.t().contiguous()
    operands = [aligned(t) for t in (stored_a, stored_b, c, torch.zeros(n, m, dtype=out_dtype))]
    program.launch(kernel, 1, 32, (*operands, stored_a.shape[1], stored_b.shape[1]))
    assert torch.equal(operands[3].t().float(), a.float() @ b.float() + 2 * c.float())


def aligned(tensor):
    """`tensor` at a multiple of 32 bytes, as wmma wants it."""
    room = torch.zeros(tensor.numel() + 32, dtype=tensor.dtype)
    skip = -room.data_ptr() % 32 // tensor.element_size()
    return room[skip : skip + tensor.numel()].view(tensor.shape).copy_(tensor)


def test_tf32_drops_thirteen_bits(program):
    a, b, c = torch.zeros(16, 8), torch.zeros(8, 8), torch.zeros(16, 8)
    a[3, 5], b[5, 2] = 1 + 2**-10 + 2**-11, 1.0
    out = torch.zeros(16, 8)
    program.launch("mma_tf32", 1, 32, (a, b, c, out))
    assert out[3, 2] == 1 + 2**-10


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize(("kernel", "dtype"), [("mma_half", torch.float16), ("mma_bf16", torch.bfloat16)])
def test_mma_and_ldmatrix(program, kernel, dtype, transposed):
    draw = torch.Generator().manual_seed(3)
    a, b = (
        torch.randint(-8, 9, (16, 16), generator=draw).to(dtype),
        torch.randint(-8, 9, (16, 8), generator=draw).to(dtype),
    )
    c, out = torch.randint(-8, 9, (16, 8), generator=draw).float(), torch.zeros(16, 8)
    stored = b if transposed else b.t().contiguous()
    program.launch(kernel, 1, 32, (a, stored, c, out, transposed))
    assert torch.equal(out, a.float() @ b.float() + c)


def test_mma_tf32(program):
    draw = torch.Generator().manual_seed(4)
    a, b = torch.randint(-8, 9, (16, 8), generator=draw).float(), torch.randint(-8, 9, (8, 8), generator=draw).float()
    c, out = torch.randint(-8, 9, (16, 8), generator=draw).float(), torch.zeros(16, 8)
    program.launch("mma_tf32", 1, 32, (a, b, c, out))
    assert torch.equal(out, a @ b + c)


def test_ldmatrix_of_one(program):
    x, out = np.arange(64, dtype=np.uint16), np.zeros(32, np.uint32)
    program.launch("ldmatrix_one", 1, 32, (x, out))
    assert out.tolist() == [2 * t + ((2 * t + 1) << 16) for t in range(32)]


def test_cooperative_groups(program):
    x, out = torch.arange(128.0), torch.zeros(3, 128)
    program.launch("groups", 1, 128, (x, out))
    assert torch.equal(out[0], x.view(32, 4).sum(1).repeat_interleave(4))
    assert (out[1] == x.sum()).all()
    quad = torch.arange(128) // 4
    assert torch.equal(out[2], 13 + 100.0 * (quad == 1) + 1000)


def test_coalesced_threads(program):
    out, t = np.zeros((2, 64), np.int32), np.arange(64)
    program.launch("coalesced", 1, 64, (out,))
    sizes = np.array([len([i for i in range(32 * w, 32 * w + 32) if i % 3 == 0]) for w in range(2)])[t // 32]
    ranks = np.array([len([i for i in range(v // 32 * 32, v) if i % 3 == 0]) for v in t])
    assert (out[0] == np.where(t % 3 == 0, sizes * 100 + ranks, 32 - sizes)).all()
    third = np.array([[i for i in range(32 * w, 32 * w + 32) if i % 3 == 0][2] for w in range(2)])[t // 32]
    assert (out[1] == np.where(t % 3 == 0, third, 0)).all()


def test_grid_barrier(program):
    x, out = np.arange(9, dtype=np.int32), np.zeros(9, np.int32)
    expected = x.copy()
    for _ in range(4):
        expected = np.roll(expected, -1) + 1
    program.launch("over_grid", 9, 33, (x, out, 4), cooperative=True)
    assert (out == expected).all()
    with pytest.raises(emulator.KernelError, match="cooperative=True"):
        program.launch("over_grid", 9, 33, (x, out, 4))


def test_forms_of_shared_declarations(program):
    x, y, z = torch.arange(8.0), torch.arange(8, dtype=torch.int32), torch.zeros(8)
    program.launch("shared_forms", 1, 8, (x, y, z), shared=64)
    assert torch.equal(x, torch.arange(8.0).flip(0) + 1) and torch.equal(y, torch.arange(8).flip(0).int() + 1)
    assert (z == 7).all()


TEMPLATES = r"""
template <int Scale> __global__ void scaled(float* x) { x[threadIdx.x] *= Scale; }
#define MADE(name, by) extern "C" __global__ void name(float* x) { x[threadIdx.x] += by; }
MADE(made, 2.0f)
#ifdef NEVER
extern "C" __global__ void left_out(float* x) {}
#endif
extern "C" __global__ __launch_bounds__(64) void plain(float* __restrict__ x) { x[threadIdx.x] = 1.0f; }
"""


@pytest.fixture(scope="module")
def templates():
    return emulator.compile(TEMPLATES, "templates.cu")


def test_kernels_made_by_macros_and_left_out_ones(templates):
    x = torch.zeros(4)
    templates.launch("plain", 1, 4, (x,))
    templates.launch("made", 1, 4, (x,))
    assert (x == 3).all()
    with pytest.raises(KeyError, match=r"templates.cu has no kernel 'left_out'; it has scaled<...>, made, plain"):
        templates.launch("left_out", 1, 4, (x,))


def test_instances_of_a_template(templates):
    program, x = templates, torch.ones(4)
    program.launch("scaled<3>", 1, 4, (x,))
    program.launch("scaled<5>", 1, 4, (x,))
    assert (x == 15).all()


NAMES = r"""
namespace a { __global__ void k(int* y) { *y = 1; } }
namespace b { __global__ void k(int* y) { *y = 2; } __global__ void k(int* y, const float* x) { *y = 3; } }
namespace b { __global__ void v(int* y) { *y = 12; } }
__global__ void v(int* y) { *y = 13; }
__device__ int held = 7, other;
template <class T, int N> __global__ void t(T* y) { *y = N + held + other; }
template <int N> __global__ void u(int* y) { *y = N; }
template <int N> __global__ void w(int* y) { *y = N; }
__global__ void w(int* y) { *y = 8; }
void run() { t<int, 4><<<1, 1>>>(0); t<float, 5><<<1, 1>>>(0); a::k<<<1, 1>>>(0); }
"""


def test_kernels_are_found_by_their_names_namespaces_and_parameters():
    made, y = emulator.compile(NAMES, "names.cu"), np.zeros(1, np.int32)
    for name, rest, value in [
        *(("a::k", (), 1), ("b::k", (), 2), ("k", (), 1), ("a::k(int*)", (), 1), ("k(int *)", (), 1)),
        *(("b::k(int*)", (), 2), ("b::k(int*, const float*)", (None,), 3), ("k(int*,const float*)", (None,), 3)),
        *(("t<int, 4>", (), 11), ("u<6>", (), 6), ("w", (), 8), ("w<9>", (), 9)),
        *(("v", (), 13), ("v(int*)", (), 13), ("b::v", (), 12)),
    ]:
        made.launch(name, 1, 1, (y, *rest))
        assert y[0] == value, name
    for name, said in {
        "b::k(float*)": "names.cu has no kernel 'b::k(float*)'; it has a::k, b::k, b::k, b::v, v, t<...>, u",
        "c": "names.cu has no kernel 'c'; it has",
        "t": "names.cu: t is a template: name an instance, as t<float, 5> or t<int, 4>",
        "u": "names.cu: u is a template: name an instance, as u<...>",
    }.items():
        with pytest.raises(KeyError, match=re.escape(said)):
            made.launch(name, 1, 1, (y,))


SHORT = r"""
#define n 8
#define S 4
struct Pair { float first; int second; };
constexpr int dims = 2;
extern "C" __global__ void p(float* y, Pair pair) { *y = pair.first + pair.second + n + S; }
#undef n
extern "C" __global__ void n(float* y, Pair pair) { *y = pair.second; }
extern "C" __global__ void a(float* y, Pair pair) { *y = pair.first; }
extern "C" __global__ void __cluster_dims__(dims, 1, 1) out(float* y, Pair pair) { y[blockIdx.x] = pair.first + S; }
"""


@pytest.mark.parametrize(("name", "result"), [("p", [15.5, 0]), ("n", [3, 0]), ("a", [0.5, 0]), ("out", [4.5, 4.5])])
def test_a_file_may_have_any_names(name, result):
    made, y = emulator.compile(SHORT, "short.cu"), torch.zeros(2)
    made.launch(name, 2 if name == "out" else 1, 1, (y, {"first": 0.5, "second": 3}))
    assert y.tolist() == result and made.takes(name) == 2


def test_variables_are_those_of_the_kernel_that_was_launched_last():
    text = NAMES.replace("held = 7", "held = 8")  # a library of its own, whose variables no other test reads
    made, y = emulator.compile(text, "names.cu"), np.zeros(1, np.int32)
    made.launch("t<int, 4>", 1, 1, (y,))
    assert made.get("held", np.int32).tolist() == [8]
    with pytest.raises(KeyError, match="names.cu has no variable 'gone'; it has held, other"):
        made.get("gone")
    made.set("other", np.int32([20]))
    made.launch("t<int, 4>", 1, 1, (y,))
    assert y[0] == 32 and made.get("other", np.int32).tolist() == [20]
    made.launch("t<int, 5>", 1, 1, (y,))  # in a library of its own, which has been given the value too
    assert y[0] == 33
    made.launch("a::k", 1, 1, (y,))
    with pytest.raises(ValueError, match="names.cu: other has 4 bytes, got 8"):
        made.set("other", np.int64([1]))


def test_vector_types(program):
    x = torch.arange(16.0).view(4, 4)
    out, pairs = torch.zeros(4, 4), torch.zeros(4, 2, dtype=torch.int32)
    program.launch("vectors", 1, 4, (x, out, pairs))
    assert torch.equal(out, x.flip(1)) and pairs.tolist() == [[i, 24] for i in range(4)]


def test_scalar_arguments(program):
    out = torch.zeros(8)
    pair = np.array([(7, 0.5)], dtype=[("a", np.int32), ("b", np.float32)])[0].tobytes()
    program.launch("scalars", 1, 1, (out, -3, 5 << 32, 0.25, 0.125, True, pair, np.float16(1.5), None))
    assert out.tolist() == [-3, 5, 0.25, 0.125, 1, 7.5, 1.5, 1]
    with pytest.raises(ValueError, match=r"scalars: i: 2147483648 does not fit in the 32-bit parameter"):
        program.launch("scalars", 1, 1, (out, 2**31, 0, 0.0, 0.0, True, pair, np.float16(0), None))
    with pytest.raises(TypeError, match="scalars: f: expected a number, got str"):
        program.launch("scalars", 1, 1, (out, 1, 0, "0", 0.0, True, pair, np.float16(0), None))
    with pytest.raises(TypeError, match="expected 9 arguments, got 1"):
        program.launch("scalars", 1, 1, (out,))
    with pytest.raises(TypeError, match="scalars: out: expected a tensor, an array or None, got int"):
        program.launch("scalars", 1, 1, (1, 1, 0, 0.0, 0.0, True, pair, np.float16(0), None))


def test_bad_launches(templates):
    program, x = templates, torch.ones(4)
    with pytest.raises(ValueError, match="block: at most 1024 threads"):
        program.launch("scaled<3>", 1, (1025,), (x,))
    with pytest.raises(ValueError, match="grid: at most"):
        program.launch("scaled<3>", (1, 65536), 1, (x,))
    with pytest.raises(ValueError, match="grid: expected one to three positive integers"):
        program.launch("scaled<3>", 0, 1, (x,))
    with pytest.raises(ValueError, match="shared: expected 0 to 232448"):
        program.launch("scaled<3>", 1, 1, (x,), shared=300000)
    with pytest.raises(KeyError, match="has no kernel 'scald'"):
        program.launch("scald", 1, 1, (x,))
