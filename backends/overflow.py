"""The words in which backends say that an integer of 32 bits overflows. The judge knows by them that an offset does."""

OF_ACCESS = "in an int of 32 bits, which overflows"  # of an access out of bounds: why its offset is what it is
WRAPS = "overflows, and wraps on a GPU"  # of an operation, in a language that leaves that undefined
