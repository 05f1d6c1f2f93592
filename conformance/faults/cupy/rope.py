"""Wrong kernels of rope: a block a head, in shared memory."""

import torch

from touchstone.backends.signatures.rope import checked_sizes, empty_outputs
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults._rope import KERNELS
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "rope.cu")


def _staged(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    *,
    interleaved: bool = False,
    fault: str = "none",
) -> tuple[torch.Tensor, torch.Tensor]:
    B, Hq, Hkv, S, D, half = checked_sizes(q, k, cos, sin, positions)
    outputs = empty_outputs(q, k)
    of_positions = (positions, *((0, 0) if positions is None else positions.stride()))
    wide = cos.dtype == torch.float32, positions is not None and positions.dtype == torch.int64
    tables = (cos, *cos.stride(), sin, *sin.stride(), *of_positions, *wide)
    for x, y, heads in zip((q, k), outputs, (Hq, Hkv), strict=True):
        if y.numel():
            sizes = (heads, Hq, S, D, half, bool(interleaved))
            arguments = (x, *x.stride(), y, *tables, *sizes)
            threads = 32 * -(-D // 32)
            _module.launch(
                "rope_staged", B * heads * S, threads, *arguments, fault=fault, dtype=x.dtype, shared=4 * threads
            )
    return outputs


plant_kernels(globals(), _staged, KERNELS, *KERNELS)
