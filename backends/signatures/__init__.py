"""The signatures of ops as launchers check them, in every language alike: one module per op that has more to check than
one line of `shapes`. What a launcher allocates for its outputs stands beside it.

Errors come before any launch: TypeError (no tensor, dtype) or ValueError (rank, size, device), naming the argument.
"""
