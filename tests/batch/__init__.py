"""Tests of conformance/batch: many candidates, read, judged in processes, written down. Needs torch alone."""
