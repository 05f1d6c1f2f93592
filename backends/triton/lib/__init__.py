"""Device code that ops share in Triton, and what their launchers need of it."""
