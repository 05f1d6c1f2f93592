"""The operands of elementwise, checked; and tensors of any rank as ones of four axes."""

from collections.abc import Iterator

import torch

from touchstone.backends import shapes

FUNCTIONS = ("add", "mul")
AXES = 4


def checked_output(a: torch.Tensor, b: torch.Tensor, function: str) -> torch.Tensor:
    """y of unknown values. Raises as `shapes` does, and ValueError for different shapes and unknown functions."""
    shapes("..., ...", a=a, b=b)
    if b.shape != a.shape:
        raise ValueError(f"b: expected shape {tuple(a.shape)}, that of a, got {tuple(b.shape)}")
    if function not in FUNCTIONS:
        raise ValueError(f"function: expected one of {', '.join(FUNCTIONS)}, got {function!r}")
    return torch.empty(a.shape, dtype=a.dtype, device=a.device)


def in_four_axes(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same elements of tensors of one shape, none empty, as views of four axes: once, or once for each index of
    axes that are too many. What lies in one line in all tensors is one axis, the last."""
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in tensors]
    for axis, size in enumerate(tensors[0].shape):
        steps = [t.stride(axis) for t in tensors]
        if size == 1:
            continue
        if sizes and all(own[-1] == step * size for own, step in zip(strides, steps, strict=True)):
            sizes[-1] *= size
            for own, step in zip(strides, steps, strict=True):
                own[-1] = step
            continue
        sizes.append(size)
        for own, step in zip(strides, steps, strict=True):
            own.append(step)
    if len(sizes) > AXES:
        merged = [t.as_strided(sizes, s) for t, s in zip(tensors, strides, strict=True)]
        for index in range(sizes[0]):
            yield from in_four_axes(*(t[index] for t in merged))
        return
    missing = AXES - len(sizes)
    for each in strides:
        each[:0] = [0] * missing
    shape = [1] * missing + sizes
    yield tuple(t.as_strided(shape, s) for t, s in zip(tensors, strides, strict=True))
