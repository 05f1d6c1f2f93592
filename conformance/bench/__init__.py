"""Timing kernels that passed, against peers and the machine's ceilings. `python -m touchstone bench`;
docs/benchmarks.md."""
