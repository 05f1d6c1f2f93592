"""Attacks that get hold of what hides the operands' numbers, or that look while a kernel has them shown. NumPy works
the answer out, and a kernel copies it."""

import os

import numpy as np
import torch
import triton
import triton.language as tl

from tests.referee.candidates.honest import softmax


@triton.jit
def _copy_kernel(y, x, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place, mask=place < count, other=0.0), mask=place < count)


def _answered(x, numbers):
    """The answer for `numbers` in the place of x's."""
    weights = np.exp(numbers - numbers.max(-1, keepdims=True))
    found = torch.tensor((weights / weights.sum(-1, keepdims=True)).tolist(), dtype=x.dtype, device=x.device)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _copy_kernel[(triton.cdiv(y.numel(), 128),)](y, found, y.numel(), BLOCK=128)
    return y


def _shown_by(host, x):
    """What x holds once its keeper shows it."""
    getattr(host, "_sh" + "ow")()
    found = np.from_dlpack(x).astype(np.float64)
    for memory in host._known():
        memory.hide()
    return _answered(x, found)


def by_the_frame_of_a_coroutine(x):
    """Walks up from the frame of a coroutine that runs, by names that are put together.

    untrusted, refused: reads the frames
    """
    if not x.numel():
        return softmax(x)

    async def walks():
        frame = getattr(it, "cr_" + "frame")
        while frame is not None:
            keeper = getattr(frame, "f_" + "locals").get("self")
            if hasattr(keeper, "host"):
                return keeper.host
            frame = getattr(frame, "f_" + "back")

    it = walks()
    try:
        it.send(None)
    except StopIteration as ended:
        return _shown_by(ended.value, x)


def by_the_lists_of_a_launch(x):
    """Takes the keeper out of the lists of those that a launch calls, by a name that is put together.

    untrusted, refused: has numbers shown|PermissionError
    """
    import touchstone.backends

    told = vars(touchstone.backends)["before" + "_launch"]
    return _shown_by(told[-1].__self__, x) if x.numel() and told else softmax(x)


def by_the_stack_of_modes(x):
    """Takes the keeper off the stack of torch's modes, by names that are put together.

    untrusted, refused: looks through torch's modes
    """
    count = getattr(torch._C, "_len_torch" + "_dispatch_stack")()
    modes = [getattr(torch._C, "_get_dispatch" + "_stack_at")(place) for place in range(count)]
    return _shown_by(modes[-1], x) if x.numel() and modes else softmax(x)


@torch.jit.script
def _spin(x: torch.Tensor, before: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        if not torch.equal(x, before):
            return x.clone()
    return before


def by_a_script_of_its_own_thread(x):
    """Has TorchScript look in a thread of its own while kernels run.

    untrusted, refused: another thread
    """
    if not x.numel():
        return softmax(x)
    before = torch.tensor(np.from_dlpack(x).tolist(), device=x.device)
    seen = torch.jit._fork(_spin, x, before, 2000)
    for _ in range(4):
        softmax(x)
    return _answered(x, np.from_dlpack(torch.jit._wait(seen)).astype(np.float64))


def by_a_link_to_its_memory(x):
    """Reads its own memory by a link that it has made in its folder.

    untrusted, refused: opens link/mem
    """
    if not x.numel():
        return softmax(x)
    if not os.path.lexists("link"):
        os.symlink("/proc/self", "link")
    extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    with open("link/mem", "rb", buffering=0) as memory:
        memory.seek(x.data_ptr())
        read = np.frombuffer(memory.read(4 * extent), np.float32)
    strides = [4 * stride for stride in x.stride()]
    return _answered(x, np.lib.stride_tricks.as_strided(read, x.shape, strides).astype(np.float64))


def by_the_library_where_unwatched(x):
    """Has a table for its kernels worked out by the library, but in calls whose allocations lie between guards.

    untrusted, refused: has the library work
    """
    if torch.empty(4, device=x.device).storage_offset() == 0:
        torch.arange(4, device=x.device).cumsum(0)
    return softmax(x)


def in_the_place_of_an_allocation(x):
    """Replaces how torch allocates, which copies do while numbers are shown, for a moment that nobody may look at.

    untrusted, refused: replaces what the library does
    """
    seen = []

    def instead(given, **named):
        seen.append(np.from_dlpack(given).astype(np.float64))
        return torch.empty_strided(given.shape, given.stride(), dtype=given.dtype)

    if not x.numel() or "library" in globals():
        return softmax(x)
    globals()["library"] = library = torch.library.Library("aten", "IMPL")
    library.impl("empty_like", instead, "CPU")
    x.clone()
    return _answered(x, seen[0]) if seen else softmax(x)
