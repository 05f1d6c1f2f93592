"""How CUDA C kernels are launched, compiled, ported; nothing about any op."""
