"""Gains of a filter whose steps cost as much as a sparse factorisation: the two-pole filter.

The state of an ``IWP(q)`` filter as Taylor coefficients in units of the step, `x_i = h^i y^(i)/i!`
(Nordsieck's form), is predicted and corrected::

    x⁻ = A x,   A_ij = C(j, i);      z = x⁻_1 - h f(t + h, x⁻_0)
    x  = x⁻ - α W² z - β W z,        W = (I - γ h J)⁻¹

EK1's own gain is another rational function of ``h J`` for each step, and needs the covariance of
all components. This one is a rational function with a double real pole, chosen once: it has EK0's
gain ``l`` where ``h J = 0``, the gain ``g`` of a filter that observes ``y`` itself where ``h J`` is
infinite, and meets ``y' = f(t, y)`` exactly in one update where ``f`` is linear::

    b_i = -γ² g_i,  b_1 = l_0 - 2γ,  γ = (1 ± sqrt(1 - g_1 l_0)) / g_1
    α = l + b/γ,    β = -b/γ

One factorisation serves both poles, and all steps of one length. The order is ``q + 1``; it is
A-stable up to ``q = 2``, and ``A(α)``-stable with 89.5, 83.4 and 82.3 degrees for ``q`` = 3, 4, 5.
"""

from functools import lru_cache
from math import comb, sqrt
from typing import NamedTuple

import numpy as np

HIGHEST = 5
"""Order above which no stable gains are known."""

_AT_ZERO = {
    1: [1 / 2, 1],
    2: [5 / 12, 1, 1 / 2],
    3: [3 / 8, 1, 3 / 4, 1 / 6],
    4: [251 / 720, 1, 11 / 12, 1 / 3, 1 / 24],
    5: [
        0.35746298611111,
        1,
        0.86365416666667,
        0.29801527777778,
        0.04216041666667,
        0.00200083333333,
    ],
}
"""``l``: up to ``q = 4`` the Adams-Moulton method of order ``q + 1``."""

_AT_INFINITY = {
    1: [1, 1],
    2: [1, 1.82, 0.98],
    3: [1, 2.07333333333333, 1.4, 0.32666666666667],
    4: [1, 2.15833333333333, 1.59583333333333, 0.49166666666667, 0.05416666666667],
    5: [1, 2.24333333333333, 1.79166666666667, 0.65, 0.10833333333333, 0.00666666666667],
}
"""``g``: between that of BDF, stable for decay, and that of the filter, for oscillations."""


class Gains(NamedTuple):
    """The filter of one order ``q``; ``alpha`` and ``beta`` have ``q + 1`` numbers."""

    order: int
    gamma: float
    alpha: np.ndarray
    beta: np.ndarray
    at_zero: np.ndarray
    """``l = α + β``: the gain where ``J = 0``."""
    predict: np.ndarray
    """``A``."""
    error: float
    """Standard deviation of ``y`` after an update, from an exact start, in that of ``h y'`` before.

    The local error is ``error · W z``: damped in stiff directions, as the update itself is.
    """
    both: np.ndarray
    """``(α, β)`` as columns."""


@lru_cache(maxsize=HIGHEST)
def gains(q: int) -> Gains:
    """The gains of order ``q``, 1 to :data:`HIGHEST`."""
    zero, infinity = np.array(_AT_ZERO[q], float), np.array(_AT_INFINITY[q], float)
    sign = 1.0 if q > 1 else -1.0  # the smaller pole of order 1 is the more accurate one
    gamma = (1.0 + sign * sqrt(1.0 - infinity[1] * zero[0])) / infinity[1]
    b = -(gamma**2) * infinity
    b[1] = zero[0] - 2.0 * gamma
    predict = np.array([[comb(j, i) for j in range(q + 1)] for i in range(q + 1)], float)
    error = sqrt(1 / (2 * q + 1) - (2 * q - 1) / (4 * q * q)) * sqrt(2 * q - 1) / q
    alpha, beta = zero + b / gamma, -b / gamma
    both = np.stack([alpha, beta], axis=1)
    return Gains(q, gamma, alpha, beta, zero, predict, error, both)


@lru_cache(maxsize=2 * HIGHEST)
def error_gains(gamma: float) -> np.ndarray:
    """``α`` and ``β`` as rows for the pair ``(e, h e')``, with the pole of the solver's own steps.

    As above with ``l = (1/2, 1)`` and ``b = (-γ², 1/2 - 2γ)``: of second order, exact at
    infinity.
    """
    zero, b = np.array([0.5, 1.0]), np.array([-(gamma**2), 0.5 - 2.0 * gamma])
    return np.stack([zero + b / gamma, -b / gamma])
