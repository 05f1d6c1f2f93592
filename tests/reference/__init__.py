"""The reference algorithms. Needs torch alone."""
