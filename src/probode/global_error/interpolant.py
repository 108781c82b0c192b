"""The posterior mean as a function: Hermite polynomials through the nodes, step by step.

On a step of length ``h`` from ``t_n``, with ``τ = (t - t_n)/h`` in [0, 1], ``P`` is the polynomial
of degree ``2k+1`` that has the derivatives ``m^(0..k)`` of the posterior mean at both ends. It is
linear in the data::

    w = (h m_n', ..., h^k m_n^(k)/k!,  m_(n+1) - m_n,  h m_(n+1)', ..., h^k m_(n+1)^(k)/k!)
    P(τ) = m_n + V(τ) w            dP/dτ = D(τ) w

with rows ``V(τ)``, ``D(τ)`` that depend on ``τ`` alone. Subtracting ``m_n`` first, and forming the
rows from the exact inverse of the interpolation conditions, keeps the rounding of ``dP/dτ`` at that
of ``h m'``, where differences of large coefficients would lose digits.
"""

from fractions import Fraction
from functools import lru_cache
from math import comb, factorial, perm
from operator import mul
from typing import Any

import numpy as np

from probode.base import rational


def contact(order: int, smoothed: bool) -> int:
    """``k``: how many derivatives of the mean to match at both ends of a step.

    ``P`` misses the mean by terms of order ``h^(2k+2)`` and above. They cancel over a step where a
    quadrature with ``s`` nodes is exact for them: what it leaves is of order ``h^max(2s, 2k+2)``.
    That has to be smaller than the solver's own error, of order ``h^(q+1)``: with ``s = 4``, from
    ``q = 7`` on it takes ``k >= q/2``. A filter's mean jumps in its higher derivatives: slopes
    only.
    """
    if not smoothed:
        return 1
    return min(order, max(2 if order <= 3 else 3, (order + 1) // 2))


@lru_cache(maxsize=8)
def _exact_coefficients(k: int) -> list[list[Fraction]]:
    """Polynomial coefficients ``a_0 .. a_(2k+1)`` (rows) of ``P - m_n`` as functions of ``w``.

    ``a_0 = 0`` and ``a_1 .. a_k`` are data; the others solve, for ``j = 0..k``::

        sum_(p>k) C(p,j) a_p = r_j - sum_(1<=p<=k) C(p,j) a_p

    in rational numbers.
    """
    n = k + 1
    matrix = [[Fraction(comb(p, j)) for p in range(n, 2 * n)] for j in range(n)]
    inverted = rational.inverse(matrix)
    rows = [[Fraction(0)] * (2 * k + 1) for _ in range(2 * n)]
    for p in range(1, n):
        rows[p][p - 1] = Fraction(1)
    for i in range(n):
        for j in range(n):
            rows[n + i][k + j] += inverted[i][j]
            for p in range(1, n):
                rows[n + i][p - 1] -= inverted[i][j] * comb(p, j)
    return rows


@lru_cache(maxsize=8)
def _coefficients(k: int) -> np.ndarray:
    return np.array([[float(x) for x in row] for row in _exact_coefficients(k)])


@lru_cache(maxsize=32)
def rows_at(k: int, nodes: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """``V`` and ``D`` at fixed nodes, each entry rounded once.

    They are used in every step: rounding errors in them, amplified by the large coefficients of
    high degrees, would be the same in all steps and add up to a false drift.
    """
    coefficients = _exact_coefficients(k)
    degrees = range(2 * k + 2)
    value: list[list[float]] = []
    slope: list[list[float]] = []
    for node in nodes:
        tau = Fraction(node)
        powers = [tau**p for p in degrees]
        slopes = [p * tau ** max(p - 1, 0) for p in degrees]
        for rows, weights in ((value, powers), (slope, slopes)):
            columns = zip(*coefficients, strict=True)
            rows.append([float(sum(map(mul, weights, column))) for column in columns])
    return np.array(value), np.array(slope)


@lru_cache(maxsize=256)
def _rows_inside(k: int, node: Fraction) -> np.ndarray:
    """Weights of ``w`` in ``P - m_n`` and its first ``k`` derivatives by ``τ`` at a node."""
    columns = list(zip(*_exact_coefficients(k), strict=True))
    rows = []
    for j in range(k + 1):
        weights = [perm(p, j) * node ** max(p - j, 0) for p in range(2 * k + 2)]
        rows.append([float(sum(map(mul, weights, column))) for column in columns])
    return np.array(rows)


def inside(k: int, h: np.ndarray, left: np.ndarray, right: np.ndarray, pieces: int) -> np.ndarray:
    """``P`` and its first ``k`` derivatives at ``1/m, ..., (m-1)/m`` of steps.

    The result has the shape ``(N, m-1, k+1, d)``. Polynomials of the pieces between these nodes are
    those of the steps.
    """
    w = data(np, k, left, right, h)
    units = h[:, None] ** -np.arange(k + 1.0)
    found = []
    for i in range(1, pieces):
        rows = np.einsum("jw,nwd->njd", _rows_inside(k, Fraction(i, pieces)), w)
        rows *= units[..., None]
        rows[:, 0] += left[:, 0]
        found.append(rows)
    return np.stack(found, axis=1)


def value_rows(xp: Any, k: int, tau: Any) -> Any:
    """``V(τ)``, shape ``(*τ, 2k+1)``."""
    powers = xp.stack([tau**p for p in range(2 * k + 2)], axis=-1)
    return powers @ _coefficients(k)


def slope_rows(xp: Any, k: int, tau: Any) -> Any:
    """``D(τ)``, shape ``(*τ, 2k+1)``."""
    powers = xp.stack([p * tau ** max(p - 1, 0) for p in range(2 * k + 2)], axis=-1)
    return powers @ _coefficients(k)


def data(xp: Any, k: int, left: Any, right: Any, h: Any) -> Any:
    """``w`` of steps of lengths ``h`` between means ``left`` and ``right``, ``(*steps, >k, d)``."""
    h = h[..., None]
    ends = [
        h**j * side[..., j, :] / factorial(j) for side in (left, right) for j in range(1, k + 1)
    ]
    rise = right[..., 0, :] - left[..., 0, :]
    return xp.stack([*ends[:k], rise, *ends[k:]], axis=-2)
