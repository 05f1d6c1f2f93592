"""matmul's `gluon`: which tile it takes, and that each gives the product."""

import importlib

import pytest
import torch

from touchstone.backends.triton.lib import gemm

gluon = importlib.import_module("touchstone.backends.triton.matmul.gluon")  # a function of that name hides it


@pytest.mark.parametrize(
    ("M", "K", "N", "tile"),
    [
        (4096, 4096, 4096, (128, 256)),
        (3072, 3072, 3072, (192, 192)),  # two rounds in place of three
        (3000, 3000, 3000, (192, 192)),
        (8192, 8192, 8192, (128, 256)),  # sixteen rounds; fifteen of 192 rows and columns take longer
        (7000, 3000, 9000, (192, 192)),  # rows across lines of the cache: as many copies, fewer rounds
        (5000, 9000, 1000, (128, 192)),
        (256, 4096, 4096, (128, 128)),  # one round of each
    ],
)
def test_the_tile_that_takes_the_least_time(M, K, N, tile, monkeypatch):
    monkeypatch.setattr(gemm, "processors", lambda device: 132)
    a, b = (torch.empty(shape, dtype=torch.float16, device="meta") for shape in ((M, K), (K, N)))
    assert gemm.fastest_tile(a, b, gluon._TILES) == tile


@pytest.mark.parametrize(("a_transposed", "b_transposed"), [(False, False), (True, True)])
@pytest.mark.parametrize("tile", gluon._CONFIGS)
def test_each_tile_gives_the_product(tile, a_transposed, b_transposed, monkeypatch):
    monkeypatch.setattr(gluon, "fastest_tile", lambda *_: tile)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, shape, generator=generator).half() for shape in ((400, 136), (136, 520)))
    a = a.t().contiguous().t() if a_transposed else a
    b = b.t().contiguous().t() if b_transposed else b
    assert torch.equal(gluon.gluon(a, b), (a.float() @ b.float()).half())
