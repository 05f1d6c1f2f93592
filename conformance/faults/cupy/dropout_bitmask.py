"""Wrong kernels of dropout_bitmask: a warp votes."""

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures._dropout import axes, checked, words_of
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "dropout_bitmask.cu")

KERNELS = {
    "vote": Kernel("known-good", "the vote of a warp is a word of bits, in blocks of 64"),
    "bits_without_atomics": Kernel(
        "race",
        "the threads of a warp each add their bit to the word in memory, without atomics",
        "threads in reverse: bits",
    ),
    "lane_by_the_block": Kernel(
        "tail", "the first thread of a block stores a word, and no other warp does", "repeat: bits"
    ),
    "unused_bits_vote": Kernel("mask", "threads beyond the last element vote too"),
}


def _vote(
    x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    shapes("...", x=x)
    rule = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    bits = torch.empty(words_of(x), dtype=torch.int32, device=x.device)
    if size := y.numel():
        sizes, strides = axes(x)
        operands = (x, y, bits, size, *sizes[1:], *strides, *rule)
        _module.launch("dropout_bitmask_vote", -(-size // 64), 64, *operands, fault=fault, dtype=x.dtype)
    return y, bits


plant_kernels(globals(), _vote, KERNELS, "vote", "bits_without_atomics", "lane_by_the_block", "unused_bits_vote")
