"""The library's functions, where they are allowed."""

import torch


def softmax(x):
    return torch.nn.functional.softmax(x, dim=-1).contiguous()
