"""Mutants in a backend's language. Needs the emulator (a C++ compiler, CUDA's headers), numba-cuda, Triton."""
