"""Compile conformance. Needs torch alone."""
