"""cross_entropy_backward(logits, target, lse, dloss, *, reduction, ignore_index, label_smoothing, z_loss): dlogits.

lse may be given; dloss is one number, or one a row with reduction "none". Rows that are ignored have gradient 0.
"""

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts import _entropy as entropy
from touchstone.conformance.spec.baselines import Bench, autograd
from touchstone.conformance.spec.budget import Expected, finite
from touchstone.conformance.spec.contract import Also, Contract, Draw, Operand, Output, Property, with_params
from touchstone.reference.cross_entropy_backward import torch_cross_entropy_backward


def expect(inputs, params, *, dtype, compute=None):
    """lse given or not, the answer is that of its exact value: the bound holds its rounding. p is never stored."""
    logits, target, dloss = inputs["logits"], inputs["target"].long(), inputs["dloss"]
    answer = torch_cross_entropy_backward(logits, target, None, dloss, **params)
    kept = target != params["ignore_index"]
    z, V, smoothing, z_loss = logits[kept], logits.shape[1], params["label_smoothing"], params["z_loss"]
    lse = torch.logsumexp(z, -1)
    p = finite(torch.exp(z - lse[:, None]))
    error = (entropy.lse_condition(z, lse) + finite(lse).abs())[:, None]
    slope = 1 + 2 * z_loss * finite(lse).abs()[:, None]
    picked = torch.arange(V) == target[kept][:, None]
    count = max(len(z), 1) if params["reduction"] == "mean" else 1
    g = dloss.abs().expand(len(target))[kept][:, None] / count
    once = (
        slope * p * (finite(z).abs() + error)
        + 2 * z_loss * p * error
        + (1 - smoothing) * picked
        + smoothing / max(V, 1)
    )

    def of_rows(condition):
        found = torch.zeros_like(logits)
        found[kept] = condition * g
        return found

    summed = (slope + 2 * z_loss) * p
    return {"dlogits": Expected(answer, parts=[(V, of_rows(summed)), (1, of_rows(once))])}


def derive(inputs, params):
    return {"lse": torch.logsumexp(inputs["logits"], -1)}


def _dloss(draw: Draw) -> torch.Tensor:
    """Of every row another one, none near 0."""
    return draw.uniform(draw.shape("dloss"), 0.5, 2.0) * (draw.integers(draw.shape("dloss"), 0, 2) * 2 - 1)


def _family(make):
    def family(draw: Draw):
        logits, target = make(draw)
        return {"logits": logits, "target": target, "dloss": _dloss(draw)}

    return family


def _beyond_largest(draw: Draw):
    """A dloss far beyond the largest float16, in float32."""
    return {**_family(entropy.FAMILIES["normal"])(draw), "dloss": 16 * draw.of_largest("dloss", 0.5, 1.0)}


BEYOND_LARGEST = {
    f"beyond_largest_{reduction}": Also(
        {"rows": 7, "V": 33}, _beyond_largest, {"reduction": reduction}, dtype="float16"
    )
    for reduction in ("sum", "none")
}


def _rows_sum_to_zero(call, arguments, outputs, case):
    """Without z-loss Σ dz = 0 in every row."""
    dz = call(**{**arguments, "z_loss": 0.0})[0].double()
    unit, tiny = torch.finfo(case.torch_dtype).eps, torch.finfo(case.torch_dtype).tiny
    g = arguments["dloss"].double().abs().expand(len(dz))
    noise = 64 * torch.finfo(torch.float32).eps * g * dz.shape[1] ** 0.5
    worst = (dz.sum(-1).abs() / ((unit * (dz.abs() + tiny)).sum(-1) + noise)).max().item()
    return None if worst <= 1 else f"a row of dlogits sums to {worst:.3g} times what rounding explains, not to 0"


def _lse_is_optional(call, arguments, outputs, case):
    """Without lse the gradient is what it is with it, but for rounding."""
    lse = derive({"logits": arguments["logits"].double().nan_to_num(0.0)}, {})["lse"].float()
    given, recomputed = (call(**{**arguments, "lse": one})[0].double() for one in (lse, None))
    unit = torch.finfo(case.torch_dtype).eps
    over = (given - recomputed).abs() - (unit + 1e-5) * (given.abs() + arguments["dloss"].double().abs().max() * 1e-2)
    return None if bool((over <= 0).all()) else f"lse = None changes dlogits by {over.max().item():.3g} beyond rounding"


def _rows_are_independent(call, arguments, outputs, case):
    """The last row keeps its bits when the logits and dloss of every other row change."""
    dloss = torch.linspace(0.5, 2.0, case.size["rows"], device=arguments["dloss"].device)
    each = {**arguments, "reduction": "none", "lse": None, "dloss": dloss}
    logits = arguments["logits"].clone()
    logits[:-1] *= -2
    other = torch.cat([-dloss[:-1], dloss[-1:]])
    before, after = call(**each)[0], call(**{**each, "logits": logits, "dloss": other})[0]
    return None if torch.equal(before[-1], after[-1]) else "the last row changed when only other rows did"


def _linear_in_dloss(call, arguments, outputs, case):
    doubled = call(**{**arguments, "dloss": 2 * arguments["dloss"]})[0].double()
    once = outputs[0].double()
    limit = torch.finfo(case.torch_dtype).eps * 2 * once.abs().clamp_min(torch.finfo(case.torch_dtype).tiny)
    return None if bool(((doubled - 2 * once).abs() <= limit).all()) else "twice dloss does not give twice dlogits"


contract = Contract(
    gradient_of="cross_entropy",
    operands={
        **entropy.operands(),
        "lse": Operand(
            "rows",
            bounds_rows.STATISTIC,
            torch.float32,
            derived=True,
            counts=False,
            garbage=entropy.ignored,
            unused=entropy.IGNORED,
        ),
        "dloss": Operand(
            lambda case: "rows" if case.param["reduction"] == "none" else "",
            ("contiguous", "step", "offset", "broadcast_last"),
            torch.float32,
        ),
    },
    outputs={"dlogits": Output("rows V")},
    sizes=entropy.SIZES,
    regular=entropy.REGULAR,
    over_tiles=entropy.OVER_TILES,
    beyond_grid=entropy.BEYOND_GRID,
    also=entropy.also(_family, lse="none") | BEYOND_LARGEST,
    values={name: _family(make) for name, make in entropy.FAMILIES.items()},
    params=entropy.PARAMS,
    valid=entropy.valid,
    expect=expect,
    derive=derive,
    exact={"certain": ["dlogits"], "all_ignored": ["dlogits"]},
    large=entropy.LARGE,
    flops=lambda size, param: 6 * size["rows"] * size["V"] + 1,
    calls=lambda size, param: size["rows"] * size["V"],
    bytes=lambda size, param, item: 2 * size["rows"] * size["V"] * item + 16 * size["rows"],
    invalid=entropy.invalid_calls(gradient=True),
    properties=[
        Property("rows sum to zero", _rows_sum_to_zero),
        Property("lse may be left out", _lse_is_optional),
        Property("rows are independent", _rows_are_independent, elsewhere=with_params(reduction="none")),
        Property("linear in dloss", _linear_in_dloss, bitwise=True),
    ],
)


def _forward(logits, target, reduction, ignore_index, label_smoothing, **_):
    loss = F.cross_entropy(
        logits, target, reduction=reduction, ignore_index=ignore_index, label_smoothing=label_smoothing
    )
    return loss.float()


GRADIENTS = {"dlogits": "logits"}
bench = Bench(
    baselines=[
        autograd("F.cross_entropy", _forward, GRADIENTS, upstream="dloss"),
        autograd("torch.compile", _forward, GRADIENTS, upstream="dloss", compile=True),
    ],
    params={"reduction": ("sum",)},
    independent_axes=common.INDEPENDENT_AXES,
)
