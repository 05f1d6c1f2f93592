"""What goes wrong alike in sums of products, planted from the op as a function of its running sum.

`build(total)` is the op on float32 tensors, with `total(t, dim=-1)` of conformance/faults/_rows.py for its sums.
"""

from collections.abc import Callable, Mapping
from typing import Any

from touchstone.conformance.faults import plant
from touchstone.conformance.faults._rows import (
    F16,
    F32,
    LOADS,
    LOST_UPDATES,
    RIGHT_SUMS,
    STORES,
    WRONG_SUMS,
    Flaw,
    Total,
    first,
    in_float32,
    plant_flaws,
    plant_sums,
    row_sum,
)

SUMS: Mapping[str, Flaw] = {
    **WRONG_SUMS,
    "fp16_sum": WRONG_SUMS["fp16_sum"]._replace(dtypes=F32 + F16),
    "first_tile_only": Flaw("tail", "its sums are those of the first 64 terms", first(lambda n: min(n, 64))),
    "second_half_lost": Flaw("tail", "its sums leave out the second half of the terms", first(lambda n: -(-n // 2))),
    "first_65536": Flaw("tail", "its sums are those of the first 65536 terms", first(lambda n: min(n, 2**16))),
    "added_twice": Flaw(
        "accumulator", "its sums are added to an output that holds them already", lambda t, dim=-1: 2 * row_sum(t, dim)
    ),
    "lost_updates": Flaw("race", "its partial sums are added without atomics: every second one is lost", LOST_UPDATES),
}
_AXES = ("last_column_zero", "rows_rolled", "columns_rolled", "transposed", "column_major")
# generic mutants that are equivalent to the original where the output is one number
SCALAR = dict.fromkeys(_AXES, "a single number has no axes") | {
    "multiples_of_8": "a single number has no size",
    "one_shape": "a single number has one shape",
}


def plant_multilinear(
    namespace: dict[str, Any], build: Callable[[Total], Callable[..., Any]], scalar: bool = False
) -> None:
    """Plant `build` with each wrong sum, wrong loads and stores, and as known-good kernels with each right one."""
    plant_flaws(namespace, SUMS, build)
    plant_sums(namespace, RIGHT_SUMS, build)
    for name, flaw in LOADS.items():
        fn = in_float32(build(row_sum), load=flaw.part)
        plant(namespace, name, fn, flaw.about, flaw.kind, dtypes=flaw.dtypes)
    for name, flaw in STORES.items():
        if flaw.kind == "precision" or not scalar:
            fn = in_float32(build(row_sum), store=flaw.part)
            plant(namespace, name, fn, flaw.about, flaw.kind, dtypes=flaw.dtypes)
