"""How the entries of a sparse matrix lie: what decides how it is best factorised."""

from typing import Any, NamedTuple

import numpy as np

from probode.base.later import csgraph, sparse
from probode.programs.colouring import as_pattern


class Layout(NamedTuple):
    """How full a pattern is, and how near to the diagonal it is or can be brought."""

    below: int
    """Diagonals below the main one, as given."""
    above: int
    ordered_below: int
    """The same with rows and columns in the order of reverse Cuthill-McKee."""
    ordered_above: int
    order: np.ndarray
    """That order: ``matrix[order][:, order]`` is the matrix in it."""
    per_row: float
    """Entries of a row on average."""
    fullest_row: int


_AT_ONCE = 2**16


def widths(columns: Any) -> tuple[int, int]:
    """Diagonals below and above the main one, of a matrix in compressed columns.

    Some columns at a time: of a million, numbers for each entry take more memory than a solve.
    """
    below, above, ends = 0, 0, columns.indptr
    for begin in range(0, columns.shape[1], _AT_ONCE):
        end = min(begin + _AT_ONCE, columns.shape[1])
        column = np.repeat(np.arange(begin, end), np.diff(ends[begin : end + 1]))
        distance = columns.indices[ends[begin] : ends[end]] - column
        below = max(below, int(distance.max(initial=0)))
        above = max(above, -int(distance.min(initial=0)))
    return below, above


def layout(pattern: Any) -> Layout:
    """What decides how a matrix of this (square) pattern is best factorised."""
    rows = sparse.csr_array(as_pattern(pattern))
    rows.sort_indices()
    n = rows.shape[0]
    counts = np.diff(rows.indptr)
    order = np.asarray(csgraph.reverse_cuthill_mckee(rows, symmetric_mode=False))
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    row = np.repeat(np.arange(n, dtype=np.int64), counts)
    distance = row - rows.indices
    ordered = place[row] - place[rows.indices]
    return Layout(
        below=int(distance.max(initial=0)),
        above=int((-distance).max(initial=0)),
        ordered_below=int(ordered.max(initial=0)),
        ordered_above=int((-ordered).max(initial=0)),
        order=order,
        per_row=rows.nnz / max(n, 1),
        fullest_row=int(counts.max(initial=0)),
    )
