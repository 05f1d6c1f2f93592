"""RMSNorm of Liger-Kernel: pip install liger-kernel, then python liger_kernel_rms_norm.py."""

from liger_kernel.ops.rms_norm import LigerRMSNormFunction

from touchstone import check


def rms_norm(x, weight, *, eps):
    return LigerRMSNormFunction.apply(x, weight, eps)


print(check("rms_norm", rms_norm, device="cpu", level="quick", where=lambda case: case.size["cols"] > 0))
