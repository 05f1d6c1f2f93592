"""cross_entropy(logits, target, *, reduction, ignore_index, label_smoothing, z_loss): the loss in float32, () or
(rows,).

Rows whose target is ignore_index are worth 0, and their logits are nobody's business.
"""

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _entropy as entropy
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import Expected, finite
from touchstone.conformance.spec.contract import Contract, Output, Property, with_params
from touchstone.reference.cross_entropy import torch_cross_entropy


def expect(inputs, params, *, dtype, compute=None):
    """Each loss is a difference of lse and a logit, of which lse has the error of its exponents; then one sum."""
    logits, target = inputs["logits"], inputs["target"].long()
    answer = torch_cross_entropy(logits, target, **params)
    kept = target != params["ignore_index"]
    z, smoothing, z_loss = logits[kept], params["label_smoothing"], params["z_loss"]
    lse = torch.logsumexp(z, -1)
    picked = finite(z.gather(1, target[kept][:, None])[:, 0]).abs()
    losses = finite(torch_cross_entropy(z, target[kept], **{**params, "reduction": "none"})).abs()
    slope = 1 + 2 * z_loss * finite(lse).abs()
    summed = slope + smoothing * finite(z).abs().sum(-1) / max(logits.shape[1], 1)
    once = slope * entropy.lse_condition(z, lse) + picked + losses
    parts = [(logits.shape[1], summed), (1, once)]
    if params["reduction"] == "none":
        of_rows = [(terms, logits.new_zeros(len(target)).masked_scatter(kept, part)) for terms, part in parts]
        return {"loss": Expected(answer, parts=of_rows, dtype=torch.float32)}
    count = max(len(z), 1) if params["reduction"] == "mean" else 1
    parts = [(terms, part.sum() / count) for terms, part in [*parts, (len(target), losses)]]
    return {"loss": Expected(answer, parts=parts, dtype=torch.float32)}


def _shift_invariant(call, arguments, outputs, case):
    """The same logits, multiples of 1/8, moved by a whole number: both are exact in every dtype."""
    z = (8 * arguments["logits"].nan_to_num(0.0).clamp(-4, 4)).round() / 8
    here, there = (call(**{**arguments, "logits": z + shift, "z_loss": 0.0})[0].double() for shift in (0.0, -8.0))
    limit = 64 * torch.finfo(torch.float32).eps * (8 + here.abs().sum())
    worst = (here - there).abs().max().item()
    return None if worst <= limit else f"logits less 8 have another loss: {worst:.3g} more; {limit:.3g} is rounding"


def _classes_in_another_order(call, arguments, outputs, case):
    """Classes are names: the columns in another order, and the targets with them."""
    target, ignored = arguments["target"], case.param["ignore_index"]
    order = torch.randperm(case.size["V"], generator=case.rng("order")).to(target.device)
    if ignored >= 0:
        order = torch.cat([order[order == ignored], order[order != ignored]])
        order = torch.cat([order[1 : ignored + 1], order[:1], order[ignored + 1 :]])
    moved = torch.where(target == ignored, target, torch.argsort(order)[target.clamp_min(0).long()].to(target.dtype))
    again = call(**{**arguments, "logits": arguments["logits"][:, order], "target": moved})[0].double()
    here = outputs[0].double()
    limit = 64 * torch.finfo(torch.float32).eps * (8 + here.abs().sum())
    worst = (here - again).abs().max().item()
    return None if worst <= limit else f"classes in another order have another loss: {worst:.3g} away"


def _reductions_agree(call, arguments, outputs, case):
    """The sum is that of the rows' losses, the mean that over the rows that are not ignored."""
    rows, total, mean = (call(**{**arguments, "reduction": name})[0].double() for name in ("none", "sum", "mean"))
    kept = arguments["target"] != case.param["ignore_index"]
    if bool(rows[~kept].any()):
        return "a row that is ignored has a loss"
    limit = 1e-5 * rows.abs().sum()
    if not bool((total - rows.sum()).abs() <= limit) or not bool((mean * kept.sum() - total).abs() <= 2 * limit):
        return f"rows of sum {rows.sum().item():.6g} give sum {total.item():.6g} and mean {mean.item():.6g}"
    return None


def _rows_are_independent(call, arguments, outputs, case):
    """The last loss keeps its bits when the logits of every other row change."""
    each = {**arguments, "reduction": "none"}
    changed = arguments["logits"].clone()
    changed[:-1] *= -2
    before, after = call(**each)[0], call(**{**each, "logits": changed})[0]
    return None if torch.equal(before[-1], after[-1]) else "the last loss changed when only other rows' logits did"


def _family(make):
    return lambda draw: dict(zip(("logits", "target"), make(draw), strict=True))


contract = Contract(
    operands=entropy.operands(),
    outputs={"loss": Output(lambda case: "rows" if case.param["reduction"] == "none" else "", torch.float32)},
    sizes=entropy.SIZES,
    regular=entropy.REGULAR,
    over_tiles=entropy.OVER_TILES,
    beyond_grid=entropy.BEYOND_GRID,
    also=entropy.also(_family),
    values={name: _family(make) for name, make in entropy.FAMILIES.items()},
    params=entropy.PARAMS,
    valid=entropy.valid,
    expect=expect,
    exact={"certain": ["loss"]},
    large=entropy.LARGE,
    flops=lambda size, param: 5 * size["rows"] * size["V"] + 1,
    calls=lambda size, param: size["rows"] * size["V"],
    bytes=lambda size, param, item: size["rows"] * size["V"] * item + 12 * size["rows"],
    invalid=entropy.invalid_calls(gradient=False),
    properties=[
        Property("shift invariance", _shift_invariant),
        Property("names of classes do not matter", _classes_in_another_order),
        Property("sum and mean are those of the rows", _reductions_agree, elsewhere=with_params(reduction="none")),
        Property("rows are independent", _rows_are_independent, elsewhere=with_params(reduction="none")),
    ],
)


def _forward(logits, target, reduction, ignore_index, label_smoothing, **_):
    loss = F.cross_entropy(
        logits, target, reduction=reduction, ignore_index=ignore_index, label_smoothing=label_smoothing
    )
    return {"loss": loss.float()}


bench = Bench(
    baselines=common.torch_baselines(_forward, "F.cross_entropy"),
    params={"reduction": ("none",)},
    independent_axes=common.INDEPENDENT_AXES,
)
