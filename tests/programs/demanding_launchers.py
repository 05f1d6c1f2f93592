"""Launchers written as published ones are: they ask for CUDA when they are imported and when they are called.

tests/triton/test_launching.py judges them on the CPU.
"""

import importlib

import torch
import triton
import triton.language as tl
from triton._C.libtriton import nvidia
from triton.runtime import driver
from triton.testing import nvsmi

DEVICE = triton.runtime.driver.active.get_active_torch_device()
PROPERTIES = driver.active.utils.get_device_properties(DEVICE.index)
CAPABILITY = torch.cuda.get_device_capability()
assert torch.cuda.is_available(), "these kernels need a GPU"
CUBLAS = nvidia.cublas.CublasLt(torch.empty(1024, device="cuda", dtype=torch.uint8))


def is_hip():
    return triton.runtime.driver.active.get_current_target().backend == "hip"


@triton.jit
def _rows(y_ptr, x_ptr, stride, rows, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        i = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + i, mask=i < cols, other=-float("inf")).to(tl.float32)
        e = tl.exp(x - tl.max(x, 0))
        tl.store(y_ptr + row * cols + i, e / tl.sum(e, 0), mask=i < cols)


def by_occupancy(x):
    """As many programs as find room, by the registers and the shared memory of the compiled kernel."""
    x, y = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device="cuda")
    (rows, cols), warps, stages = x.shape, 8, 4 if PROPERTIES["max_shared_mem"] > 200000 else 2
    if not x.numel():
        return y
    block = triton.next_power_of_2(cols)
    kernel = _rows.warmup(y, x, cols, rows, cols, BLOCK=block, STAGES=stages, num_warps=warps, grid=(1,))
    kernel._init_handles()
    room = PROPERTIES["max_num_regs"] // (kernel.n_regs * PROPERTIES["warpSize"] * warps)
    if not is_hip():
        room = min(room, PROPERTIES["max_shared_mem"] // kernel.metadata.shared)
    programs = min(PROPERTIES["multiprocessor_count"] * room, rows)
    kernel[(programs, 1, 1)](y, x, cols, rows, cols, block, stages)
    return y


def by_clock(x):
    """A model of performance asks how fast the GPU is."""
    assert 500 < nvsmi(["clocks.max.sm"])[0] < 5000
    return by_function(x)


KERNELS = {}


def _kept(x, further):
    """Launches the kernel that a launch returned, with `further` for its compile-time parameters, which are in it."""
    x, y = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device="cuda")
    (rows, cols), block = x.shape, triton.next_power_of_2(x.shape[-1])
    if not x.numel():
        return y
    if block in KERNELS:
        KERNELS[block][(rows, 1, 1)](y, x, cols, rows, cols, *further)
    else:
        KERNELS[block] = _rows[(rows,)](y, x, cols, rows, cols, BLOCK=block, STAGES=1)
    return y


def by_kept_kernels(x):
    return _kept(x, ())


def by_kept_kernels_and_other_constants(x):
    return _kept(x, (1, 9))


def calculate_settings(cols):
    block = triton.next_power_of_2(cols)
    return block, 4 if block < 2048 else 8 if block < 8192 else 16


class Softmax(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x):
        assert x.is_cuda and x.device.type == "cuda", "x is not on the GPU"
        y, (block, warps) = torch.empty_like(x), calculate_settings(x.shape[-1])
        programs = min(torch.cuda.get_device_properties(x.device).multi_processor_count, x.shape[0])
        with torch.cuda.device(x.device.index):
            _rows[(programs,)](y, x, x.stride(0), *x.shape, block, 1, num_warps=warps)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        assert dy.is_cuda
        return y * (dy - (y * dy).sum(-1, keepdim=True))


def by_function(x):
    """An autograd function that asserts, in a device context."""
    return Softmax.apply(x.contiguous()) if x.numel() else torch.empty_like(x)


def on_a_stream(x):
    """Another stream, a copy to the GPU, a benchmark in the launcher."""
    y = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        scale = torch.tensor([1.0]).cuda()
        assert scale.device == x.device and torch.cuda.current_device() == x.get_device()
        if x.numel():
            x = x.contiguous()
            block = triton.next_power_of_2(x.shape[1])
            triton.testing.do_bench(lambda: _rows[(x.shape[0],)](y, x, x.shape[1], *x.shape, block, 1))
    torch.cuda.synchronize()
    return y


@torch.library.custom_op("touchstone_launchers::softmax", mutates_args=(), device_types="cuda")
def _operator(x: torch.Tensor) -> torch.Tensor:
    return by_function(x)


def by_operator(x):
    """Behind a custom operator for CUDA, which is found by its name."""
    return torch.ops.touchstone_launchers.softmax(x)


compiled = torch.compile(by_function)


def by_compiled(x):
    return compiled(x)


def by_name(x):
    """Found by a string, in a module that is imported when it is called."""
    return getattr(importlib.import_module("demanding_launchers"), "by_" + "function")(x)


def forgets_the_device(x):
    """The kernel's operand would lie on the CPU."""
    y = torch.empty(x.shape, dtype=x.dtype)
    if x.numel():
        _rows[(x.shape[0],)](y, x.contiguous(), x.shape[1], *x.shape, triton.next_power_of_2(x.shape[1]), 1)
    return y


def returns_to_the_host(x):
    return by_function(x).cpu()


def launches_a_graph(x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = by_function(x)
    graph.replay()
    return y
