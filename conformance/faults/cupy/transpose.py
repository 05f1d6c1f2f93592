"""Wrong kernels of transpose: tiles of 8 by 8 through shared memory."""

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.transpose import KERNELS

_module = Faulty(__file__, "transpose.cu")


def _tiles(x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((cols, rows), dtype=x.dtype, device=x.device)
    if y.numel():
        down, across = -(-rows // 8), -(-cols // 8)
        if fault == "grid_of_whole_tiles":
            down = max(rows // 8, 1)
        operands = (x, y, rows, cols, *x.stride())
        _module.launch("transpose_tiles", down * across, (8, 8), *operands, fault=fault, dtype=x.dtype)
    return y


plant_kernels(globals(), _tiles, KERNELS, *KERNELS)
