"""What can be wrong with a mask or a scale, for dropout and its kin.

A `Drop` is `drop(x, p, seed, offset)`: x in float32 -> what is left of it, scaled. An op plants what it becomes with
each of the wrong ones: `plant_drops(globals(), build)`, where `build(drop)` is the op on float32 tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from touchstone.conformance.faults import ALL, plant
from touchstone.conformance.faults._pointwise import LOADS, STORES
from touchstone.conformance.faults._rows import F16, F32, in_float32

_LOW = 0xFFFFFFFF

Drop = Callable[[torch.Tensor, float, int, int], torch.Tensor]


def word_of(e: torch.Tensor, seed: int, offset: int, rounds: int = 10, order: tuple[int, ...] = (0, 1, 2, 3)):
    """The words of elements e, int64: Philox in products that wrap at 2^64, of which the high half is the same."""
    block = e >> 2
    c0, c1, c2, c3 = block & _LOW, block >> 32, torch.full_like(e, offset & _LOW), torch.full_like(e, offset >> 32)
    k0, k1 = seed & _LOW, seed >> 32
    for _ in range(rounds):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = second >> 32 & _LOW ^ c1 ^ k0, second & _LOW, first >> 32 & _LOW ^ c3 ^ k1, first & _LOW
        k0, k1 = k0 + 0x9E3779B9 & _LOW, k1 + 0xBB67AE85 & _LOW
    words = torch.stack([c0, c1, c2, c3], -1)[..., list(order)]
    return words.gather(-1, (e & 3)[..., None])[..., 0]


def index(x: torch.Tensor) -> torch.Tensor:
    """The index of each element in its logical shape."""
    return torch.arange(x.numel()).reshape(x.shape)


def in_memory(x: torch.Tensor) -> torch.Tensor:
    """The place in memory of each element, from the first one on: what a kernel takes that knows strides alone."""
    return torch.arange(1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))).as_strided(
        x.shape, x.stride()
    )


def scale(p: float) -> float:
    return 1 / (1 - p) if p < 1 else 0.0


def kept(x: torch.Tensor, p: float, seed: int, offset: int, **about: Any) -> torch.Tensor:
    """Which elements of x are kept."""
    return word_of(index(x), seed, offset, **about) >= int(p * 2**32)


def scaled(x: torch.Tensor, keep: torch.Tensor, p: float) -> torch.Tensor:
    return torch.where(keep, x * scale(p), 0.0)


def right(x: torch.Tensor, p: float, seed: int, offset: int) -> torch.Tensor:
    return scaled(x, kept(x, p, seed, offset), p)


def _by(word: Callable[[torch.Tensor, int, int], torch.Tensor]) -> Drop:
    """The drop whose words are `word(e, seed, offset)`."""
    return lambda x, p, seed, offset: scaled(x, word(index(x), seed, offset) >= int(p * 2**32), p)


def _by_columns(x: torch.Tensor, p: float, seed: int, offset: int) -> torch.Tensor:
    columns = torch.arange(x.shape[-1] if x.ndim else 1).expand(x.shape)
    return scaled(x, word_of(columns, seed, offset) >= int(p * 2**32), p)


def _of_torch(x: torch.Tensor, p: float, seed: int, offset: int) -> torch.Tensor:
    drawn = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed + offset), dtype=torch.float64)
    return scaled(x, drawn >= p, p)


class WrongDrop(NamedTuple):
    kind: str
    about: str
    drop: Drop
    dtypes: tuple[str, ...] = ALL


WRONG: Mapping[str, WrongDrop] = {
    "offset_added_to_index": WrongDrop(
        "offset",
        "the offset is added to the index, so that the streams of neighbouring offsets overlap",
        _by(lambda e, seed, offset: word_of(e + offset, seed, 0)),
    ),
    "seed_of_32_bits": WrongDrop(
        "parameter",
        "the high word of the seed is dropped",
        _by(lambda e, seed, offset: word_of(e, seed & _LOW, offset)),
    ),
    "offset_of_32_bits": WrongDrop(
        "parameter",
        "the high word of the offset is dropped",
        _by(lambda e, seed, offset: word_of(e, seed, offset & _LOW)),
    ),
    "seed_of_48_bits": WrongDrop(
        "parameter",
        "the highest 16 bits of the seed are dropped",
        _by(lambda e, seed, offset: word_of(e, seed & 2**48 - 1, offset)),
    ),
    "seed_and_offset_swapped": WrongDrop(
        "parameter", "seed and offset change places", _by(lambda e, seed, offset: word_of(e, offset, seed))
    ),
    "seven_rounds": WrongDrop(
        "formula",
        "Philox has seven rounds instead of ten",
        _by(lambda e, seed, offset: word_of(e, seed, offset, rounds=7)),
    ),
    "next_word": WrongDrop(
        "axis",
        "an element takes the word of the next one of its four",
        _by(lambda e, seed, offset: word_of(e, seed, offset, order=(1, 2, 3, 0))),
    ),
    "words_interleaved": WrongDrop(
        "axis",
        "the second and the third of four words change places: two tiles joined in the wrong order",
        _by(lambda e, seed, offset: word_of(e, seed, offset, order=(0, 2, 1, 3))),
    ),
    "one_word_for_four": WrongDrop(
        "axis",
        "four neighbours are kept or dropped together",
        _by(lambda e, seed, offset: word_of(e & ~3, seed, offset)),
    ),
    "a_call_for_each_element": WrongDrop(
        "formula",
        "the index is the counter itself, not a quarter of it, and the first of four words is taken",
        _by(lambda e, seed, offset: word_of(4 * e, seed, offset)),
    ),
    "index_of_a_block": WrongDrop(
        "offset",
        "the index begins anew with every block of 1024 elements",
        _by(lambda e, seed, offset: word_of(e % 1024, seed, offset)),
    ),
    "index_modulo_65536": WrongDrop(
        "offset", "the index has 16 bits", _by(lambda e, seed, offset: word_of(e % 2**16, seed, offset))
    ),
    "index_of_a_column": WrongDrop("axis", "the index is that of the column: all rows have one mask", _by_columns),
    "generator_of_torch": WrongDrop("formula", "the mask is one of torch's own generator", _of_torch),
    "threshold_dropped": WrongDrop(
        "mask",
        "a word equal to the threshold is dropped: > for >=",
        lambda x, p, *s: scaled(x, word_of(index(x), *s) > int(p * 2**32) - (p == 0), p),
    ),
    "compared_in_float32": WrongDrop(
        "precision",
        "words are compared with p as numbers of float32",
        lambda x, p, *s: scaled(x, (word_of(index(x), *s).float() * 2.0**-32 >= p) & (p < 1), p),
    ),
    "compared_in_16_bits": WrongDrop(
        "precision",
        "only the high 16 bits of the words are compared",
        lambda x, p, *s: scaled(x, (word_of(index(x), *s) >> 16) >= int(p * 2**16), p),
    ),
    "compared_in_31_bits": WrongDrop(
        "precision",
        "the last bit of the words is not compared",
        lambda x, p, *s: scaled(x, (word_of(index(x), *s) >> 1) >= int(p * 2**31), p),
    ),
    "small_p_is_0": WrongDrop(
        "parameter",
        "nothing is dropped for a p of less than 1/1000",
        lambda x, p, *s: right(x, p if p >= 1e-3 else 0.0, *s),
    ),
    "threshold_wraps": WrongDrop(
        "overflow",
        "the threshold 2^32 of p = 1 wraps to 0, and all is kept",
        lambda x, p, *s: torch.where(word_of(index(x), *s) >= int(p * 2**32) & _LOW, x * (scale(p) or 1.0), 0.0),
    ),
    "keeps_what_it_should_drop": WrongDrop(
        "formula",
        "elements are kept with probability p, not dropped",
        lambda x, p, *s: torch.where(kept(x, p, *s), 0.0, x * scale(p)),
    ),
    "largest_for_infinity": WrongDrop(
        "special",
        "what the scale takes beyond the largest float16 is that number",
        lambda x, p, *s: torch.where(x.abs() <= 65504, right(x, p, *s).clamp(-65504, 65504), right(x, p, *s)),
        F16,
    ),
    "scale_missing": WrongDrop(
        "scale", "what is kept is not scaled", lambda x, p, *s: torch.where(kept(x, p, *s), x, 0.0)
    ),
    "scale_of_p": WrongDrop(
        "scale",
        "what is kept is divided by p instead of 1 - p",
        lambda x, p, *s: torch.where(kept(x, p, *s), x / p if p else x, 0.0),
    ),
    "scale_in_bf16": WrongDrop(
        "precision",
        "1/(1 - p) is rounded to bfloat16",
        lambda x, p, *s: torch.where(kept(x, p, *s), x * float(torch.tensor(scale(p)).bfloat16()), 0.0),
        F32 + F16,
    ),
    "product_with_mask": WrongDrop(
        "special",
        "x is multiplied by the mask: NaN and infinities that are dropped leave NaN",
        lambda x, p, *s: x * kept(x, p, *s) * scale(p),
    ),
    "sign_of_zero_left": WrongDrop(
        "special",
        "a negative element that is dropped leaves -0",
        lambda x, p, *s: torch.where(kept(x, p, *s), x * scale(p), torch.zeros_like(x).copysign(x)),
    ),
    "division_by_0": WrongDrop(
        "special", "p = 1 divides by 0, and gives NaN", lambda x, p, *s: torch.where(kept(x, p, *s), x, 0.0) / (1 - p)
    ),
}


def _in_order(x: torch.Tensor, p: float, seed: int, offset: int) -> torch.Tensor:
    """All four words of a call, one after another."""
    first = 4 * torch.arange(-(-x.numel() // 4))
    words = torch.stack([word_of(first + i, seed, offset) for i in range(4)], 1).flatten()[: x.numel()]
    return scaled(x, words.reshape(x.shape) >= int(p * 2**32), p)


def _divided(x: torch.Tensor, p: float, seed: int, offset: int) -> torch.Tensor:
    keep = kept(x, p, seed, offset)
    return torch.where(keep, x / (1 - p), 0.0) if p < 1 else torch.zeros_like(x)


def _from_the_end(x: torch.Tensor, p: float, seed: int, offset: int) -> torch.Tensor:
    last = x.numel() - 1
    flat = x.reshape(-1).flip(0)
    keep = word_of(last - torch.arange(x.numel()), seed, offset) >= int(p * 2**32)
    return scaled(flat, keep, p).flip(0).reshape(x.shape)


GOOD: Mapping[str, tuple[str, Drop]] = {
    "four_words_of_a_call": ("all four words of a call, one after another", _in_order),
    "divided_by_1_minus_p": ("a division by 1 - p", _divided),
    "from_the_end": ("elements from the last to the first", _from_the_end),
}


def plant_drops(
    namespace: dict[str, Any], build: Callable[[Drop], Callable[..., Any]], *equivalent: str, wide: Sequence[int] = ()
) -> None:
    """Plant what `build(drop)`, an op on float32 tensors, becomes with wrong drops but for what is `equivalent` here,
    and with loads and stores that are wrong in any op of elements; and right kernels.

    Outputs in `wide` keep their dtype.
    """
    for name, (kind, about, drop, dtypes) in WRONG.items():
        if name not in equivalent:
            plant(namespace, name, in_float32(build(drop), wide=wide), about, kind, dtypes=dtypes)
    for name, flaw in {**STORES, **LOADS}.items():
        if name not in equivalent:
            given = {"store" if name in STORES else "load": flaw.part}
            plant(
                namespace, name, in_float32(build(right), wide=wide, **given), flaw.about, flaw.kind, dtypes=flaw.dtypes
            )
    for name, (about, drop) in GOOD.items():
        plant(namespace, name, in_float32(build(drop), wide=wide), about, "known-good")
