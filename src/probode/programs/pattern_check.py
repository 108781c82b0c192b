"""A pattern of ``∂f/∂y`` that users gave, compared with the function: entries missing in it.

Columns of one colour are told apart by their rows. With an entry outside of the pattern they are
not: its value is taken for that of another one, or lost, and nobody is told. So the product of the
matrix with a random direction is compared with what ``f`` does in that direction. Neither is exact,
and a row where they differ is no more than suspect. What is decisive is that all that lies outside
of the pattern of a row can be moved *without changing it*: to the last digits, whatever the scales
of the problem. Where it changes, halving what is moved leads to the entry.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from probode.programs.field import Field
from probode.programs.finite_differences import Function
from probode.programs.sparse_jacobian import jacobian_product

_STEP = 1e-6
"""Part of its size by which a component is moved."""
_SMALLEST = 1e-3
"""The size of a component is at least this part of the largest one."""
_SMALL = 64
"""Components up to which each of them is moved by itself: nothing is left to chance."""
_DIRECTIONS, _SUSPECTS = 3, 4
"""Random directions, and rows of each that are looked at closely."""
_LARGER = 16.0
"""Moved so much further, a component has a larger effect; rounding has the same."""
_EPS = float(np.finfo(float).eps)

Change = Callable[[np.ndarray], np.ndarray]
"""From a change of ``y`` to that of ``f``."""


def check_function(
    function: Function, t: float, y: np.ndarray, matrix: Any, given: str = "`jac_sparsity`"
) -> None:
    """Raise where ``function`` depends on what the pattern of ``matrix``, its Jacobian, leaves out.

    ``given`` is what messages call the pattern. A function that fails away from ``y``, or is not
    finite there, is not judged.
    """
    here = np.asarray(function(t, y.copy()), float)

    def change(v: np.ndarray) -> np.ndarray:
        return np.asarray(function(t, y + v), float) - here

    rows = csr_array(matrix)
    size = _sizes(y)
    rounding = 64 * _EPS * (np.abs(here) + abs(rows) @ np.maximum(np.abs(y), size))
    with np.errstate(all="ignore"):
        try:
            _check(change, rows, _STEP * size, rounding, 1e-5, given, linear=False)
        except ArithmeticError:
            return


def check_field(
    field: Field, t: float, y: np.ndarray, matrix: Any, given: str = "`jac_sparsity`"
) -> None:
    """The same for a traced vector field, by exact derivatives."""

    def change(v: np.ndarray) -> np.ndarray:
        return jacobian_product(field, t, y, v)

    rows = csr_array(matrix)
    size = _sizes(y)
    rounding = 1e-12 * (abs(rows) @ size)
    _check(change, rows, size, rounding, 1e-10, given, linear=True)


def _sizes(y: np.ndarray) -> np.ndarray:
    magnitude = np.abs(y)
    largest = float(magnitude.max(initial=0.0)) or 1.0
    return np.maximum(magnitude, _SMALLEST * largest)


def _check(
    change: Change,
    rows: Any,
    size: np.ndarray,
    rounding: np.ndarray,
    tolerance: float,
    given: str,
    *,
    linear: bool,
) -> None:
    """Move components by ``size`` or so; changes up to ``rounding`` of a row are none."""
    search = _Search(change, rows, size, rounding, linear)
    m = rows.shape[1]
    random = np.random.default_rng(0)
    if m <= _SMALL:
        for j in range(m):
            search.column(j, given)
        return
    for _ in range(_DIRECTIONS):
        v = size * random.uniform(0.5, 1.5, m) * random.choice([-1.0, 1.0], m)
        found, expected = change(v), rows @ v
        if not np.isfinite(found).all():
            return
        scale = abs(rows) @ np.abs(v) + np.abs(found)
        floor = rounding + 16 * _EPS * np.abs(found).max(initial=0.0)
        off = np.abs(found - expected)
        suspicion = np.where(off > tolerance * scale + floor, off / np.maximum(scale, 1e-300), 0.0)
        for i in np.argsort(-suspicion)[:_SUSPECTS]:
            if suspicion[i] > 0.0:
                search.row(int(i), v, given)


class _Search:
    """For an entry outside of a pattern."""

    def __init__(
        self, change: Change, rows: Any, size: np.ndarray, rounding: np.ndarray, linear: bool
    ) -> None:
        self._change, self._rows, self._size = change, rows, size
        self._rounding, self._linear = rounding, linear

    def row(self, i: int, v: np.ndarray, given: str) -> None:
        """Move all that row ``i`` does not depend on by its pattern."""
        rows = self._rows
        outside = np.ones(rows.shape[1], bool)
        outside[rows.indices[rows.indptr[i] : rows.indptr[i + 1]]] = False
        columns = np.flatnonzero(outside)
        if len(columns) == 0 or not self._effect(i, columns, v) > self._rounding[i]:
            return
        while len(columns) > 1:
            half = len(columns) // 2
            columns = max(columns[:half], columns[half:], key=lambda part: self._effect(i, part, v))
        self._judge(i, int(columns[0]), given)

    def column(self, j: int, given: str) -> None:
        """Move component ``j`` alone, and look at all rows that should not change."""
        v = np.zeros_like(self._size)
        v[j] = self._size[j]
        found = np.abs(self._change(v))
        floor = self._rounding + 16 * _EPS * found.max(initial=0.0)
        found[_rows_with(self._rows, j)] = 0.0
        for i in np.flatnonzero(found > floor):
            self._judge(int(i), j, given)

    def _effect(self, i: int, columns: np.ndarray, v: np.ndarray) -> float:
        moved = np.zeros_like(v)
        moved[columns] = v[columns]
        return float(np.nan_to_num(abs(self._change(moved)[i])))

    def _judge(self, i: int, j: int, given: str) -> None:
        """Raise if it is a true effect."""
        v = self._size
        here = np.array([j])
        effect = self._effect(i, here, v)
        if not effect > self._rounding[i]:
            return
        if not self._linear and not self._effect(i, here, _LARGER * v) > _LARGER / 4 * effect:
            return
        slope = effect / v[j]
        raise ValueError(
            f"∂f/∂y has an entry at ({i}, {j}), of size {slope:.3g}, which is outside of {given}: "
            f"f[{i}] changes with y[{j}]. Products with several columns at once take it for "
            f"another entry. Add it to {given}, or leave that out."
        )


def _rows_with(rows: Any, j: int) -> np.ndarray:
    """The rows in which column ``j`` is part of the pattern."""
    places = np.flatnonzero(rows.indices == j)
    return np.searchsorted(rows.indptr, places, side="right") - 1
