"""The problems: each with a JAX form (the zoo's) and a NumPy form, as a user of SciPy writes it.

Tolerances: ``rtol = tol`` and ``atol = tol * atol_factor``, the same for every solver. The factor
is 1e-3, 1e-4 for HIRES and 1e-6 for ROBER, whose components end far below one. On stiff problems
the loosest tolerance is 1: some solvers are accurate to many digits there already.

Errors are taken at the end of the interval: the largest component of ``|y - ref| / scale``, with
``scale = 1 + |ref|``, or ``|ref|`` where ``relative`` is set (HIRES and ROBER, whose components end
between 1e-14 and 1).
"""

import dataclasses
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from probode import problems
from probode.problems import InitialValueProblem

NumPyField = Callable[[float, np.ndarray], Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """An initial value problem in both forms."""

    name: str
    title: str
    jax: InitialValueProblem
    numpy: NumPyField
    kind: str
    """``"non-stiff"``, ``"stiff"`` (explicit methods left out) or ``"large"`` (implicit ones)."""
    tolerances: tuple[float, ...]
    """Exponents of the loosest and of the tightest tolerance."""
    atol_factor: Any = 1e-3
    relative: bool = False

    @property
    def d(self) -> int:
        """Number of components."""
        return self.jax.dimension

    def error(self, y: np.ndarray, reference: np.ndarray) -> float:
        """Largest scaled error of a component; infinite where ``y`` is not finite."""
        if not np.all(np.isfinite(y)):
            return float("inf")
        scale = np.abs(reference) if self.relative else 1.0 + np.abs(reference)
        return float(np.max(np.abs(y - reference) / scale))


def _lotka_volterra(t, y):
    prey, predators = y
    return [1.5 * prey - prey * predators, -3.0 * predators + prey * predators]


def _fitzhugh_nagumo(t, y):
    v, w = y
    return [3.0 * (v - v**3 / 3.0 + w), -(v - 0.2 - 0.2 * w) / 3.0]


def _lorenz(t, y):
    x, y, z = y
    return [10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z]


_MASSES = np.arange(1.0, 8.0)
_ONES = np.eye(7)


def _pleiades(t, u):
    x, y = u[:7], u[7:14]
    dx = x[None, :] - x[:, None]
    dy = y[None, :] - y[:, None]
    attraction = _MASSES / (dx**2 + dy**2 + _ONES) ** 1.5
    return np.concatenate([u[14:], (attraction * dx).sum(axis=1), (attraction * dy).sum(axis=1)])


def _hires(t, y):
    y1, y2, y3, y4, y5, y6, y7, y8 = y
    binding = 280.0 * y6 * y8
    return [
        -1.71 * y1 + 0.43 * y2 + 8.32 * y3 + 0.0007,
        1.71 * y1 - 8.75 * y2,
        -10.03 * y3 + 0.43 * y4 + 0.035 * y5,
        8.32 * y2 + 1.71 * y3 - 1.12 * y4,
        -1.745 * y5 + 0.43 * (y6 + y7),
        -binding + 0.69 * y4 + 1.71 * y5 - 0.43 * y6 + 0.69 * y7,
        binding - 1.81 * y7,
        -binding + 1.81 * y7,
    ]


def _rober(t, y):
    y1, y2, y3 = y
    slow, fast, back = 0.04 * y1, 3e7 * y2**2, 1e4 * y2 * y3
    return [-slow + back, slow - back - fast, fast]


def _orego(t, y):
    y1, y2, y3 = y
    return [
        77.27 * (y2 + y1 * (1.0 - 8.375e-6 * y1 - y2)),
        (y3 - (1.0 + y1) * y2) / 77.27,
        0.161 * (y1 - y3),
    ]


def _van_der_pol(t, y):
    x, v = y
    return [v, 1e6 * ((1.0 - x**2) * v - x)]


def _neural(ivp):
    w1, b1, w2, b2, w3, b3 = (np.asarray(a) for a in ivp.args)

    def field(t, y):
        return w3 @ np.tanh(w2 @ np.tanh(w1 @ y + b1) + b2) + b3

    return field


def _waves(d: int) -> InitialValueProblem:
    """Fisher-KPP on ``d`` cells of width 1/2: bumps that grow together and saturate.

    The Jacobian's spectrum reaches to -16, whatever ``d``: mildly stiff, as explicit methods like.
    """
    ivp = problems.get("reaction-diffusion", n=d, length=d / 2)
    x = (np.arange(d) + 0.5) / 2
    return dataclasses.replace(ivp, y0=0.1 + 0.05 * np.sin(2 * np.pi * x / 16))


def _reaction_diffusion(ivp):
    exchange, growth = ivp.args

    def field(t, u):
        change = growth * u * (1.0 - u)
        flux = exchange * np.diff(u)
        change[:-1] += flux
        change[1:] -= flux
        return change

    return field


def _zoo(name: str, title: str, numpy: NumPyField, kind: str, **rest: Any) -> Problem:
    rest.setdefault("tolerances", (-1, -13))
    return Problem(name, title, problems.get(name), numpy, kind, **rest)


def _large(d: int, title: str) -> Problem:
    ivp = _waves(d)
    field = _reaction_diffusion(ivp)
    return Problem(f"reaction-diffusion-{d}", title, ivp, field, "large", (-3, -12))


_MAKERS: dict[str, Callable[[], Problem]] = {
    "lotka-volterra": lambda: _zoo(
        "lotka-volterra", "Lotka-Volterra", _lotka_volterra, "non-stiff"
    ),
    "fitzhugh-nagumo": lambda: _zoo(
        "fitzhugh-nagumo", "FitzHugh-Nagumo", _fitzhugh_nagumo, "non-stiff"
    ),
    "lorenz": lambda: _zoo("lorenz", "Lorenz", _lorenz, "non-stiff"),
    "pleiades": lambda: _zoo("pleiades", "Pleiades", _pleiades, "non-stiff", tolerances=(-2, -13)),
    "neural": lambda: Problem(
        "neural",
        "neural network",
        ivp := problems.get("neural"),
        _neural(ivp),
        "non-stiff",
        (-1, -12),
    ),
    "hires": lambda: _zoo(
        "hires", "HIRES", _hires, "stiff", tolerances=(0, -13), atol_factor=1e-4, relative=True
    ),
    "rober": lambda: _zoo(
        "rober",
        "ROBER",
        _rober,
        "stiff",
        atol_factor=1e-6,
        relative=True,
        tolerances=(0, -12),
    ),
    "orego": lambda: _zoo("orego", "OREGO", _orego, "stiff", tolerances=(0, -12)),
    "van-der-pol": lambda: _zoo(
        "van-der-pol", "Van der Pol, µ = 1e6", _van_der_pol, "stiff", tolerances=(0, -11)
    ),
    "reaction-diffusion-10000": lambda: _large(10_000, "reaction-diffusion, d = 10 000"),
    "reaction-diffusion-100000": lambda: _large(100_000, "reaction-diffusion, d = 100 000"),
}

NAMES = tuple(_MAKERS)
QUICK = ("lotka-volterra", "pleiades", "hires", "van-der-pol")


def get(name: str) -> Problem:
    """Make the problem of this name."""
    if name not in _MAKERS:
        raise ValueError(f"unknown problem {name!r}; there are: {', '.join(NAMES)}.")
    return _MAKERS[name]()


def reference(problem: Problem, cache: Path) -> np.ndarray:
    """The solution at the end: the zoo's, or a tight run of DOP853, kept in ``cache``."""
    if problem.jax.reference_end is not None:
        return np.asarray(problem.jax.reference_end)
    ivp = problem.jax
    content = b"".join(np.asarray(x, float).tobytes() for x in (ivp.y0, ivp.t_span, *ivp.args))
    path = cache / f"reference-{problem.name}-{hashlib.sha256(content).hexdigest()[:8]}.npy"
    if path.exists():
        return np.load(path)
    end = ivp.t_span[1]
    solution = solve_ivp(
        problem.numpy, ivp.t_span, ivp.y0, method="DOP853", t_eval=[end], rtol=1e-13, atol=1e-15
    )
    if not solution.success:
        raise RuntimeError(f"{problem.name}: no reference solution: {solution.message}")
    cache.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp.npy")
    np.save(partial, solution.y[:, -1])
    partial.replace(path)
    return solution.y[:, -1]
