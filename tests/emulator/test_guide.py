"""What NVIDIA's programming guide allows is silent, and arguments are as real programs have them."""

import numpy as np
import pytest
import torch

from tests.programs import PROGRAMS
from touchstone.backends import emulator

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

SOURCE = (PROGRAMS / "emulator_guide.cu").read_text()
X = np.arange(64, dtype=np.float32)


@pytest.fixture(scope="module")
def program():
    return emulator.compile(SOURCE, "guide.cu")


EXPECTED = {
    "ended_before_barrier": np.where(X < 40, 39 - X, 0),
    "ended_before_vote": np.where((X >= 32) & (X < 40), 32, 0),
    "barrier_at_two_places": np.r_[X[32:], X[:32]],
    "warp_stores_one_value": np.ones(64),
}


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
@pytest.mark.parametrize("kernel", EXPECTED)
def test_the_guide_allows_it(program, kernel, order):
    y = np.zeros(64, np.float32)
    with emulator.schedule(order, seed=2), emulator.races():
        program.launch(kernel, 1, 64, (X, y))
    assert (y == EXPECTED[kernel]).all()


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("ended_before_barrier", emulator.DivergentBarrier),
        ("ended_before_vote", emulator.InactiveLanes),
        ("barrier_at_two_places", emulator.DivergentBarrier),
    ],
)
def test_strict_tells(program, kernel, kind):
    with emulator.strict(), pytest.raises(kind):
        program.launch(kernel, 1, 64, (X, np.zeros(64, np.float32)))


def test_a_warp_that_stores_several_values_races(program):
    with emulator.races(), pytest.raises(emulator.RaceCondition, match=r"s\[0\]"):
        program.launch("warp_stores_values", 1, 64, (X, np.zeros(64, np.float32)))


def test_the_last_block_needs_fences_and_may_reset_its_ticket(program):
    with emulator.races():
        for _ in range(2):
            y = np.zeros(64, np.float32)
            program.launch("last_block_fenced", 3, 64, (X, np.zeros(192, np.float32), y))
            assert (y == 3 * X).all()
        with pytest.raises(emulator.RaceCondition, match="part"):
            program.launch("last_block_unfenced", 3, 64, (X, np.zeros(192, np.float32), y))


def test_groups(program):
    x, y = (np.arange(64) * 7 % 11).astype(np.int32), np.zeros(128, np.int32)
    program.launch("groups", 1, 64, (x, y))
    tiles = x.reshape(8, 8)
    sums = [[row[row % 2 == v % 2].sum() for v in row] for row in tiles]
    assert (y[:64].reshape(8, 8) == sums).all() and (y[64:].reshape(8, 8) == tiles.cumsum(1)).all()


def test_structures_and_variables(program):
    y = np.zeros(5, np.float32)
    program.set("table", np.float32([1, 10, 100]))
    fields = {"x": X[:5], "y": y, "in.scale": 2, "in.n": 5, "w": [1, 2, 3]}
    program.launch("structures", 1, 32, (fields,))
    assert y.tolist() == [1, 22, 304, 7, 28]
    assert program.get("counter", np.int32)[0] == 32
    with pytest.raises(TypeError, match="p: expected the fields x, y, in.scale, in.n, w, got x"):
        program.launch("structures", 1, 32, ({"x": X},))
    with pytest.raises(TypeError, match="p.x: expected an array of float, got float64"):
        program.launch("structures", 1, 32, ({**fields, "x": X.astype(float)},))
    with pytest.raises(KeyError, match="no variable 'tables'; it has counter, table"):
        program.set("tables", X)
    with pytest.raises(ValueError, match="table has 12 bytes, got 16"):
        program.set("table", X[:4])


# what a class may have in it -> its declarations, its values, an expression of S s that is 5
CLASSES = {
    "an array of classes": (
        "struct In { float a; int b; }; struct S { In v[2]; int n; };",
        {"v": [np.float32(2).tobytes() + np.int32(3).tobytes()] * 2, "n": 3},
        "s.v[1].a + s.v[0].b",
    ),
    "an array of a class of its own": (
        "struct S { struct { float a; } v[2]; int n; };",
        {"v": np.float32([1, 2]), "n": 3},
        "s.n + s.v[1].a",
    ),
    "a class of its own": (
        "struct S { struct In { int a; } in; struct { float x; } of; };",
        {"in.a": 3, "of.x": 2.0},
        "s.in.a + s.of.x",
    ),
    "a base": ("struct B { float x; }; struct S : public B { int n; };", {"x": 2.0, "n": 3}, "s.x + s.n"),
    "a base without fields": ("struct B {}; struct S : B { int n; };", {"n": 5}, "s.n"),
    "a template": (
        "template <typename T, int N> struct V { T d[N]; }; struct S { V<float, 4> v; int n; };",
        {"v.d": [0, 2, 0, 0], "n": 3},
        "s.v.d[1] + s.n",
    ),
    "a union": (
        "struct S { union { int i; float f; } u; union { int n; float g; }; };",
        {"u": np.float32(2), "n": 3},
        "s.u.f + s.n",
    ),
    "a class in a union": (
        "struct S { union { struct { float x, y; }; float v[2]; }; int n; };",
        {"x": 2.0, "n": 3},
        "s.v[0] + s.n",
    ),
    "vectors": (
        "struct S { float4 f; int3 g; dim3 d; };",
        {"f": [1, 0, 0, 1], "g": (0, 0, 2), "d": (1, 1, 1)},
        "s.f.x + s.f.w + s.g.z + s.d.y",
    ),
    "alignment and values": (
        "struct alignas(16) S { float x = 1.5f; alignas(8) int n{4}; static constexpr int K = 1; };",
        {"x": 2.0, "n": 2},
        "s.x + s.n + S::K",
    ),
    "a pointer to a function": (
        "struct S { float (*f)(float); int n; __device__ int get() const { return n; } };",
        {"f": None, "n": 5},
        "s.get()",
    ),
    "restricted pointers": (
        "struct S { const float* __restrict__ x; float* const* y; int n, m; };",
        {"x": X[:4], "y": None, "n": 1, "m": 1},
        "s.x[3] + s.n + s.m + (s.y != nullptr)",
    ),
}


@pytest.mark.parametrize("what", CLASSES)
def test_classes_are_given_by_their_fields(what):
    head, values, told = CLASSES[what]
    program = emulator.compile(f"{head}\n__global__ void k(S s, float* y) {{ *y = {told}; }}", "classes.cu")
    y = np.zeros(1, np.float32)
    program.launch("k", 1, 1, (values, y))
    assert y[0] == 5


def test_fields_that_cannot_be_pointed_to_are_bytes():
    source = "struct S { unsigned a : 3; unsigned b : 5; int n; };\n__global__ void k(S s, int* y) { *y = s.n + s.b; }"
    program, y = emulator.compile(source, "bits.cu"), np.zeros(1, np.int32)
    with pytest.raises(TypeError, match="s: expected 8 bytes, got dict"):
        program.launch("k", 1, 1, ({"n": 3}, y))
    program.launch("k", 1, 1, (np.uint32([2 << 3, 3]).tobytes(), y))
    assert y[0] == 5


def test_virtual_functions():
    program = emulator.compile(
        """
        struct Shape { float a; __device__ virtual float of(float x) const { return a * x; }
                       __device__ virtual ~Shape() {} };
        struct Shifted : Shape { __device__ float of(float x) const override { return a + x; } };
        __global__ void k(float* y) {
          Shape* shape = threadIdx.x & 1 ? new Shifted : new Shape;
          shape->a = 3;
          y[threadIdx.x] = shape->of(threadIdx.x);
          delete shape;
        }
        """,
        "virtual.cu",
    )
    y, lanes = np.zeros(32, np.float32), np.arange(32)
    program.launch("k", 1, 32, (y,))
    assert (y == np.where(lanes & 1, 3 + lanes, 3 * lanes)).all()


def test_pointers_to_pointers_and_other_memory(program):
    a, b = np.zeros(3, np.float32), np.zeros(4, np.float32)
    program.launch("rows", 1, 2, ([a, b], 2))
    assert a.tolist() == [0, 0, 1] and b.tolist() == [0, 0, 2, 0]
    with pytest.raises(emulator.OutOfBounds, match=r"just past the end of rows\[0\] \(12 bytes"):
        program.launch("rows", 1, 2, ([a, b], 3))
    with pytest.raises(TypeError, match=r"rows\[1\]: expected an array of float, got float64"):
        program.launch("rows", 1, 2, ([a, b.astype(float)], 2))
    table = np.array([a.ctypes.data, b.ctypes.data], np.uint64)
    with pytest.raises(emulator.OutOfBounds):
        program.launch("rows", 1, 2, (table, 0))
    program.launch("rows", 1, 2, (table, 0), memory=[a, b])
    assert (a[0], b[0]) == (1, 2)


def test_the_heap(program):
    out = np.zeros(1, np.int32)
    program.launch("heap", 1, 1, (out, 5))
    assert out[0] == 8
    with pytest.raises(emulator.OutOfBounds, match="just past the end of what the kernel allocated"):
        program.launch("heap", 1, 1, (out, 7))


def test_unions_textures_and_alignment(program):
    y = np.zeros(32, np.float32)
    program.launch("unions", 1, 32, (y,))
    assert (y == 0x3F8).all()
    image = np.arange(12, dtype=np.float32).reshape(3, 4)
    for texture, x, value in (("point", 2.2, 6), ("linear", 2.25, 5.75), ("linear", 9, 7)):
        program.launch("linear", 1, 1, (emulator.Texture(image, filter=texture), y, x))
        assert y[0] == value
    whole = torch.zeros(100)
    for array, offset in ((np.zeros(77, np.float32)[1:], 4), (whole[4:], 16), (whole, 0)):
        program.launch("aligned", 1, 1, (array, y))
        assert y[0] == offset
    with pytest.raises(TypeError, match="x: expected an array of float, got int32"):
        program.launch("aligned", 1, 1, (np.zeros(4, np.int32), y))
