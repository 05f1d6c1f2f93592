"""What the contracts of the norms share: eps = 0, a value like any other where every row has something to divide by."""

from touchstone.conformance.spec import values
from touchstone.conformance.spec.contract import Case, Draw

VARIANCE = 1e-6  # of `tiny` where eps is 0: any default of eps in its place shows


def tiny(draw: Draw, shape):
    """`values.tiny`, also where eps is 0."""
    if draw.param["eps"]:
        return values.tiny(draw, shape)
    return values.lift_square(draw.normal(shape, VARIANCE**0.5), VARIANCE**0.5)


def divides(case: Case, terms: int) -> bool:
    """Whether variance + eps is above 0 in every row of `terms` values. With eps 0 that is asked of `tiny` alone, which
    shows it."""
    if case.param["eps"]:
        return True
    return case.values == "tiny" and terms > 4 and case.layout["x"] != "broadcast_last"
