"""Reference solutions, by methods that share nothing with ours, and how far to trust them.

The right-hand sides are written once more, in plain Python: an independent statement of the
problems, and what SciPy's solvers evaluate fastest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_ivp

from probode import problems

POINTS = 1000
"""Uniform times at which errors are measured; the start, where all is known, is not among them."""

_SUBDIVISION = 2000
"""Least number of steps: 7th-order dense output over so short ones adds less than rounding."""

STIFFNESS = 1e6


def lotka_volterra(t: float, y: Any) -> tuple[float, ...]:
    """``(1.5 a - a b, a b - 3 b)``."""
    return 1.5 * y[0] - y[0] * y[1], y[0] * y[1] - 3.0 * y[1]


def logistic(t: float, y: Any) -> tuple[float, ...]:
    """``3 y (1 - y)``."""
    return (3.0 * y[0] * (1.0 - y[0]),)


def fitzhugh_nagumo(t: float, y: Any) -> tuple[float, ...]:
    """``(3 (v - v³/3 + r), -(v - 0.2 - 0.2 r)/3)``."""
    return 3.0 * (y[0] - y[0] ** 3 / 3.0 + y[1]), -(y[0] - 0.2 - 0.2 * y[1]) / 3.0


def brusselator(t: float, y: Any) -> tuple[float, ...]:
    """``(1 + a² b - 4 a, 3 a - a² b)``."""
    reaction = y[0] ** 2 * y[1]
    return 1.0 + reaction - 4.0 * y[0], 3.0 * y[0] - reaction


def van_der_pol(t: float, y: Any) -> tuple[float, ...]:
    """``(x', μ ((1 - x²) x' - x))`` with ``μ = 1e6``."""
    return y[1], STIFFNESS * ((1.0 - y[0] ** 2) * y[1] - y[0])


def van_der_pol_jacobian(t: float, y: Any) -> list[list[float]]:
    """Of :func:`van_der_pol`."""
    return [
        [0.0, 1.0],
        [STIFFNESS * (-2.0 * y[0] * y[1] - 1.0), STIFFNESS * (1.0 - y[0] ** 2)],
    ]


FIELDS: dict[str, Callable[[float, Any], tuple[float, ...]]] = {
    "lotka-volterra": lotka_volterra,
    "logistic": logistic,
    "fitzhugh-nagumo": fitzhugh_nagumo,
    "brusselator": brusselator,
    "van-der-pol": van_der_pol,
}


@dataclass(frozen=True)
class Reference:
    """A solution at given times, its own error (estimated), and where it comes from."""

    t: Float[np.ndarray, " N"]
    y: Float[np.ndarray, "N d"]
    level: float
    source: str


@lru_cache
def reference(name: str) -> Reference:
    """The solution of a non-stiff problem at 1000 uniform times.

    The closed form where there is one. Otherwise DOP853 with steps so short that its dense output
    adds nothing; its error level is the largest difference from a second run with other steps, and
    from the problem's independently computed end value.
    """
    problem = problems.get(name)
    t0, t1 = problem.t_span
    t = t0 + (t1 - t0) * np.arange(1, POINTS + 1) / POINTS
    if problem.exact is not None:
        y = problem.exact(t)
        return Reference(t, y, 4 * float(np.spacing(np.abs(y).max())), "closed form")
    first, second = (_dop853(name, t, n) for n in (_SUBDIVISION, _SUBDIVISION * 3 // 2))
    end = np.abs(first[-1] - problem.reference_end).max()
    level = float(max(np.abs(first - second).max(), end))
    return Reference(t, first, level, "DOP853 (rtol 1e-13), two runs and an independent end value")


def _dop853(name: str, t: np.ndarray, steps: int) -> np.ndarray:
    problem = problems.get(name)
    longest = (problem.t_span[1] - problem.t_span[0]) / steps
    found = solve_ivp(
        FIELDS[name],
        problem.t_span,
        problem.y0,
        "DOP853",
        t_eval=t,
        rtol=1e-13,
        atol=1e-14,
        max_step=longest,
    )
    return found.y.T


def stiff_reference(y0: tuple[float, float], rtol: float, most: int = 3000) -> Reference:
    """Van der Pol by Radau IIA of order five, at (a part of) its own steps.

    These follow the layers of the solution, which uniform times would miss. The error level is the
    difference from the end value that is known from tighter runs.
    """
    problem = problems.van_der_pol(y0=y0)
    found = solve_ivp(
        van_der_pol,
        problem.t_span,
        y0,
        "Radau",
        jac=van_der_pol_jacobian,
        rtol=rtol,
        atol=rtol / 100.0,
    )
    level = float(np.abs(found.y[:, -1] - problem.reference_end).max())
    every = max(1, len(found.t) // most)
    chosen = np.unique(np.r_[0 : len(found.t) : every, len(found.t) - 1])
    source = f"Radau IIA (rtol {rtol:g}, {len(found.t) - 1} steps)"
    return Reference(found.t[chosen], found.y.T[chosen], level, source)
