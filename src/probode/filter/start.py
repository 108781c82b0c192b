"""Starting states: value and first ``q`` derivatives at ``t0``, and how well they are known.

==================  =============================================================================
``"taylor"``        exact derivatives by Taylor-mode differentiation, zero covariance
``"runge-kutta"``   polynomials fitted to a few Runge-Kutta steps; the difference of two fits
                    is the initial standard deviation. Needs no derivative of ``f``
``"diffuse"``       zero mean, unit variance, conditioned on ``y0`` and ``f(y0)``
``"slope"``         value and slope alone, for a filter whose order rises on the way (SparseEK1)
==================  =============================================================================
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import factorial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base import rational
from probode.base.errors import check_choice
from probode.model.linearize import VectorField
from probode.model.start import Start
from probode.programs.taylor import derivatives


@dataclass(frozen=True)
class TaylorStart:
    """Exact derivatives by Taylor-mode automatic differentiation.

    Examples
    --------
    >>> import probode
    >>> probode.EK1(3).initialization
    TaylorStart()
    """

    name = "taylor"

    def evaluations(self, order: int) -> int:
        """Evaluations of ``f`` (a derivative counts as one)."""
        return order

    def __call__(
        self, field: VectorField, t0: Array, t1: Array, y0: Array, h: Array, order: int
    ) -> Start:
        """All derivatives: see :mod:`probode.programs.taylor`."""
        return Start(derivatives(field, t0, y0, order), None)


@dataclass(frozen=True)
class DiffuseStart:
    """Zero mean and standard deviation ``std``, conditioned on ``y0`` and ``f(t0, y0)``.

    With a fixed diffusion ``σ²`` the standard deviation is ``σ std``, as in the paper.

    Examples
    --------
    >>> import probode
    >>> solver = probode.EK1(3, initialization=probode.DiffuseStart(std=10.0))  # or "diffuse"
    >>> probode.solve_ivp(lambda t, y: -y, (0, 1), [1.0], method=solver).success
    True
    """

    std: float = 1.0

    name = "diffuse"

    def evaluations(self, order: int) -> int:
        """Evaluations of ``f``."""
        return 1

    def __call__(
        self, field: VectorField, t0: Array, t1: Array, y0: Array, h: Array, order: int
    ) -> Start:
        """``y`` and ``y'`` are exact, the others unknown."""
        unknown = jnp.zeros((order - 1, y0.size))
        mean = jnp.concatenate([y0[None], field(t0, y0)[None], unknown])
        std = jnp.concatenate([jnp.zeros((2, y0.size)), unknown + self.std])
        return Start(mean, std, absolute=False)


@dataclass(frozen=True)
class SlopeStart:
    """``y0`` and ``f(t0, y0)``: all that a filter of order one needs to begin."""

    name = "slope"

    def evaluations(self, order: int) -> int:
        """Evaluations of ``f``."""
        return 1

    def __call__(
        self, field: VectorField, t0: Array, t1: Array, y0: Array, h: Array, order: int
    ) -> Start:
        """The others are zero, as those of a first step are."""
        unknown = jnp.zeros((order - 1, y0.size))
        return Start(jnp.concatenate([y0[None], field(t0, y0)[None], unknown]), None)


@dataclass(frozen=True)
class RungeKuttaStart:
    """Derivatives of the polynomial through a few classic Runge-Kutta steps.

    Over ``m`` steps of length ``h`` (less where they would leave the interval) the values and
    slopes determine a Hermite polynomial of degree ``2m + 1``. Its derivatives at ``t0`` are the
    mean; what they differ from those of the polynomial over ``m - 1`` steps is taken as their
    standard deviation. Where the steps are too long for a stiff equation, so that the values
    explode, they are repeated at a tenth of the length, as often as needed.

    Examples
    --------
    >>> import probode
    >>> probode.EK1(3, initialization="runge-kutta").initialization
    RungeKuttaStart()
    """

    name = "runge-kutta"
    substeps: ClassVar[int] = 4
    """Runge-Kutta steps per node of the polynomials."""

    def evaluations(self, order: int) -> int:
        """Evaluations of ``f`` (without those of steps that exploded)."""
        return (4 * self.substeps + 1) * self.steps(order) + 1

    @staticmethod
    def steps(order: int) -> int:
        """Number of nodes after the first."""
        return order // 2 + 1

    def __call__(
        self, field: VectorField, t0: Array, t1: Array, y0: Array, h: Array, order: int
    ) -> Start:
        """Step, fit, compare."""
        span = jnp.where(t1 == t0, h, t1 - t0)
        h = h * jnp.minimum(1.0, jnp.abs(span / (h * self.steps(order))))

        low, high = jnp.minimum(t0, t0 + span), jnp.maximum(t0, t0 + span)

        def inside(t: Array, y: Array) -> Array:
            # f may not exist outside the interval, even by a rounding error.
            return field(jnp.clip(t, low, high), y)

        first = (y0, field(t0, y0))

        def walk(h: Array) -> tuple[Array, Array, Array]:
            def advance(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Any]:
                t, y = carry
                for _substep in range(self.substeps):
                    y = runge_kutta_4(inside, t, y, h / self.substeps)
                    t = t + h / self.substeps
                return (t, y), (y, inside(t, y))

            _, later = jax.lax.scan(advance, (t0, y0), None, length=self.steps(order))
            values, slopes = (
                jnp.concatenate([x[None], xs]) for x, xs in zip(first, later, strict=True)
            )
            return values, slopes, h

        def shorter() -> tuple[Array, Array, Array]:
            def explodes_still(state: tuple[Array, Array]) -> Array:
                slopes = jax.lax.stop_gradient(walk(state[0])[1])
                return explodes(jnp, slopes) & (state[1] < MOST_SHORTER)

            start = (jax.lax.stop_gradient(h) / 10.0, jnp.ones((), int))
            found = jax.lax.while_loop(explodes_still, lambda s: (s[0] / 10.0, s[1] + 1), start)
            return walk(found[0])

        as_asked = walk(h)
        values, slopes, h = jax.lax.cond(explodes(jnp, as_asked[1]), shorter, lambda: as_asked)
        return fit_derivatives(values, slopes, h, order)


MOST_SHORTER = 12
_EXPLOSION = 1e2


def explodes(xp: Any, slopes: Any) -> Any:
    """Whether slopes at equidistant nodes grow like those of an explicit method out of bounds.

    Those of a solution do not grow a hundredfold within the steps that a tolerance asks for; and
    where they are not finite the steps have left the domain of ``f``, if they began in it.
    """
    first, largest = xp.max(xp.abs(slopes[:2])), xp.max(xp.abs(slopes))
    known = xp.isfinite(xp.max(xp.abs(slopes[0])))
    grows = (first > 0.0) & ~(largest <= _EXPLOSION * first)
    return known & (grows | ~xp.isfinite(largest))


@np.errstate(all="ignore")  # a start that overflows is seen in the first step
def fit_derivatives(values: Any, slopes: Any, h: Any, order: int) -> Start:
    """Derivatives at the first of equidistant nodes (``h`` apart), from values and slopes there.

    Fit a polynomial through all nodes, and one through all but the last: their difference is the
    standard deviation. JAX or NumPy arrays.
    """
    # Values relative to the first, so that the fit does not lose digits to a large constant.
    data = np.stack if isinstance(values, np.ndarray) else jnp.stack
    pairs = data([values - values[0], h * slopes], axis=1)
    powers = h ** -np.arange(order + 1.0)

    def fit(nodes: int) -> Any:
        weights = _hermite_derivatives(nodes - 1, order)
        return powers[:, None] * (weights @ pairs[:nodes].reshape(2 * nodes, -1))

    nodes = values.shape[0]
    mean, rough = fit(nodes), fit(nodes - 1)
    known = data([values[0], slopes[0]])
    join = np.concatenate if isinstance(values, np.ndarray) else jnp.concatenate
    std: Any = join([0.0 * known, abs(mean - rough)[2:]])
    whole: Any = join([known, mean[2:]])
    return Start(whole, std)


def runge_kutta_4(field: Callable[..., Any], t: Any, y: Any, h: Any) -> Any:
    """One classic step; JAX or NumPy arrays."""
    k1 = field(t, y)
    k2 = field(t + h / 2, y + h / 2 * k1)
    k3 = field(t + h / 2, y + h / 2 * k2)
    k4 = field(t + h, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


@lru_cache(maxsize=64)
def _hermite_derivatives(steps: int, order: int) -> np.ndarray:
    """Weights: values and slopes at 0..steps (unit step) to derivatives 0..order at 0."""
    size = 2 * (steps + 1)
    rows = []
    for node in range(steps + 1):
        rows.append([Fraction(node) ** k if k or node else Fraction(1) for k in range(size)])
        rows.append(
            [Fraction(k) * Fraction(node) ** (k - 1) if k > 0 else Fraction(0) for k in range(size)]
        )
    inverted = rational.inverse(rows)
    weights = np.zeros((order + 1, size))
    for k in range(min(order + 1, size)):
        weights[k] = [float(factorial(k) * entry) for entry in inverted[k]]
    return weights


Initialization = TaylorStart | RungeKuttaStart | DiffuseStart | SlopeStart

INITIALIZATIONS: dict[str, Initialization] = {
    "taylor": TaylorStart(),
    "runge-kutta": RungeKuttaStart(),
    "diffuse": DiffuseStart(),
    "slope": SlopeStart(),
}


def as_initialization(initialization: str | Initialization) -> Initialization:
    """Look an initialisation up by its name; one that is built already is returned as it is."""
    if isinstance(initialization, Initialization):
        return initialization
    check_choice("initialization", initialization, tuple(INITIALIZATIONS))
    return INITIALIZATIONS[initialization]
