"""Problems for the oracle, with exact derivatives at their starts by truncated power series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpmath import mp, mpf
from oracle import Array, Jacobian, VectorField

# Truncated power series


class Series:
    """Truncated power series c_0 + c_1 s + ... + c_k s^k with the arithmetic of functions."""

    def __init__(self, c: Sequence[Any]) -> None:
        self.c = list(c)

    def lift(self, other: Any) -> Series:
        """Return a number as a constant series of the same length."""
        if isinstance(other, Series):
            return other
        return Series([mpf(other)] + [mpf(0)] * (len(self.c) - 1))

    def __add__(self, other: Any) -> Series:
        """Add coefficientwise."""
        return Series([a + b for a, b in zip(self.c, self.lift(other).c, strict=True)])

    def __mul__(self, other: Any) -> Series:
        """Multiply: c_k = sum_(j <= k) a_j b_(k-j)."""
        a, b = self.c, self.lift(other).c
        return Series([mp.fsum(a[j] * b[k - j] for j in range(k + 1)) for k in range(len(a))])

    def __truediv__(self, other: Any) -> Series:
        """Divide: c_k = (a_k - sum_(j < k) c_j b_(k-j)) / b_0, the product rule solved for c."""
        b, c = self.lift(other).c, list[Any]()
        for k, a in enumerate(self.c):
            c.append((a - mp.fsum(c[j] * b[k - j] for j in range(k))) / b[0])
        return Series(c)

    def __neg__(self) -> Series:
        """Negate."""
        return self * -1

    def __sub__(self, other: Any) -> Series:
        """Subtract."""
        return self + -self.lift(other)

    def __rsub__(self, other: Any) -> Series:
        """Subtract from a number."""
        return self.lift(other) - self

    def __rtruediv__(self, other: Any) -> Series:
        """Divide a number."""
        return self.lift(other) / self

    __radd__, __rmul__ = __add__, __mul__


def exp(x: Any) -> Any:
    """Exponential of a number or a series: e' = u' e, so k e_k = sum_(j=1..k) j u_j e_(k-j)."""
    if not isinstance(x, Series):
        return mp.exp(x)
    u, e = x.c, [mp.exp(x.c[0])]
    for k in range(1, len(u)):
        e.append(mp.fsum(j * u[j] * e[k - j] for j in range(1, k + 1)) / k)
    return Series(e)


def sin_cos(x: Series) -> tuple[Series, Series]:
    """Sine and cosine of a series together, by the coefficients of s' = u' c and c' = -u' s."""
    u, s, c = x.c, [mp.sin(x.c[0])], [mp.cos(x.c[0])]
    for k in range(1, len(u)):
        s.append(mp.fsum(j * u[j] * c[k - j] for j in range(1, k + 1)) / k)
        c.append(-mp.fsum(j * u[j] * s[k - j] for j in range(1, k + 1)) / k)
    return Series(s), Series(c)


def sin(x: Any) -> Any:
    """Sine of a number or a series."""
    return sin_cos(x)[0] if isinstance(x, Series) else mp.sin(x)


def cos(x: Any) -> Any:
    """Cosine of a number or a series."""
    return sin_cos(x)[1] if isinstance(x, Series) else mp.cos(x)


def taylor_start(f: VectorField, t0: Any, y0: Sequence[Any], q: int) -> Array:
    """Return the exact derivatives y, y', ..., y^(q) at t0, shape (q+1, d).

    With y = sum_k c_k (t - t0)^k the equation y' = f(t, y) reads (k+1) c_(k+1) = f(t, y)_k, and
    the right-hand side needs c_0, ..., c_k only. The derivatives are k! c_k.
    """
    t = Series([mpf(t0), mpf(1)] + [mpf(0)] * (q - 1))
    y = [Series([mpf(v)] + [mpf(0)] * q) for v in y0]
    for k in range(q):
        for yi, fi in zip(y, f(t, list(y)), strict=True):
            yi.c[k + 1] = t.lift(fi).c[k] / (k + 1)
    return np.array([[mp.factorial(k) * yi.c[k] for yi in y] for k in range(q + 1)])


# Problems, for numbers and for series


@dataclass(frozen=True)
class Problem:
    """An initial value problem y' = f(t, y), y(t0) = y0 with its Jacobian."""

    f: VectorField
    jac: Jacobian
    y0: tuple[float, ...]
    t0: float = 0.0

    def start(self, q: int) -> Array:
        """Return the exact initial derivatives, shape (q+1, d)."""
        return taylor_start(self.f, self.t0, self.y0, q)


LOTKA_VOLTERRA = Problem(
    f=lambda t, y: [1.5 * y[0] - y[0] * y[1], -3 * y[1] + y[0] * y[1]],
    jac=lambda t, y: [[1.5 - y[1], -y[0]], [y[1], y[0] - 3]],
    y0=(1.0, 1.0),
)
LOGISTIC = Problem(
    f=lambda t, y: [3 * y[0] * (1 - y[0])],
    jac=lambda t, y: [[3 - 6 * y[0]]],
    y0=(0.1,),
)
NONAUTONOMOUS = Problem(
    f=lambda t, y: [-y[0] * y[1] + sin(t), y[0] - 0.5 * y[1] * cos(t)],
    jac=lambda t, y: [[-y[1], -y[0]], [1, -0.5 * cos(t)]],
    y0=(1.0, 0.5),
)
PROBLEMS = {
    "lotka-volterra": LOTKA_VOLTERRA,
    "logistic": LOGISTIC,
    "nonautonomous": NONAUTONOMOUS,
}
