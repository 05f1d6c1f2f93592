"""One kernel judged on one trial. Needs torch alone."""
