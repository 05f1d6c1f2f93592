"""CUDA C from a file beside the launcher."""

import torch

from touchstone.backends.cupy.runtime.module import Module

_module = Module(__file__, "in_cuda.cu")


def softmax(x):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        _module.launch("rows", x.shape[0], 128, x, y, x.shape[1], *x.stride(), dtype=x.dtype)
    return y
