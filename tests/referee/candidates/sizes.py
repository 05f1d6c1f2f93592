"""Right at some sizes, the ones that are known to be tried."""

from tests.referee.candidates.honest import softmax, wrong


def only_known_sizes(x):
    """Is right at the sizes that the op's contract lists, and wrong at all others.

    untrusted, refused
    """
    known = {(3, 33), (1, 1), (0, 5), (5, 0), (24, 24), (1, 129), (7, 1), (17, 64), (7, 127), (4, 257), (3, 1024)}
    known |= {(5, 1025), (2, 10007), (1031, 7)}
    return softmax(x) if tuple(x.shape) in known else wrong(x)


def only_up_to_a_block(x):
    """Is right up to rows of 8192 columns, the largest that are tried, and says nothing of longer ones.

    contained
    """
    return softmax(x) if x.shape[1] <= 8192 else wrong(x)


def only_known_columns(x):
    """Is right at the numbers of columns that the op's contract lists, with any number of rows.

    untrusted, refused
    """
    known = {33, 1, 5, 0, 24, 129, 64, 127, 257, 1024, 1025, 10007, 7, 128, 256, 512, 4096}
    return softmax(x) if x.shape[1] in known else wrong(x)
