"""Device code that ops share in Numba CUDA, and what their launchers need of it."""
