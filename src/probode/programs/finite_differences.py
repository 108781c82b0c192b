"""Jacobians by forward differences, of functions that only Python can evaluate."""

from collections.abc import Callable
from typing import Any

import numpy as np

from probode.programs.colouring import Colouring, colouring, columns_of, read_pattern

_STEP = float(np.finfo(float).eps) ** 0.5
_AT_ONCE = 2**22
"""Numbers of all states that are evaluated in one call."""

Function = Callable[[float, np.ndarray], np.ndarray]


def finite_difference_jacobian(
    function: Function,
    columns: Function | None = None,
    sparsity: Any = None,
    lower_band: int | None = None,
    upper_band: int | None = None,
) -> Callable[[float, np.ndarray, np.ndarray], np.ndarray]:
    """Forward differences: ``J(t, y, f)`` as a function, to a full matrix.

    Components whose columns share no row are moved together: with a sparsity pattern (or bands)
    a Jacobian takes as many evaluations as there are such groups. ``columns``, if given, evaluates
    several states at once.
    """
    if columns is None and sparsity is None and lower_band is None and upper_band is None:
        return _dense(function)
    sparse: Callable[[float, np.ndarray, np.ndarray], Any] | None = None

    def jacobian(t: float, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        nonlocal sparse
        if sparse is None:
            pattern = read_pattern(sparsity, lower_band, upper_band, y.size)
            full = np.ones((f.size, y.size), bool)
            sparse = sparse_differences(
                function, colouring(full if pattern is None else pattern), columns
            )
        result: np.ndarray = sparse(t, y, f).toarray()
        return result

    return jacobian


def sparse_differences(
    function: Function, coloured: Colouring, columns: Function | None = None
) -> Callable[[float, np.ndarray, np.ndarray], Any]:
    """Forward differences of a function whose Jacobian has a known pattern: ``J(t, y, f)``.

    One evaluation for each colour; the results are sparse, in compressed columns, and share the
    arrays of the pattern.
    """
    column = columns_of(coloured.pattern)
    n = coloured.pattern.shape[0]

    def jacobian(t: float, y: np.ndarray, f: np.ndarray) -> Any:
        size = _sizes(y)
        changes = np.empty((coloured.count, n))
        at_once = 1 if columns is None else max(1, _AT_ONCE // y.size)
        for first in range(0, coloured.count, at_once):
            group = np.arange(first, min(first + at_once, coloured.count))
            states = y + np.where(coloured.colours == group[:, None], size, 0.0)
            if columns is None:
                changes[first] = function(t, states[0])
            else:
                changes[group] = columns(t, np.ascontiguousarray(states.T)).T
        changes -= f
        return coloured.matrix(coloured.data(changes) / size[column])

    return jacobian


def _sizes(y: np.ndarray) -> np.ndarray:
    """Return the steps of the differences, rounding included; each is taken away from zero.

    Many functions have a kink at zero (``max(y, 0)``, ``abs(y)``), and a difference across it is
    the derivative of neither side.
    """
    magnitude = np.abs(y)
    floor = _STEP * max(1.0, float(magnitude.max()))
    return (y + np.copysign(_STEP * np.maximum(magnitude, floor), y)) - y


def _dense(function: Function) -> Callable[[float, np.ndarray, np.ndarray], np.ndarray]:
    """Column by column, without the bookkeeping of groups: most problems are small."""

    def jacobian(t: float, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        size = _sizes(y)
        result = np.empty((y.size, f.size))
        moved = y.copy()
        for k in range(y.size):
            moved[k] += size[k]
            result[k] = function(t, moved)
            moved[k] = y[k]
        result -= f
        result /= size[:, None]
        return result.T

    return jacobian
