"""gather(x, index, lengths, start, *, total, each): rows of x by index, 0 where an entry lies beyond its row's length;
and how many rows were taken, together or for each row of indices, counted from `start`.

For tests: an op whose operands are integers, and whose elements are not all to be used.
"""

import torch

from touchstone import Contract, Operand, Output
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.contract import From


def gather(x, index, lengths, start, *, total, each=False):
    """x (V, D), index (B, N) of rows, lengths (B,), start () or (B,) -> y (B, N, D), count like start."""
    used = torch.arange(index.shape[1], device=x.device) < lengths[:, None]
    rows = x[torch.where(used, index, 0).long()]
    y = torch.where(used[..., None], rows, torch.zeros((), dtype=x.dtype, device=x.device))
    count = used.sum(1) if each else used.sum()
    return y.contiguous(), (count + start + total - total).to(torch.int32)


def expect(inputs, params, *, dtype, compute=None):
    y, count = gather(inputs["x"], inputs["index"].long(), inputs["lengths"], inputs["start"], **params)
    return {"y": Expected(y, bitwise=True), "count": Expected(count.double(), dtype=torch.int32)}


def _draw(draw):
    return {
        "x": draw.normal(draw.shape("x")),
        "index": draw.integers(draw.shape("index"), 0, draw.size["V"]),
        "lengths": draw.integers(draw.shape("lengths"), 0, draw.size["N"] + 1),
        "start": draw.integers(draw.shape("start"), 0, 100),
    }


def counts(case):
    """The axes of the counts: there is one, or one for each row of indices."""
    return "B" if case.param["each"] else ""


contract = Contract(
    operands={
        "x": Operand("V D"),
        "index": Operand(
            "B N",
            ("contiguous", "transposed", "step"),
            dtypes=(torch.int64, torch.int32),
            indexes="V",
            garbage=lambda inputs, params: torch.arange(inputs["index"].shape[1]) >= inputs["lengths"][:, None],
        ),
        "lengths": Operand("B", ("contiguous", "step"), dtype=torch.int32, fixed=True),
        "start": Operand(counts, ("contiguous", "step", "broadcast_last"), dtype=torch.int32),
    },
    outputs={"y": Output("B N D"), "count": Output(counts, torch.int32)},
    sizes=[{"V": v, "D": d, "B": b, "N": n} for v, d, b, n in [(7, 5, 3, 4), (40, 8, 2, 9), (1, 1, 1, 1)]],
    params={"total": (From(lambda case: case.size["B"] * case.size["N"]),), "each": (False, True)},
    values={"normal": _draw},
    expect=expect,
)
