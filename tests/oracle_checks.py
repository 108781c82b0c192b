"""What the tests of the oracle share: exact comparison, and other ways to compute its parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpmath import mp, mpf
from oracle import DIFFUSIONS, LINEARIZATIONS, Array, mp_array

COMBINATIONS = [
    (linearization, diffusion)
    for linearization in LINEARIZATIONS
    for diffusion in DIFFUSIONS
    if linearization != "EK1" or not diffusion.endswith("-mv")
]


def assert_equal(actual: Any, expected: Any, tol: float = 1e-60) -> None:
    """Assert that two arrays agree up to tol times the largest expected entry."""
    actual, expected = np.atleast_1d(mp_array(actual)), np.atleast_1d(mp_array(expected))
    assert actual.shape == expected.shape
    difference = max(abs(actual - expected).ravel())
    assert difference <= tol * max(abs(expected).ravel()), mp.nstr(difference, 5)


def inverse(M: Array) -> Array:
    """Invert by the LU decomposition of mpmath."""
    return mp_array(mp.inverse(mp.matrix(M.tolist())).tolist())


def kernel(s: Any, t: Any, a: int, b: int, start: Any, stop: Any) -> Any:
    """Integrate (s-u)^a (t-u)^b / (a! b!) over u from start to stop, by binomial expansion."""
    total = mpf(0)
    for k in range(a + 1):
        for n in range(b + 1):
            factor = mp.binomial(a, k) * mp.binomial(b, n) * s ** (a - k) * t ** (b - n)
            power = k + n + 1
            total += factor * (-1) ** (k + n) * (stop**power - start**power) / power
    return total / (mp.factorial(a) * mp.factorial(b))
