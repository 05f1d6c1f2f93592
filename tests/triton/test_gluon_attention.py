"""attention's `gluon` up to D 64: how many warpgroups a program has, and that each number gives the answer."""

import importlib

import pytest
import torch

from touchstone.reference.attention import torch_attention

gluon = importlib.import_module("touchstone.backends.triton.attention.gluon")  # a function of that name hides it
CONFIGS = {"three": (gluon._THREE, 1), "alone": (gluon._ALONE, 2), "alone_narrow": (gluon._ALONE_NARROW, 3)}


@pytest.mark.parametrize(
    ("causal", "pairs", "Sq", "Sk", "config"),
    [
        (False, 64, 8192, 8192, "three"),
        (False, 20, 4096, 4096, "alone"),  # of four rounds of 192 queries the last has 44 tiles for 132 programs
        (False, 32, 1024, 1024, "alone"),
        (False, 128, 1024, 512, "alone_narrow"),
        (False, 32, 512, 512, "alone"),  # fewer tiles than two programs a multiprocessor
        (True, 64, 8192, 8192, "three"),
        (True, 24, 4096, 4096, "alone"),
        (True, 128, 1024, 1024, "alone_narrow"),
    ],
)
def test_the_warpgroups_that_take_the_least_time(causal, pairs, Sq, Sk, config):
    assert gluon._config(64, causal, pairs, Sq, Sk, 132) == CONFIGS[config]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("config", CONFIGS)
def test_each_gives_the_answer(config, causal, monkeypatch):
    monkeypatch.setattr(gluon, "_config", lambda *_: CONFIGS[config])
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, size, 64, generator=generator).half() for size in (200, 330, 330))
    o, lse = gluon.gluon(q, k, v, causal=causal)
    want, want_lse = torch_attention(q.double(), k.double(), v.double(), causal=causal, scale=64**-0.5)
    torch.testing.assert_close(o.double(), want, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(lse.double(), want_lse, atol=2e-3, rtol=2e-3)
