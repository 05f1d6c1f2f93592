"""How Triton kernels are launched, compiled, ported and interpreted; nothing about any op."""
