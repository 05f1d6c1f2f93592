"""What an op declares: cases, layouts, budgets. Needs torch alone."""
