"""rms_norm_backward(x, weight, dy): dx of (rows, cols) and dweight of (cols,); rstd may be given."""

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts import _norms
from touchstone.conformance.contracts._bounds_dots import summed
from touchstone.conformance.spec.baselines import Bench, autograd
from touchstone.conformance.spec.budget import Expected
from touchstone.reference.rms_norm_backward import torch_rms_norm_backward

PRODUCTS_ROUNDED = (
    "each product of dy and the stored x·rstd is rounded to the input's dtype before it is summed, as by autograd of a "
    "norm in that dtype (Hugging Face's LlamaRMSNorm, Liger-Kernel's casting_mode 'llama')"
)


def expect(inputs, params, *, dtype, compute=None):
    """In 16 bits there is a second answer to each output, that of a forward which stores x·rstd in the input's dtype:

    dy·weight is rounded before it goes into dx, and x·rstd before it goes into dweight. A third answer to dweight
    rounds their product too, once for each element: it is what autograd gives for such a forward. The sum over rows
    stays one of float32.
    """
    x, weight, dy = inputs["x"], inputs["weight"], inputs["dy"]
    cols = x.shape[1]
    dx, dweight = torch_rms_norm_backward(x, weight, dy, **params)
    s = bounds_rows.rms_statistics(x, params["eps"])
    size, normalised = (dy * weight).abs(), s.normalised.abs()
    in_row = torch.maximum(bounds_rows.of_a_row(x), bounds_rows.of_a_row(size * normalised))
    over_rows = summed(dy * s.normalised, 0).clamp_min(cols)
    to_x = [(in_row, s.rstd * (size + 3 * normalised * (size * normalised).mean(-1, keepdim=True)))]
    to_weight = [(over_rows, (dy * s.normalised).abs().sum(0))]
    expected = {"dx": Expected(dx, to_x), "dweight": Expected(dweight, to_weight)}
    if dtype is not torch.float32:
        g = (dy * weight).to(dtype).to(torch.float64)
        rounded, spread = bounds_rows.stored(s.normalised, s.error, cols, dtype)
        other = torch_rms_norm_backward(x, torch.ones_like(weight), g, **params)[0]
        expected["dx"].alternatives.append(Expected(other, to_x))
        extra = (dy.abs() * spread).sum(0)
        expected["dweight"].alternatives.append(Expected((dy * rounded).sum(0), to_weight, extra=extra))
        between = bounds_rows.stored_between(s.normalised, s.error, cols, dtype)
        low, middle, high = ((dy * each).to(dtype).to(torch.float64) for each in between)
        extra = 1.25 * torch.maximum((high - middle).abs(), (middle - low).abs()).sum(0)
        rounded_twice = Expected(middle.sum(0), to_weight, extra=extra, note=PRODUCTS_ROUNDED)
        expected["dweight"].alternatives.append(rounded_twice)
    return expected


def derive(inputs, params):
    return {"rstd": (inputs["x"].square().mean(-1) + params["eps"]).rsqrt()}


def _sums_repeat(case) -> bool:
    return bounds_rows.repeats(case, "x", "dy", axis="rows")


contract = _norms.gradient(expect, derive, _sums_repeat, centred=False)


def _forward(x, weight, eps, **_):
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def _liger(x, weight, eps, **_):
    return common.liger_applied("rms_norm", "LigerRMSNormFunction", x, weight, eps, 0.0, "llama", False)


GRADIENTS = {"dx": "x", "dweight": "weight"}
bench = Bench(
    baselines=[
        autograd("F.rms_norm", _forward, GRADIENTS),
        autograd("torch.compile", _forward, GRADIENTS, compile=True),
        autograd("Liger-Kernel", _liger, GRADIENTS, needs="liger_kernel", devices=("cuda",)),
    ]
)
