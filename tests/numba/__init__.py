"""The Numba backend. Needs numba-cuda."""
