"""One contract an op: what its inputs are, what the answer is, and how far from it a correct kernel can be."""
