"""matmul: how many tiles of c its launchers cut along K."""

PAYS = 8  # steps of each worker that cutting has to save: storing and adding unfinished sums takes as long


def cut_along_k(tiles: int, steps: int, workers: int) -> int:
    """How many tiles of `steps` steps to cut, so that all `workers` end together: those of the last round, and of the
    round before. None where too little would be saved."""
    beyond = tiles % workers
    if beyond == 0 or (workers - beyond) * steps < PAYS * workers:
        return 0
    return min(tiles, workers + beyond)
