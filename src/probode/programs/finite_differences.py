"""Jacobians by finite differences, for functions that only Python can evaluate."""

from collections.abc import Callable
from typing import Any

import numpy as np

_STEP = float(np.finfo(float).eps) ** 0.5


def finite_difference_jacobian(
    function: Callable[[float, np.ndarray], np.ndarray],
    columns: Callable[[float, np.ndarray], np.ndarray] | None = None,
    sparsity: Any = None,
    lower_band: int | None = None,
    upper_band: int | None = None,
) -> Callable[[float, np.ndarray, np.ndarray], np.ndarray]:
    """Forward differences: ``J(t, y, f)`` as a function.

    Components whose columns share no row are moved together: with a sparsity pattern (or bands)
    a Jacobian takes as many evaluations as there are such groups. ``columns``, if given, evaluates
    several states at once.
    """
    if columns is None and sparsity is None and lower_band is None and upper_band is None:
        return _dense(function)
    groups: list[np.ndarray] | None = None
    pattern: np.ndarray | None = None

    def jacobian(t: float, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        nonlocal groups, pattern
        n = y.size
        if groups is None:
            pattern = _pattern(sparsity, lower_band, upper_band, n)
            groups = [np.array([i]) for i in range(n)] if pattern is None else _groups(pattern)
        size = _sizes(y)
        states = np.repeat(y[:, None], len(groups), axis=1)
        for k, group in enumerate(groups):
            states[group, k] += size[group]
        if columns is not None:
            values = columns(t, states)
        else:
            values = np.stack([function(t, states[:, k]) for k in range(len(groups))], axis=1)
        result = np.zeros((f.size, n))
        for k, group in enumerate(groups):
            change = values[:, k] - f
            for i in group:
                rows = slice(None) if pattern is None else pattern[:, i]
                result[rows, i] = change[rows] / size[i]
        return result

    return jacobian


def _sizes(y: np.ndarray) -> np.ndarray:
    """By how much each component is moved: the difference actually taken, rounding included."""
    magnitude = np.abs(y)
    floor = _STEP * max(1.0, float(magnitude.max()))
    return (y + _STEP * np.maximum(magnitude, floor)) - y


def _dense(
    function: Callable[[float, np.ndarray], np.ndarray],
) -> Callable[[float, np.ndarray, np.ndarray], np.ndarray]:
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


def _pattern(
    sparsity: Any, lower_band: int | None, upper_band: int | None, n: int
) -> np.ndarray | None:
    """Where the Jacobian may be nonzero; ``None``: everywhere."""
    if sparsity is not None:
        matrix = sparsity.toarray() if hasattr(sparsity, "toarray") else np.asarray(sparsity)
        if matrix.shape != (n, n):
            raise ValueError(f"`jac_sparsity` must have the shape {(n, n)}, got {matrix.shape}.")
        return matrix != 0
    if lower_band is None and upper_band is None:
        return None
    rows, cols = np.indices((n, n))
    below, above = lower_band or 0, upper_band or 0
    return (rows - cols <= below) & (cols - rows <= above)


def _groups(pattern: np.ndarray) -> list[np.ndarray]:
    """Greedy grouping of columns that have no row in common."""
    groups: list[list[int]] = []
    taken: list[np.ndarray] = []
    for i in range(pattern.shape[1]):
        for group, rows in zip(groups, taken, strict=True):
            if not np.any(rows & pattern[:, i]):
                group.append(i)
                rows |= pattern[:, i]
                break
        else:
            groups.append([i])
            taken.append(pattern[:, i].copy())
    return [np.array(group) for group in groups]
