"""Contracts derived from eager PyTorch functions: cases, budgets and a self-test, found by running the function."""
