"""On which entries of ``y`` each entry of an array depends: rows of a pattern, chosen by number.

A pattern is a sparse matrix of truths with ``d`` columns, one for each entry of ``y``. An array has
no pattern of its own but *row numbers* into one: entry ``e`` depends on what row ``rows[e]`` says.
So whatever only moves entries around (slices, transposes, broadcasts) is done to an array of whole
numbers, by the operation itself, and costs nothing for what the entries depend on. Rows are written
out where entries are combined, no sooner: what is compared, or thrown away, never is.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from probode.base.later import sparse

MOST = 50_000_000
"""Entries of a pattern above which it is of no use: a matrix of so many takes 600 MB, its factors
many times that. Patterns of up to 7000 unknowns have fewer in any case. Three of them at a time
(two and their union, five bytes an entry) stay below one gigabyte."""

_MOST_WORK = 4 * MOST
"""Entries met while rows are united, of which many may be the same."""


class TooFull(Exception):
    """A pattern with more entries than are of use."""


class Dependence(NamedTuple):
    """An array whose entry ``e`` depends on those of ``y`` that row ``rows[e]`` of ``of`` names."""

    rows: np.ndarray
    """Of the shape of the array; ``-1``, the last row, is empty: depends on nothing."""
    of: Any
    """A pattern ``(m + 1, d)`` in compressed rows, the last one empty."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.rows.shape

    def moved(self, rows: np.ndarray) -> "Dependence":
        """The same entries at other places."""
        return Dependence(rows, self.of)


def nothing(shape: tuple[int, ...]) -> np.ndarray:
    """Row numbers of an array that does not depend on ``y``."""
    return np.broadcast_to(np.int32(-1), shape)


def numbered(shape: tuple[int, ...], of: Any) -> Dependence:
    """An array with the rows of a pattern, one after the other."""
    return Dependence(np.arange(of.shape[0] - 1, dtype=np.int32).reshape(shape), of)


def each(d: int) -> Dependence:
    """``y`` itself: each entry depends on itself."""
    ends = np.minimum(np.arange(d + 2, dtype=np.int32), np.int32(d))
    return numbered((d,), _pattern(np.arange(d, dtype=np.int32), ends, d))


def pattern(x: Dependence) -> Any:
    """The pattern whose rows are the entries of an array, in order, and an empty last one."""
    rows, of = x.rows.reshape(-1), x.of
    _limit(_entries(rows, of), MOST)
    if len(rows) == of.shape[0] - 1 and np.array_equal(rows, np.arange(len(rows))):
        return of
    return of[np.append(rows, np.int32(-1))]


def united(shape: tuple[int, ...], operands: Sequence[Dependence]) -> Dependence:
    """What depends, entry by entry, on all that its operands depend on; numbers go with arrays.

    The first one itself where the others add nothing: it need not be kept twice.
    """
    result, *others = (x.moved(np.broadcast_to(x.rows, shape)) for x in operands)
    for other in others:
        result = _either(result, other)
    return result


def _either(a: Dependence, b: Dependence) -> Dependence:
    if a.of is b.of and (a.rows is b.rows or np.array_equal(a.rows, b.rows)):
        return a
    if a.rows.size == 0:
        return a
    one, other = (_same_for_all(x) for x in (a, b))
    for x, row in ((a, one), (b, other)):
        if row is not None and _entries(row, x.of) == x.of.shape[1]:
            return x  # all of them depend on everything
    if one is not None and other is not None and a.rows.size > 1:
        single = a.moved(one)
        both = _either(single, b.moved(other))
        return a if both is single else both.moved(np.broadcast_to(both.rows, a.shape))
    first, second = pattern(a), pattern(b)
    _limit(first.nnz + second.nnz, 2 * MOST)
    sum_of_both = first + second
    if sum_of_both.nnz == first.nnz:
        return a
    if sum_of_both.nnz == second.nnz:
        return b
    return numbered(a.shape, sum_of_both)


def _same_for_all(x: Dependence) -> np.ndarray | None:
    """The one row that all entries depend on, if they do."""
    first = x.rows.reshape(-1)[:1]
    return first if bool((x.rows == first).all()) else None


def grouped(shape: tuple[int, ...], rows: np.ndarray, of: Any) -> Dependence:
    """Entry ``e`` of the result depends on what ``rows[e, 0], rows[e, 1], ...`` say."""
    count, size = rows.shape
    ends = size * np.arange(count + 1, dtype=np.int64)
    return _combined(shape, rows.reshape(-1), ends, of)


def paired(shape: tuple[int, ...], entry: np.ndarray, rows: np.ndarray, of: Any) -> Dependence:
    """Entry ``entry[k]`` of the result depends on what row ``rows[k]`` says, for all ``k``."""
    order = np.argsort(entry, kind="stable")
    count = int(np.prod(shape))
    ends = np.searchsorted(entry[order], np.arange(count + 1))
    return _combined(shape, rows[order], ends, of)


def _combined(shape: tuple[int, ...], rows: np.ndarray, ends: np.ndarray, of: Any) -> Dependence:
    """Unite the rows from ``ends[e]`` to ``ends[e + 1]``: a product of patterns."""
    _limit(_entries(rows, of), _MOST_WORK)
    rows = np.where(rows < 0, of.shape[0] - 1, rows).astype(np.int32)
    choice = _pattern(rows, np.append(ends, ends[-1]).astype(np.int32), of.shape[0])
    product = choice @ of
    _limit(product.nnz, MOST)
    product.sort_indices()
    return numbered(shape, product)


def reduced(x: Dependence, axes: Sequence[int]) -> Dependence:
    """Entries along these axes united: the axes are gone."""
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    shape = tuple(x.shape[axis] for axis in kept)
    rows = x.rows.transpose(*kept, *axes).reshape(int(np.prod(shape)), -1)
    if len(rows) == 1:
        rows = np.unique(rows)[None]
    if rows.shape[1] == 1:
        return x.moved(rows.reshape(shape))
    return grouped(shape, rows, x.of)


def spread(x: Dependence, axes: Sequence[int], shape: tuple[int, ...]) -> Dependence:
    """Every entry of the result depends on all that the operand has along these axes."""
    less = reduced(x, axes)
    return less.moved(np.broadcast_to(np.expand_dims(less.rows, tuple(axes)), shape))


def everything(operands: Sequence[Dependence], shape: tuple[int, ...]) -> Dependence:
    """Every entry depends on all that any entry of the operands does."""
    single = [reduced(x, range(len(x.shape))) for x in operands if x.rows.size]
    if not single:
        return Dependence(nothing(shape), operands[0].of)
    both = united((), single)
    return both.moved(np.broadcast_to(both.rows, shape))


def together(operands: Sequence[Dependence]) -> tuple[list[np.ndarray], Any]:
    """Row numbers of all operands in one pattern, that of all of them."""
    if all(x.of is operands[0].of for x in operands):
        return [x.rows for x in operands], operands[0].of
    # A part of what a large pattern has would bring along all of it.
    operands = [
        numbered(x.shape, pattern(x)) if 2 * x.rows.size < x.of.shape[0] else x for x in operands
    ]
    distinct = {id(x.of): x.of for x in operands}
    starts, begin, total = {}, 0, 0
    indices, ends = [], [np.zeros(1, np.int32)]
    for name, of in distinct.items():
        starts[name] = begin
        begin += of.shape[0] - 1
        indices.append(of.indices)
        ends.append(of.indptr[1:-1] + total)
        total += of.nnz
    _limit(total, 2 * MOST)
    ends.append(np.array([total]))
    d = operands[0].of.shape[1]
    stacked = _pattern(np.concatenate(indices), np.concatenate(ends).astype(np.int32), d)
    moved = [np.where(x.rows < 0, -1, x.rows + starts[id(x.of)]).astype(np.int32) for x in operands]
    return moved, stacked


def _entries(rows: np.ndarray, of: Any) -> int:
    """How many entries these rows have, each counted as often as it is there."""
    return int(np.diff(of.indptr)[rows].sum(dtype=np.int64))


def _limit(entries: int, most: int) -> None:
    if entries > most:
        raise TooFull


def _pattern(indices: np.ndarray, ends: np.ndarray, columns: int) -> Any:
    truths = np.ones(len(indices), bool)
    return sparse.csr_array((truths, indices, ends), shape=(len(ends) - 1, columns))
