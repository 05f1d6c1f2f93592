"""What the launchers of attention_backward share: the argument check, the outputs, tiles of the CUDA-core variants."""

_STEP = 16


def _own(block_d: int) -> int:
    """Rows of a gradient that a block of 128 threads owns: what fits in 99 KB of shared memory with its partners."""
    return 32 if block_d <= 128 else 16


def _shared(block_d: int) -> int:
    """Bytes of two tiles of own rows and two of the other sequence's, and of two tiles of scores."""
    own = _own(block_d)
    return 4 * (2 * (own + _STEP) * (block_d + 4) + 2 * own * (_STEP + 1))
