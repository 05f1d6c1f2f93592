"""The launchers that rope and its backward share: the same but for the sign of sin, `turn`."""

import torch

from touchstone.backends.cupy.lib.norms import vector_width
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.rope import checked_sizes, empty_outputs
from touchstone.backends.sizes import ceil_div

_rope = Module(__file__, "rope.cu")

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]


def by_elements(operands: Operands, interleaved: bool, turn: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A thread an element, a launch each for q and k."""
    q, k, cos, sin, positions = operands
    _, Hq, Hkv, S, D, half = checked_sizes(*operands)
    outputs = empty_outputs(q, k)
    for x, y, heads in zip((q, k), outputs, (Hq, Hkv), strict=True):
        if y.numel():
            sizes = (y.numel(), heads, S, D, half, bool(interleaved), turn)
            arguments = (x, *x.stride(), y, *_tables(cos, sin, positions), *sizes)
            _rope.launch("rope_naive", ceil_div(y.numel(), 256), 256, *arguments, dtype=x.dtype)
    return outputs


def by_pairs(
    operands: Operands, interleaved: bool, turn: int, names: tuple[str, str], wide: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """A thread a pair; where `wide` and all rows are whole 16-byte vectors, a vector of pairs."""
    q, k, cos, sin, positions = operands
    B, Hq, Hkv, S, D, half = checked_sizes(*operands, names=names)
    outputs = empty_outputs(q, k)
    lanes = 16 // q.element_size()
    present = [x for x in (q, k, *outputs) if x.numel()]
    vectors = wide and bool(present) and vector_width(*present) > 1 and half % lanes == 0
    count = B * (Hq + Hkv) * S * ((D - half) // (lanes if vectors else 1))
    if count:
        sizes = (count, Hq, Hkv, S, D, half, bool(interleaved), turn, vectors, vectors and vector_width(cos, sin) > 1)
        of_q, of_k = ((x, *x.stride(), y) for x, y in zip((q, k), outputs, strict=True))
        arguments = (*of_q, *of_k, *_tables(cos, sin, positions), *sizes)
        _rope.launch("rope_pairs", ceil_div(count, 256), 256, *arguments, dtype=q.dtype)
    return outputs


def _tables(cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None) -> tuple[object, ...]:
    strides = (0, 0) if positions is None else positions.stride()
    wide = cos.dtype == torch.float32, positions is not None and positions.dtype == torch.int64
    return (cos, *cos.stride(), sin, *sin.stride(), positions, *strides, *wide)
