"""The order of attention_backward's tiles where heads are taken by groups: sizes of which no case of the judge has
more than one group."""

import importlib
from dataclasses import replace

import pytest
import torch

from touchstone.backends import emulator
from touchstone.backends.signatures.attention_backward import pairs_together
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.cases import plain_case

# the module of the variant, and the variant
VARIANTS = {
    "cupy": ("touchstone.backends.cupy.attention_backward", "wgmma"),
    "triton": ("touchstone.backends.triton.attention_backward.gluon", "gluon"),
}


def _module(backend):
    absent = emulator.why_not() if backend == "cupy" else registry.backend(backend).why_not("cpu")
    if absent:
        pytest.skip(str(absent))
    registry.backend(backend).prepare("cpu")
    return importlib.import_module(VARIANTS[backend][0])


@pytest.mark.parametrize(
    ("B", "Hq", "Hkv", "S", "D", "found"),
    [
        (4, 16, 16, 4096, 128, 4),  # 2048 programs: as many heads as fit into L2
        (1, 16, 16, 32768, 128, 2),  # a head does not fit
        (2, 32, 4, 5000, 128, 8),  # 320 programs
    ],
)
def test_heads_that_are_taken_together(B, Hq, Hkv, S, D, found):
    q, k = (torch.empty((B, heads, S, D), dtype=torch.half, device="meta") for heads in (Hq, Hkv))
    assert pairs_together(q, k, True, 128, D, 132) == found
    assert pairs_together(q, k, False, 128, D, 132) == 1


@pytest.mark.parametrize(
    ("backend", "rule", "sizes"),
    [
        ("triton", "pairs_together", (3, 4, 2, 150, 150, 64)),
        ("triton", "pairs_together", (1, 5, 5, 130, 300, 128)),
        ("cupy", "heads_together", (3, 4, 2, 150, 150, 64)),
        ("cupy", "heads_together", (1, 5, 5, 130, 300, 128)),
        ("cupy", "pairs_together", (1, 3, 3, 70, 4100, 64)),  # a block for each of many keys' tiles
    ],
)
def test_groups_of_two_heads(backend, rule, sizes, monkeypatch):
    """Pairs of batch and key head of which the last group may have one alone; tiles of 128 keys."""
    module = _module(backend)
    asked = []
    monkeypatch.setattr(module, rule, lambda *about: asked.append(about) or 2)
    contract = registry.contract("attention_backward")
    case = plain_case(
        contract, "float16", "normal", size=dict(zip(("B", "Hq", "Hkv", "Sq", "Sk", "D"), sizes, strict=True))
    )
    params = tuple((name, {"causal": True}.get(name, old)) for name, old in case.params)
    inputs = contract.build(replace(case, params=params))
    got = contract.call(getattr(module, VARIANTS[backend][1]), inputs.arguments, by_name=True)
    *_, Sq, Sk, D = sizes
    assert [about[2:5] for about in asked] == [
        (True, 128, D) if rule == "pairs_together" else (range(Sk, 0, -128), Sq, 64)
    ]
    for name, tensor in contract.by_name(got, None).items():
        verdict = compare.compare(tensor, contract.expected(inputs)[name], inputs.case.torch_dtype)
        assert verdict.ok, f"{name}: {verdict.message}"
