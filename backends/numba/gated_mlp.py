"""gated_mlp(x, w_gate, w_up, w_down): (act(x·w_gate)·(x·w_up))·w_down; x (M, D), w_gate, w_up (D, H), w_down (H, N).

unfused: three products and an elementwise kernel between them [shazeer2020]
epilogue: a block multiplies columns of gate and of up side by side, and they meet in shared memory [cutlass2022]
tensorcore: the same on mma.sync, for 16-bit operands: matmul's pipelined, else tensorcore [cutlass2022]
"""

import functools

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends import shapes
from touchstone.backends.numba import matmul
from touchstone.backends.numba.lib import gemm
from touchstone.backends.numba.lib.activations import activate, number
from touchstone.backends.numba.lib.gemm import corner, flat, kernel, pair_operands, store_four, tile_grid
from touchstone.backends.numba.lib.mma import sixteen_bits
from touchstone.backends.numba.lib.ptx import load1, load4, store1
from touchstone.backends.numba.lib.tensorcores import fastest, multiplied
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import HALF, variant


@cuda.jit
def _act_mul(gate, up, activation):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < gate.size:
        store1(gate, i, activate(load1(gate, i), activation) * load1(up, i))


@variant()
def unfused(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N). Any sizes and strides. Source: [shazeer2020]."""
    shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    kind = number(activation)
    gate, up = matmul.doublebuffered(x, w_gate), matmul.doublebuffered(x, w_up)
    if gate.numel():
        launch(_act_mul, tile_grid(gate.numel(), 1, 256, 1), 256, gate, up, kind)
    return matmul.doublebuffered(gate, w_down)


@functools.cache
def _gate_up(core, multiply):
    """The kernel hidden = act(x·gate)·(x·up) on the main loop `multiply` of gemm.py, mma.py or pipeline.py.

    A tile of WIDTH columns is GROUP of gate, GROUP of up, GROUP of gate and so on.
    """
    HEIGHT, WIDTH, GROUP, PARTS, STAGED, PITCH, THREADS = (
        core.HEIGHT,
        core.WIDTH,
        core.GROUP,
        core.PARTS,
        core.STAGED,
        core.PITCH,
        core.THREADS,
    )
    SHARED, ELEMENT, ALIGNMENT, SUMS = core.SHARED, core.ELEMENT, core.ALIGNMENT, core.SUMS
    COLS = WIDTH // 2  # of hidden
    is_odd, find_way, stage, staged_row = core.is_odd, core.find_way, core.stage, core.staged_row

    @kernel(THREADS, core.BLOCKS)
    def gate_up(
        x, gate, up, hidden, M, H, D, stride_xm, stride_xd, stride_gd, stride_gh, stride_ud, stride_uh, bits, activation
    ):
        shared = cuda.shared.array(SHARED, ELEMENT, ALIGNMENT)
        results = shared.view(np.float32)
        sums = cuda.local.array(SUMS, float32)
        gates = cuda.local.array(4, float32)
        ups = cuda.local.array(4, float32)
        first_m, first_h = corner(M, H, HEIGHT, COLS)
        x_way = find_way(M, D, stride_xm, stride_xd, bits & 1, bits & 2, first_m, HEIGHT, HEIGHT)
        weights, stride_h, stride_d, wide = gate, stride_gh, stride_gd, bits & 8
        if is_odd(bits & 4):
            weights, stride_h, stride_d, wide = up, stride_uh, stride_ud, bits & 16
        way = find_way(H, D, stride_h, stride_d, bits & 4, wide, first_h, GROUP, WIDTH)
        multiply(sums, shared, x, weights, x_way, way, D)
        for part in range(PARTS):
            stage(results, sums, part)
            cuda.syncthreads()
            at = (cuda.threadIdx.x & (THREADS - 1)) * 4
            while at < STAGED * COLS:
                row, col = at // COLS, at % COLS
                m, h = first_m + staged_row(part, row), first_h + col
                if m < M:
                    place = row * PITCH + col // GROUP * 2 * GROUP + col % GROUP
                    load4(gates, 0, results, place)
                    load4(ups, 0, results, place + GROUP)
                    for j in range(4):
                        gates[j] = activate(gates[j], activation) * ups[j]
                    store_four(hidden, m, h, gates[0], gates[1], gates[2], gates[3])
                at += THREADS * 4
            cuda.syncthreads()

    return gate_up


def _fused(core, multiply, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: int) -> torch.Tensor:
    """act(x·gate)·(x·up): (M, D) and two (D, H) give (M, H)."""
    M, H = x.shape[0], gate.shape[1]
    hidden = x.new_empty(M, H)
    if hidden.numel():
        grid, given = tile_grid(M, H, core.HEIGHT, core.WIDTH // 2), pair_operands(x, gate, up, core.LANES)
        launch(
            _gate_up(core, multiply),
            grid,
            core.THREADS,
            flat(x),
            flat(gate),
            flat(up),
            hidden,
            *given,
            activation,
            shared=core.BYTES,
        )
    return hidden


@variant()
def epilogue(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N). Any sizes and strides. Source: [cutlass2022]."""
    shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    return matmul.doublebuffered(_fused(gemm, gemm.multiply, x, w_gate, w_up, number(activation)), w_down)


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N). Any strides. Declines float32. See [cutlass2022]."""
    shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    kind = number(activation)
    sixteen_bits(x.dtype)
    hidden = _fused(*fastest(x, w_gate, w_up), x, w_gate, w_up, kind)
    return multiplied(*fastest(hidden, w_down), hidden, w_down)
