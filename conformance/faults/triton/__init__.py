"""Mutants as Triton kernels. A file is imported only after `touchstone.backends.triton.prepare`.

Each file has one kernel or two in the manner of the ladder in backends/triton, with a switch FAULT: a fault is the
kernel with one thing changed, and the launcher with its default `fault="none"` gives the right answer.
"""
