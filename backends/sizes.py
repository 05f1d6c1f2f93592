"""Arithmetic of launchers. Triton's cdiv and next_power_of_2 are for kernels too, which costs 3 us of each call."""


def ceil_div(size: int, by: int) -> int:
    """How many pieces of `by` cover `size`."""
    return -(-size // by)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not below `n`; 0 for 0."""
    return 1 << (n - 1).bit_length() if n > 0 else 0
