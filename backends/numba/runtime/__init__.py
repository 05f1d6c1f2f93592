"""How Numba CUDA kernels are launched, compiled, ported; nothing about any op."""
