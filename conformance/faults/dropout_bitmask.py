"""Mutants and known-good kernels of dropout_bitmask(x): y of any shape, bits (ceil(n/32),) int32."""

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults._dropout import Drop, in_memory, kept, plant_drops, right, scale, scaled, word_of


def packed(keep: torch.Tensor, pad: bool = False) -> torch.Tensor:
    """Booleans as words of 32 bits, element 32w + b in bit b of word w; beyond the last one `pad`."""
    flat = F.pad(keep.reshape(-1), (0, -keep.numel() % 32), value=pad).reshape(-1, 32).long()
    return (flat << torch.arange(32)).sum(1).to(torch.int32)


def _bitmask(drop: Drop):
    """The bits are those of what `drop` leaves of ones."""

    def op(x, *, p=0.5, seed=0, offset=0):
        return drop(x, p, seed, offset), packed(drop(torch.ones(x.shape), p, seed, offset).nan_to_num(0.0) != 0)

    return op


plant_drops(globals(), _bitmask, wide=(1,))


def _op(x, p, seed, offset, bits):
    keep = kept(x, p, seed, offset)
    return right(x.float(), p, seed, offset).to(x.dtype).contiguous(), bits(keep)


@mutant("formula")
def bits_from_the_left(x, *, p=0.5, seed=0, offset=0):
    """bit 31 of a word is its first element"""
    return _op(x, p, seed, offset, lambda keep: packed(_padded(keep).flip(1)))


def _padded(keep: torch.Tensor) -> torch.Tensor:
    return F.pad(keep.reshape(-1), (0, -keep.numel() % 32)).reshape(-1, 32)


@mutant("formula")
def bytes_from_the_left(x, *, p=0.5, seed=0, offset=0):
    """the bytes of a word are in the other order"""
    return _op(x, p, seed, offset, lambda keep: packed(_padded(keep).reshape(-1, 4, 8).flip(1)))


@mutant("mask")
def unused_bits_set(x, *, p=0.5, seed=0, offset=0):
    """bits beyond the last element are 1"""
    return _op(x, p, seed, offset, lambda keep: packed(keep, pad=True))


@mutant("mask")
def unused_bits_by_chance(x, *, p=0.5, seed=0, offset=0):
    """bits beyond the last element are those of the elements that would come"""
    beyond = word_of(torch.arange(-(-x.numel() // 32) * 32), seed, offset) >= int(p * 2**32)
    return _op(x, p, seed, offset, lambda keep: packed(beyond))


@mutant("formula")
def bits_of_what_is_dropped(x, *, p=0.5, seed=0, offset=0):
    """a bit is 1 where the element is dropped"""
    return _op(x, p, seed, offset, lambda keep: packed(~keep))


@mutant("tail")
def last_word_lost(x, *, p=0.5, seed=0, offset=0):
    """the last word is 0 where it is no whole one"""
    whole = x.numel() // 32 * 32
    return _op(x, p, seed, offset, lambda keep: packed(keep & (torch.arange(x.numel()).reshape(x.shape) < whole)))


@mutant("special")
def bits_of_y(x, *, p=0.5, seed=0, offset=0):
    """a bit is 1 where y is not 0, and that is 0 for an x of 0"""
    y = right(x.float(), p, seed, offset).to(x.dtype).contiguous()
    return y, packed(y != 0)


@mutant("shapes")
def words_of_rows(x, *, p=0.5, seed=0, offset=0):
    """every row begins with a new word: a ballot of a warp that does not begin at a multiple of 32 elements"""
    y, bits = _op(x, p, seed, offset, packed)
    if x.ndim < 2 or not x.numel():
        return y, bits
    rows = torch.cat([packed(row) for row in kept(x, p, seed, offset).reshape(-1, x.shape[-1])])
    return y, rows[: bits.numel()].contiguous()


@mutant("contract")
def a_byte_for_an_element(x, *, p=0.5, seed=0, offset=0):
    """the mask is a byte for each element"""
    return _op(x, p, seed, offset, lambda keep: keep.reshape(-1).to(torch.int8))


@mutant("contract")
def bits_of_64(x, *, p=0.5, seed=0, offset=0):
    """the words are int64"""
    return _op(x, p, seed, offset, lambda keep: packed(keep).long())


@mutant("strides")
def index_in_memory(x, *, p=0.5, seed=0, offset=0):
    """the index is the place in memory: another layout is another mask"""
    keep = word_of(in_memory(x), seed, offset) >= int(p * 2**32)
    return scaled(x.float(), keep, p).to(x.dtype).contiguous(), packed(keep)


@known_good
def in_float64(x, *, p=0.5, seed=0, offset=0):
    """computed in float64 and rounded once; bits by sums of powers of 2"""
    keep = kept(x, p, seed, offset)
    y = torch.where(keep, x.double() * scale(p), 0.0).to(x.dtype).contiguous()
    powers = torch.tensor([2**b for b in range(31)] + [-(2**31)])
    return y, (_padded(keep) * powers).sum(1).to(torch.int32)
