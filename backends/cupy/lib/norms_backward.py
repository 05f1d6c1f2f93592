"""The gradients of layer norm and of RMS norm by blocks that stay: the launchers that their fastest variants share.

They return partial sums (2, parts, cols) for dweight and dbias, without `centred` (1, parts, cols) for dweight.
"""

from typing import NamedTuple

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.lib.norms import registers_per_row, resident, resident_grid, threads, vector_width
from touchstone.backends.cupy.runtime.clusters import at_once
from touchstone.backends.cupy.runtime.module import Module, shared_limit

_vectorised = Module(__file__, "norms_backward_vectorised.cu")
_staged = Module(__file__, "norms_backward_staged.cu")

_THREADS = 512  # of a block, which has a multiprocessor to itself: 128 registers each
_CLUSTERS = (2, 4, 8)  # blocks of one


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

    A row is held by one block, or with `clusters` by a cluster of two to eight. Declines longer rows: a block holds
    16384 columns, 8192 of float32.
    """
    rows, cols = x.shape
    lanes = 16 // x.element_size()
    cluster, vectors, across, teams = held = _held_in_clusters(cols, lanes) if clusters else _held(cols, lanes, 1)
    if cols > (limit := held.vectors_of_row * lanes):
        raise Unsupported(
            f"{cols} columns; {f'a cluster of {cluster} blocks' if clusters else 'one block'} holds {limit}"
        )
    down = teams if clusters else min(_THREADS // across, -(-rows // resident(x, 1)))
    beside = _THREADS // (across * down) if clusters else 1  # blocks of one multiprocessor
    at_a_time = at_once(x.device, cluster) * beside if clusters else resident(x, 1)
    groups = min(-(-rows // down), at_a_time)
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
        TEAMS=teams,
        ALIGNED=vector_width(x, weight, dy, dx) > 1,
        CENTRED=centred,
    )
    return partial


class _Held(NamedTuple):
    """How a row is held: by `across` threads of each block of a `cluster`, with `vectors` of 16 bytes each. In a
    cluster a block has `teams` of so many threads; while one waits for the sums of its row from other blocks, another
    computes."""

    cluster: int
    vectors: int
    across: int
    teams: int

    @property
    def vectors_of_row(self) -> int:
        """At most."""
        return self.cluster * self.across * self.vectors


def _held(cols: int, lanes: int, cluster: int) -> _Held:
    """By that many blocks, in vectors of `lanes` elements."""
    part = -(-cols // cluster)
    # Few threads with four vectors take fewer instructions for a row's sums than more threads.
    vectors = 1 if part <= 32 * lanes else 4
    across = threads(part, vectors * lanes, _THREADS)
    # Five to seven teams are slower than four on an H200: 12288 columns 0.74 and 0.73 of a copy's rate for 0.86.
    teams = 1 if cluster == 1 else next(count for count in (8, 4, 3, 2, 1) if count * across <= _THREADS)
    return _Held(cluster, vectors, across, teams)


def _held_in_clusters(cols: int, lanes: int) -> _Held:
    """By the cluster that leaves the fewest threads of a multiprocessor idle, the largest of several."""
    ways = [_held(cols, lanes, cluster) for cluster in _CLUSTERS]
    wide_enough = [held for held in ways if cols <= held.vectors_of_row * lanes] or ways[-1:]
    return max(wide_enough, key=lambda held: (held.teams * cols / (held.cluster * held.vectors), held.cluster))


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
