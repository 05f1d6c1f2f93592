"""add_layer_norm(x, residual, weight, bias): h = x + residual, y = layer_norm(h), (rows, cols) each; bias or None"""

import torch.nn.functional as F

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _norms, layer_norm
from touchstone.conformance.spec.baselines import Bench
from touchstone.reference.add_layer_norm import torch_add_layer_norm

contract = _norms.add_norm(torch_add_layer_norm, layer_norm.expect, centred=True)


def _torch(x, residual, weight, bias, eps):
    h = x + residual
    return {"y": F.layer_norm(h, h.shape[-1:], weight, bias, eps), "h": h}


bench = Bench(baselines=common.torch_baselines(_torch), independent_axes=common.INDEPENDENT_AXES)
