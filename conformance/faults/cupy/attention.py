"""Wrong kernels of attention: a query a thread, online softmax over tiles of 16 keys in shared memory."""

import math

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "attention.cu")

KERNELS = {
    "flash": Kernel("known-good", "a query a thread, keys and values in tiles of 16"),
    "output_not_rescaled": Kernel("rescale", "the output so far is not rescaled when the maximum grows"),
    "sum_not_rescaled": Kernel("rescale", "the sum so far is not rescaled when the maximum grows"),
    "maximum_from_zero": Kernel("mask", "the running maximum starts at 0 instead of -inf"),
    "no_barrier_before_use": Kernel(
        "race",
        "no barrier between filling the tiles and using them: a thread reads what its neighbours have yet to write",
        "UninitialisedShared",
    ),
    "no_barrier_after_use": Kernel(
        "race", "no barrier after the tiles are used: the next ones overwrite what slower threads still read"
    ),
    "early_return": Kernel(
        "race", "threads without a query return before the barrier that the others wait at", "UninitialisedShared"
    ),
    "keys_unfilled": Kernel(
        "mask", "what of a tile lies past the last key is left as it was instead of set to 0", "UninitialisedShared"
    ),
    "padded_keys_seen": Kernel("mask", "keys past the last one, which are 0, enter the sum with a score of 0"),
    "load_unguarded": Kernel(
        "bounds", "the loads do not ask whether the key is inside: the last tile reads on", "OutOfBounds"
    ),
    "last_keys_dropped": Kernel("tail", "the number of tiles is rounded down: a last, shorter one is left out"),
    "offset_int": Kernel("offset", "key times row stride is a product of two ints, which wraps", "OutOfBounds"),
    "strides_of_k": Kernel("strides", "v is read with the strides of k", "OutOfBounds"),
    "tile_overrun": Kernel(
        "bounds",
        "a tile is padded by one column in its indices and not in its size: at head dimension 256 it overruns",
        "OutOfBounds",
    ),
    "other_group": Kernel("heads", "a query head takes the keys of its number modulo the key heads"),
    "grid_rounded_down": Kernel("tail", "the grid counts whole blocks of 32 queries: the last ones are not written"),
}


def _flash(
    q, k, v, *, causal: bool = False, scale: float | None = None, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    B, Hq, Sq, D, Hkv, Sk = shapes("B Hq Sq D, B Hkv Sk D, B Hkv Sk D", q=q, k=k, v=v)
    if Hq % Hkv or not 1 <= D <= 256:
        raise ValueError(f"q: expected a multiple of {Hkv} heads and D up to 256, got {Hq} and {D}")
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((B, Hq, Sq), dtype=torch.float32, device=q.device)
    if o.numel():
        blocks = max(Sq // 32, 1) if fault == "grid_rounded_down" else -(-Sq // 32)
        operands = (q, *q.stride(), k, *k.stride(), v, *v.stride(), o, lse, Hq, Hkv, Sq, Sk, D)
        _module.launch(
            "attention_flash",
            B * Hq * blocks,
            8 if Sq == 1 else 32,
            *operands,
            1 / math.sqrt(D) if scale is None else scale,
            int(causal),
            fault=fault,
            dtype=q.dtype,
        )
    return o, lse


plant_kernels(
    globals(),
    _flash,
    KERNELS,
    "flash",
    "output_not_rescaled",
    "sum_not_rescaled",
    "maximum_from_zero",
    "no_barrier_before_use",
    "no_barrier_after_use",
    "early_return",
    "keys_unfilled",
    "padded_keys_seen",
    "load_unguarded",
    "last_keys_dropped",
    "offset_int",
    "strides_of_k",
    "tile_overrun",
    "other_group",
    "grid_rounded_down",
)
