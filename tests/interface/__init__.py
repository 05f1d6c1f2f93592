"""What a user calls: `check`, and the command line. Needs torch alone."""
