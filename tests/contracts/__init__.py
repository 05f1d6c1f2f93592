"""The contracts of the ops. Needs torch alone."""
