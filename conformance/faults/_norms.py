"""What the mutants and known-good kernels of the norms share: right and wrong ways to normalise a row, to apply weight
and bias, and to differentiate both.

A normaliser `hat(x, eps)` takes rows of the last axis to x̂ = (x − mean)·rstd; that of an rms norm has no mean.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from touchstone.conformance.faults import ALL
from touchstone.conformance.faults._rows import (
    F16,
    F32,
    FIRST_TILE_TWICE,
    LAST_TILE,
    LOST_UPDATES,
    NARROW_SUMS,
    WRONG_SUMS,
    Flaw,
    first,
    row_sum,
    through,
)

Hat = Callable[[torch.Tensor, float], torch.Tensor]  # rows (..., n) and eps -> x̂


def two_pass(x, mean, total):
    return total((x - mean).square()) / x.shape[-1]


def one_pass(x, mean, total):
    return total(x * x) / x.shape[-1] - mean * mean


def _unbiased(x, mean, total):
    return total((x - mean).square()) / (x.shape[-1] - 1)


def _with_padding(x, mean, total):
    """Lanes past the last column, up to a whole tile (of 32, say), hold 0 and count as (0 − mean)²."""
    return two_pass(x, mean, total) + (_padded(x.shape[-1]) - x.shape[-1]) / max(x.shape[-1], 1) * mean.square()


def _padded(cols):
    return -(-cols // 32) * 32


def _mean_over_padded(x):
    return row_sum(x) * (x.shape[-1] / max(_padded(x.shape[-1]), 1))


def _centred_root_only(x, eps):
    return x * root(two_pass(x, x.mean(-1, keepdim=True), row_sum), eps)


def _over_padded(x, mean, total):
    return total((x - mean).square()) / _padded(x.shape[-1])


def root(variance, eps):
    return (variance + eps).rsqrt()


def _twelve_bits(rstd):
    """`rstd` to a relative 2^-12, as a hardware estimate without a Newton step."""
    return ((rstd.contiguous().view(torch.int32) + 0x400) & ~0x7FF).view(torch.float32)


def normalise(
    x, eps, *, centred=True, total=row_sum, mean_total=None, variance=two_pass, rstd=root, statistic=lambda s: s
):
    """x̂ over the last axis; the keywords are what mutants change. `mean_total`: the sum for the mean, where it
    differs."""
    mean = statistic((mean_total or total)(x) / x.shape[-1]) if centred else x.new_zeros((*x.shape[:-1], 1))
    return (x - mean) * statistic(rstd(variance(x, mean, total), eps))


def welford(x, eps, tile=8, between=True, weighted=True):
    """Chan's merge of the statistics of tiles of columns. Without `between` the distance of their means is left out of
    the variance; without `weighted` every tile counts alike in the mean."""
    n, mean, m2 = 0, x.new_zeros((*x.shape[:-1], 1)), x.new_zeros((*x.shape[:-1], 1))
    for part in x.split(tile, -1) if x.shape[-1] else ():
        more = part.shape[-1]
        other = part.mean(-1, keepdim=True)
        delta = other - mean
        m2 = m2 + (part - other).square().sum(-1, keepdim=True)
        if between:
            m2 = m2 + delta.square() * (n * more / (n + more))
        mean = mean + delta * ((more if weighted else tile) / (n + (more if weighted else tile)))
        n += more
    return (x - mean) / torch.sqrt(m2 / max(n, 1) + eps)


def hat_flaws(centred: bool) -> dict[str, Flaw]:
    """Wrong normalisers: of a layer or group norm if `centred`, else of an rms norm."""
    hat = partial(normalise, centred=centred)
    found = {
        **{
            name: Flaw(flaw.kind, flaw.about, partial(hat, total=flaw.part), flaw.dtypes)
            for name, flaw in WRONG_SUMS.items()
        },
        "unbiased": Flaw("variance", "it divides by cols - 1 under the root", partial(hat, variance=_unbiased)),
        "divides_by_padded_cols": Flaw(
            "variance", "it divides by cols rounded up to 32 under the root", partial(hat, variance=_over_padded)
        ),
        "eps_outside_the_root": Flaw(
            "eps", "eps is added after the root is taken", partial(hat, rstd=lambda v, eps: 1 / (v.sqrt() + eps))
        ),
        "eps_left_out": Flaw("eps", "eps is left out", partial(hat, rstd=lambda v, eps: v.rsqrt())),
        "eps_squared": Flaw("eps", "eps is squared", partial(hat, rstd=lambda v, eps: (v + eps * eps).rsqrt())),
        "eps_is_a_lower_limit": Flaw(
            "eps",
            "eps is a lower limit instead of a summand",
            partial(hat, rstd=lambda v, eps: v.clamp_min(eps).rsqrt()),
        ),
        "eps_added_twice": Flaw("eps", "eps is added twice", partial(hat, rstd=lambda v, eps: (v + 2 * eps).rsqrt())),
        "eps_hard_coded": Flaw(
            "eps", "eps is 1e-8 whatever is asked for", partial(hat, rstd=lambda v, eps: (v + 1e-8).rsqrt())
        ),
        "eps_0_is_no_eps": Flaw(
            "eps",
            "eps = 0 is taken for none given: `eps or default`",
            partial(hat, rstd=lambda v, eps: root(v, eps or (1e-5 if centred else 1e-6))),
        ),
        "no_root": Flaw(
            "formula", "it divides by the variance, not by its root", partial(hat, rstd=lambda v, eps: 1 / (v + eps))
        ),
        "root_estimated": Flaw(
            "precision",
            "the reciprocal root has 12 bits",
            partial(hat, rstd=lambda v, eps: _twelve_bits(root(v, eps))),
            F32,
        ),
        "statistics_in_fp16": Flaw(
            "precision",
            "its statistics are stored in float16",
            partial(hat, statistic=through(torch.float16)),
            ALL if centred else F32 + F16,
        ),
        "statistics_in_bf16": Flaw(
            "precision", "its statistics are stored in bfloat16", partial(hat, statistic=through(torch.bfloat16))
        ),
        "statistics_of_the_previous_row": Flaw(
            "formula", "its statistics are those of the row before", partial(hat, statistic=lambda s: s.roll(1, 0))
        ),
        "statistics_of_row_0": Flaw(
            "formula", "its statistics are those of row 0", partial(hat, statistic=lambda s: s[:1].expand_as(s))
        ),
        "nan_left_out": Flaw(
            "special", "its statistics leave out NaN", lambda x, eps: hat(x.nan_to_num(0.0), eps) + 0 * x
        ),
    }
    if not centred:
        return {
            **found,
            "mean_subtracted": Flaw("formula", "the mean is subtracted, as in a layer norm", normalise),
            "variance_for_the_mean_square": Flaw(
                "formula", "the mean is subtracted under the root", _centred_root_only
            ),
            "sum_of_squares": Flaw(
                "scale", "the squares are summed, not averaged", lambda x, eps: x * root(row_sum(x * x), eps)
            ),
            "mean_magnitude": Flaw(
                "formula",
                "the mean magnitude takes the place of the root of the mean square",
                lambda x, eps: x / (x.abs().mean(-1, keepdim=True) + eps),
            ),
        }
    return {
        **found,
        "mean_not_subtracted": Flaw(
            "formula", "the mean is not subtracted, as in an rms norm", partial(normalise, centred=False)
        ),
        "mean_subtracted_under_the_root_only": Flaw(
            "formula", "the mean is subtracted under the root only", _centred_root_only
        ),
        "mean_over_padded_cols": Flaw(
            "variance", "its mean divides by cols rounded up to 32", partial(hat, mean_total=_mean_over_padded)
        ),
        "mean_of_the_first_1024_columns": Flaw(
            "tail", "its mean ends at column 1024", partial(hat, mean_total=first(lambda n: min(n, 1024)))
        ),
        "one_pass_variance": Flaw(
            "variance", "its variance is E[x²] - E[x]²", partial(hat, variance=one_pass), F32 + F16
        ),
        "one_pass_variance_clamped": Flaw(
            "variance",
            "its variance is E[x²] - E[x]², no less than 0",
            partial(hat, variance=lambda *a: one_pass(*a).clamp_min(0)),
            F32 + F16,
        ),
        "one_pass_about_the_first": Flaw(
            "variance",
            "one pass over x less the row's first element, which may be far from the mean",
            lambda x, eps: normalise(x - x[..., :1], eps, variance=lambda *a: one_pass(*a).clamp_min(0)),
            ("float32",),
        ),
        "padding_counts_in_the_variance": Flaw(
            "mask",
            "lanes past the last column, up to a whole tile (of 32, say), add mean² to the variance",
            partial(hat, variance=_with_padding),
        ),
        "tiles_merged_without_their_distance": Flaw(
            "variance",
            "the variances of tiles are merged without the distance of their means",
            partial(welford, between=False),
        ),
        "partial_tile_counts_whole": Flaw(
            "variance",
            "the mean of a last partial tile counts as much as that of a whole one",
            partial(welford, weighted=False),
        ),
    }


def hat_known_good(centred: bool) -> dict[str, tuple[str, Hat]]:
    """name -> what it does, and a right normaliser, computed in another way than the wrong ones."""
    if not centred:
        return {
            "root_then_division": (
                "a true division by the root",
                lambda x, eps: x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps),
            ),
            "scaled_by_the_maximum": ("squares taken relative to the largest element", _rms_by_the_maximum),
        }
    return {
        "welford_tiles_of_8": ("statistics of tiles of 8 columns merged as Welford and Chan do", welford),
        "welford_tiles_of_512": ("statistics of tiles of 512 columns merged", partial(welford, tile=512)),
        "one_pass_in_float64": (
            "one pass in float64",
            lambda x, eps: normalise(x.double(), eps, variance=one_pass).float(),
        ),
    }


def _rms_by_the_maximum(x, eps):
    if not x.shape[-1]:
        return x.clone()
    largest = x.abs().amax(-1, keepdim=True).clamp_min(2.0**-60)
    scale = torch.exp2(torch.floor(torch.log2(largest)))
    return (x / scale) * torch.rsqrt((x / scale).square().mean(-1, keepdim=True) + eps / scale.square())


WEIGHT_FLAWS = {
    "weight_ignored": Flaw("weights", "weight is ignored", torch.ones_like),
    "first_weight_for_all": Flaw("weights", "weight[0] stands for all", lambda w: w[:1].expand_as(w)),
    "one_plus_weight": Flaw("weights", "it multiplies by 1 + weight", lambda w: 1 + w),
    "weight_off_by_one": Flaw("weights", "weight is shifted by one place", lambda w: w.roll(1)),
    "weight_repeats_each_128": Flaw(
        "weights", "the first 128 weights serve every tile of columns", lambda w: w[torch.arange(w.numel()) % 128]
    ),
}
BIAS_FLAWS = {
    "bias_ignored": Flaw("weights", "bias is ignored", torch.zeros_like),
    "bias_off_by_one": Flaw("weights", "bias is shifted by one place", lambda b: b.roll(1)),
    "bias_subtracted": Flaw("weights", "bias is subtracted", torch.neg),
    "first_bias_for_all": Flaw("weights", "bias[0] stands for all", lambda b: b[:1].expand_as(b)),
}


def layer_norm(hat: Hat = normalise, scale=lambda w: w, shift=lambda b: b) -> Callable[..., torch.Tensor]:
    """layer_norm with another normaliser, or with weight and bias changed before they are applied."""

    def compute(x, weight, bias, *, eps=1e-5):
        y = hat(x, eps) * scale(weight)
        return y if bias is None else y + shift(bias)

    return compute


def rms_hat(x, eps):
    return normalise(x, eps, centred=False)


def rms_norm(hat: Hat = rms_hat, scale=lambda w: w) -> Callable[..., torch.Tensor]:
    """rms_norm with another normaliser, or with the weight changed before it is applied."""

    def compute(x, weight, *, eps=1e-6):
        return hat(x, eps) * scale(weight)

    return compute


def on_sum(norm: Callable[..., torch.Tensor]) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """add_*: y and h out of a norm of h = x + residual."""

    def compute(x, residual, *vectors, **params):
        h = x + residual
        return norm(h, *vectors, **params), h

    return compute


def on_rounded_sum(norm: Callable[..., torch.Tensor]) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """add_* with y from the rounded h; on operands in the kernel's dtype."""

    def call(x, residual, *vectors, **params):
        h = (x + residual).contiguous()
        wide = [None if v is None else v.float() for v in vectors]
        return norm(h.float(), *wide, **params).to(h.dtype), h

    return call


def _both(of: Callable[..., torch.Tensor]):
    """x, residual, h -> what the norm sees and what is returned as h: the same."""
    return lambda x, residual, h: (of(x, residual, h),) * 2


# x, residual, h -> what is normalised, and what is returned as h
SUM_FLAWS = {
    "y_without_the_residual": Flaw("formula", "y is the norm of x alone", lambda x, r, h: (x, h)),
    "y_of_the_residual": Flaw("formula", "y is the norm of the residual alone", lambda x, r, h: (r, h)),
    "h_without_the_residual": Flaw("formula", "h is x", lambda x, r, h: (h, x)),
    "h_is_the_residual": Flaw("formula", "h is the residual as it came in", lambda x, r, h: (h, r)),
    "residual_subtracted": Flaw("formula", "the residual is subtracted", _both(lambda x, r, h: x - r)),
    "residual_added_twice": Flaw("accumulator", "the residual is added twice", _both(lambda x, r, h: h + r)),
    "h_adds_the_residual_again": Flaw("accumulator", "h has the residual twice", lambda x, r, h: (h, h + r)),
    "residual_of_row_0": Flaw("formula", "every row gets the residual of row 0", _both(lambda x, r, h: x + r[:1])),
    "residual_of_the_previous_row": Flaw(
        "formula", "every row gets the residual of the one before", _both(lambda x, r, h: x + r.roll(1, 0))
    ),
    "h_loses_the_last_column": Flaw(
        "tail", "the last column of h is 0", lambda x, r, h: (h, torch.cat([h[:, :-1], 0 * h[:, -1:]], -1))
    ),
    "h_ends_at_column_1024": Flaw(
        "tail", "h is x from column 1024 on", lambda x, r, h: (h, torch.cat([h[:, :1024], x[:, 1024:]], -1))
    ),
    "h_in_fp16": Flaw("precision", "h is kept in float16", _both(lambda x, r, h: through(torch.float16)(h)), F32),
    "h_in_bf16": Flaw(
        "precision", "h is kept in bfloat16", _both(lambda x, r, h: through(torch.bfloat16)(h)), F32 + F16
    ),
    "y_of_h_in_bf16": Flaw(
        "precision", "y is the norm of h in bfloat16", lambda x, r, h: (through(torch.bfloat16)(h), h), F32 + F16
    ),
}


def on_changed_sum(norm: Callable[..., torch.Tensor]):
    """part of SUM_FLAWS -> add_* built on it."""

    def build(part):
        def compute(x, residual, *vectors, **params):
            seen, h = part(x, residual, x + residual)
            return norm(seen, *vectors, **params), h.clone()

        return compute

    return build


def y_for_h(norm: Callable[..., torch.Tensor]):
    """add_* that returns its y twice."""

    def compute(x, residual, *vectors, **params):
        y = norm(x + residual, *vectors, **params)
        return y, y.clone()

    return compute


def cut_to(store: Callable[[torch.Tensor, torch.dtype], torch.Tensor], norm: Callable[..., torch.Tensor]):
    """add_* whose h alone is stored by `store`; on operands in the kernel's dtype."""

    def call(x, residual, *vectors, **params):
        h = x.float().contiguous() + residual.float()
        wide = [None if v is None else v.float() for v in vectors]
        return norm(h, *wide, **params).to(x.dtype), store(h, x.dtype)

    return call


def backward(
    x,
    weight,
    dy,
    *,
    eps,
    mean=None,
    rstd=None,
    centred=True,
    total=row_sum,
    over_rows=row_sum,
    hat=None,
    given=True,
    g=lambda dy, w: dy * w,
    mean_g=1.0,
    mean_gx=1.0,
    stored=lambda t: t,
    outer=lambda r: r,
    count=lambda n: n,
):
    """dx, dweight, dbias of a layer norm, dbias of no meaning unless `centred`; the keywords from `total` on are what
    mutants
    change: sums over columns and rows, x̂, whether given statistics are used, dy·weight, the factors of the two means,
    how x̂ is kept, the factor in front, what the means in dx divide by."""
    n = x.shape[-1]
    if not centred:
        mean = x.new_zeros(x.shape[0])
    elif mean is None or not given:
        mean = total(x)[:, 0] / n
    centre = x - mean[:, None]
    if rstd is None or not given:
        rstd = (total(centre.square())[:, 0] / n + eps).rsqrt()
    r = rstd[:, None]
    xhat = stored(hat(x, eps) if hat else centre * r)
    grad = g(dy, weight)
    dx = grad - xhat * (mean_gx * total(grad * xhat) / count(n))
    if centred:
        dx = dx - mean_g * total(grad) / count(n)
    return outer(r) * dx, over_rows(dy * xhat, 0)[0], over_rows(dy, 0)[0]


def backward_of(centred: bool, **changed: Any) -> Callable[..., tuple[torch.Tensor, ...]]:
    """layer_norm_backward if `centred`, else rms_norm_backward, with keywords of `backward` changed."""

    def layer_norm_backward(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
        return backward(x, weight, dy, mean=mean, rstd=rstd, eps=eps, **changed)

    def rms_norm_backward(x, weight, dy, *, rstd=None, eps=1e-6):
        return backward(x, weight, dy, rstd=rstd, eps=eps, centred=False, **changed)[:2]

    return layer_norm_backward if centred else rms_norm_backward


HATS_IN_BACKWARD = (
    "unbiased",
    "eps_outside_the_root",
    "eps_left_out",
    "eps_squared",
    "eps_hard_coded",
    "eps_0_is_no_eps",
    "root_estimated",
    "statistics_in_bf16",
    "statistics_of_the_previous_row",
    "mean_not_subtracted",
    "one_pass_variance",
    "mean_subtracted",
)


def backward_flaws(centred: bool) -> dict[str, Flaw]:
    """Wrong backwards of a layer norm if `centred`, else of an rms norm; a flaw's part takes nothing and returns
    one."""

    def flaw(kind, about, dtypes=ALL, **changed):
        return Flaw(kind, about, partial(backward_of, centred, **changed), dtypes)

    bf16 = through(torch.bfloat16)
    hats = {name: part for name, part in hat_flaws(centred).items() if name in HATS_IN_BACKWARD}
    found = {
        **{name: flaw(f.kind, f.about, f.dtypes, total=f.part, given=False) for name, f in WRONG_SUMS.items()},
        **{f"x_hat_{n}": flaw(f.kind, f"in x̂ {f.about}", f.dtypes, hat=f.part, given=False) for n, f in hats.items()},
        **{
            f"dweight_{name}": flaw(f.kind, f"over rows {f.about}", f.dtypes, over_rows=f.part)
            for name, f in NARROW_SUMS.items()
        },
        "dweight_of_the_first_tile": flaw(
            "tail", "the sums over rows end at row 32", over_rows=first(lambda n: min(n, 32))
        ),
        "dweight_without_the_partial_tile": flaw(
            "tail", "the sums over rows leave out a last partial tile of 32", over_rows=first(lambda n: n // 32 * 32)
        ),
        "dweight_without_the_last_row": flaw(
            "tail", "the sums over rows leave out the last row", over_rows=first(lambda n: max(n - 1, 0))
        ),
        "dweight_of_the_last_tile": flaw(
            "race", "each tile of 64 rows overwrites the sums of those before", over_rows=LAST_TILE
        ),
        "dweight_loses_updates": flaw(
            "race",
            "the sums over rows lose every second tile of 16 to a race of read, add and write",
            over_rows=LOST_UPDATES,
        ),
        "dweight_counts_a_tile_twice": flaw(
            "accumulator", "the sums over rows count the first tile of 64 twice", over_rows=FIRST_TILE_TWICE
        ),
        "dweight_is_a_mean": flaw(
            "scale", "the sums over rows are means", over_rows=lambda t, dim: row_sum(t, dim) / max(t.shape[dim], 1)
        ),
        "last_term_missing": flaw("formula", "dx lacks x̂·mean(g·x̂)", mean_gx=0.0),
        "last_term_added": flaw("formula", "dx adds x̂·mean(g·x̂) instead of subtracting it", mean_gx=-1.0),
        "last_term_twice": flaw("formula", "dx subtracts x̂·mean(g·x̂) twice", mean_gx=2.0),
        "weight_missing_in_dx": flaw("weights", "dx is that of weight 1", g=lambda dy, w: dy),
        "first_weight_for_all": flaw("weights", "dx is that of weight[0] throughout", g=lambda dy, w: dy * w[:1]),
        "weight_off_by_one": flaw(
            "weights", "dx is that of weight shifted by one place", g=lambda dy, w: dy * w.roll(1)
        ),
        "rstd_missing_in_front": flaw("scale", "dx lacks the factor rstd", outer=torch.ones_like),
        "rstd_squared_in_front": flaw("scale", "dx has the factor rstd²", outer=torch.square),
        "means_over_padded_cols": flaw("variance", "the means in dx divide by cols rounded up to 32", count=_padded),
        "dy_clipped": flaw("special", "dy is clipped to ±2 in dx", g=lambda dy, w: dy.clamp(-2, 2) * w),
        "x_hat_in_bf16": flaw("precision", "x̂ is stored in bfloat16", stored=bf16),
        "g_in_bf16": flaw(
            "precision", "dy·weight is stored in bfloat16", ALL if centred else F32 + F16, g=lambda dy, w: bf16(dy * w)
        ),
    }
    if centred:
        found["mean_of_g_missing"] = flaw("formula", "dx lacks the mean of g", mean_g=0.0)
    return found


def split_rows(parts: int):
    """Partial sums of dweight over `parts` of the rows, added up."""

    def total(t, dim=-1):
        return torch.stack([part.sum(dim, keepdim=True) for part in t.chunk(parts, dim)]).sum(0)

    return total


def through_autograd(norm: Callable[..., torch.Tensor], with_bias: bool) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The gradients that autograd finds for one of torch's norms."""

    def gradients(x, weight, dy, eps):
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        if with_bias:
            leaves.append(torch.zeros_like(weight).requires_grad_())
        norm(leaves[0], weight.shape, *leaves[1:], eps=eps).backward(dy)
        return tuple(leaf.grad for leaf in leaves)

    return gradients
