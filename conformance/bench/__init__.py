"""Timing kernels that passed, against peers and the machine's ceilings. `python -m conformance bench`; docs/benchmarks.md."""
