"""The order of attention_backward's tiles where heads are taken by groups: sizes of which no case of the judge has
more than one group."""

import importlib
from dataclasses import replace

import pytest
import torch

from touchstone.backends import emulator
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.cases import plain_case

GPU = torch.device("cuda")
# the module of the variant, and the variant
VARIANTS = {
    "cupy": ("touchstone.backends.cupy.attention_backward", "wgmma"),
    "triton": ("touchstone.backends.triton.attention_backward.gluon", "gluon"),
}
BOTH = pytest.mark.parametrize("backend", VARIANTS)


def _module(backend):
    absent = emulator.why_not() if backend == "cupy" else registry.backend(backend).why_not("cpu")
    if absent:
        pytest.skip(str(absent))
    registry.backend(backend).prepare("cpu")
    return importlib.import_module(VARIANTS[backend][0])


@BOTH
def test_heads_that_are_taken_together(backend, monkeypatch):
    module = _module(backend)
    monkeypatch.setattr(module, "processors", lambda device: 132)
    together = module._together
    assert together(64, 32, 4 << 20, GPU) == 4  # 2048 programs: as many heads as fit into L2
    assert together(16, 128, 32 << 20, GPU) == 2  # a head does not fit
    assert together(8, 40, 5 << 20, GPU) == 8  # 320 programs


@BOTH
@pytest.mark.parametrize("sizes", [(3, 4, 2, 150, 150, 64), (1, 5, 5, 130, 300, 128)], ids=str)
def test_groups_of_two_heads(backend, sizes, monkeypatch):
    """Six pairs of batch and key head, or five, so that the last group is a smaller one; tiles of 128 keys."""
    module = _module(backend)
    asked = []
    monkeypatch.setattr(module, "_together", lambda *about: asked.append(about) or 2)
    contract = registry.contract("attention_backward")
    case = plain_case(
        contract, "float16", "normal", size=dict(zip(("B", "Hq", "Hkv", "Sq", "Sk", "D"), sizes, strict=True))
    )
    params = tuple((name, {"causal": True}.get(name, old)) for name, old in case.params)
    inputs = contract.build(replace(case, params=params))
    got = contract.call(getattr(module, VARIANTS[backend][1]), inputs.arguments, by_name=True)
    assert len(asked) == 1 and asked[0][0] == sizes[0] * sizes[2]
    for name, tensor in contract.by_name(got, None).items():
        verdict = compare.compare(tensor, contract.expected(inputs)[name], inputs.case.torch_dtype)
        assert verdict.ok, f"{name}: {verdict.message}"
