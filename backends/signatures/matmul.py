"""matmul: between how many workers its launchers cut tiles along K, and how rows lie in the L2 cache."""

import torch

_LEAST = 4  # steps of a worker
LINE = 64  # elements of 16 bits of a line of the L2 cache


def spans(tiles: int, steps: int, workers: int, pays: int, device: torch.device) -> int:
    """Into how many equal spans to cut `tiles` tiles of `steps` steps, laid end to end, for up to `workers` workers.

    None, 0, where each worker is saved less than `pays` steps, what storing and adding sums takes, and where there are
    as many tiles as workers: pieces at different places along K share nothing in the L2 cache (H200,
    4096 x 14336 x 4096: 0.79 of cuBLAS in place of 0.97 with the tiles of the last two rounds cut).
    """
    if device.type != "cuda":
        pays = _LEAST  # of the pretended GPU, so that small products are cut too
    if tiles >= workers or (workers - tiles) * steps < pays * workers:
        return 0
    return min(workers, max(tiles, tiles * steps // _LEAST))


def along_lines(x: torch.Tensor) -> bool:
    """Whether the rows of a matrix with an axis of stride 1 begin at lines of the L2 cache; else LINE elements of 16
    bits lie across two."""
    pitch = max(x.stride()) if min(x.shape) > 1 else 0
    return x.data_ptr() % (2 * LINE) == 0 and pitch * x.element_size() % (2 * LINE) == 0
