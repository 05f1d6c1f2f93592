"""The judge on its mutants. Needs torch alone."""
