"""What backends have in common. Needs torch alone."""
