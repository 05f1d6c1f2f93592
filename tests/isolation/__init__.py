"""Judging in child processes. Needs torch alone."""
