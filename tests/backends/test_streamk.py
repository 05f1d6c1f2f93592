"""Tiles of matrix products: streamk, whose pieces are added in the order of K, and strips on their way out."""

import pytest
import torch

from touchstone.backends import emulator
from touchstone.backends.cupy.lib.gemm import by_spans, by_warpgroups
from touchstone.backends.signatures.matmul import spans
from touchstone.conformance.discovery import registry

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_what_is_cut():
    assert spans(32, 64, 132, 16, GPU) == 132  # a quarter of the multiprocessors would have a tile
    assert spans(132, 64, 132, 16, GPU) == 0  # each has one
    assert spans(120, 64, 132, 16, GPU) == 0  # six steps each would be saved
    assert spans(1, 8, 4, 16, CPU) == 2  # four steps each at least
    assert by_spans(0, 128, 64, CPU) is None


def test_tiles_that_leave_the_least_idle():
    assert by_warpgroups(3000, 3000, 132).definitions["TILE_N"] == 192  # 2.9 rounds of clusters, 2.2 with 256 columns
    assert by_warpgroups(8192, 8192, 132).definitions["TILE_N"] == 256
    assert by_warpgroups(128, 14336, 132).definitions == {"TILE_N": 128, "STAGES": 6, "CLUSTER": 1, "GROUP": 8}


@pytest.mark.needs("g++")
@pytest.mark.parametrize("sizes", [(16, 1024, 256), (200, 1280, 104), (40, 520, 136)], ids=str)
def test_pieces_in_cuda(sizes):
    M, K, N = sizes
    assert by_spans(M, N, K, CPU) is not None
    a, b = (torch.randn(shape, generator=torch.Generator().manual_seed(0)).half() for shape in ((M, K), (K, N)))
    c = registry.variants("cupy", "matmul")["streamk"](a, b)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=2e-3, atol=2e-2)


@pytest.mark.needs("g++")
@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
def test_strips_of_a_tile_do_not_overtake_the_last_one_of_the_tile_before(order):
    """A warp stores three strips of a tile of 192 columns through two places in shared memory, and goes on."""
    assert by_warpgroups(300, 520, 4).definitions["TILE_N"] == 192
    a, b = (torch.randn(shape, generator=torch.Generator().manual_seed(0)).half() for shape in ((300, 72), (72, 520)))
    with emulator.schedule(order):
        c = registry.variants("cupy", "matmul")["wgmma"](a, b)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=2e-3, atol=2e-2)
