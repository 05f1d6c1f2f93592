"""Mutants and known-good kernels of rope(q, k, cos, sin, positions, *, interleaved)."""

from touchstone.conformance.faults._rope import plant_turned

plant_turned(globals(), 1)
