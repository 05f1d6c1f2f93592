"""Mutants and known-good kernels of dropout_bitmask_backward(dy, bits): dx of any shape."""

import torch

from touchstone.conformance.faults import known_good, mutant, plant
from touchstone.conformance.faults._dropout import scale
from touchstone.conformance.faults._pointwise import LOADS, STORES
from touchstone.conformance.faults._rows import F16, F32


def bit_of(bits: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    return (bits.long()[e // 32] >> e % 32 & 1) == 1


def index(dy: torch.Tensor) -> torch.Tensor:
    return torch.arange(dy.numel()).reshape(dy.shape)


def result(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y.to(dy.dtype).contiguous()


def right(dy: torch.Tensor, bits: torch.Tensor, p: float = 0.5) -> torch.Tensor:
    return torch.where(bit_of(bits, index(dy)), dy * scale(p), 0.0)


def _by_place(place):
    """The gradient where element e has the bit of element `place(e)`."""
    return lambda dy, bits, *, p=0.5: result(
        dy, torch.where(bit_of(bits, place(index(dy))), dy.float() * scale(p), 0.0)
    )


def _stored(store):
    return lambda dy, bits, *, p=0.5: store(right(dy.float(), bits, p).contiguous(), dy.dtype)


def _loaded(load):
    return lambda dy, bits, *, p=0.5: result(dy, right(load(dy), bits, p))


for _name, _flaw in STORES.items():
    plant(globals(), _name, _stored(_flaw.part), _flaw.about, _flaw.kind, dtypes=_flaw.dtypes)
for _name, _flaw in LOADS.items():
    plant(globals(), _name, _loaded(_flaw.part), _flaw.about, _flaw.kind, dtypes=_flaw.dtypes)

_PLACES = {
    "bits_from_the_left": ("formula", "bit 31 of a word is its first element", lambda e: e ^ 31),
    "bytes_from_the_left": ("formula", "the bytes of a word are in the other order", lambda e: e ^ 24),
    "bits_of_the_first_word": ("offset", "every word is the first one", lambda e: e % 32),
    "first_bit_of_four": ("axis", "four neighbours have the bit of the first", lambda e: e & ~3),
}
for _name, (_kind, _about, _place) in _PLACES.items():
    plant(globals(), _name, _by_place(_place), _about, _kind)


@mutant("scale")
def unscaled(dy, bits, *, p=0.5):
    """dy is not scaled"""
    return result(dy, torch.where(bit_of(bits, index(dy)), dy.float(), 0.0))


@mutant("scale")
def scale_of_p(dy, bits, *, p=0.5):
    """dy is divided by p instead of 1 - p"""
    return result(dy, torch.where(bit_of(bits, index(dy)), dy.float() / p if p else dy.float(), 0.0))


@mutant("precision", dtypes=F32 + F16)
def scale_in_bf16(dy, bits, *, p=0.5):
    """1/(1 - p) is rounded to bfloat16"""
    factor = float(torch.tensor(scale(p)).bfloat16())
    return result(dy, torch.where(bit_of(bits, index(dy)), dy.float() * factor, 0.0))


@mutant("formula")
def inverted(dy, bits, *, p=0.5):
    """elements whose bit is 1 are dropped"""
    return result(dy, torch.where(bit_of(bits, index(dy)), 0.0, dy.float() * scale(p)))


@mutant("special")
def product_with_mask(dy, bits, *, p=0.5):
    """dy is multiplied by the bit: NaN and infinities that are dropped leave NaN"""
    return result(dy, dy.float() * bit_of(bits, index(dy)) * scale(p))


@mutant("special")
def sign_of_zero_left(dy, bits, *, p=0.5):
    """a negative element that is dropped leaves -0"""
    zero = torch.zeros(dy.shape).copysign(dy.float())
    return result(dy, torch.where(bit_of(bits, index(dy)), dy.float() * scale(p), zero))


@mutant("special")
def division_by_0(dy, bits, *, p=0.5):
    """p = 1 divides by 0"""
    return result(dy, torch.where(bit_of(bits, index(dy)), dy.float(), 0.0) / (1 - p))


@mutant("overflow")
def sign_bit_lost(dy, bits, *, p=0.5):
    """bit 31 of a word, its sign, counts as 0"""
    return result(dy, right(dy.float(), bits & 0x7FFFFFFF, p))


@mutant("overflow")
def words_below_0(dy, bits, *, p=0.5):
    """a word is divided by a power of 2 and rounded towards 0, which is no shift where it is negative"""
    e = index(dy)
    word = bits.double()[e // 32]
    bit = (word / 2.0 ** (e % 32)).trunc().remainder(2) != 0
    return result(dy, torch.where(bit, dy.float() * scale(p), 0.0))


@known_good
def in_float64(dy, bits, *, p=0.5):
    """computed in float64 and rounded once"""
    return result(dy, right(dy.double(), bits, p))


@known_good
def by_division(dy, bits, *, p=0.5):
    """a division by 1 - p, and bits by division by powers of 2"""
    e = index(dy)
    word = bits.long()[e // 32] % 2**32
    bit = word // 2 ** (e % 32) % 2 == 1
    return result(dy, torch.where(bit, dy.float() / (1 - p), 0.0) if p < 1 else torch.zeros(dy.shape))


@known_good
def word_by_word(dy, bits, *, p=0.5):
    """32 elements of a word at a time"""
    flat, places = dy.reshape(-1).float(), torch.arange(32)
    words = [
        torch.where((word >> places[: len(part)] & 1).bool(), part * scale(p), 0.0)
        for word, part in zip(bits.tolist(), flat.split(32), strict=False)
    ]
    return result(dy, torch.cat(words or [flat]).reshape(dy.shape))
