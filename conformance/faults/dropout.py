"""Mutants and known-good kernels of dropout(x): y of any shape."""

import torch

from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults._dropout import Drop, in_memory, kept, plant_drops, scale, scaled, word_of


def _dropout(drop: Drop):
    return lambda x, *, p=0.5, seed=0, offset=0: drop(x, p, seed, offset)


plant_drops(globals(), _dropout)


@mutant("strides")
def index_in_memory(x, *, p=0.5, seed=0, offset=0):
    """the index is the place in memory: another layout is another mask"""
    return scaled(x.float(), word_of(in_memory(x), seed, offset) >= int(p * 2**32), p).to(x.dtype).contiguous()


@mutant("precision")
def twice_in_16_bits(x, *, p=0.5, seed=0, offset=0):
    """elements of x and the mask are multiplied in bfloat16"""
    y = x.bfloat16() * torch.tensor(scale(p)).bfloat16()
    return torch.where(kept(x, p, seed, offset), y, torch.zeros((), dtype=torch.bfloat16)).to(x.dtype).contiguous()


@known_good
def in_float64(x, *, p=0.5, seed=0, offset=0):
    """computed in float64 and rounded once"""
    return scaled(x.double(), kept(x, p, seed, offset), p).to(x.dtype).contiguous()
