"""The mean of a posterior as a function of time: a polynomial on each step between its nodes."""

from fractions import Fraction
from functools import lru_cache
from math import comb, factorial

import numpy as np

from probode.base import rational


@lru_cache(maxsize=8)
def _pascal(n: int) -> tuple[np.ndarray, np.ndarray]:
    """``C(p, j)`` for ``p < n``, and the inverse of that for ``n <= p < 2n``; rows are ``j``."""
    low = np.array([[float(comb(p, j)) for p in range(n)] for j in range(n)])
    high = [[Fraction(comb(p, j)) for p in range(n, 2 * n)] for j in range(n)]
    return low, np.array(rational.inverse(high), float)


class Curve:
    """A polynomial on each step between nodes.

    Closed: of degree ``2k + 1``, with the derivatives ``0..k`` given at both ends of the step.
    With all derivatives of the state of an IWP that is the mean of its posterior given all data:
    given the states at both ends, what lies between depends on nothing else. (Of other priors it is
    a curve that has all derivatives of the mean at the nodes.) Open: of degree ``k``, with the
    derivatives at the left end; the mean of a filter's predictions, which jumps at nodes.
    """

    def __init__(self, t: np.ndarray, derivatives: np.ndarray, *, closed: bool = True) -> None:
        self.t, self.h, self.closed = t, np.diff(t), closed
        self.derivatives = derivatives

    def pieces(self, step: np.ndarray) -> np.ndarray:
        """Coefficients ``(degree + 1, steps, d)`` of the powers of ``s``, the part of the step.

        The left end's Taylor polynomial, and ``s^(k+1)`` times what it takes to meet the right end:
        that is small, and its large factors do not amplify rounding.
        """
        n = self.derivatives.shape[1]
        with np.errstate(all="ignore"):  # a huge step overflows: no number
            h = self.h[step]
            scale = np.stack([h**j / factorial(j) for j in range(n)])[..., None]
            left = scale * np.swapaxes(self.derivatives[step], 0, 1)
            if not self.closed:
                return left
            low, closing = _pascal(n)
            rest = scale * np.swapaxes(self.derivatives[step + 1], 0, 1)
            rest[0] -= left[0]
            rest -= np.tensordot(low[:, 1:], left[1:], 1)
            return np.concatenate([left, np.tensordot(closing, rest, 1)])

    def time(self, step: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Times after a part ``s`` of the steps."""
        return np.where(s == 1.0, self.t[step + 1], self.t[step] + s * self.h[step])

    def __call__(self, step: np.ndarray, s: np.ndarray) -> np.ndarray:
        """States ``(len(step), d)`` after a part ``s`` of the steps."""
        values = horner(self.pieces(step), s)
        return np.where((s == 1.0)[:, None], self.derivatives[step + 1, 0], values)

    def slope(self, step: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Their derivatives in time."""
        pieces = self.pieces(step)[1:]
        degrees = np.arange(1, len(pieces) + 1)[:, None, None]
        return horner(degrees * pieces, s) / self.h[step][:, None]


def horner(pieces: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The polynomials with coefficients ``(degree + 1, *n, d)`` at ``s`` of shape ``n``."""
    value, s = pieces[-1], s[..., None]
    with np.errstate(all="ignore"):
        for coefficient in pieces[-2::-1]:
            value = value * s + coefficient
    return value
