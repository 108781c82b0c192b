"""Matrices and order on lanes: products, decompositions and systems, sorting."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from probode.base.jax_inside import kind
from probode.programs.unroll import entries as e
from probode.programs.unroll.entries import Entry, Lanes, Unsupported, Value, as_lanes

_LONGEST_SORTED = 16
"""Numbers that are sorted at most: comparisons are half their square."""


def dot_general(equation: Any, operands: list[Value]) -> list[Value]:
    """Products of matrices, without those with a known zero; in the type of the result."""
    (left_sum, right_sum), (left_batch, right_batch) = equation.params["dimension_numbers"]
    dtype = kind(equation.outvars[0])[1]
    left, right = (
        Lanes(x.shape, [e.as_type(entry, dtype) for entry in x.entries])
        for x in map(as_lanes, operands)
    )

    def free(lanes: Lanes, taken: Sequence[int]) -> list[int]:
        return [i for i in range(len(lanes.shape)) if i not in taken]

    left_free = free(left, (*left_sum, *left_batch))
    right_free = free(right, (*right_sum, *right_batch))
    rows = _vectors(left, left_batch, left_free, left_sum)
    columns = _vectors(right, right_batch, right_free, right_sum)
    results = [
        _sparse_dot(row, column)
        for batch, other in zip(rows, columns, strict=True)
        for row in batch
        for column in other
    ]
    return [Lanes(kind(equation.outvars[0])[0], results)]


def _vectors(
    lanes: Lanes, batch: Sequence[int], free: Sequence[int], summed: Sequence[int]
) -> list[list[dict[int, Entry]]]:
    """Along the summed axes: by batch, then by free index, the entries that may not be zero."""
    labels = np.arange(len(lanes.entries)).reshape(lanes.shape)
    sizes = [int(np.prod([lanes.shape[i] for i in axes])) for axes in (batch, free, summed)]
    ordered = labels.transpose((*batch, *free, *summed)).reshape(sizes)
    known_zero = [e.zero(x) for x in lanes.entries]
    return [
        [
            {k: lanes.entries[i] for k, i in enumerate(vector) if not known_zero[i]}
            for vector in matrix
        ]
        for matrix in ordered.tolist()
    ]


def _sparse_dot(left: dict[int, Entry], right: dict[int, Entry]) -> Entry:
    few, many = (left, right) if len(left) <= len(right) else (right, left)
    shared = [k for k in few if k in many]
    return e.dot((left[k] for k in shared), (right[k] for k in shared))


def _blocks(lanes: Lanes) -> list[list[list[Entry]]]:
    """The matrices of a stack, one after the other."""
    count, rows = lanes.shape[-2], lanes.rows
    return [rows[i : i + count] for i in range(0, len(rows), count)]


def qr(equation: Any, operands: list[Value]) -> list[Value]:
    """``R`` alone, which is all that the library asks for."""
    q, r = (kind(variable)[0] for variable in equation.outvars)
    lanes = as_lanes(operands[0])
    factors = [e.triangular(block, lanes.shape[-1]) for block in _blocks(lanes)]
    flat = [x for block in factors for row in block for x in row]
    return [_absent(q), Lanes(r, flat)]


def _absent(shape: tuple[int, ...]) -> Lanes:
    """Results that are hardly ever asked for: using one is an error that says so."""
    return Lanes(shape, [e.ABSENT] * int(np.prod(shape)))


def triangular_solve(equation: Any, operands: list[Value]) -> list[Value]:
    """``x`` with ``A x = b`` for a triangular matrix."""
    how = equation.params
    if not how["left_side"] or how["unit_diagonal"]:
        raise Unsupported("a triangular solve from the right")
    matrices, sides = (_blocks(as_lanes(x)) for x in operands)
    upper = not how["lower"]
    if how["transpose_a"]:
        matrices = [[list(column) for column in zip(*m, strict=True)] for m in matrices]
        upper = not upper
    solved = [e.solve_triangular(m, b, upper=upper) for m, b in zip(matrices, sides, strict=True)]
    flat = [x for block in solved for row in block for x in row]
    return [Lanes(kind(equation.outvars[0])[0], flat)]


def lu(equation: Any, operands: list[Value]) -> list[Value]:
    """Of ``A x = b`` the solution is what counts: see :func:`eliminate`."""
    return [_absent(kind(variable)[0]) for variable in equation.outvars]


def eliminate(rows: list[list[Entry]]) -> list[Entry]:
    """The solution of a linear system from the rows ``[A | b]``, with pivots chosen by size.

    The row with the largest entry in a column moves up by exchanges, each a choice of two rows. As
    in LAPACK the first of equals stays; rows whose entry is known to be zero are not looked at.
    """
    size = len(rows)
    for k in range(size):
        for i in [i for i in range(k + 1, size) if not e.zero(rows[i][k])]:
            if e.zero(rows[k][k]):
                rows[k], rows[i] = rows[i], rows[k]
                continue
            larger = e.greater(e.absolute(rows[i][k]), e.absolute(rows[k][k]))
            pair = list(zip(rows[k], rows[i], strict=True))
            rows[k] = [e.choose(larger, b, a) for a, b in pair]
            rows[i] = [e.choose(larger, a, b) for a, b in pair]
        if e.zero(rows[k][k]):
            raise Unsupported("a matrix that is known to be singular")
        for row in rows[k + 1 :]:
            if not e.zero(row[k]):
                weight = e.div(row[k], rows[k][k])
                row[k + 1 :] = [
                    e.sub(b, e.mul(weight, a))
                    for a, b in zip(rows[k][k + 1 :], row[k + 1 :], strict=True)
                ]
                row[k] = 0.0
    matrix, right = [row[:size] for row in rows], [row[size:] for row in rows]
    return [x for (x,) in e.solve_triangular(matrix, right, upper=True)]


def sort(equation: Any, operands: list[Value]) -> list[Value]:
    """The operands in the order of the first one, by exchanges of neighbours: equals stay put."""
    how = equation.params
    given = [as_lanes(x) for x in operands]
    labels = np.arange(len(given[0].entries)).reshape(given[0].shape)
    lines = np.moveaxis(labels, how["dimension"], -1)
    if how["num_keys"] != 1 or lines.shape[-1] > _LONGEST_SORTED:
        raise Unsupported("a long sort, or one by several keys")
    columns = [list(x.entries) for x in given]
    for line in lines.reshape(-1, lines.shape[-1]).tolist():
        for last in range(len(line) - 1, 0, -1):
            for i, j in pairwise(line[: last + 1]):
                swapped = e.greater(columns[0][i], columns[0][j])
                for column in columns:
                    a, b = column[i], column[j]
                    column[i], column[j] = e.choose(swapped, b, a), e.choose(swapped, a, b)
    return [Lanes(x.shape, column) for x, column in zip(given, columns, strict=True)]
