"""The CUDA C backend. Needs the emulator, or CuPy and a GPU."""
