"""CUDA devices, of which there is one."""

from typing import Any

import torch

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")


def is_cuda(device: Any) -> bool:
    if isinstance(device, str):
        return device == "cuda" or device.startswith("cuda:")
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, int) and not isinstance(device, bool)


def index(device: Any) -> int:
    """The index of a CUDA device; there is one. As in torch, what is no device at all stands for the current one."""
    if not isinstance(device, int | str | torch.device | Device) or (isinstance(device, int) and device < 0):
        return 0
    if isinstance(device, Device):  # as torch.cuda.device(torch.cuda.device_of(x))
        return device.idx
    found = device if isinstance(device, int) else torch.device(device).index or 0
    if not isinstance(device, int) and torch.device(device).type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    if found > 0:
        raise RuntimeError(f"CUDA error: invalid device ordinal ({found}; there is one GPU)")
    return 0


class Device:
    """`torch.cuda.device(index)`, a context."""

    def __init__(self, device: Any) -> None:
        self.idx, self.prev_idx = index(device), 0

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> bool:
        return False


class DeviceOf(Device):
    """`torch.cuda.device_of(tensor)`."""

    def __init__(self, tensor: Any) -> None:
        super().__init__(None)
