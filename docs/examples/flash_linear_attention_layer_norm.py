"""LayerNorm of flash-linear-attention: pip install fla-core, then python flash_linear_attention_layer_norm.py."""

from fla.modules.layernorm import layer_norm as published

from touchstone import check


def layer_norm(x, weight, bias, *, eps):
    return published(x, weight, bias, eps=eps)


print(check("layer_norm", layer_norm, device="cpu", level="quick", where=lambda case: case.size["cols"] > 0))
