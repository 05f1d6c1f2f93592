"""What a variant declares about itself: `@variant(needs="sm_90a", dtypes=HALF)` above its launcher.

A launcher without the decorator is a variant too, one that declares nothing: the path is the registration. With it,
what follows from how operands lie and from parameters alone is worked out once on a GPU (backends/replay.py).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from touchstone.backends.replay import replayed

HALF = ("float16", "bfloat16")
DTYPES = ("float32", *HALF)
COMPUTE = ("tf32", "tf32x3", "bf16", "half_sum", "fp22", "fp22_promoted", "approximate")
NEEDS = re.compile(r"sm_[1-9][0-9]+[af]?|[a-z]{3,}")  # a word is a capability that the backend knows

Launcher = TypeVar("Launcher", bound=Callable[..., Any])


@dataclass(frozen=True)
class Attributes:
    """What a variant declares, and what holds for one that declares nothing."""

    needs: str | None = None
    dtypes: tuple[str, ...] | None = None
    compute: str | None = None
    deterministic: bool = True
    spills: int | None = None
    space: tuple[Mapping[str, int], ...] = ()
    captures: bool = True


def variant(
    *,
    needs: str | None = None,
    dtypes: Sequence[str] | None = None,
    compute: str | None = None,
    deterministic: bool = True,
    captures: bool = True,
    spills: int | None = None,
    space: Sequence[Mapping[str, int]] = (),
) -> Callable[[Launcher], Launcher]:
    """Declare attributes of the launcher below. An unknown one is a TypeError, a wrong value a ValueError.

    `needs`: the architecture ("sm_80", "sm_90a") or other capability of a target without which it is *not run*.
    `dtypes`: those it takes, where its instructions take no others.
    `compute`: the lower precision in which dot products round their operands, and in which it is judged.
    `deterministic`: False where two calls may differ in the last bits, as with atomic additions.
    `captures`: False where a call cannot be captured as a CUDA graph, because its launcher reads what is on the device;
    it is not replayed either.
    `spills`: bytes per thread that it may spill, above what compile conformance allows every kernel.
    `space`: the configurations that `touchstone tune` tries.
    """
    if needs is not None and not NEEDS.fullmatch(needs):
        raise ValueError(
            f"needs: expected an architecture such as 'sm_90a', or a word such as 'shuffles', got {needs!r}"
        )
    if dtypes is not None and (not dtypes or isinstance(dtypes, str) or not set(dtypes) <= set(DTYPES)):
        raise ValueError(f"dtypes: expected some of {', '.join(DTYPES)}, got {dtypes!r}")
    if compute is not None and compute not in COMPUTE:
        raise ValueError(f"compute: expected one of {', '.join(COMPUTE)}, got {compute!r}")
    if spills is not None and spills < 1:
        raise ValueError(f"spills: expected a positive number of bytes per thread, got {spills!r}")
    declared = Attributes(
        needs, None if dtypes is None else tuple(dtypes), compute, deterministic, spills, tuple(space), captures
    )

    def declare(launcher: Launcher) -> Launcher:
        launcher.variant_attributes = declared  # type: ignore[attr-defined]
        return replayed(launcher) if captures else launcher  # which takes the attribute over

    return declare


def attributes(launcher: Callable[..., Any]) -> Attributes:
    """What a launcher declares; the defaults for one that declares nothing, such as a user's function."""
    return getattr(launcher, "variant_attributes", Attributes())
