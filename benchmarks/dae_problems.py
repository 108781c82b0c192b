"""Standard differential-algebraic equations of index 1, as ``M y' = f(t, y)``.

Each is written once for any array module, ``f(xp, t, y)``: with NumPy's long doubles for the
references (:mod:`benchmarks.dae_reference`), with JAX for probode.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Problem(NamedTuple):
    """``M y' = f(t, y)`` from ``y0`` at 0 to ``end``, where the solution is ``reference``."""

    name: str
    f: Callable[..., Any]
    mass: np.ndarray
    y0: Any
    end: float
    reference: tuple[float, ...]
    unit: float = 1.0
    """Absolute tolerances are in this unit."""


def robertson(xp: Any, t: Any, y: Any) -> Any:
    """Three reactions, of which the third equation is the conservation of mass."""
    slow, middle, fast = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
    return xp.stack([middle - slow, slow - middle - fast, y[0] + y[1] + y[2] - 1.0])


def pendulum(xp: Any, t: Any, y: Any) -> Any:
    """A pendulum of length 1 in Cartesian coordinates ``(x, y, v, w, tension)``, g = 9.8.

    Of its index 3 two are gone: the constraint ``x² + y² = 1`` was differentiated twice.
    """
    x, z, v, w, force = y
    bound = v**2 + w**2 - force * (x**2 + z**2) - 9.8 * z
    return xp.stack([v, w, -force * x, -force * z - 9.8, bound])


def amplifier(xp: Any, t: Any, y: Any) -> Any:
    """The transistor amplifier of the test set for IVP solvers (Rentrop, Roche, Steinebach)."""
    ub, resistance, first = 6.0, 9000.0, 1000.0
    ue = 0.1 * xp.sin(200.0 * np.pi * t)

    def g(u: Any) -> Any:
        return 1e-6 * (xp.exp(u / 0.026) - 1.0)

    into, out = g(y[1] - y[2]), g(y[4] - y[5])
    return xp.stack(
        [
            -ue / first + y[0] / first,
            -ub / resistance + y[1] * 2.0 / resistance + 0.01 * into,
            -into + y[2] / resistance,
            -ub / resistance + y[3] / resistance + 0.99 * into,
            -ub / resistance + y[4] * 2.0 / resistance + 0.01 * out,
            -out + y[5] / resistance,
            -ub / resistance + y[6] / resistance + 0.99 * out,
            y[7] / resistance,
        ]
    )


def _capacities() -> np.ndarray:
    c = 1e-6 * np.arange(1, 6)
    mass = np.zeros((8, 8))
    for (i, j), value in {(0, 1): c[0], (3, 4): c[2], (6, 7): c[4]}.items():
        mass[i, i] = mass[j, j] = -value
        mass[i, j] = mass[j, i] = value
    mass[2, 2], mass[5, 5] = -c[1], -c[3]
    return mass


def akzo_nobel(xp: Any, t: Any, y: Any) -> Any:
    """Chemical AKZO Nobel of the test set for IVP solvers, its sixth equation an equilibrium."""
    k1, k2, k3, k4, equilibrium, kla, ks, pressure, henry = (
        *(18.7, 0.58, 0.09, 0.42, 34.4, 3.3, 115.83, 0.9, 737.0),
    )
    root = xp.sqrt(y[1])
    r1 = k1 * y[0] ** 4 * root
    r2 = k2 * y[2] * y[3]
    r3 = k2 / equilibrium * y[0] * y[4]
    r4 = k3 * y[0] * y[3] ** 2
    r5 = k4 * y[5] ** 2 * root
    inflow = kla * (pressure / henry - y[1])
    return xp.stack(
        [
            -2.0 * r1 + r2 - r3 - r4,
            -0.5 * r1 - r4 - 0.5 * r5 + inflow,
            r1 - r2 + r3,
            -r2 + r3 - 2.0 * r4,
            r2 - r3 + r5,
            ks * y[0] * y[3] - y[5],
        ]
    )


_REACTIONS = np.array([1.0, 1.0, 0.0])

PROBLEMS = (
    Problem(
        "robertson",
        robertson,
        _REACTIONS,
        (1.0, 0.0, 0.0),
        100.0,
        (6.1723488239608775e-01, 6.1535912746391230e-06, 3.8275896401263761e-01),
    ),
    Problem(
        "robertson-long",
        robertson,
        _REACTIONS,
        (1.0, 0.0, 0.0),
        1e5,
        (1.7865921142099464e-02, 7.2747514684363186e-08, 9.8213400611038585e-01),
    ),
    Problem(
        "robertson-longest",
        robertson,
        _REACTIONS,
        (1.0, 0.0, 0.0),
        1e8,
        (2.0824175121794606e-05, 8.3298414299089575e-11, 9.9997917574157979e-01),
    ),
    Problem(
        "akzo-nobel",
        akzo_nobel,
        np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]),
        (0.444, 0.00123, 0.0, 0.007, 0.0, 115.83 * 0.444 * 0.007),
        180.0,
        (
            *(1.1507949206617022e-01, 1.2038314715677151e-03, 1.6115628874079742e-01),
            *(3.6561564212492829e-04, 1.7080108852644041e-02, 4.8735313103074550e-03),
        ),
    ),
    Problem(
        "pendulum",
        pendulum,
        np.array([1.0, 1.0, 1.0, 1.0, 0.0]),
        (1.0, 0.0, 0.0, 0.0, 0.0),
        10.0,
        (
            *(2.9627171698661614e-01, -9.5510369579109182e-01, -4.1324139985344077e00),
            *(-1.2818685510699873e00, 2.8080048656258100e01),
        ),
    ),
    Problem(
        "amplifier",
        amplifier,
        _capacities(),
        (0.0, 3.0, 3.0, 6.0, 3.0, 3.0, 6.0, 0.0),
        0.2,
        (
            *(-5.5621450122616265e-03, 3.0065224719030432e00, 2.8499587886081290e00),
            *(2.9264225362062415e00, 2.7046178650105548e00, 2.7618377783931430e00),
            *(4.7709276316167721e00, 1.2369958680915473e00),
        ),
    ),
)
"""References by :mod:`benchmarks.dae_reference`, whose digits are all right. Those published with
the test set for IVP solvers agree: of AKZO Nobel in all digits, of the amplifier to 2e-13."""
