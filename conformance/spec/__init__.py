"""What an op declares: its contract, its budget, its layouts and values, the cases that follow, its baselines."""
