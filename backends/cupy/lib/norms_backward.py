"""The gradients of layer norm and of RMS norm by blocks that stay: the launchers that their fastest variants share.

They return partial sums (2, parts, cols) for dweight and dbias, without `centred` (1, parts, cols) for dweight.
"""

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.lib.norms import registers_per_row, resident, resident_grid, threads, vector_width
from touchstone.backends.cupy.runtime.module import Module, shared_limit

_vectorised = Module(__file__, "norms_backward_vectorised.cu")
_staged = Module(__file__, "norms_backward_staged.cu")

_THREADS = 512  # of a block, which has a multiprocessor to itself: 128 registers each
_CLUSTER = 8  # blocks of a cluster at most


def vectorised_width(x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, dx: torch.Tensor) -> int:
    """Elements in one access of `vectorised_gradients`; declines rows that its sums do not fit."""
    length = vector_width(x, weight, dy, dx)
    if x.shape[1] > (limit := 32768 if length > 1 else 8192):
        raise Unsupported(f"{x.shape[1]} columns; one block holds {limit} in accesses of {length} elements")
    return length


def vectorised_gradients(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    mean: torch.Tensor | None,
    rstd: torch.Tensor | None,
    dx: torch.Tensor,
    eps: float,
    *,
    centred: bool,
    length: int,
) -> torch.Tensor:
    """Fill dx; returns partial sums. A block holds row after row in its registers, in accesses of `length` elements."""
    rows, cols = x.shape
    columns, _ = registers_per_row(cols)
    blocks, across = resident_grid(rows, cols, x, columns)
    # 56 floats a thread and what row_sums needs are all the shared memory there is.
    shared = 0 if columns == 8 and length > 1 else min((1 + centred) * columns, 56)
    partial = torch.empty((1 + centred, blocks, cols), dtype=torch.float32, device=x.device)
    _vectorised.launch(
        "norms_backward_vectorised",
        blocks,
        across,
        *_operands(x, weight, dy, mean, rstd, dx, partial, eps),
        dtype=x.dtype,
        shared=4 * shared * across,
        COLUMNS=columns,
        VECTOR=length,
        SHARED=shared,
        CENTRED=centred,
    )
    return partial


def staged_gradients(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    mean: torch.Tensor | None,
    rstd: torch.Tensor | None,
    dx: torch.Tensor,
    eps: float,
    *,
    centred: bool,
    clusters: bool = False,
) -> torch.Tensor:
    """Fill dx; returns partial sums. Rows wait in shared memory.

    A row is held by one block, or with `clusters` by as many blocks of a cluster as it needs, two at least.
    Declines longer rows: a block holds 16384 columns, 8192 of float32.
    """
    rows, cols = x.shape
    lanes = 16 // x.element_size()
    cluster = 1
    while clusters and (cluster == 1 or (cols > cluster * _THREADS * 4 * lanes and cluster < _CLUSTER)):
        cluster *= 2
    if cols > (limit := cluster * _THREADS * 4 * lanes):
        raise Unsupported(
            f"{cols} columns; {f'a cluster of {cluster} blocks' if clusters else 'one block'} holds {limit}"
        )

    # Vectors of 16 bytes per thread: few threads with four take fewer instructions for a row's sums than more threads.
    part = -(-cols // cluster)
    vectors = 1 if part <= 32 * lanes else 4
    across = threads(part, vectors * lanes, _THREADS)
    down = min(_THREADS // across, -(-rows // resident(x, 1))) if cluster == 1 else 1
    beside = _THREADS // across if clusters else 1  # blocks of one multiprocessor
    groups = min(-(-rows // down), max(1, resident(x, beside) // cluster))
    line = across * down * vectors * 16  # bytes that a block holds of one operand
    static = 32 * max(32, 16 * cluster)  # bytes for the sums of rows
    shared = shared_limit(x.device) // beside - (1024 if beside > 1 else 0)
    stages = min(3, (shared - static - line) // (2 * line))
    if stages < 1:
        raise Unsupported(f"{3 * line + static} bytes of shared memory a block; the device has {shared}")
    partial = torch.empty((1 + centred, groups, cols), dtype=torch.float32, device=x.device)
    _staged.launch(
        "norms_backward_staged",
        groups * cluster,
        (across, down),
        *_operands(x, weight, dy, mean, rstd, dx, partial, eps),
        dtype=x.dtype,
        shared=(2 * stages + 1) * line,
        arch="sm_90a" if clusters else None,
        VECTORS=vectors,
        STAGES=stages,
        CLUSTER=cluster,
        ALIGNED=vector_width(x, weight, dy, dx) > 1,
        CENTRED=centred,
    )
    return partial


def _operands(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    mean: torch.Tensor | None,
    rstd: torch.Tensor | None,
    dx: torch.Tensor,
    partial: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor | float | None, ...]:
    """The arguments of both kernels."""
    given = (0 if s is None else s.stride(0) for s in (mean, rstd))
    return x, weight, dy, mean, rstd, dx, partial, *x.stride(), *weight.stride(), *dy.stride(), *given, *x.shape, eps
