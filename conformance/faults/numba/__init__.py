"""Mutants as Numba CUDA kernels, and the same kernels without a fault as known-good kernels.

Each file has one kernel or a few in the manner of the ladder in backends/numba, whose last argument is a member of its
`class Fault(IntEnum)`: a fault is the kernel with one thing changed, and the launcher with its default `fault="none"`
gives the right answer. What goes wrong in a launcher has a name of its own, which the kernel does not know. A file is
imported only after `touchstone.backends.numba.prepare`.
"""
