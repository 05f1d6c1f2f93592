"""Findings: kept, repeated, made smaller. Needs torch alone."""
