"""matmul: how many tiles of c its launchers cut along K."""


def cut_along_k(tiles: int, steps: int, workers: int) -> int:
    """How many tiles of `steps` steps to cut, so that all `workers` end together: those of the last round, and of the
    round before. None where the steps that would be idle do not pay for storing and adding unfinished sums."""
    beyond = tiles % workers
    if beyond == 0 or (workers - beyond) * steps < 8 * workers:
        return 0
    return min(tiles, workers + beyond)
