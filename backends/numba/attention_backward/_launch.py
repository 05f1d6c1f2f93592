"""What the launchers of the CUDA-core variants share."""

# For each width of a tile: rows of a gradient that a block owns, rows of the other sequence a step, and threads, 8 for
# each of the rows 0 to TY - 1. Two tiles of each and two of scores fit in 48 KB.
TILES = {64: (32, 16, 128), 128: (16, 16, 128), 256: (8, 8, 64)}
