"""Findings that are kept, repeated, and shrunk to a script of their own."""
