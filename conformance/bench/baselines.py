"""The baselines of an op that can run here, and the bench declaration of its contract's file."""

import importlib.util
import sys
from collections.abc import Sequence

from touchstone.conformance.discovery import registry
from touchstone.conformance.spec.baselines import Baseline, Bench

NOTHING = Bench()


def declared(op: str) -> Bench:
    """The `bench` of the contract's file; what a file without one gets: no baselines."""
    registry.contract(op)
    return getattr(sys.modules.get(f"touchstone.conformance.contracts.{op}"), "bench", NOTHING)


def runnable(
    baselines: Sequence[Baseline], device: str, dtype: str, compiling: bool
) -> tuple[list[Baseline], dict[str, str]]:
    """The baselines that can run on `device` in `dtype`, and why the others cannot."""
    found, left = [], {}
    for baseline in baselines:
        if device not in baseline.devices:
            left[baseline.name] = f"does not run on {device}"
        elif baseline.dtypes is not None and dtype not in baseline.dtypes:
            left[baseline.name] = f"does not take {dtype}"
        elif baseline.needs is not None and importlib.util.find_spec(baseline.needs) is None:
            left[baseline.name] = f"{baseline.needs} is not installed"
        elif baseline.compiles and not compiling:
            left[baseline.name] = "takes seconds to compile; --baselines includes it"
        else:
            found.append(baseline)
    return found, left
