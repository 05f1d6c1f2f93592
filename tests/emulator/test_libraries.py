"""Device code of libraries, which the emulator brings or takes from where it is installed, and intrinsics by name."""

import numpy as np
import pytest

from tests.programs import PROGRAMS
from touchstone.backends import emulator

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

SOURCE = (PROGRAMS / "emulator_libraries.cu").read_text()
THREADS, ITEMS = 96, 3


@pytest.fixture(scope="module")
def program():
    return emulator.compile(SOURCE, "libraries.cu")


@pytest.fixture
def random():
    return np.random.default_rng(0)


def ints(n):
    return np.zeros(n, np.int32)


def test_reductions_of_a_block(program, random):
    x, y = random.standard_normal(THREADS * ITEMS).astype(np.float32), np.zeros(2, np.float32)
    with emulator.races():
        program.launch("reduce", 1, THREADS, (x, y, 50))
    assert y[0] == pytest.approx(x.sum(dtype=np.float64), abs=1e-4)
    assert y[1] == x[:50].max()


def test_storage_that_is_used_again_without_a_barrier_is_a_race():
    program = emulator.compile(SOURCE, "libraries.cu", {"MISSING": 1}, kernels=["reduce"])
    with emulator.races(), pytest.raises(emulator.RaceCondition, match="temp"):
        program.launch("reduce", 1, THREADS, (np.zeros(THREADS * ITEMS, np.float32), np.zeros(2, np.float32), 96))


def test_scans_of_a_block(program, random):
    x = random.integers(0, 100, THREADS * ITEMS).astype(np.int32)
    most, before, running, total = ints(THREADS), ints(THREADS * ITEMS), ints(2 * THREADS), ints(1)
    with emulator.races():
        program.launch("scan", 1, THREADS, (x, most, before, running, total))
    assert (most == np.maximum.accumulate(x[:THREADS])).all()
    assert (before == np.cumsum(x) - x).all() and total[0] == x.sum()
    assert (running == 100 + np.cumsum(x[: 2 * THREADS])).all()


def test_collectives_of_a_warp(program, random):
    x = random.integers(0, 100, THREADS).astype(np.int32)
    sums, scans, heads = ints(THREADS // 16), ints(THREADS), ints(THREADS // 8)
    program.launch("warps", 1, THREADS, (x, sums, scans, heads))
    assert (sums == x.reshape(-1, 16).sum(1)).all() and (heads == x.reshape(-1, 8).sum(1)).all()
    assert (scans == np.cumsum(x.reshape(-1, 32), 1).ravel() - x).all()


def test_a_block_sorts_marks_and_counts(program, random):
    keys = random.integers(-5, 6, THREADS * ITEMS).astype(np.float32)
    keys[keys == 0] = random.choice([0.0, -0.0], (keys == 0).sum())
    sorted_, places, heads, counts = keys.copy(), ints(keys.size), ints(keys.size), np.zeros(2, np.uint32)
    with emulator.races():
        program.launch("sort", 1, THREADS, (sorted_, places, heads, counts))
    order = np.argsort(-keys, kind="stable")
    assert (sorted_ == keys[order]).all() and (places == order).all()
    assert (heads == np.r_[1, sorted_[1:] != sorted_[:-1]]).all()
    assert counts.tolist() == [(keys <= 0).sum(), (keys > 0).sum()]


def test_random_words_are_those_of_curand(program):
    """Expected is what NVIDIA's header of nvidia-curand 10.4 gives when it is compiled for the host."""
    philox, xorwow, state = np.zeros(9, np.uint32), np.zeros(5, np.uint32), np.zeros(48, np.uint8)
    uniform, normal = np.zeros(1, np.float32), np.zeros(3, np.float32)
    program.launch("words", 1, 1, (philox, xorwow, uniform, normal, state))
    assert philox[:5].tolist() == [2897886456, 3571722420, 296027329, 3990533219, 711373462]
    assert philox[[5, 8]].tolist() == [3601287622, 2995394776]
    assert xorwow.tolist() == [2223688508, 906701663, 1924992985, 1459886507, 3353540823]
    assert uniform[0] == np.float32(0.435163707)
    assert normal == pytest.approx([-1.52082098, 1.42237437, -1.58918941], rel=1e-6)


def test_atomics_with_an_order(program):
    count, total, order, flag = np.zeros(1, np.uint32), np.zeros(1, np.float32), ints(5), np.zeros(1, np.uint64)
    with emulator.races():
        program.launch("flags", 3, 64, (count, total, order, flag))
    assert count[0] == 384 and total[0] == 288
    assert order.tolist() == [42, 42, 64, 64, 64]


def test_types_and_accessors_of_torch(program):
    x, y = np.arange(100, dtype=np.float16), np.zeros(100, np.float32)
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    packed = np.array([table.ctypes.data], np.uint64).tobytes() + np.array([5, 2, 2, 1], np.int32).tobytes()
    program.launch("halves", 2, 64, (x, packed, y, 100), memory=[table])
    assert (y == x * table[np.arange(100) % 5, 1] + np.float32(0.5)).all()


def test_states_of_torch_generators(program):
    out, kept = np.zeros(2, np.uint64), np.array([5, 40], np.int64)
    program.launch("seeded", 1, 1, (np.array([7, 9, 0, 0], np.uint64).tobytes(), out))
    assert out.tolist() == [7, 9]
    captured = np.array([kept.ctypes.data, kept.ctypes.data + 8, 2, 1], np.uint64).tobytes()
    program.launch("seeded", 1, 1, (captured, out), memory=[kept])
    assert out.tolist() == [5, 42]


def test_two_or_four_numbers_in_a_word(program, random):
    a, b = (random.integers(0, 1 << 32, 256, np.uint64).astype(np.uint32) for _ in range(2))
    a[:4], b[:4] = [0, 0x80808080, 0x80008000, 0xFFFFFFFF], [0, 0x80808080, 0x80008000, 1]
    out = np.zeros((13, 256), np.uint32)
    program.launch("lanes", 1, 256, (a, b, out, 256))

    def part(x, kind):
        return x.view(kind).astype(np.int64)

    def of(kind, make):
        return make(part(a, kind), part(b, kind)).astype(np.int64).astype(kind).view(np.uint32)

    expected = [
        of("u1", lambda x, y: x + y),
        of("i1", lambda x, y: (x + y).clip(-128, 127)),
        of("u2", lambda x, y: (x + y).clip(0, 65535)),
        of("u2", lambda x, y: x - y),
        of("u1", lambda x, y: abs(x - y)),
        of("i2", lambda x, y: -(x > y).astype(np.int64)),
        of("u1", lambda x, y: x <= y),
        of("i1", np.maximum),
        of("u2", np.minimum),
        of("i2", lambda x, y: (x + y + (x + y >= 0)) >> 1),
        of("i1", lambda x, y: -x),
        of("i2", lambda x, y: abs(x).clip(-32768, 32767)),
        abs(part(a, "u1") - part(b, "u1")).reshape(-1, 4).sum(1),
    ]
    for k, one in enumerate(expected):
        assert (out[k] == one).all(), k


def test_larger_and_smaller_ones_of_several_numbers(program, random):
    a, b, c = random.integers(-(1 << 31), 1 << 31, (3, 256)).astype(np.int32)
    a[:8] = b[:8]
    out = np.zeros((12, 256), np.uint32)
    program.launch("extremes", 1, 256, (a, b, c, out.view(np.int32), 256))
    ua, ub, uc = (x.view(np.uint32) for x in (a, b, c))
    ha, hb, hc = (x.view(np.int16) for x in (a, b, c))
    low = np.minimum(ua.view(np.uint16), ub.view(np.uint16))
    same = (low == ua.view(np.uint16)).reshape(256, 2)
    wide, by = ub.astype(object) << 32 | ua.astype(object), np.minimum(uc & 63, 32).astype(object)

    def nth(mask, base, offset):
        places = range(base, 32) if offset > 0 else range(base, -1, -1)
        found = [at for at in places if mask >> at & 1]
        if offset == 0:
            return base if mask >> base & 1 else 0xFFFFFFFF
        return found[abs(offset) - 1] if len(found) >= abs(offset) else 0xFFFFFFFF

    expected = [
        np.maximum(np.maximum(a + b, c), 0),
        np.minimum(ua + ub, uc),
        np.maximum(np.maximum(a, b), c),
        np.maximum(np.minimum(np.minimum(ha, hb), hc), 0),
        np.maximum(ha + hb, hc),
        np.maximum(a, b),
        (a >= b).astype(np.uint32),
        low,
        same[:, 1] * 2 + same[:, 0],
        np.array((wide << by) >> 32 & 0xFFFFFFFF, np.uint32),
        np.array((wide >> by) & 0xFFFFFFFF, np.uint32),
        np.array([nth(int(m), int(y & 31), int(z & 7) - 3) for m, y, z in zip(ua, b, c, strict=True)], np.uint32),
    ]
    for k, one in enumerate(expected):
        assert (out[k] == (one.view(np.uint32) if one.dtype != np.int64 else one)).all(), k


def test_products_of_complex_halves(program, random):
    a, b, c = random.integers(-8, 8, (3, 32, 2)).astype(np.float16)
    wide = [x.astype(np.float64).view(np.complex128)[:, 0] for x in (a, b, c)]
    program.launch("complex_sums", 1, 32, (a, b, c))
    assert (c.astype(np.float64).view(np.complex128)[:, 0] == wide[0] * wide[1] + wide[2]).all()


def test_barriers_by_their_names(program):
    out, i = ints(128), np.arange(64)
    with emulator.races():
        program.launch("numbered", 2, 64, (out,), cluster=2)
    assert (out.reshape(2, 64) == (i ^ 1) + 63 - i + np.array([[0], [100]])).all()


def test_directed_rounding(program, random):
    x, y = ((random.standard_normal(256) * 2.0 ** random.integers(-9, 9, 256)).astype(np.float32) for _ in range(2))
    down, up, zero = (np.zeros((256, 4), np.float32) for _ in range(3))
    program.launch("directed", 1, 256, (x, y, down, up, zero))
    wide, y64 = x.astype(np.float64), y.astype(np.float64)
    # Exact within 53 bits, or as near as is needed.
    exact = np.stack([wide + y64, wide * y64, 1 / y64, x.view(np.int32).astype(np.float64)], 1)
    assert (down <= exact).all() and (up >= exact).all() and (abs(zero) <= abs(exact)).all()
    inexact = exact.astype(np.float32) != exact
    assert inexact.sum() > 500 and (np.nextafter(down, np.float32(np.inf)) == up)[inexact].all()
    assert (down == up)[~inexact].all()


def test_inverses_of_distributions(program):
    p, back = np.array([-0.999, -0.5, -1e-12, 0, 1e-5, 0.3, 0.95, 0.9999999]), np.zeros((8, 2))
    program.launch("inverses", 1, 8, (p, back))
    np.testing.assert_allclose(back[:, 0], p, rtol=1e-14)
    np.testing.assert_allclose(back[:, 1], p, atol=1e-15)


def test_thrust_sorts_and_reduces_in_a_thread(random):
    program = emulator.compile(
        """
        #include <thrust/execution_policy.h>
        #include <thrust/functional.h>
        #include <thrust/reduce.h>
        #include <thrust/sort.h>
        __global__ void k(int* x, int n, int* most) {
          int* row = x + threadIdx.x * n;
          thrust::stable_sort(thrust::seq, row, row + n, thrust::greater<int>());
          most[threadIdx.x] = thrust::reduce(thrust::seq, row, row + n, 0, thrust::maximum<int>());
        }
        """,
        "thrust.cu",
    )
    x, most = random.integers(0, 99, (4, 70)).astype(np.int32), ints(4)
    before = x.copy()
    program.launch("k", 1, 4, (x, 70, most))
    assert (x == np.sort(before, 1)[:, ::-1]).all() and (most == before.max(1)).all()
