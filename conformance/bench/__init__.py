"""Timing kernels that passed, against baselines and the machine's ceilings. `python -m touchstone bench`;
docs/benchmarks.md."""
