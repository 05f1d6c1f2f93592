"""Wrong kernels of attention: a query a thread, online softmax over tiles of 16 keys in shared memory."""

import math

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "attention.cu")


def _flash(q, k, v, causal: bool, scale: float | None, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    B, Hq, Sq, D, Hkv, Sk = shapes("B Hq Sq D, B Hkv Sk D, B Hkv Sk D", q=q, k=k, v=v)
    if Hq % Hkv or not 1 <= D <= 256:
        raise ValueError(f"q: expected a multiple of {Hkv} heads and D up to 256, got {Hq} and {D}")
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((B, Hq, Sq), dtype=torch.float32, device=q.device)
    if o.numel():
        blocks = max(Sq // 32, 1) if fault == "grid" else -(-Sq // 32)
        operands = (q, *q.stride(), k, *k.stride(), v, *v.stride(), o, lse, Hq, Hkv, Sq, Sk, D)
        _module.launch(
            "attention_flash",
            B * Hq * blocks,
            32,
            *operands,
            1 / math.sqrt(D) if scale is None else scale,
            int(causal),
            fault=fault,
            dtype=q.dtype,
        )
    return o, lse


@known_good
def flash(q, k, v, *, causal=False, scale=None):
    """a query a thread, keys and values in tiles of 16"""
    return _flash(q, k, v, causal, scale)


@mutant("rescale")
def output_not_rescaled(q, k, v, *, causal=False, scale=None):
    """the output so far is not rescaled when the maximum grows"""
    return _flash(q, k, v, causal, scale, "output_not_rescaled")


@mutant("rescale")
def sum_not_rescaled(q, k, v, *, causal=False, scale=None):
    """the sum so far is not rescaled when the maximum grows"""
    return _flash(q, k, v, causal, scale, "sum_not_rescaled")


@mutant("mask")
def maximum_from_zero(q, k, v, *, causal=False, scale=None):
    """the running maximum starts at 0 instead of -inf"""
    return _flash(q, k, v, causal, scale, "maximum_from_zero")


@mutant("race")
def no_barrier_before_use(q, k, v, *, causal=False, scale=None):
    """no barrier between filling the tiles and using them: a thread reads what its neighbours have yet to write"""
    return _flash(q, k, v, causal, scale, "no_barrier_before_use")


@mutant("race")
def no_barrier_after_use(q, k, v, *, causal=False, scale=None):
    """no barrier after the tiles are used: the next ones overwrite what slower threads still read"""
    return _flash(q, k, v, causal, scale, "no_barrier_after_use")


@mutant("race")
def early_return(q, k, v, *, causal=False, scale=None):
    """threads without a query return before the barrier that the others wait at"""
    return _flash(q, k, v, causal, scale, "early_return")


@mutant("mask")
def keys_unfilled(q, k, v, *, causal=False, scale=None):
    """what of a tile lies past the last key is left as it was instead of set to 0"""
    return _flash(q, k, v, causal, scale, "keys_unfilled")


@mutant("mask")
def padded_keys_seen(q, k, v, *, causal=False, scale=None):
    """keys past the last one, which are 0, enter the sum with a score of 0"""
    return _flash(q, k, v, causal, scale, "padded_keys_seen")


@mutant("bounds")
def load_unguarded(q, k, v, *, causal=False, scale=None):
    """the loads do not ask whether the key is inside: the last tile reads on"""
    return _flash(q, k, v, causal, scale, "load_guard")


@mutant("tail")
def last_keys_dropped(q, k, v, *, causal=False, scale=None):
    """the number of tiles is rounded down: a last, shorter one is left out"""
    return _flash(q, k, v, causal, scale, "key_tail")


@mutant("offset")
def offset_int(q, k, v, *, causal=False, scale=None):
    """key times row stride is a product of two ints, which wraps"""
    return _flash(q, k, v, causal, scale, "int_key")


@mutant("strides")
def strides_of_k(q, k, v, *, causal=False, scale=None):
    """v is read with the strides of k"""
    return _flash(q, k, v, causal, scale, "strides_of_k")


@mutant("bounds")
def tile_overrun(q, k, v, *, causal=False, scale=None):
    """a tile is padded by one column in its indices and not in its size: at head dimension 256 it overruns"""
    return _flash(q, k, v, causal, scale, "tile_overrun")


@mutant("heads")
def other_group(q, k, v, *, causal=False, scale=None):
    """a query head takes the keys of its number modulo the key heads"""
    return _flash(q, k, v, causal, scale, "other_group")


@mutant("tail")
def grid_rounded_down(q, k, v, *, causal=False, scale=None):
    """the grid counts whole blocks of 32 queries: the last ones are not written"""
    return _flash(q, k, v, causal, scale, "grid")
