"""What came out: reports and groups of findings. Needs torch alone."""
