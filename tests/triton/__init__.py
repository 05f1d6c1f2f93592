"""The Triton backend. Needs Triton."""
