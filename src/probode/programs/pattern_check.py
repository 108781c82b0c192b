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

from probode.base.later import sparse
from probode.programs.field import Field
from probode.programs.finite_differences import Function
from probode.programs.sparse_jacobian import jacobian_product

_STEP = 1e-6
"""Part of its size by which a component is moved."""
_SMALLEST = 1e-3
"""The size of a component that is next to zero, as a part of the largest one."""
_SMALL = 64
"""Components up to which each of them is moved by itself: nothing is left to chance."""
_DIRECTIONS, _SUSPECTS = 4, 4
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

    rows = sparse.csr_array(matrix)
    own, large = _sizes(y)
    rounding = 64 * _EPS * (np.abs(here) + abs(rows) @ large)
    with np.errstate(all="ignore"):
        try:
            search = _Search(change, rows, rounding, given, linear=False)
            search.everywhere(_STEP * own, _STEP * large, 1e-5)
        except ArithmeticError:
            return


def check_field(
    field: Field, t: float, y: np.ndarray, matrix: Any, given: str = "`jac_sparsity`"
) -> None:
    """The same for a traced vector field, by exact derivatives."""

    def change(v: np.ndarray) -> np.ndarray:
        return jacobian_product(field, t, y, v)

    rows = sparse.csr_array(matrix)
    own, large = _sizes(y)
    search = _Search(change, rows, 1e-12 * (abs(rows) @ own), given, linear=True)
    search.everywhere(own, large, 1e-10)


def _sizes(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sizes of all components: their own, and with a smallest one for all.

    By the former, functions are as good as linear; one that is next to zero may be much larger
    later on, and hardly matters while it is not moved by more.
    """
    magnitude = np.abs(y)
    smallest = _SMALLEST * (float(magnitude.max(initial=0.0)) or 1.0)
    return np.where(magnitude == 0.0, smallest, magnitude), np.maximum(magnitude, smallest)


class _Search:
    """For an entry outside of a pattern; changes up to ``rounding`` of a row are none."""

    def __init__(
        self, change: Change, rows: Any, rounding: np.ndarray, given: str, *, linear: bool
    ) -> None:
        self._change, self._rows, self._rounding = change, rows, rounding
        self._given, self._linear = given, linear

    def everywhere(self, own: np.ndarray, large: np.ndarray, tolerance: float) -> None:
        """Move components by their own sizes, and by larger ones.

        Up to the part ``tolerance`` of it, a product with the matrix is a change of ``f``.
        """
        m = self._rows.shape[1]
        if m <= _SMALL:
            for j in range(m):
                self._column(j, large)
            return
        random = np.random.default_rng(0)
        for k in range(_DIRECTIONS):
            size = large if k % 2 else own
            v = size * random.uniform(0.5, 1.5, m) * random.choice([-1.0, 1.0], m)
            for i in self._suspects(v, tolerance):
                self._row(i, v)

    def _suspects(self, v: np.ndarray, tolerance: float) -> list[int]:
        """Rows in which a product with the matrix is least like the change of ``f``."""
        rows = self._rows
        found, expected = self._change(v), rows @ v
        scale = abs(rows) @ np.abs(v) + np.abs(found)
        floor = self._rounding + 16 * _EPS * np.nanmax(np.abs(found), initial=0.0)
        off = np.abs(found - expected)
        doubtful = np.flatnonzero(off > tolerance * scale + floor)
        order = np.argsort(-off[doubtful] / scale[doubtful])
        return [int(i) for i in doubtful[order[:_SUSPECTS]]]

    def _row(self, i: int, v: np.ndarray) -> None:
        """Move all that row ``i`` does not depend on by its pattern."""
        rows = self._rows
        outside = np.ones(rows.shape[1], bool)
        outside[rows.indices[rows.indptr[i] : rows.indptr[i + 1]]] = False
        columns = np.flatnonzero(outside)
        if len(columns) == 0 or not self._effect(i, columns, v) > self._rounding[i]:
            return
        while len(columns) > 1:
            half = len(columns) // 2
            parts = columns[:half], columns[half:]
            columns = max(parts, key=lambda part: self._effect(i, part, v))
        self._judge(i, int(columns[0]), v)

    def _column(self, j: int, size: np.ndarray) -> None:
        """Move component ``j`` alone, and look at all rows that should not change."""
        v = np.zeros_like(size)
        v[j] = size[j]
        found = np.abs(self._change(v))
        floor = self._rounding + 16 * _EPS * np.nanmax(found, initial=0.0)
        found[_rows_with(self._rows, j)] = 0.0
        for i in np.flatnonzero(found > floor):
            self._judge(int(i), j, v)

    def _effect(self, i: int, columns: np.ndarray, v: np.ndarray) -> float:
        moved = np.zeros_like(v)
        moved[columns] = v[columns]
        return float(np.nan_to_num(abs(self._change(moved)[i])))

    def _judge(self, i: int, j: int, v: np.ndarray) -> None:
        """Raise if it is a true effect."""
        here = np.array([j])
        effect = self._effect(i, here, v)
        if not effect > self._rounding[i]:
            return
        if not self._linear and not self._effect(i, here, _LARGER * v) > _LARGER / 4 * effect:
            return
        raise ValueError(
            f"∂f/∂y has an entry at ({i}, {j}), of size {effect / abs(v[j]):.3g}, which is outside "
            f"of {self._given}: f[{i}] changes with y[{j}]. It would be taken for another entry, "
            f"or lost. Add it to {self._given}, or leave that out."
        )


def _rows_with(rows: Any, j: int) -> np.ndarray:
    """The rows in which column ``j`` is part of the pattern."""
    places = np.flatnonzero(rows.indices == j)
    return np.searchsorted(rows.indptr, places, side="right") - 1
