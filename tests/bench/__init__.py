"""The bench. Needs torch alone."""
