"""Columns of a sparse matrix that can be told apart in one product: Curtis, Powell and Reid.

Columns that share no row have one colour. The sum of all columns of a colour has each of their
entries in a row of its own, so a Jacobian takes one product ``J s`` (or one difference of ``f``)
for each colour. No fewer colours will do than the fullest row has entries.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np

from probode.base.errors import whole_number
from probode.base.later import csgraph, sparse

_ENOUGH = 1.25
"""Times the least number of colours that would do: as good as that."""
_TRIED_AGAIN = 200_000
"""Columns up to which a second order is tried; of more it takes longer than the products saved."""
_SMALL = 100
"""Columns up to which colours are looked for however full the rows are."""
_SAMPLE = 500
"""Rows on which colours are tried before all others."""
_MOST_LENGTHS = 6
_MOST_DISTANCES = 500
"""Distances between columns of a row above which there is no grid."""
_MOST_STEPS = 2_000_000
_MOST_TRIED = 2
"""Candidates of a kind that are tried on all rows."""
_FULLEST_OF_GRIDS = 30
"""Entries of a row up to which a pattern may be that of a stencil."""


@dataclass(frozen=True)
class Colouring:
    """The columns of a pattern in colours, and where products with them have its entries."""

    pattern: Any
    """:class:`scipy.sparse.csc_array` of truths, indices sorted."""
    colours: np.ndarray
    """That of each column, from zero."""
    count: int
    """How many there are."""

    @cached_property
    def places(self) -> np.ndarray:
        """Where each entry is in products ``(count, n)``, a row for each colour, as a vector."""
        n = self.pattern.shape[0]
        kind = np.int32 if n * self.count < np.iinfo(np.int32).max else np.int64
        return self.colours[columns_of(self.pattern)].astype(kind) * kind(n) + self.pattern.indices

    def data(self, products: np.ndarray) -> np.ndarray:
        """The entries of the matrix, from its products with the sums of columns of a colour."""
        return products.reshape(-1)[self.places]

    def matrix(self, data: np.ndarray) -> Any:
        """The matrix with these entries: a :class:`scipy.sparse.csc_array` of this pattern."""
        return filled(self.pattern, data)


def filled(pattern: Any, data: np.ndarray) -> Any:
    """A matrix with a pattern and other entries; the arrays of the pattern are shared."""
    matrix = sparse.csc_array((data, pattern.indices, pattern.indptr), shape=pattern.shape)
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    return matrix


def columns_of(pattern: Any) -> np.ndarray:
    """The column of each entry of a matrix in compressed columns."""
    every = np.arange(pattern.shape[1], dtype=np.int32)
    return np.repeat(every, np.diff(pattern.indptr))


def as_pattern(given: Any) -> Any:
    """A matrix, dense or sparse, as a pattern in compressed columns; entries stored count as such.

    Zeros that are stored in a sparse matrix are part of its pattern, as for SciPy.
    """
    if not sparse.issparse(given):
        return sparse.csc_array(np.atleast_2d(np.asarray(given)) != 0)
    columns = sparse.csc_array(given)
    pattern = sparse.csc_array(
        (np.ones(len(columns.indices), bool), columns.indices, columns.indptr), columns.shape
    )
    pattern.sum_duplicates()
    return pattern


def bands(n: int, below: int, above: int) -> Any:
    """The pattern of an ``n`` by ``n`` matrix with so many diagonals below and above its own."""
    below, above = min(below, n - 1), min(above, n - 1)
    columns = np.arange(n)
    first, last = np.maximum(columns - above, 0), np.minimum(columns + below, n - 1)
    counts = last - first + 1
    ends = np.concatenate([[0], np.cumsum(counts)])
    rows = np.arange(ends[-1]) - np.repeat(ends[:-1] - first, counts)
    truths = np.ones(len(rows), bool)
    return sparse.csc_array((truths, rows.astype(np.int32), ends.astype(np.int32)), shape=(n, n))


def read_pattern(sparsity: Any, below: int | None, above: int | None, n: int) -> Any | None:
    """Where a Jacobian may be nonzero by the options of SciPy; ``None``: they say nothing."""
    if sparsity is not None:
        if below is not None or above is not None:
            raise ValueError(
                "`jac_sparsity` and bands (`lband`, `uband`) both say where the Jacobian has "
                "entries: give one of them."
            )
        pattern = as_pattern(sparsity)
        if pattern.shape != (n, n):
            raise ValueError(f"`jac_sparsity` must have the shape {(n, n)}, got {pattern.shape}.")
        return pattern
    if below is None and above is None:
        return None
    return bands(n, whole_number("lband", below or 0), whole_number("uband", above or 0))


def colouring(pattern: Any) -> Colouring:
    """Colour the columns of a pattern, dense or sparse, with few colours."""
    columns = as_pattern(pattern)
    colours = _colours(columns)
    return Colouring(columns, colours, int(colours.max(initial=-1)) + 1)


def _colours(columns: Any) -> np.ndarray:
    """Those of a grid, if the pattern has one; else one by one, in one order or another."""
    n, m = columns.shape
    rows = sparse.csr_array(columns)
    rows.sort_indices()
    least = int(np.diff(rows.indptr).max(initial=0))
    if least == m or (2 * least >= m and m > _SMALL):  # next to nothing to be had
        return np.arange(m, dtype=np.int32)
    enough = int(_ENOUGH * least)
    best = of_grid(rows, least) if least <= _FULLEST_OF_GRIDS else None
    if best is None or best.max() >= enough:
        best = _fewer(best, one_by_one(columns, range(m)))
    if best.max() >= enough and n == m <= _TRIED_AGAIN:
        order = csgraph.reverse_cuthill_mckee(rows, symmetric_mode=False)  # neighbours side by side
        best = _fewer(best, one_by_one(columns, order.tolist()))
    return best


def _fewer(a: np.ndarray | None, b: np.ndarray) -> np.ndarray:
    return b if a is None or b.max() < a.max() else a


def one_by_one(columns: Any, order: Any) -> np.ndarray:
    """Each column in turn gets the first colour that none of its rows has met.

    The colours that a row has met are the bits of a number.
    """
    met = [0] * columns.shape[0]
    rows, ends = columns.indices.tolist(), columns.indptr.tolist()
    colours = [0] * columns.shape[1]
    for j in order:
        own = rows[ends[j] : ends[j + 1]]
        taken = 0
        for i in own:
            taken |= met[i]
        bit = ~taken & (taken + 1)
        for i in own:
            met[i] |= bit
        colours[j] = bit.bit_length() - 1
    return np.array(colours, np.int32)


def of_grid(rows: Any, least: int) -> np.ndarray | None:
    """``(j + s (j // p) + s' (j // p') + ...) mod m`` for column ``j``, with the smallest ``m``.

    Unknowns on a grid are numbered along one axis after the other: ``j // p`` counts lines of
    length ``p``, ``j // p'`` planes. Such colours are the best for stencils (five in the plane:
    ``x + 2 y mod 5``). Lengths to try are distances of columns of a row that divide the number of
    all. Candidates are tried on some rows, and at last on all. ``None``: none was found.
    """
    counts, m = np.diff(rows.indptr), rows.shape[1]
    row = np.repeat(np.arange(rows.shape[0], dtype=np.int32), counts)
    example = np.full(m, -1, np.int32)  # a row that has two columns at this distance
    for first, second, where in _pairs(rows.indices, row, least):
        example[second - first] = where
    met = example[example >= 0]
    if len(met) > _MOST_DISTANCES:
        return None
    lengths = [int(p) for p in np.flatnonzero(example >= 0) if p > 1 and m % p == 0]
    lengths = [p for p in lengths if p % 2 or p // 2 not in lengths][:_MOST_LENGTHS]
    chosen = np.linspace(0, rows.shape[0] - 1, _SAMPLE).astype(np.int32)
    sample = rows[np.unique(np.concatenate([chosen, met[:_SAMPLE]]))]
    sampled = np.repeat(np.arange(sample.shape[0]), np.diff(sample.indptr))
    pairs = [np.zeros((3, 0), int), *map(np.stack, _pairs(sample.indices, sampled, least))]
    first, second, _ = np.concatenate(pairs, axis=1)
    apart = {
        chain: np.unique([second // p - first // p for p in (1, *chain)], axis=1)
        for chain in _chains(lengths)
    }
    for modulus in range(max(least, 1), 2 * least + 1):
        for chain, distances in apart.items():
            count = modulus ** len(chain)
            if count * distances.shape[1] > _MOST_STEPS:
                continue
            tuples = list(product(range(modulus), repeat=len(chain)))
            factors = np.array(tuples, int).reshape(count, len(chain))
            steps = distances[0] + factors @ distances[1:]
            for choice in factors[np.all(steps % modulus, axis=1)][:_MOST_TRIED]:
                colours = _lattice(np.arange(m), modulus, chain, choice)
                if _differ(row, colours[rows.indices], modulus):
                    return colours
    return None


def _pairs(columns: np.ndarray, row: np.ndarray, least: int) -> Iterator[tuple[np.ndarray, ...]]:
    """All pairs of columns that have a row in common, and that row."""
    for k in range(1, least):
        same = row[k:] == row[:-k]
        yield columns[:-k][same], columns[k:][same], row[k:][same]


def _chains(lengths: list[int]) -> list[tuple[int, ...]]:
    """Lengths of lines, planes, ...: each divides the next one."""
    chains = (chain for count in range(4) for chain in combinations(lengths, count))
    return [chain for chain in chains if all(q % p == 0 for p, q in pairwise(chain))]


def _lattice(j: np.ndarray, modulus: int, chain: tuple[int, ...], factors: Any) -> np.ndarray:
    lines = (factor * (j // length) for length, factor in zip(chain, factors, strict=True))
    return ((j + sum(lines)) % modulus).astype(np.int32)


def _differ(row: np.ndarray, colours: np.ndarray, count: int) -> bool:
    """Whether all entries of a row have colours of their own."""
    met = np.bincount(row * np.int64(count) + colours)
    return int(met.max(initial=0)) <= 1
