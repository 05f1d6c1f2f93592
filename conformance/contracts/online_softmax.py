"""online_softmax(x): softmax of (rows, cols) along the last axis, and lse (rows,) = ln sum exp x in float32."""

from dataclasses import replace

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts import softmax
from touchstone.conformance.contracts._bounds_dots import summed
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import Expected, finite
from touchstone.conformance.spec.contract import Output, Property
from touchstone.reference.online_softmax import torch_online_softmax


def expect(inputs, params, *, dtype, compute=None):
    x = inputs["x"]
    y, lse = torch_online_softmax(x)
    weight, size = finite(y), finite(x).abs()
    largest = size.amax(-1) if x.shape[-1] else finite(lse)
    arguments = 2 + largest + (weight * size).sum(-1)
    expected = softmax.expect(inputs, params, dtype=dtype, compute=compute)
    expected["y"].answer = y
    expected["lse"] = Expected(lse, parts=[(summed(weight, -1), 1.0), (1, arguments)], dtype=torch.float32)
    return expected


def _y_is_exp_of_x_less_lse(call, arguments, outputs, case):
    x, y, lse = arguments["x"].double(), outputs[0].double(), outputs[1].double()
    unit = torch.finfo(outputs[0].dtype).eps * y + 64 * torch.finfo(torch.float32).eps * y
    over = ((y - torch.exp(x - lse[:, None])).abs() - unit).max().item()
    return None if over <= softmax.UNDERFLOW else f"y is {over:.3g} further from exp(x - lse) than rounding explains"


contract = replace(
    softmax.contract,
    outputs={"y": Output("rows cols"), "lse": Output("rows", torch.float32)},
    expect=expect,
    flops=lambda size, param: 6 * size["rows"] * size["cols"],
    bytes=lambda size, param, item: 2 * size["rows"] * size["cols"] * item + 4 * size["rows"],
    properties=[
        *softmax.contract.properties,
        Property("y is exp(x - lse)", _y_is_exp_of_x_less_lse),
        Property("lse rows are independent", bounds_rows.rows_are_independent("x", outputs=(1,))),
    ],
)

bench = Bench(
    baselines=common.torch_baselines(lambda x: {"y": torch.softmax(x, -1), "lse": torch.logsumexp(x.float(), -1)}),
    independent_axes=common.INDEPENDENT_AXES,
)
