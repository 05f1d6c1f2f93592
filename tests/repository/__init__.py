"""The repository itself: its layout, its documents, its package. Needs torch alone."""
