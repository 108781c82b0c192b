"""A user's Jacobian compared with differences of the function whose derivative it should be.

An entry is wrong where it differs from a central difference by a tenth of the larger of the two,
and by a hundredth of what its row adds up to, and by more than rounding explains::

    |J_ij - D_ij| > max(0.1 max(|J_ij|, |D_ij|), 0.01 r_i / w_j, noise),  r_i = Σ_k |J_ik| w_k

``w`` are the sizes of the components. Users may leave small terms out, and differences are no
derivative at a kink: entries whose differences ahead and behind disagree are not judged.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_STEP = 1e-6
"""Step of the differences, as a part of the size of a component."""
_FLOOR = 1e-8
"""The size of a component that is next to zero, as a part of the largest one."""
_WRONG, _SMALL, _NOISE = 0.1, 0.01, 640.0
_COLUMNS = 16
"""Largest number of columns that are compared at a time."""
_POINTS, _AWAY = 3, 0.1
_GOLDEN = 0.6180339887498949
_EPSILON = float(np.finfo(float).eps)

Function = Callable[[float, np.ndarray], np.ndarray]


class WrongJacobianError(ValueError):
    """A ``jac`` that is not the derivative of ``fun``, found out in the middle of a solve."""


def function_of(function: Callable[..., Any], args: tuple[Any, ...]) -> Function:
    """Return ``function(t, y, *args)`` as a function of ``t`` and ``y`` alone, with flat values."""
    return lambda t, y: np.ravel(np.asarray(function(t, y, *args)))


def points_near(t0: float, t1: float, y0: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
    """Yield a few points near the start: no component keeps its value, none changes its sign."""
    length = t1 - t0 if np.isfinite(t1 - t0) else 1.0
    size = np.where(y0 == 0.0, np.max(np.abs(y0), initial=0.0) or 1.0, y0)
    for k in range(_POINTS):
        noise = np.modf(_GOLDEN * np.arange(1 + k * y0.size, 1 + (k + 1) * y0.size))[0]
        yield t0 + k / _POINTS * length, y0 + _AWAY * (0.1 + noise) * size


def mismatch(
    function: Function, matrix: Any, t: float, y: np.ndarray, first: int = 0
) -> str | None:
    """Describe an entry of ``matrix`` that is not the derivative of ``function``.

    Up to 16 columns are compared; in a larger matrix these are evenly spaced, from column ``first``
    on. Return ``None`` if no entry is wrong, as far as differences can tell.
    """
    size = np.maximum(np.abs(y), _FLOOR * np.max(np.abs(y), initial=0.0))
    size = np.where(size == 0.0, 1.0, np.where(y == 0.0, np.max(size, initial=0.0), size))
    each = -(-y.size // _COLUMNS)
    columns = (first + each * np.arange(-(-y.size // each))) % y.size
    step = _STEP * size[columns]
    with np.errstate(all="ignore"):
        try:
            here = function(t, y.copy())
            ahead, behind = (
                np.stack([function(t, state) for state in _moved(y, columns, s * step)], 1)
                for s in (1.0, -1.0)
            )
        except Exception:  # not defined on both sides
            return None
        change = (ahead - behind) / (2 * step)
        given = _columns(matrix, columns, change)
        if given.shape != change.shape or not np.isfinite(given).all():
            return None
        larger = np.maximum(np.abs(given), np.abs(change))
        row = np.max(larger * size[columns], axis=1)
        row = np.maximum(row, abs(matrix) @ size) if matrix.ndim == 2 else row
        noise = _NOISE * _EPSILON * (np.abs(here) + row)[:, None] / step
        bend = np.abs(ahead - 2 * here[:, None] + behind) / step
        off = np.abs(given - change)
        settled = bend <= 0.1 * _WRONG * larger + noise
        small = np.maximum(_SMALL * row[:, None] / size[columns], noise)
        wrong = settled & (off > _WRONG * larger) & (off > small)
    if not wrong.any():
        return None
    i, j = np.unravel_index(int(np.argmax(np.where(wrong, off * size[columns], -1.0))), wrong.shape)
    return (
        f"`jac` is not the derivative of `fun` at t = {t:.6g}: in row {i} and column {columns[j]} "
        f"it is {given[i, j]:.4g}, but differences of `fun` give {change[i, j]:.4g} (is `jac` "
        "transposed, or in another order than `y`?)"
    )


def _moved(y: np.ndarray, columns: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return copies of ``y``, each with one component moved."""
    states = np.tile(y, (len(columns), 1))
    states[np.arange(len(columns)), columns] += by
    return states


def _columns(matrix: Any, columns: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Columns of a matrix; of its diagonal alone, those of ``change`` with that diagonal."""
    if matrix.ndim == 1:
        given = change.copy()
        given[columns % len(change), np.arange(len(columns))] = matrix[columns]
        return given
    some = matrix[:, columns]
    return np.asarray(some.toarray() if hasattr(some, "toarray") else some)


class WatchedJacobian:
    """A Jacobian that is compared with its function now and then: ``(t, y, *rest) -> J``.

    At the first call, the second, the fourth and so on, and at every one that is a multiple of
    ``period``. A wrong one raises :class:`WrongJacobianError`.
    """

    def __init__(self, function: Function, jacobian: Callable[..., Any], period: int = 64) -> None:
        self._function, self._jacobian, self._period = function, jacobian, period
        self._calls = self._compared = self.evaluations = 0

    def __call__(self, t: float, y: np.ndarray, *rest: Any) -> Any:
        """Return the matrix, after comparing it if its turn has come."""
        matrix = self._jacobian(t, y, *rest)
        self._calls += 1
        if self._calls & (self._calls - 1) == 0 or self._calls % self._period == 0:
            self._compared += 1
            self.evaluations += 1 + 2 * min(y.size, _COLUMNS)
            words = mismatch(self._function, matrix, t, y, self._compared)
            if words is not None:
                raise WrongJacobianError(words)
        return matrix
