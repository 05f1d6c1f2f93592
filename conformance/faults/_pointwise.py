"""What goes wrong alike in functions that act element by element: `plant_pointwise(globals(), right, ("x", "bias"))`.

`right(*operands, **params)` is the op on tensors of one dtype, with one output or several.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from touchstone.conformance.faults import ALL, plant
from touchstone.conformance.faults._rows import F16, F32, Flaw, in_float32, tf32, wide_load

Fn = Callable[..., Any]
BLOCK = 1024


def plant_pointwise(
    namespace: dict[str, Any],
    right: Fn,
    operands: Sequence[str],
    vectors: Sequence[str] = (),
    equivalent: Sequence[str] = (),
) -> None:
    """Plant what any kernel of such an op may do wrong but for what is `equivalent` here, and two known-good kernels.

    `vectors` are (cols,), the same for every row. Where the function is far smaller than its operands near 0, nobody
    sees "operands_flushed".
    """
    stores, loads = ({n: flaw for n, flaw in table.items() if n not in equivalent} for table in (STORES, LOADS))
    for name, flaw in stores.items():
        fn = in_float32(right, store=flaw.part)
        plant(namespace, name, fn, flaw.about, flaw.kind, dtypes=flaw.dtypes)
    for name, flaw in loads.items():
        fn = in_float32(right, load=flaw.part)
        plant(namespace, name, fn, flaw.about, flaw.kind, dtypes=flaw.dtypes)
    for position, name in enumerate(operands):
        fn = in_float32(_with(right, position, torch.zeros_like))
        if f"{name}_ignored" not in equivalent:
            kind = "weights" if name in vectors else "formula"
            plant(namespace, f"{name}_ignored", fn, f"{name} is taken to be 0", kind)
        if name in vectors:
            fn = in_float32(_with(right, position, lambda t: t[:1].expand(t.shape)))
            about = f"the first element of {name} stands for all"
            plant(namespace, f"{name}_of_column_0", fn, about, "weights")
    plant(namespace, "in_float64", in_float64(right), "computed in float64 and rounded once", "known-good")
    plant(namespace, "in_blocks", in_float32(_in_blocks(right)), "blocks of 37 elements from the end", "known-good")


def in_float64(right: Fn) -> Fn:
    """`right` in float64, its outputs rounded once to the dtype of the operands."""

    def call(*operands, **params):
        found = right(*(None if t is None else t.double().contiguous() for t in operands), **params)
        outputs = tuple(y.to(operands[0].dtype) for y in (found if isinstance(found, tuple) else (found,)))
        return outputs if isinstance(found, tuple) else outputs[0]

    return call


def _with(right: Fn, position: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Fn:
    def call(*operands, **params):
        changed = [change(t) if i == position and t is not None else t for i, t in enumerate(operands)]
        return right(*changed, **params)

    return call


def _in_blocks(right: Fn, block: int = 37) -> Fn:
    def call(*operands, **params):
        shape = operands[0].shape
        flat = [None if t is None else t.expand(shape).reshape(-1) for t in operands]
        starts = list(range(0, max(shape.numel(), 1), block))
        parts = [right(*(None if t is None else t[s : s + block] for t in flat), **params) for s in reversed(starts)]
        if not isinstance(parts[0], tuple):
            return torch.cat(parts[::-1]).reshape(shape)
        return tuple(torch.cat(output[::-1]).reshape(shape) for output in zip(*parts, strict=True))

    return call


def _from(y: torch.Tensor, first: int) -> torch.Tensor:
    """`y` with 0 from its element number `first` on."""
    flat = y.reshape(-1).clone()
    flat[first:] = 0
    return flat.reshape(y.shape)


def _block_again(y: torch.Tensor) -> torch.Tensor:
    flat = y.reshape(-1).clone()
    for start in range(BLOCK, flat.numel(), BLOCK):
        length = min(BLOCK, flat.numel() - start)
        flat[start : start + length] = flat[:length].clone()
    return flat.reshape(y.shape)


def _first_lane(y: torch.Tensor) -> torch.Tensor:
    flat = y.reshape(-1).clone()
    for lane in range(1, 4):
        part = flat[lane::4]
        part.copy_(flat[0::4][: part.numel()].clone())
    return flat.reshape(y.shape)


def _flushed(y: torch.Tensor) -> torch.Tensor:
    return torch.where(y.abs() < torch.finfo(torch.float16).tiny, torch.zeros_like(y), y)


STORES = {
    "tail_of_four_lost": Flaw(
        "tail",
        "its results are 0 past a multiple of 4 elements: no tail behind the vectors",
        lambda y, dtype: _from(y, y.numel() // 4 * 4).to(dtype),
    ),
    "one_block_only": Flaw(
        "tail",
        "its results are 0 from element 1024 on: a grid that does not step",
        lambda y, dtype: _from(y, BLOCK).to(dtype),
    ),
    "index_of_16_bits": Flaw(
        "offset",
        "its results are 0 from element 65536 on: an index of 16 bits ends there",
        lambda y, dtype: _from(y, 2**16).to(dtype),
    ),
    "first_block_again": Flaw(
        "offset",
        "all blocks of 1024 elements have the results of the first",
        lambda y, dtype: _block_again(y).to(dtype),
    ),
    "first_of_four": Flaw(
        "axis", "four neighbours all have the result of the first", lambda y, dtype: _first_lane(y).to(dtype)
    ),
    "results_flushed": Flaw(
        "precision", "results that are subnormal become 0", lambda y, dtype: _flushed(y).to(dtype), F16
    ),
}
LOADS = {
    "operands_in_tf32": Flaw("precision", "its operands are rounded to TF32", lambda t: tf32(wide_load(t)), F32),
    "operands_flushed": Flaw(
        "precision", "operands that are subnormal count as 0", lambda t: _flushed(wide_load(t)), F16
    ),
    "nan_is_zero": Flaw(
        "special",
        "NaN among its operands counts as 0",
        lambda t: torch.where(torch.isnan(t), torch.zeros((), dtype=torch.float32), wide_load(t)),
        ALL,
    ),
}
