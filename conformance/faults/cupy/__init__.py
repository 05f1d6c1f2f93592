"""Mutants as CUDA C kernels, and the same kernels without a fault as known-good kernels.

Each file has one kernel or a few in the manner of the ladder in backends/cupy, whose last parameter is a number of
`enum Fault`: a fault is the kernel with one thing changed, and the launcher with its default `fault="none"` gives the
right answer. What goes wrong in a launcher has a name of its own, which the kernel does not know.
"""
