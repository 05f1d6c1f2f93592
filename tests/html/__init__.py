"""The report's page. Needs torch alone."""
