"""Compile conformance: every kernel compiled for a GPU, without one."""
