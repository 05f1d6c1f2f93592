"""Runs with errors: the noise, the size of each op's error, and what must not be disturbed by it."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.derived.functions import FUNCTIONS, drawn
from touchstone.conformance.derived import ops, samples
from touchstone.conformance.derived.forms import KINDS, Form
from touchstone.conformance.derived.noise import Noise, Parts, hash_noise
from touchstone.conformance.derived.samples import answers, cast, exact_in, narrows, reached, sample, sampled
from touchstone.conformance.spec.budget import Expected, budget
from touchstone.conformance.spec.compare import compare

HALF = torch.bfloat16


def within(found, number, got, dtype=torch.float32):
    """The worst error of an output as a fraction of its budget."""
    expected = Expected(found.answers[number], dtype=dtype, extra=found.extra(number), drift=math.inf)
    return compare(got.to(dtype), expected, dtype).fraction


def test_noise_is_uniform_with_mean_0_and_variance_1():
    noise = hash_noise(torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), 12345)
    assert abs(float(noise.mean())) < 0.01
    assert abs(float(noise.var()) - 1) < 0.01
    assert float(noise.abs().max()) <= math.sqrt(3)
    counts = torch.histc(noise, 10, -math.sqrt(3), math.sqrt(3))
    assert float((counts / 20_000 - 1).abs().max()) < 0.05


def test_neighbouring_values_and_keys_have_unrelated_noise():
    values = torch.arange(100_000, dtype=torch.float64)
    one, other = hash_noise(values, 1), hash_noise(values, 2)
    assert abs(float((one * other).mean())) < 0.02
    assert abs(float((one[1:] * one[:-1]).mean())) < 0.02


def test_equal_values_err_alike():
    row = torch.randn(1, 50, dtype=torch.float64)
    noise = hash_noise(row.expand(4, 50), 7)
    assert bool((noise == noise[:1]).all())
    assert not bool((noise[0] == hash_noise(row, 8)[0]).any())


def test_noise_goes_by_the_value_wherever_it_lies():
    x = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    noise = hash_noise(x, 7)
    assert torch.equal(hash_noise(x.t(), 7).t(), noise)
    assert torch.equal(hash_noise(x[::2, 1], 7), noise[::2, 1])
    assert torch.equal(hash_noise(x[2, 3], 7), noise[2, 3])
    assert torch.equal(hash_noise(x, 7, 0.5), noise + 0.5)


def test_a_seed_gives_the_same_run_and_another_seed_another():
    function, values = FUNCTIONS["softmax"]
    runs = [sample(function, values, Noise(seed))[0] for seed in (3, 3, 4)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_right_versions_are_within_the_budget_and_16_bit_results_are_not(name):
    function, values = FUNCTIONS[name]
    found = sampled(function, values)
    assert not found.uneven
    for kind in KINDS:
        with torch.no_grad(), Form(kind):
            got = ops.tensors_of(function(*cast(values, torch.float32)))
        for number, one in enumerate(got):
            assert within(found, number, one) <= 1, kind
    if name != "max_pool":  # which moves values that are products of one rounding
        narrow = [t.to(HALF).float() for t in got]
        assert max(within(found, number, one) for number, one in enumerate(narrow)) > 1


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "log1p", "expm1"])
def test_other_forms_of_a_function_are_right_at_the_ends_too(name):
    x = torch.tensor([0.0, math.inf, -math.inf, math.nan, 1.0])
    with Form("forms"):
        got = getattr(torch, name)(x)
    torch.testing.assert_close(got, getattr(torch, name)(x), equal_nan=True)


def test_a_multivariate_gamma_may_be_off_near_its_poles():
    """It is a sum of log gamma at places half a unit apart, which are rounded before it is taken."""
    x = torch.tensor([1e-3, -4e-4, 2e-5, 0.5 + 1e-5, 1.0 - 1e-4, 7.3])
    found = sampled(lambda x: torch.mvlgamma(x, 3), [x])
    assert within(found, 0, torch.mvlgamma(x, 3)) <= 1
    assert within(found, 0, torch.mvlgamma(x * 1.00001, 3)) > 1


@pytest.mark.parametrize("name", ["matmul", "softmax", "layer_norm", "attention", "mlp", "conv2d", "var"])
def test_computing_in_16_bits_is_no_float32(name):
    function, values = FUNCTIONS[name]
    values = cast(cast(values, HALF), torch.float32)
    found = sampled(function, values)
    with torch.no_grad():
        got = ops.tensors_of(function(*cast(values, HALF)))
    assert within(found, 0, got[0].float()) > 10


# the transforms of F(4, 3): of data, of weights, and of products
DATA = [
    [4, 0, -5, 0, 1, 0],
    [0, -4, -4, 1, 1, 0],
    [0, 4, -4, -1, 1, 0],
    [0, -2, -1, 2, 1, 0],
    [0, 2, -1, -2, 1, 0],
    [0, 4, 0, -5, 0, 1],
]
WEIGHTS = [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]
PRODUCTS = [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]


def winograd(x, weight):
    """A convolution of 3 x 3 in tiles of 4 x 4, with 36 products a tile in place of 144."""
    data, weights, products = (torch.tensor(each, dtype=x.dtype) for each in (DATA, WEIGHTS, PRODUCTS))
    weights = weights / 24
    tiles = data @ x.unfold(2, 6, 4).unfold(3, 6, 4) @ data.T
    found = products @ torch.einsum("ncijab,kcab->nkijab", tiles, weights @ weight @ weights.T) @ products.T
    return found.transpose(3, 4).reshape(len(x), len(weight), x.shape[2] - 2, x.shape[3] - 2)


def test_a_convolution_may_be_computed_in_tiles():
    x, weight = drawn((2, 3, 18, 18), (8, 3, 3, 3))
    assert within(sampled(torch.nn.functional.conv2d, [x, weight]), 0, winograd(x, weight)) <= 1
    whole = [torch.round(t * 2).clamp(-2, 2).double() for t in (x, weight)]
    assert not torch.equal(
        winograd(*cast(whole, torch.float32)).double(), answers(torch.nn.functional.conv2d, whole)[0]
    )
    assert not exact_in(torch.nn.functional.conv2d, whole, torch.float32)
    assert exact_in(torch.nn.functional.conv2d, [whole[0], whole[1][..., :1, :1]], torch.float32)


def test_the_modulus_of_a_complex_number_is_rounded_and_that_of_a_real_one_is_not():
    a, b = drawn((50, 40), (50, 40))
    found = sampled(lambda a, b: torch.complex(a, b).abs(), [a, b])
    assert within(found, 0, torch.sqrt(a * a + b * b)) <= 1
    assert within(found, 0, torch.complex(a, b).abs() * (1 + 1e-5)) > 1
    assert not sampled(torch.abs, [a]).sigma[0].any()


def by_fourier(x, weight):
    size = x.shape[-2:]
    products = torch.fft.rfft2(x)[:, None] * torch.fft.rfft2(weight, s=size)[None].conj()
    found = torch.fft.irfft2(products.sum(2), s=size)
    return found[..., : size[0] - weight.shape[-2] + 1, : size[1] - weight.shape[-1] + 1]


@pytest.mark.parametrize("form", [winograd, by_fourier])
def test_transforms_leave_errors_where_a_convolution_sums_only_zeros(form):
    x, weight = torch.zeros(1, 3, 18, 18), drawn((8, 3, 3, 3))[0]
    x[0, 1, 9, 9] = 1.3
    zero = answers(torch.nn.functional.conv2d, [x, weight])[0] == 0
    left = form(x, weight)
    assert bool(left[zero].any())
    assert within(sampled(torch.nn.functional.conv2d, [x, weight]), 0, left) <= 1
    weight[:, :, :, :2] = 0
    weight[4:, 1] = 0
    assert within(sampled(torch.nn.functional.conv2d, [x, weight]), 0, form(x, weight)) <= 1


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_equal_terms_one_after_another_are_rounded_to_one_side(share):
    """All of them, or all but some."""
    x = torch.full((20000,), 0.6931472)
    x[: int(len(x) * share)] = drawn((20000,))[0][: int(len(x) * share)].abs()
    found = sampled(lambda x: x.mean(), [x])
    in_order = torch.from_numpy(np.add.accumulate(x.numpy(), dtype=np.float32))[-1] / len(x)
    assert within(found, 0, in_order) <= 1


@pytest.mark.parametrize("terms", [3840, 200000])
def test_terms_that_the_last_bits_of_their_sum_do_not_tell_apart_are_rounded_to_one_side_too(terms):
    off = {}
    for spread in (1e-7, 1e-5, 3e-4, 0.1):
        x = 0.6931472 * (1 + spread * drawn((terms,))[0])
        found = sampled(lambda x: x.mean(), [x])
        in_order = torch.from_numpy(np.add.accumulate(x.numpy(), dtype=np.float32))[-1] / terms
        assert within(found, 0, in_order) <= 1, spread
        off[spread] = float(found.sigma[0])
    assert off[1e-5] > 5 * off[0.1] and (terms < 10**5 or off[3e-4] > 5 * off[0.1])


def one_by_one(x):
    return torch.from_numpy(np.add.accumulate(x.numpy(), dtype=np.float32))


def at_0(x):
    return torch.zeros(len(x), dtype=torch.long)


IN_ORDER = {  # functions of a row of terms, and what they are where the terms are added one after another
    "cumsum": (lambda x: x.cumsum(0), one_by_one),
    "dot": (lambda x: x @ torch.full_like(x, 0.3), lambda x: one_by_one(x * 0.3)[-1]),
    "mm": (
        lambda x: x.expand(3, -1) @ torch.full_like(x, 0.3)[:, None].expand(-1, 2),
        lambda x: one_by_one(x * 0.3)[-1],
    ),
    "pool": (lambda x: torch.nn.functional.avg_pool1d(x[None], len(x)), lambda x: one_by_one(x)[-1] / len(x)),
    "index_add": (lambda x: x.new_zeros(2).index_add(0, at_0(x), x)[0], lambda x: one_by_one(x)[-1]),
    "scatter_add_": (lambda x: x.new_zeros(2).scatter_add_(0, at_0(x), x)[0], lambda x: one_by_one(x)[-1]),
    "scatter add": (lambda x: x.new_zeros(2).scatter(0, at_0(x), x, reduce="add")[0], lambda x: one_by_one(x)[-1]),
    "scatter_reduce": (
        lambda x: x.new_zeros(2).scatter_reduce(0, at_0(x), x, "mean", include_self=False)[0],
        lambda x: one_by_one(x)[-1] / len(x),
    ),
    "index_put": (lambda x: x.new_zeros(2).index_put((at_0(x),), x, accumulate=True)[0], lambda x: one_by_one(x)[-1]),
    "bincount": (lambda x: torch.bincount(at_0(x), x), lambda x: one_by_one(x)[-1]),
    "bag": (
        lambda x: torch.nn.functional.embedding_bag(torch.arange(len(x))[None], x[:, None]),
        lambda x: one_by_one(x)[-1] / len(x),
    ),
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_products_scans_pools_and_scatters_of_equal_terms_are_rounded_to_one_side_too(name):
    function, right = IN_ORDER[name]
    off = {}
    for spread in (0.0, 1e-6, 1.0):
        x = 0.6931472 * (1 + spread * drawn((9000,))[0])
        found = sampled(function, [x])
        assert within(found, 0, right(x).expand(found.answers[0].shape)) <= 1, spread
        off[spread] = float(found.sigma[0].max())
    assert off[1e-6] > 4 * off[1.0]


def test_a_sum_of_zeros_and_a_few_others_is_off_by_what_these_are():
    x = torch.zeros(4096)
    x[::1024] = 1.3
    few, all_ = (float(sampled(lambda x: x.sum(), [values]).sigma[0]) for values in (x, drawn((4096,))[0].abs()))
    assert few < all_ / drawn((4096,))[0].abs().sum() * x.sum() / 3


def test_a_sum_that_passes_over_nan_is_rounded_all_the_same():
    (x,) = drawn((12, 40))
    x[3, 5] = math.nan
    found = sampled(lambda x: torch.nansum(x, -1), [x])
    assert float(found.sigma[0][3]) > 0
    assert within(found, 0, torch.nansum(x.flip(-1), -1)) <= 1


@pytest.mark.parametrize("operand", [0, 1])
def test_nan_may_reach_in_a_convolution_as_far_as_transforms_do(operand):
    def function(x, weight):
        return torch.relu(torch.nn.functional.conv2d(x, weight))

    values = drawn((2, 3, 18, 18), (8, 3, 3, 3))
    assert not reached(function, values)
    values[operand][1, 1, 1, 1] = math.inf
    far = reached(function, values)[1][0]
    assert bool(far[torch.isnan(torch.relu(winograd(*values)))].isnan().all())
    assert bool(torch.isnan(far).view(2, 8, -1).all(2).sum() == (8 if operand == 0 else 2))


def skipped(function, *values, run=2):
    """Where a kernel that does not load what is multiplied by 0 may differ from the reference."""
    far, right = reached(function, values)[run][0], answers(function, values)[0]
    return ~torch.isclose(far, right, rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("seed", [0, 5])
def test_equal_rows_of_a_matrix_do_not_cancel_in_a_solution(seed):
    """Rows come again, so that the answer has zeros: what elimination is off by there is no function of the values."""
    generator, again = torch.Generator().manual_seed(seed), torch.arange(37) % 20
    a = torch.randn((20, 20), generator=generator).tril() + 6 * torch.eye(20)
    b = torch.randn((20, 5), generator=generator)
    values = [a[again][:, again].tril(), b[again]]

    def solved(a, b):
        return torch.linalg.solve_triangular(a, b, upper=False)

    found = sampled(solved, values)
    assert within(found, 0, solved(*values)) <= 1
    assert within(found, 0, solved(*values) + 1e-5) > 1


@pytest.mark.parametrize("rows", [1025, 5000])
@pytest.mark.parametrize("seed", range(1, 12, 2))
def test_a_solution_by_thousands_of_rows_of_which_four_differ_may_be_off_by_their_number(seed, rows):
    """Rows that are equal are rounded to one side. By how much a QR of them is off differs from one processor to
    another."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(4, 3, generator=generator).repeat(rows, 1)[:rows] for _ in range(2))
    found = sampled(lambda a, b: torch.linalg.lstsq(a, b).solution, [a, b])
    q, r = torch.linalg.qr(a)
    assert within(found, 0, torch.linalg.solve_triangular(r, q.mT @ b, upper=True)) <= 1


def test_a_solution_by_a_thousand_rows_that_differ_may_be_off_by_less():
    a, b = drawn((1025, 3), (1025, 3))
    found = sampled(lambda a, b: torch.linalg.lstsq(a, b).solution, [a, b])
    q, r = torch.linalg.qr(a)
    answer = torch.linalg.solve_triangular(r, q.mT @ b, upper=True)
    assert within(found, 0, answer) <= 1
    assert within(found, 0, answer * (1 + 1e-4)) > 1


def test_eigenvalues_of_a_matrix_with_equal_rows_may_be_off_by_more():
    def spectrum(a):
        return torch.linalg.eigvalsh(a @ a.mT)

    a = drawn((5, 5))[0].repeat(205, 1)
    found = sampled(spectrum, [a])
    assert within(found, 0, spectrum(a)) <= 1
    assert within(found, 0, spectrum(a) * (1 + 1e-4)) > 1


def test_what_counts_as_0_in_a_solution_is_as_in_float32():
    """Numbers about a large one, in a matrix with more columns than rows: its other singular values are rounding."""
    a, b = (1e5 + t for t in drawn((12, 257), (12, 3)))
    found = sampled(lambda a, b: torch.linalg.lstsq(a, b).solution, [a, b])
    assert within(found, 0, torch.linalg.lstsq(a, b).solution) <= 1


def test_nan_may_reach_in_a_solution_as_far_as_another_order_of_elimination_takes_it():
    a, b = drawn((12, 12), (12, 3))
    b[3, 1] = math.inf
    [answer] = answers(torch.linalg.solve, [a, b])
    assert any(bool(torch.isnan(run[0]).all()) for run in reached(torch.linalg.solve, [a, b]))
    assert not torch.isnan(answer).all()


def in_two_parts(a, b):
    """A product of float32 as tensor cores make it: of what tf32 holds of each operand, and of the rest."""
    (a0, a1), (b0, b1) = ((t0, t - t0) for t in (a, b) for t0 in [(t.view(torch.int32) & ~0x1FFF).view(t.dtype)])
    return a0 @ b0 + (a0 @ b1 + a1 @ b0)


@pytest.mark.parametrize("operand", [1, 2])
def test_an_infinity_in_attention_is_nan_where_its_products_are_made_of_parts(operand):
    values = cast(drawn((1, 1, 6, 4), (1, 1, 6, 4), (1, 1, 6, 4)), torch.float32)
    values[operand][..., 3, 1] = math.inf
    got = in_two_parts(torch.softmax(in_two_parts(values[0], values[1].mT) / 2, -1), values[2])
    attention = torch.nn.functional.scaled_dot_product_attention
    [right], far = answers(attention, values), reached(attention, values)
    assert bool((torch.isnan(got) & ~torch.isnan(right)).any())
    assert bool(torch.stack([torch.isnan(run[0]) for run in far]).any(0)[torch.isnan(got)].all())
    assert not any(bool(torch.isnan(run[0]).all()) for run in reached(torch.matmul, [values[0], values[1].mT]))


def test_what_is_multiplied_by_0_need_not_spread_nan():
    def hidden(q, k, v):
        scores = (q @ k.mT).masked_fill(torch.ones(6, 6).triu(1) == 1, -math.inf)
        return torch.softmax(scores, -1) @ v

    def fused(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    q, k, v = drawn((6, 4), (6, 4), (6, 4))
    v[3, 1], v[4, 2] = math.nan, math.inf
    below = torch.arange(6)[:, None] < torch.tensor([0, 3, 4, 0])  # rows that do not see the key
    assert torch.equal(skipped(hidden, q, k, v), below)
    assert bool((skipped(fused, *(t[None, None] for t in (q, k, v)))[0, 0] <= below).all())
    a, b, c = drawn((5,), (5, 4), (3, 4))
    b[2, 1] = -math.inf
    assert skipped(lambda a, b: torch.diag(a) @ b, a, b).nonzero().tolist() == [[0, 1], [1, 1], [3, 1], [4, 1]]
    assert not bool(skipped(lambda b, c: torch.addmm(b[0], c, b.mT[:, :4]), b[1:], c).any())
    a[1:3] = math.nan
    assert skipped(lambda a: (a * (torch.arange(5) > 1)).cumsum(0), a).tolist() == [False, True, False, False, False]
    x, weight = drawn((1, 2, 6, 6), (2, 2, 1, 1))
    x[0, 0, 3, 3], weight[1, 0] = math.nan, 0
    found = skipped(torch.nn.functional.conv2d, x, weight, torch.ones(2))
    assert found.nonzero().tolist() == [[0, 1, 3, 3]]


def test_a_0_that_comes_of_an_infinity_hides_none():
    x, weight = drawn((3, 8), (8,))
    x[1, 2] = math.inf
    for function in (FUNCTIONS["rms_norm"][0], lambda x, weight: torch.softmax(x, -1) * weight):
        for run in range(4):
            assert not bool(skipped(function, x, weight, run=run).any())


def test_a_kernel_that_adds_in_another_order_may_have_one_infinity_where_torch_has_both():
    x, weight, bias = drawn((3, 8), (5, 8), (5,))
    x[1, 2], x[2, 3] = math.inf, math.nan
    linear = torch.nn.functional.linear
    for function in (
        lambda *values: linear(*values).sum(1),
        lambda *values: torch.tanh(linear(*values)[:, None].mean(2)).view(-1),
        lambda *values: torch.nn.functional.avg_pool1d(linear(*values), 5).view(-1),
        lambda *values: (linear(*values) @ torch.ones(5, 1, dtype=torch.float64)).view(-1),
        lambda x, weight, _: torch.cdist(x[:, None], weight, compute_mode="use_mm_for_euclid_dist").sum(2).view(-1),
    ):
        assert skipped(function, x, weight, bias, run=3).tolist() == [False, True, False]
    assert not bool(skipped(linear, x, weight, bias, run=3).any())


def test_no_rule_is_missing_for_what_models_are_made_of():
    for name, (function, values) in FUNCTIONS.items():
        mode = Noise(0)
        sample(function, values, mode)
        assert not mode.unknown, name


def test_an_op_without_a_rule_is_named():
    mode = Noise(0)
    sample(torch.nn.functional.pdist, drawn((4, 3)), mode)
    assert any("pdist" in name for name in mode.unknown)


def test_errors_follow_aliases_through_ops_in_place():
    def in_place(x):
        y = x.clone()
        y[:, ::2].mul_(3.0).add_(1.0)
        y.exp_()
        y[:, 1] = y[:, 0] - y[:, 2]
        return y

    (x,) = drawn((12, 40))
    found = sampled(in_place, [x])
    assert not bool((found.sigma[0] == 0).any())
    difference = found.sigma[0][:, 1] >= found.sigma[0][:, 0] * 0.2
    assert bool(difference.double().mean() > 0.9)  # the difference inherits the errors of both
    assert within(found, 0, in_place(x)) <= 1


def test_exact_ops_add_no_error():
    def moved(x):
        return torch.cat([x.t(), x.flip(0).t()], 1).clamp(-1, 1).relu().amax(0)

    found = sampled(moved, drawn((12, 40)))
    assert not bool(found.sigma[0].any())
    assert not bool(found.unstable[0].any())


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_pooling_the_largest_and_putting_them_back_add_no_error(dims):
    pool, back = getattr(F, f"max_pool{dims}d"), getattr(F, f"max_unpool{dims}d")
    found = sampled(lambda x: back(*pool(x, 2, return_indices=True), 2), drawn((2, 3, *[6] * dims)))
    assert not found.unknown and not found.sigma[0].any()


@pytest.mark.parametrize("reduce", ["amax", "amin"])
@pytest.mark.parametrize("in_place", [True, False])
def test_the_largest_that_are_scattered_to_one_place_add_no_error(reduce, in_place):
    """Beside -1e9 where there are none, as a softmax over the edges of a graph has it."""
    at, (x,) = torch.arange(40) % 7, drawn((40,))

    def function(x):
        least = torch.full((8,), -1e9 if reduce == "amax" else 1e9, dtype=x.dtype)
        return (least.scatter_reduce_ if in_place else least.scatter_reduce)(0, at, x, reduce)

    found = sampled(function, [x])
    assert not found.sigma[0].any() and not found.unstable[0].any()
    assert sampled(lambda x: torch.zeros(8, dtype=x.dtype).scatter_reduce(0, at, x, "sum"), [x]).sigma[0].any()


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize("in_place", [True, False])
def test_what_a_scatter_adds_or_multiplies_is_rounded_and_what_it_copies_is_not(in_place):
    at, (x,) = torch.arange(40) % 7, drawn((40,))

    def scattered(x, **reduce):
        ones = torch.ones(8, dtype=x.dtype)
        return (ones.scatter_ if in_place else ones.scatter)(0, at[: len(x)], x, **reduce)

    for reduce in ("add", "multiply"):
        found = sampled(lambda x, reduce=reduce: scattered(x, reduce=reduce), [x])
        assert found.sigma[0][:7].all() and not found.unknown
    assert not sampled(scattered, [x[:7]]).sigma[0].any()


def test_products_of_whole_numbers_may_be_off_but_zeros_stay():
    found = sampled(lambda x: x * 0.0, drawn((3, 4)))
    assert not bool(found.sigma[0].any())


def test_what_is_counted_in_whole_numbers_is_exact():
    (x,) = drawn((12, 40))
    found = sampled(lambda x: ((x * 3).floor() + 1).long() + (x * 3).floor().sub(2).long(), [x])
    assert not bool(found.unstable[0].any())
    assert bool((sampled(lambda x: x + 1, [x]).sigma[0] > 0).all())


def test_casts_that_raise_precision_are_lifted():
    def wide(x):
        return (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt().to(x.dtype) * x

    (x,) = drawn((12, 40))
    x = x.double() * (1 + 2.0**-40)
    exact = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    assert torch.allclose(answers(wide, [x])[0], exact, rtol=1e-14, atol=0)


def test_a_dtype_by_position_is_lifted_too():
    backward = lambda x, y: torch.ops.aten._softmax_backward_data(x, y.softmax(-1), 1, torch.float32)  # noqa: E731
    x, y = drawn((12, 40), (12, 40))
    exact, p = answers(backward, [x, y])[0], y.double().softmax(-1)
    assert exact.dtype == torch.float64
    assert torch.allclose(exact, p * (x - (p * x).sum(-1, keepdim=True)), rtol=0, atol=1e-12)
    assert torch.allclose(sample(backward, [x, y], Parts())[0], exact, rtol=0, atol=1e-12)
    x[3, 5] = math.nan
    assert {run[0].dtype for run in reached(backward, [x, y])} == {torch.float64}


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="this torch has no linear_cross_entropy")
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_a_loss_of_a_product_in_parts_is_off_as_the_loss_of_a_product(reduction):
    x, rows, bias = drawn((64, 8), (9, 8), (9,))
    target = (x @ rows.mT + bias).argmax(-1)  # where the loss is near 0, and the sum of exponentials near 1
    target[::7] = 4
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=16)

    def in_parts(x, rows, bias):
        return F.linear_cross_entropy(
            x, rows, target, linear_bias=bias, ignore_index=4, reduction=reduction, options=options
        )

    def whole(x, rows, bias):
        return F.cross_entropy(F.linear(x, rows, bias), target, ignore_index=4, reduction=reduction)

    values = [x, rows, bias]
    one, other = sampled(in_parts, values), sampled(whole, values)
    assert not one.unknown and torch.allclose(one.answers[0], other.answers[0], rtol=1e-12, atol=1e-12)
    assert 0.5 < float((one.sigma[0] / other.sigma[0]).nan_to_num(1, 1, 1).mean()) < 2
    for form in (in_parts, whole):
        assert within(one, 0, form(*values)) <= 1 < within(one, 0, form(*(t.bfloat16().float() for t in values)))
    weighted = lambda *given: F.linear_cross_entropy(*given[:2], target % 5, weight=given[2], options=options)  # noqa: E731
    for classes in (12, 5):  # of 9
        given = [x, rows, drawn((classes,))[0].abs()]
        assert within(sampled(weighted, given), 0, weighted(*given)) <= 1


def test_intermediates_that_the_reference_narrows_itself_are_seen():
    x, weight = drawn((12, 40), (40,))

    def narrowing(x, weight):
        return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True))).to(x.dtype) * weight

    def at_the_end(x, weight):
        return (x.float() * weight.float()).to(x.dtype)

    assert narrows(narrowing, [x, weight], HALF)
    assert not narrows(at_the_end, [x, weight], HALF)
    assert not narrows(lambda x, weight: x * weight, [x, weight], HALF)


def test_a_product_that_is_an_output_is_rounded_once():
    function, values = FUNCTIONS["matmul"]
    values = cast(cast(values, HALF), torch.float32)
    for same in (function, lambda a, b: torch.relu(function(a, b)), lambda a, b: function(a, b).t().contiguous()):
        for stored in ("dots", "every"):
            found = sampled(same, values, store=HALF, stored=stored)
            allowed = budget(Expected(found.answers[0], extra=found.extra(0)), HALF)
            once = 0.75 * 2.0**-7 * found.answers[0].abs()
            big = found.answers[0].abs() > 0.1
            assert float((allowed / once)[big].max()) < 1.2
    again = sampled(lambda a, b: (a @ b) * 1.7, values, store=HALF)  # stored, and rounded once more
    big = again.answers[0].abs() > 0.1
    assert float(again.extra(0)[big].median()) > 0.5 * float((2.0**-7 * again.answers[0].abs())[big].median())


def test_stored_intermediates_widen_the_budget_only_of_16_bits():
    function, values = FUNCTIONS["mlp"]
    values = cast(cast(values, HALF), torch.float32)
    wide, dots, every = (
        sampled(function, values, **options) for options in ({}, {"store": HALF}, {"store": HALF, "stored": "every"})
    )
    medians = [float(found.sigma[0].median()) for found in (wide, dots, every)]
    assert medians[0] < medians[1] / 20
    assert medians[1] < medians[2]


def test_whole_numbers_are_found_to_be_exact_by_themselves():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(0, 3, shape, generator=generator).double() for shape in ((12, 40), (40, 9)))
    assert exact_in(lambda a, b: torch.relu(a @ b), [a, b], torch.bfloat16)
    assert exact_in(lambda a, b: (a @ b).sum(-1), [a, b], torch.float32)
    assert not exact_in(lambda a, b: (a @ b).sum(-1), [a * 100, b], torch.bfloat16)  # beyond what bfloat16 holds
    assert not exact_in(lambda a, b: (a @ b) / 3, [a, b], torch.float32)
    assert not exact_in(lambda a, b: torch.softmax(a @ b, -1), [a, b], torch.float32)
    assert not exact_in(lambda a, b: (a + 0.5) @ b, [a, b], torch.float32)


def test_values_near_a_jump_are_unstable_and_others_are_not():
    steps = sampled(lambda x: torch.sign(x - x.mean()), [torch.tensor([-1.0, 0.1, 0.1 + 1e-6, 1.2, 0.1])])
    assert not bool(steps.unstable[0][0]) and not bool(steps.unstable[0][3])
    ties = sampled(lambda x: (x * 0.1).argmax(-1), [torch.tensor([[1.0, 3.0, 3.0], [1.0, 2.0, 3.0]])])
    assert ties.unstable[0].tolist() == [False, False]  # equal values err alike: the first wins in every kernel
    near = sampled(lambda x: (x * 0.1).argmax(-1), [torch.tensor([[1.0, 3.0, 3.0 + 2**-22], [1.0, 2.0, 3.0]])])
    assert near.unstable[0].tolist() == [True, False]
    inputs = sampled(lambda x: (x.argmax(-1), x > 0.5), drawn((12, 40)))
    assert not any(bool(t.any()) for t in inputs.unstable)


def test_where_errors_make_a_matrix_singular_nothing_is_judged():
    square = drawn((12, 5))[0].double() @ drawn((12, 5))[0].T.double()
    for least, unstable in ((1e-9, True), (1.0, False)):
        found = sampled(torch.linalg.cholesky, [square + least * torch.eye(12)])
        assert bool(found.unstable[0].all()) is unstable and bool(found.unstable[0].any()) is unstable


def largest_count(x):
    """As many elements as are above the largest but one: none where rounding makes it as large as that."""
    count = (1 + x > x.amax(-1, keepdim=True)).sum(-1, keepdim=True)
    return x.gather(-1, count - 1)


def test_where_stored_intermediates_make_the_reference_raise_there_is_no_further_answer():
    x = torch.full((3, 8), -900.0)
    x[:, 0] = 900.0
    with pytest.raises(RuntimeError, match="out of bounds"):
        largest_count(x.bfloat16())
    found = sampled(largest_count, [x], store=torch.bfloat16, stored="every")
    assert found.failed and bool(found.unstable[0].all())
    assert not sampled(largest_count, [x]).unstable[0].any()


def test_what_every_run_raises_is_raised():
    def small(x):
        if float((x + 1).max()) != float(x.max()) + 1:
            raise ValueError("it is not as expected")
        return x

    with pytest.raises(ValueError, match="not as expected"):
        sampled(small, [torch.tensor([0.1, 0.7])])


def test_control_flow_by_values_is_followed():
    def either(x):
        return x / x.abs().max() if x.sum() > 0 else x * 2

    for sign in (1, -1):
        (x,) = drawn((12, 40))
        x = sign * x.abs()
        found = sampled(either, [x])
        assert within(found, 0, either(x)) <= 1


def test_the_margin_is_that_of_students_t():
    """By its density, summed."""
    scale = math.gamma(8.5) / math.gamma(8) / math.sqrt(16 * math.pi)
    t = torch.arange(0, 60, 1e-4, dtype=torch.float64)
    beyond = (scale * (1 + t * t / 16) ** -8.5 * 1e-4).flip(0).cumsum(0).flip(0)
    for elements in (1, 100, 10_000, 1_000_000):
        level = 0.5 / (samples.RARE * elements)
        quantile = float(t[int((beyond > level).sum())])
        assert samples.margin(elements) == pytest.approx(quantile / NormalDist().inv_cdf(1 - level), rel=0.01)


@pytest.mark.parametrize("name", ["group_norm", "attention", "mlp"])
def test_a_kernel_whose_ops_err_more_than_those_of_samples_is_within_the_budget(name):
    """Half as much again, and a single op may err several times as much: of many elements sigma, of few samples, is
    too small for some."""
    function, values = FUNCTIONS[name]
    for seed in range(3):
        found = sampled(function, values, seed=seed)
        for other in range(20):
            got = sample(function, values, Noise(5000 + other + 100 * seed, scale=1.5))[0]
            assert bool(((got - found.answers[0]).abs() <= found.extra(0)).all())


@pytest.mark.parametrize("name", ["max_pool", "softmax", "recurrent"])
def test_samples_that_are_there_are_not_run_again(name, monkeypatch):
    function, values = FUNCTIONS[name]
    whole, ran = sampled(function, values, amplified=12), []
    earlier = sampled(function, values, amplified=4)
    before = earlier.reach[0].clone()
    monkeypatch.setattr(samples, "Noise", lambda *args, **kwargs: ran.append(1) or Noise(*args, **kwargs))
    more = sampled(function, values, amplified=12, earlier=earlier)
    assert len(ran) == 8
    for kind in ("answers", "sigma", "unstable"):
        assert torch.equal(getattr(more, kind)[0], getattr(whole, kind)[0])
    assert bool((more.reach[0] >= before).all())
    if whole.reach[0].any():
        assert 0.8 < float(more.reach[0].mean() / whole.reach[0].mean()) < 1.25
    assert torch.equal(earlier.reach[0], before) and earlier.runs == 20


def test_a_function_may_lean_the_same_way_in_every_step():
    """As an exp does that is two units in the last place too large for all arguments."""

    def product(x, lean=0.0):
        found = torch.ones_like(x[0])
        for step in x:
            found = found * (torch.exp(step) * (1 + lean))
        return found

    (x,) = drawn((128, 50))
    x = x / 10
    found = sampled(product, [x])
    right, wrong = (within(found, 0, product(x.double(), lean), torch.float64) for lean in (2.0**-22, 2.0**-18))
    assert right < 1 < wrong


IN_PLACE = {  # an op that writes its first operand, and the same anew
    "lerp_": (lambda x, y, z: x.clone().lerp_(y, z), lambda x, y, z: x.lerp(y, z)),
    "addcmul_": (lambda x, y, z: x.clone().addcmul_(y, z), lambda x, y, z: x.addcmul(y, z)),
    "addmm_": (lambda x, y, z: x.clone().addmm_(y, z), lambda x, y, z: x.addmm(y, z)),
    "cumsum_": (lambda x, y, z: (y * z).cumsum_(0), lambda x, y, z: (y * z).cumsum(0)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_is_written_in_place_is_off_by_as_much_as_anew(name):
    x, y, z = drawn((30, 30), (30, 30), (30, 30))
    values = [x, -x * (1 + 1e-3 * y), 0.5 + 1e-3 * z] if name == "lerp_" else [x, y, z]  # whose results cancel
    written, anew = (sampled(function, values) for function in IN_PLACE[name])
    assert not written.unknown
    assert 0.7 < float(written.sigma[0].mean() / anew.sigma[0].mean()) < 1.4
    assert within(written, 0, IN_PLACE[name][0](*values)) <= 1


@pytest.mark.parametrize("function", [torch.linalg.cross, torch.cross])
def test_what_is_left_of_a_cross_product_of_parallel_vectors_is_off_as_its_products_are(function):
    """One of two equal products is rounded where the other is part of a fused multiply-add."""
    signs = torch.tensor([[1.0, -1, 1], [1, 1, 0], [-1, 1, 1], [0, -1, -1]])
    for a in (drawn((50, 3))[0], -1.5268 * signs):
        for b in (a, 2 * a, 1.2768 * a.sign()):
            first, second = a.double().roll(-1, 1) * b.double().roll(-2, 1), a.roll(-2, 1) * b.roll(-1, 1)
            found = sampled(lambda x, y: function(x, y, dim=1), [a, b])
            assert not found.unknown
            assert 0 < within(found, 0, (first - second.double()).float()) <= 1


@pytest.mark.parametrize("function", [torch.linalg.cholesky, torch.cholesky, torch.linalg.pinv, torch.cholesky_inverse])
def test_factors_and_inverses_of_a_matrix_are_off_as_its_condition_says(function):
    (x,) = drawn((20, 20))
    matrix = x @ x.mT + 0.01 * torch.eye(20)
    found = sampled(function, [matrix])
    assert not found.unknown
    assert 1e-3 < within(found, 0, function(matrix)) <= 1


def test_losses_over_time_are_rounded_at_each_step_to_one_side_where_steps_are_equal():
    step = drawn((1, 16, 20))[0].log_softmax(-1)
    targets, lengths = 1 + torch.arange(16 * 30).reshape(16, 30) * 7 % 19, torch.full((16,), 50)
    loss = lambda x: F.ctc_loss(x, targets, lengths, 10 + torch.arange(16), reduction="none")  # noqa: E731
    for values in (step.expand(50, 16, 20).contiguous(), drawn((50, 16, 20))[0].log_softmax(-1)):
        found = sampled(loss, [values])
        assert not found.unknown
        assert within(found, 0, loss(values)) <= 1 < within(found, 0, loss(values.bfloat16().float()))


P = torch.special
IN_FLOAT32 = {  # a function, and where torch's own in float32 is off by many units of its answer
    "airy_ai": (P.airy_ai, (1.5, 2.1)),
    "scaled_modified_bessel_k0": (P.scaled_modified_bessel_k0, (0.9, 1.0)),
    "gammainc": (lambda x: P.gammainc(x + 16, x), (8, 16)),
    "gammaincc": (lambda x: P.gammaincc(x * 1e-2, x), (0.5, 1.1)),
    "chebyshev_polynomial_t": (lambda x: P.chebyshev_polynomial_t(x, torch.tensor(12)), (-1, 1)),
    "shifted_chebyshev_polynomial_w": (lambda x: P.shifted_chebyshev_polynomial_w(x, torch.tensor(6)), (0, 1)),
    "laguerre_polynomial_l": (lambda x: P.laguerre_polynomial_l(x, torch.tensor(6)), (-1, 1)),
}


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_torchs_special_functions_are_within_the_budget_and_rounded_operands_are_not(name):
    function, (least, most) = IN_FLOAT32[name]
    x = torch.linspace(least, most, 4000)
    found = sampled(function, [x])
    assert not found.unknown
    assert within(found, 0, function(x)) <= 1 < within(found, 0, function(x.half().float()))


def test_singular_vectors_and_eigenvectors_may_have_either_sign():
    (x,) = drawn((9, 5))
    found = sampled(lambda x: torch.linalg.svd(x, full_matrices=False), [x])
    assert bool(found.unstable[0].all() and found.unstable[2].all()) and not found.unstable[1].any()
    whole = sampled(lambda x: torch.linalg.svd(x), [x])  # of which the last vectors may be any basis of what is left
    assert float(whole.sigma[0][:, 5:].min()) > 1e-3
    symmetric = x.mT @ x
    found = sampled(torch.linalg.eigh, [symmetric])
    assert bool(found.unstable[1].all()) and not found.unstable[0].any()


@pytest.mark.parametrize("factors", [torch.linalg.lu, torch.linalg.lu_factor_ex], ids=["lu", "lu_factor_ex"])
def test_pivots_that_rounding_does_not_tell_apart_are_left_open_from_the_first_on(factors):
    (x,) = drawn((2, 6, 4))
    regular = [*sampled(factors, [x]).unstable]
    assert not any(t.any() for t in regular)
    x[1, 1:] *= x[1, :1, :1] / x[1, 1:, :1] * torch.tensor([0.5, 0.7, -1, 0.1, 0.2]).unsqueeze(-1)  # first: 0 or 3
    equal = x.clone()
    equal[1, :, 3] = equal[1, :, :3].sum(-1)  # and the last pivot is 0
    open_ = sampled(factors, [x]).unstable
    singular = sampled(factors, [equal]).unstable
    for number, t in enumerate(open_):
        assert not t[0].any() and t[1].all() == (t.ndim > 1)
        assert singular[number][1].all() and not singular[number][0].any()
    late = drawn((6, 4))[0]
    late[:, 3] = late[:, :3].sum(-1)
    p, *_ = sampled(torch.linalg.lu, [late]).unstable
    assert p[:, 3:].all() and not p[:, :3].any()


def test_factors_that_hang_on_no_choice_are_determined():
    (x,) = drawn((6, 4))
    x[:, 3] = x[:, :3].sum(-1)

    def product(x):
        p, lower, upper = torch.linalg.lu(x)
        return p @ lower @ upper

    found = sampled(product, [x])
    assert not found.unstable[0].any() and float(found.sigma[0].max()) < 1e-5


def rebuilt(x, turn=1):
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    return (turn * u * s) @ (turn * vh)


def test_what_does_not_depend_on_the_signs_of_vectors_is_determined():
    (x,) = drawn((9, 5))
    for function in (rebuilt, lambda x: (lambda v: v @ v.mT)(torch.linalg.eigh(x @ x.mT)[1][:, -2:])):
        found = sampled(function, [x])
        assert not found.unstable[0].any() and float(found.sigma[0].max()) < 1e-5
    assert within(sampled(rebuilt, [x]), 0, rebuilt(x, -1)) <= 1


def test_a_recurrence_in_one_call_is_allowed_the_gates_of_a_library():
    """cuDNN's GRUs and LSTMs are up to 3 times as far off as gates by exponentials are allowed."""
    torch.manual_seed(0)
    layer = torch.nn.GRU(8, 16, 2, batch_first=True).double()
    by_steps = [torch.nn.GRUCell(8, 16).double(), torch.nn.GRUCell(16, 16).double()]
    for number, cell in enumerate(by_steps):
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(cell, name).data.copy_(getattr(layer, f"{name}_l{number}").data)

    def in_steps(x):
        for cell in by_steps:
            state, out = x.new_zeros(x.shape[0], 16), []
            for step in x.unbind(1):
                state = cell(step, state)
                out.append(state)
            x = torch.stack(out, 1)
        return x

    x = torch.randn(3, 7, 8, dtype=torch.float64)
    whole, steps = sampled(lambda x: layer(x)[0], [x]), sampled(in_steps, [x])
    torch.testing.assert_close(whole.answers[0], steps.answers[0])
    assert 4 < float(whole.extra(0).mean() / steps.extra(0).mean()) < 16


def test_a_matrix_beyond_float32_may_be_nan_as_a_whole():
    a, tau = torch.full((1, 5, 5), 3000.0, dtype=torch.float64), torch.full((1, 5), 3000.0, dtype=torch.float64)
    a = torch.cat([a + torch.arange(5.0, dtype=torch.float64), torch.eye(5, dtype=torch.float64)[None]])
    tau = torch.cat([tau, torch.ones(1, 5, dtype=torch.float64)])
    found = sampled(torch.linalg.householder_product, [a, tau])
    assert float(found.answers[0][0].abs().max()) > torch.finfo(torch.float32).max
    assert [bool(one.any()) for one in found.flips[0]] == [bool(one.all()) for one in found.flips[0]] == [True, False]
