"""torch's CUDA calls answered as on a machine with a GPU, for launchers that demand one where kernels run on the CPU.

Within `answering(gpu)`, what asks for CUDA gets the answer that `gpu` would give: `torch.cuda`, `device="cuda"`,
`Tensor.device` and `is_cuda`, streams, events, device contexts, autocast. Tensors stay on the CPU. What torch itself
asks is answered truly, and so is what Touchstone and Triton ask: only other code is told that it runs on a GPU.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

from touchstone.backends.cuda_face import asking, operators, runtime, tensors
from touchstone.backends.cuda_face.asking import answers, note, outside
from touchstone.backends.cuda_face.devices import CUDA
from touchstone.backends.cuda_face.tensors import TENSOR_DEVICE, on_host, tell_address, tensor_at
from touchstone.backends.gpus import Gpu

__all__ = ["CUDA", "TENSOR_DEVICE", "answering", "answers", "note", "on_host", "outside", "tell_address", "tensor_at"]

_MISSING = object()


@contextlib.contextmanager
def answering(gpu: Gpu, asked: Counter[str] | None = None) -> Iterator[None]:
    """Within: questions about CUDA are answered as `gpu` would, and counted in `asked`; inside of another such
    context, as that one says."""
    if answers() is not None:
        yield
        return
    before = [(owner, name, vars(owner).get(name, _MISSING)) for owner, name, _ in _patches(gpu)]
    asking.begin(gpu, Counter() if asked is None else asked)
    tensors.forget()  # not at the end: what a call returned is asked about after it
    try:
        for owner, name, value in _patches(gpu):
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        asking.end()


@functools.cache
def _patches(gpu: Gpu) -> list[tuple[Any, str, Any]]:
    """(module or class, attribute, what stands there within `answering`)."""
    return runtime.patches(gpu) + tensors.patches() + operators.patches()
