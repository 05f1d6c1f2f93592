"""An op that only moves elements: the library's copies move them, and a kernel copies them as they lie."""

import torch
import triton
import triton.language as tl


@triton.jit
def _as_it_lies_kernel(y, x, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    tl.store(y + place, tl.load(x + place, mask=place < count, other=0.0), mask=place < count)


def _as_it_lies(x):
    """A copy of a contiguous tensor, made by a kernel."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        _as_it_lies_kernel[(triton.cdiv(y.numel(), 1024),)](y, x, y.numel(), BLOCK=1024)
    return y


def before_the_kernel(x):
    """The library makes the transpose contiguous before the kernel.

    transpose, untrusted, refused
    """
    return _as_it_lies(x.t().contiguous())


def behind_the_kernel(x):
    """And behind it.

    transpose, untrusted, refused
    """
    return _as_it_lies(x.contiguous()).t().contiguous()


def into_the_output(x):
    """The library copies into the output, seen in the operand's order.

    transpose, untrusted, refused
    """
    y = torch.empty((x.shape[1], x.shape[0]), dtype=x.dtype, device=x.device)
    y.t().copy_(_as_it_lies(x.contiguous()))
    return y


def row_by_row(x):
    """Each row by a copy of its own.

    transpose, untrusted, refused
    """
    y = torch.empty((x.shape[1], x.shape[0]), dtype=x.dtype, device=x.device)
    for row, given in enumerate(_as_it_lies(x.contiguous())):
        y[:, row].copy_(given)
    return y


def by_diagonals(x):
    """Each diagonal by a copy of its own.

    transpose, untrusted, refused
    """
    y = torch.empty((x.shape[1], x.shape[0]), dtype=x.dtype, device=x.device)
    moved = _as_it_lies(x.contiguous())
    for k in range(1 - x.shape[0], x.shape[1]):
        y.diagonal(-k).copy_(moved.diagonal(k))
    return y


def one_by_one(x):
    """Each element by a copy of its own.

    transpose, untrusted, refused
    """
    y = torch.empty((x.shape[1], x.shape[0]), dtype=x.dtype, device=x.device)
    moved = _as_it_lies(x.contiguous())
    for row in range(x.shape[0]):
        for column in range(x.shape[1]):
            y[column, row] = moved[row, column]
    return y


def of_a_parameter(x):
    """The library copies a tensor of a class of its own.

    transpose, untrusted, refused
    """
    y = torch.empty((x.shape[1], x.shape[0]), dtype=x.dtype, device=x.device)
    y.copy_(torch.nn.Parameter(_as_it_lies(x.contiguous()).t(), requires_grad=False))
    return y


def as_bytes(x):
    """The library moves the bytes of the elements.

    transpose, untrusted, refused
    """
    moved = _as_it_lies(x.contiguous()).view(torch.uint8).view(*x.shape, x.element_size())
    return moved.transpose(0, 1).contiguous().view(x.dtype).view(x.shape[1], x.shape[0])
