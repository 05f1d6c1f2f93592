"""Philox4x32-10 [salmon2011]: random words that depend on nothing but a seed, an offset and where they are used.

The element with index e of a tensor, counted row by row in 64 bits, has word e & 3 of the four that Philox makes of the
counter (e >> 2, offset) under the key `seed`: 64 bits each, of which the low 32 come first. Another offset is another
stream, which no index leads into. It is kept unless its word is below floor(p·2^32), so that masks are equal to the bit
in every language.
"""

import math

import numpy as np
import torch

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
STEPS = (0x9E3779B9, 0xBB67AE85)  # of the key from round to round
ROUNDS = 10
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counter: list[np.ndarray], key: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Four words of counter, of one shape, and two of a key -> four words of that shape, uint32."""
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    for turn in range(ROUNDS):
        k0, k1 = (np.uint64((word + turn * step) & 0xFFFFFFFF) for word, step in zip(key, STEPS, strict=True))
        first, second = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = second >> _SHIFT ^ c1 ^ k0, second & _LOW, first >> _SHIFT ^ c3 ^ k1, first & _LOW
    return tuple(word.astype(np.uint32) for word in (c0, c1, c2, c3))


def words(count: int, seed: int, offset: int, start: int = 0) -> np.ndarray:
    """The words of the elements from `start` on: (count,) uint32. `seed` and `offset` in [0, 2^63)."""
    first = start >> 2
    block = np.arange(first, (start + count + 3) >> 2, dtype=np.uint64)
    stream = [np.full_like(block, offset & 0xFFFFFFFF), np.full_like(block, offset >> 32)]
    four = philox([block & _LOW, block >> _SHIFT, *stream], (seed & 0xFFFFFFFF, seed >> 32))
    return np.stack(four, axis=-1).reshape(-1)[start - 4 * first :][:count]


def torch_words(count: int, seed: int, offset: int, device: torch.device | str) -> torch.Tensor:
    """The words of the first elements, (count,) int64, computed on the device. A product that wraps around in int64 has
    the bits of one in uint64."""
    c0 = torch.arange((count + 3) >> 2, device=device)
    c0, c1 = c0 & 0xFFFFFFFF, c0 >> 32
    c2, c3 = torch.full_like(c0, offset & 0xFFFFFFFF), torch.full_like(c0, offset >> 32)
    for turn in range(ROUNDS):
        k0, k1 = ((seed >> 32 * i) + turn * STEPS[i] & 0xFFFFFFFF for i in (0, 1))
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = (second >> 32 & 0xFFFFFFFF) ^ c1 ^ k0, second & 0xFFFFFFFF
        c2, c3 = (first >> 32 & 0xFFFFFFFF) ^ c3 ^ k1, first & 0xFFFFFFFF
    return torch.stack((c0, c1, c2, c3), dim=-1).reshape(-1)[:count]


def kept(shape: tuple[int, ...], p: float, seed: int, offset: int) -> np.ndarray:
    """Which elements a dropout of probability p keeps, booleans. ValueError: p outside [0, 1], seed or offset outside
    [0, 2^63)."""
    _check(p, seed, offset)
    return (words(int(np.prod(shape)), seed, offset) >= int(p * 2**32)).reshape(tuple(shape))


def torch_kept(shape: tuple[int, ...], p: float, seed: int, offset: int, device: torch.device) -> torch.Tensor:
    """The same as a tensor there, by NumPy where that is the CPU."""
    if device.type == "cpu":
        return torch.from_numpy(kept(shape, p, seed, offset))
    _check(p, seed, offset)
    return (torch_words(math.prod(shape), seed, offset, device) >= int(p * 2**32)).reshape(tuple(shape))


def _check(p: float, seed: int, offset: int) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"p: expected a probability in [0, 1], got {p}")
    for name, value in (("seed", seed), ("offset", offset)):
        if not 0 <= value < 2**63:
            raise ValueError(f"{name}: expected an integer in [0, 2^63), got {value}")


def scale(p: float) -> float:
    """What kept elements are multiplied by; 0 where none is."""
    return 1 / (1 - p) if p < 1 else 0.0
