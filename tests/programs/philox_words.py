"""Philox's words as a language has them on the CPU: `philox_words.py LANGUAGE` prints those of each stream, as hex."""

import sys

import numpy as np
import torch

from touchstone.backends.cupy.runtime.module import Module

STREAMS = [  # start, seed, offset
    (0, 0, 0),
    (0, 1, 16),
    (2**34 + 8, 2**32 + 5, 2**32 + 1),
    (64, 2**63 - 1, 2**63 - 1),
    (2**62, 16, 2**31),
]
COUNT = 256


def cupy(out: torch.Tensor, start: int, seed: int, offset: int) -> None:
    Module(__file__, "philox_words.cu").launch("philox_words", 2, 32, out, start, seed, offset)


def numba(out: torch.Tensor, start: int, seed: int, offset: int) -> None:
    from numba import cuda, int32, uint64

    from touchstone.backends.numba.lib.philox import philox, word_of
    from touchstone.backends.numba.runtime.launching import launch

    @cuda.jit
    def kernel(out, start, seed, offset):
        first = uint64(4) * uint64(cuda.grid(1))
        words = philox((uint64(start) + first) >> uint64(2), uint64(seed), uint64(offset))
        for i in range(4):
            alone = word_of(uint64(start) + first + uint64(i), uint64(seed), uint64(offset))
            out[first + uint64(i)] = int32(words[i]) if alone == words[i] else int32(0)

    launch(kernel, 2, 32, out, start, seed, offset)


def triton(out: torch.Tensor, start: int, seed: int, offset: int) -> None:
    _triton_kernel()[(2,)](out, start, seed, offset, BLOCK=128)


def _triton_kernel():
    import triton
    import triton.language as tl

    from touchstone.backends.triton.lib.philox import rows_of_words, word_of, words_of

    globals().update(tl=tl, rows_of_words=rows_of_words, word_of=word_of, words_of=words_of)

    @triton.jit(do_not_specialize=["start", "seed", "offset"])
    def kernel(out_ptr, start, seed, offset, BLOCK: tl.constexpr):
        e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        block = tl.program_id(0).to(tl.int64) * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
        r0, r1, r2, r3 = words_of(start // 4 + block, seed, offset)
        words = tl.reshape(rows_of_words(r0, r1, r2, r3), [4 * r0.shape[0]])
        same = words == word_of(start + e, seed, offset)
        tl.store(out_ptr + e, tl.where(same, words, 0).to(tl.int32, bitcast=True))

    return kernel


if __name__ == "__main__":
    import importlib

    importlib.import_module(f"touchstone.backends.{sys.argv[1]}").prepare("cpu")
    for stream in STREAMS:
        out = torch.zeros(COUNT, dtype=torch.int32)
        globals()[sys.argv[1]](out, *stream)
        print(out.numpy().view(np.uint32).tobytes().hex())
