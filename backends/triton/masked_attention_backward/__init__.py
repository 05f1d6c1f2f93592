"""masked_attention_backward: dq, dk, dv from the saved lse, the forward's masks and its dropout [dao2022flash].

delta_first: delta from a launch of its own; programs own rows of dq, or of dk and dv for all query heads [triton2022]
"""

from touchstone.backends.triton.masked_attention_backward.delta_first import delta_first

__all__ = ["delta_first"]
