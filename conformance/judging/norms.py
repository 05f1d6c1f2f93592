"""Whether the rows of a norm are wrong as with another mean or variance than their own, and by how much: two numbers of
each row, of which one alone may do."""

import torch

from touchstone.conformance.spec.contract import Case, Contract

OPS = {
    "layer_norm": True,
    "add_layer_norm": True,
    "group_norm": True,
    "rms_norm": False,
    "add_rms_norm": False,
}  # a mean
LEAST = 8  # elements of a row that tell two numbers
FAR = 3.0  # budgets by which most of what is wrong has to be
OFF = 16.0  # times its own, at most, is another variance
EXPLAINS = 0.95  # of the wrong elements


def of_statistics(
    contract: Contract,
    case: Case,
    output: str,
    value: torch.Tensor,
    answer: torch.Tensor,
    allowed: torch.Tensor,
    bad: torch.Tensor,
) -> str | None:
    """As with which mean and variance each row of an output is wrong, in words. All in float64 on the CPU."""
    if contract.name not in OPS or output != "y" or not bool(value.isfinite().all() & answer.isfinite().all()):
        return None
    far = ((value - answer).abs() / allowed)[bad]
    if far.median() < FAR:
        return None
    exact, axis = contract.build(case).exact, 1
    along = [1 if at != axis else -1 for at in range(value.ndim)]
    weight, bias = (
        torch.tensor(none).double() if (given := exact.get(name)) is None else given.reshape(along)
        for name, none in (("weight", 1.0), ("bias", 0.0))
    )
    rows = value.shape[0] * case.param.get("groups", 1)
    weight, got, right, near, wrong = (
        x.expand(value.shape).reshape(rows, -1) for x in (weight, value - bias, answer - bias, allowed, bad)
    )
    if got.shape[1] < LEAST:
        return None
    whose = "each row is as with" if "groups" not in case.param else "each group is as with"
    has_mean = OPS[contract.name]
    for scaled, shifted in ((True, False), (False, True), (True, True)) if has_mean else ((True, False),):
        scale, shift = _fitted(got, right, weight, near, scaled, shifted)
        model = scale * right + shift * weight
        if ((model - got).abs() <= near)[wrong].double().mean() < EXPLAINS:
            continue
        touched = wrong.any(1)
        low, high = (float(x) for x in (scale[touched] ** -2.0).aminmax())
        if not (bool((scale[touched] > 0).all()) and low >= 1 / OFF and high <= OFF):
            return None  # next to nothing, or no variance
        of = "variance" if has_mean else "mean of squares"
        variance = f"a {of} of {_range(low, high)} of its own"
        mean = f"a mean off by up to {float((shift / scale)[touched].abs().max()):.2g} of its deviation"
        own = {(True, False): f"{variance}{', and its own mean' if has_mean else ''}"}
        own |= {(False, True): f"{mean}, and its own variance", (True, True): f"{mean}, and {variance}"}
        return f"{whose} {own[scaled, shifted]}"
    return None


def _fitted(
    got: torch.Tensor, right: torch.Tensor, weight: torch.Tensor, near: torch.Tensor, scaled: bool, shifted: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The factor and the multiple of the weight, of each row, that take what is right nearest to what is given."""
    one, none = torch.ones(len(got), 1).double(), torch.zeros(len(got), 1).double()
    terms = [x for x, taken in ((right, scaled), (weight, shifted)) if taken]
    left = got if scaled else got - right
    found = torch.linalg.lstsq(torch.stack([t / near for t in terms], 2), (left / near)[..., None]).solution[..., 0]
    return found[:, :1] if scaled else one, found[:, -1:] if shifted else none


def _range(low: float, high: float) -> str:
    return f"{low:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g} to {high:.4g}"
