"""As which rounding of an exact result to 16 bits a result looks."""

from collections.abc import Iterator

import torch

MOST = 0.98  # of the elements: those beside a tie may be rounded before, to float32
BITS, SIGN = torch.int16, 0x8000


def told(got: torch.Tensor, exact: torch.Tensor, what: str) -> str | None:
    """What a result in 16 bits is if it is not the nearest to `what`, which is `exact`, in words; None: it is."""
    near = exact.to(got.dtype)
    if torch.equal(got, near):
        return None
    name = str(got.dtype).removeprefix("torch.")
    mode = way(got, exact.double())
    as_if = f", as if it were {mode}" if mode else ""
    return f"{int((got != near).sum())} of {got.numel()} elements are not the nearest {name} to {what}{as_if}"


def way(got: torch.Tensor, exact: torch.Tensor) -> str | None:
    """The rounding, other than to the nearest with ties to even, that makes nearly all of a result in 16 bits of the
    float64 `exact`, in words."""
    if got.element_size() != 2 or not got.is_floating_point():
        return None
    got, exact = got.detach().cpu().reshape(-1), exact.detach().cpu().expand(got.shape).reshape(-1)
    tells = got.isfinite() & exact.isfinite() & exact.to(got.dtype).isfinite()
    got, exact = got[tells], exact[tells]
    near = (got == exact.to(got.dtype)).double().mean()
    for text, rounded in _ways(exact, got.dtype):
        same = (got == rounded).double().mean()
        if same >= MOST and 1 - same < (1 - near) / 4:
            return text
    return None


def _ways(exact: torch.Tensor, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    near = exact.to(dtype)
    below = torch.where(near.double() > exact, _stepped(near, -1), near)
    above = torch.where(near.double() < exact, _stepped(near, 1), near)
    inner, outer = torch.where(exact > 0, below, above), torch.where(exact > 0, above, below)
    tie = (exact - below.double() == above.double() - exact) & (below != above)
    yield "truncated", inner
    yield "rounded away from 0", outer
    yield "rounded down", below
    yield "rounded up", above
    yield "rounded to the nearest, ties away from 0", torch.where(tie, outer, near)
    yield "rounded to the nearest, ties up", torch.where(tie, above, near)
    yield "rounded to the nearest, ties towards 0", torch.where(tie, inner, near)


def _stepped(x: torch.Tensor, by: int) -> torch.Tensor:
    """The next number of 16 bits, up or down."""
    bits = x.view(BITS).int()
    order = torch.where(bits < 0, -(bits & (SIGN - 1)), bits) + by
    return torch.where(order < 0, SIGN - order, order).to(BITS).view(x.dtype)
