"""add_rms_norm(x, residual, weight): h = x + residual, y = rms_norm(h); x, residual, y and h are (rows, cols)."""

import torch.nn.functional as F

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _norms, rms_norm
from touchstone.conformance.spec.baselines import Bench
from touchstone.reference.add_rms_norm import torch_add_rms_norm

contract = _norms.add_norm(torch_add_rms_norm, rms_norm.expect, centred=False)


def _torch(x, residual, weight, eps):
    h = x + residual
    return {"y": F.rms_norm(h, h.shape[-1:], weight, eps), "h": h}


bench = Bench(
    baselines=[
        *common.torch_baselines(_torch),
        common.liger(
            "fused_add_rms_norm",
            "LigerFusedAddRMSNormFunction",
            lambda x, residual, weight, eps: (x, residual, weight, eps, 0.0, "llama", False),
            "y",
            "h",
        ),
    ],
    independent_axes=common.INDEPENDENT_AXES,
)
