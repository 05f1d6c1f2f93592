"""matmul's `gluon`: which tile it takes, and that each gives the product."""

import importlib

import pytest
import torch

from touchstone.backends.triton.matmul import _tiles

gluon = importlib.import_module("touchstone.backends.triton.matmul.gluon")  # a function of that name hides it


@pytest.mark.parametrize(
    ("M", "K", "N", "tile"),
    [
        (4096, 4096, 4096, (128, 256)),
        (3072, 3072, 3072, (192, 192)),  # two rounds in place of three
        (3000, 3000, 3000, (192, 192)),
        (8192, 8192, 8192, (128, 256)),  # sixteen rounds; fifteen of 192 rows and columns take longer
        (7000, 3000, 9000, (256, 192)),  # rows across lines of the cache: the fewest copies
        (1800, 4000, 2600, (192, 208)),  # one round
        (1000, 3000, 5000, (256, 160)),
        (256, 4096, 4096, (128, 64)),  # all multiprocessors
    ],
)
def test_the_tile_that_takes_the_least_time(M, K, N, tile, monkeypatch):
    monkeypatch.setattr(_tiles, "processors", lambda device: 132)
    a, b = (torch.empty(shape, dtype=torch.float16, device="meta") for shape in ((M, K), (K, N)))
    assert _tiles.fastest_tile(a, b) == tile


@pytest.mark.parametrize(("a_transposed", "b_transposed"), [(False, False), (True, True)])
@pytest.mark.parametrize("tile", _tiles.CONFIGS)
def test_each_tile_gives_the_product(tile, a_transposed, b_transposed, monkeypatch):
    monkeypatch.setattr(gluon, "fastest_tile", lambda *_: tile)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, shape, generator=generator).half() for shape in ((400, 136), (136, 520)))
    a = a.t().contiguous().t() if a_transposed else a
    b = b.t().contiguous().t() if b_transposed else b
    assert torch.equal(gluon.gluon(a, b), (a.float() @ b.float()).half())
