"""What the loops over documents (``rlcore.kernels.documents``) and their caller agree on."""

ROWS, COLUMNS = 4, 16  # of a tile: as many sums as registers hold
QUERIES = 8  # that are met by the keys of a document at once, in the gradient


def padded(count: int) -> int:
    """Return ``count`` rounded up to whole tiles of columns."""
    return -(-count // COLUMNS) * COLUMNS


def scratch_of(room: int, dim: int) -> int:
    """Return the floats that a thread needs where a token attends to up to ``room`` keys, whole
    tiles of columns, of ``dim`` numbers each."""
    return 5 * dim * room + 2 * QUERIES * room + 3 * QUERIES * dim
