"""The porting tool. Needs torch alone."""
