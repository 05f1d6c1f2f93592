"""What a run judges, and on what. Needs torch alone."""
