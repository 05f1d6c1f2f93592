"""Device code that ops share in CUDA C, and what their launchers need of it."""
