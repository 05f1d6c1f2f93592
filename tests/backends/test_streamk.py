"""Tiles of matrix products: streamk, whose pieces are added in the order of K, and strips on their way out."""

import pytest
import torch

from touchstone.backends import emulator
from touchstone.backends.cupy import matmul
from touchstone.backends.cupy.lib import gemm
from touchstone.backends.cupy.lib.gemm import by_more_warpgroups, by_parts, by_spans, by_warpgroups
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
    few = {"TILE_M": 128, "TILE_N": 128, "STAGES": 6, "CLUSTER": 1, "GROUP": 8}
    assert by_warpgroups(128, 14336, 132).definitions == few


@pytest.mark.parametrize(
    ("M", "K", "N", "pitch", "tile"),
    [
        (4096, 4096, 4096, 4096, (128, 256)),
        (3072, 3072, 3072, 3072, (128, 192)),  # three rounds; two of 192 rows take 4 % longer
        (3000, 3000, 3000, 3000, (192, 192)),  # rows of 64 elements lie across lines: fewer of them for a product
        (3000, 3000, 3000, 3072, (128, 192)),
        (6000, 5000, 7000, None, (192, 192)),
        (2500, 3400, 4200, None, (128, 256)),
    ],
)
def test_tiles_by_what_their_operands_take_to_load(M, K, N, pitch, tile, monkeypatch):
    monkeypatch.setattr(gemm, "processors", lambda device: 132)
    a = torch.empty_strided((M, K), (pitch or K, 1), dtype=torch.bfloat16, device="meta")
    b = torch.empty_strided((K, N), (pitch or N, 1), dtype=torch.bfloat16, device="meta")
    found = by_more_warpgroups(a, b).definitions
    assert (found["TILE_M"], found["TILE_N"]) == tile


@pytest.mark.parametrize(
    ("M", "N", "K", "blocks", "tile"),
    [
        (16, 4096, 14336, 128, {"TILE_N": 16, "PARTS": 4, "SWAPPED": True}),
        (16, 14336, 4096, 112, {"TILE_N": 16, "PARTS": 1, "SWAPPED": True}),
        (40, 8192, 4096, 128, {"TILE_N": 64, "PARTS": 2, "SWAPPED": True}),
        (1, 128, 100, 2, {"TILE_N": 16, "PARTS": 2, "SWAPPED": True}),  # no more parts than steps of k
        (128, 4096, 4096, 128, {"TILE_N": 64, "PARTS": 2, "SWAPPED": False}),
        (256, 4096, 4096, 128, {"TILE_N": 128, "PARTS": 2, "SWAPPED": True}),
        (320, 4096, 14336, 128, {"TILE_N": 160, "PARTS": 2, "STAGES": 6, "SWAPPED": True}),
        (72, 3072, 6144, 96, {"TILE_N": 80, "PARTS": 4, "STAGES": 8}),
        (160, 5120, 13824, 80, {"TILE_N": 160, "PARTS": 2}),  # 120 blocks in clusters of three do not run at once
        (160, 14336, 4096, 112, {"TILE_N": 160, "PARTS": 1, "SWAPPED": True}),
        (128, 14336, 4096, None, None),  # a tile for nearly every multiprocessor
        (512, 4096, 4096, None, None),  # blocks in pairs share what they load
        (4096, 4096, 4096, None, None),
    ],
)
def test_parts_of_a_cluster(M, N, K, blocks, tile, monkeypatch):
    monkeypatch.setattr(gemm, "processors", lambda device: 132)
    monkeypatch.setattr(gemm, "at_once", lambda device, blocks: {3: 38, 4: 30}[blocks])
    found = by_parts(M, N, K, True, GPU)
    assert (found and found.blocks) == blocks
    assert found is None or tile.items() <= found.definitions.items()


def test_rows_that_do_not_run_along_k_are_copied_in_squares(monkeypatch):
    monkeypatch.setattr(gemm, "processors", lambda device: 132)
    monkeypatch.setattr(gemm, "at_once", lambda device, blocks: {3: 38, 4: 30}[blocks])
    assert by_parts(320, 4096, 14336, False, GPU).definitions["TILE_N"] == 192


@pytest.mark.needs("g++")
@pytest.mark.parametrize(("rows", "parts"), [(80, 3), (96, 2), (144, 4), (160, 1), (208, 2), (224, 3), (256, 2)])
def test_tiles_of_rows_that_are_no_whole_squares(rows, parts, monkeypatch):
    """Two instructions for each step of k, and a in one copy; a row short of two tiles, and columns short of two."""
    M, K, N = 2 * rows - 1, 64 * 4 + 24, 200
    tiles = gemm._by_parts(4 * parts, parts, rows, 4, swapped=True)
    monkeypatch.setattr(matmul, "by_parts", lambda *asked: tiles)
    seed = torch.Generator().manual_seed(0)
    a, b = torch.randn(M, K, generator=seed).half(), torch.randn(N, K, generator=seed).half().t()
    c = matmul.clusterk(a, b)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=2e-3, atol=2e-2)


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


@pytest.mark.needs("g++")
@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
@pytest.mark.parametrize(
    ("sizes", "a_strides"),
    [
        ((9, 300, 130), (304, 1)),  # two parts of two tiles: transposed, 16 rows
        ((30, 520, 200), (1, 32)),  # a along m, whose squares have 64 rows
        ((60, 264, 136), (264, 1)),
        ((130, 200, 60), (200, 1)),  # two tiles of two parts
        ((70, 136, 100), (1, 72)),
    ],
    ids=str,
)
def test_sums_of_a_cluster_in_cuda(sizes, a_strides, order):
    M, K, N = sizes
    seed = torch.Generator().manual_seed(0)
    tiles = by_parts(M, N, K, a_strides[1] == 1, CPU)
    assert tiles is not None and tiles.definitions["PARTS"] > 1
    a = torch.empty_strided((M, K), a_strides, dtype=torch.half).copy_(torch.randn(M, K, generator=seed))
    b = torch.randn((N, K + 8 - K % 8), generator=seed).half()[:, :K].t()
    with emulator.schedule(order), emulator.races():
        c = registry.variants("cupy", "matmul")["clusterk"](a, b)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=2e-3, atol=2e-2)
