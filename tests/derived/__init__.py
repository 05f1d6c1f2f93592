"""Contracts derived from functions of torch. Needs torch alone."""
