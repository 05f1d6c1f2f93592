"""Judging in a child process, so that a crash, a hang or a full memory is a finding and not the end of the run."""
