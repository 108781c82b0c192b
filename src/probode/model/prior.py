"""Priors: Gaussian processes for a solution and its first ``q`` derivatives.

``y`` and its derivatives form the state ``x = (y, y', ..., y^(q))``, an array of shape
``(q + 1, d)``; most often every component has the same prior. A step of length ``h`` works in
coordinates ``x = T(h) x̃`` with::

    T(h)_i = h^(1-i) (q-1)! / (q-i)!                i = 0..q,    so T_1 = 1

in which the process noise of the step is ``s² Q̃`` with ``s = σ |h|^(q-1/2) / (q-1)!``: *a standard
deviation in the units of y'*. Carrying ``s`` instead of the diffusion ``σ²`` keeps every number
near the size of the residual, whatever the time scale and the order, where ``σ²`` itself would
overflow. The sign of ``h`` sits in ``T``: integrating backwards in time is exactly the
time-reversed problem.

A prior gives the transition ``Ã`` in these coordinates, and (if it knows better than a quadrature)
a factor of the noise ``Q̃``. For the integrated Wiener process neither depends on the step::

    Ã_ij   = binom(q-i, q-j)                         j >= i
    Q̃_ij   = 1 / (2q+1-i-j)
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from math import comb, factorial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.precision import double_precision, is_traced
from probode.base.unbatched import calls_libraries, unbatched
from probode.model.gaussian import triangularize
from probode.model.parts import Part, check_fields

MAX_ORDER = 11


@dataclass(frozen=True)
class Prior(Part):
    """Base of all priors: a linear stochastic differential equation for ``(y, ..., y^(order))``.

    White noise drives the highest derivative, ``d y^(q) = (what the prior says) dt + σ dW``. A
    prior of your own is a frozen dataclass with one method, :meth:`transition`; see
    ``docs/models.md``.

    Parameters
    ----------
    order
        How many derivatives the state holds, 1 to 11. A solver of this order converges with
        (at least) that power of the step size.

    Examples
    --------
    >>> import numpy as np
    >>> import probode
    >>> np.asarray(probode.IWP(2).transition(0.1)).tolist()  # in the coordinates of the step
    [[1.0, 2.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]
    """

    order: int

    def __post_init__(self) -> None:
        if isinstance(self.order, bool) or not isinstance(self.order, int | np.integer):
            raise TypeError(f"order must be an integer from 1 to {MAX_ORDER}, got {self.order!r}.")
        if not 1 <= self.order <= MAX_ORDER:
            raise ValueError(
                f"order must be between 1 and {MAX_ORDER}, got {self.order}. Orders 3 to 5 suit "
                "moderate tolerances, 8 and above very tight ones."
            )
        object.__setattr__(self, "order", int(self.order))

    @property
    def size(self) -> int:
        """Number of derivatives in the state, ``order + 1``."""
        return self.order + 1

    @property
    def longest_step(self) -> Any:
        """Beyond which predictions know nothing of what came before; no step is longer."""
        return np.inf

    def transition(self, h: Array) -> Any:
        """``Ã(h) = T(h)⁻¹ exp(F h) T(h)``, shape ``(q+1, q+1)``, over a time ``h > 0``.

        Written with ``jax.numpy``; ``h`` may be traced.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no method transition(h): a prior says how the state moves "
            "on in a step of length h, by a matrix of shape (order + 1, order + 1)."
        )

    def noise_factor(self, h: Array) -> Any:
        """Right factor of ``Q̃(h)``: upper triangular, ``noise_factorᵀ noise_factor = Q̃``.

        By default from the responses to the noise at all earlier times::

            Q̃ = ∫₀¹ v(τ) v(τ)ᵀ dτ        v_i(τ) = τ^(q-i) Ã(τ h)_iq

        by a quadrature with positive weights, which has no cancellation, over a millionth of the
        step (for responses that fade as fast), and from there by doubling (Stillfjord & Tronarp)::

            Q(2h) = A(h) Q(h) A(h)ᵀ + Q(h)
        """
        nodes, weights = gauss(_NODES)
        powers = self.order - np.arange(self.size)
        lengths = np.concatenate([nodes, 2.0 ** np.arange(_DOUBLINGS)]) * 0.5**_DOUBLINGS
        every = jax.vmap(self._unbatched_transition())(jnp.asarray(lengths) * h)
        rows = np.sqrt(weights)[:, None] * nodes[:, None] ** powers * every[:_NODES, :, -1]
        factor = triangularize(rows, self.size)

        def double(factor: Array, transition: Array) -> tuple[Array, None]:
            stack = jnp.concatenate([factor @ transition.T, factor])
            return triangularize(stack * 0.5 ** (powers + 0.5), self.size), None

        return jax.lax.scan(double, factor, every[_NODES:])[0]

    def _unbatched_transition(self) -> Callable[[Array], Array]:
        """:meth:`transition`, never batched where it calls libraries, as ``expm`` does."""
        leaves, tree = jax.tree.flatten(self)

        def at(h: Array, *leaves: Any) -> Array:
            made: Array = jax.tree.unflatten(tree, leaves).transition(h)
            return made

        known = unbatched(at) if calls_libraries(at, jnp.ones(()), *leaves) else at
        return lambda h: known(h, *leaves)

    def inverse_transition(self, h: Array) -> Any:
        """``Ã(h)⁻¹``, for steps without any noise; zero where rounding has left none."""
        inverse = unbatched(jnp.linalg.inv)(jax.lax.stop_gradient(self.transition(h)))
        return jnp.where(jnp.isfinite(inverse), inverse, 0.0)

    def over(self, h: Array, drift: Array | None = None) -> "Prior":
        """The prior of one step of length ``h`` (with its sign), its matrices computed once.

        ``drift`` is what a prior that is ``per_step`` takes from the equation where it begins.
        """
        length = jnp.abs(h)
        matrix = self._unbatched_transition()(length)
        return OfStep(self.order, self, matrix, self.noise_factor(length))

    @property
    def per_step(self) -> bool:
        """Whether each step has a drift of its own, from the equation's linearisation."""
        return False

    @property
    def knows_linear_part(self) -> bool:
        """Whether it has one: such steps follow what is stiff without a Jacobian."""
        return False

    def linear_part(self, drift: Array | None) -> Any:
        """What it knows of ``∂f/∂y``: a number, a diagonal, a matrix; ``None``: nothing."""
        return None

    @property
    def widest(self) -> int:
        """What the transition differs by: nothing (0), components (1), or it mixes them (2)."""
        return 0

    def check_components(self, d: int) -> None:
        """Refuse a prior that is for another number of components."""

    def predict_mean(self, mean: Float[Array, "n d"], h: Array) -> Float[Array, "n d"]:
        """``A(h) m`` as ``m + T (Ã - I) T⁻¹ m``: the increment first, to lose no digit."""
        scale, matrix = self.coordinates(h)[:, None], self.transition(jnp.abs(h))
        return mean + scale * times(matrix - np.eye(matrix.shape[-1]), mean / scale)

    def coordinates(self, h: Array) -> Float[Array, " n"]:
        """``T(h)``: the scale of each derivative in a step of length ``h``."""
        return self.powers(h) * self.weights

    @cached_property
    def weights(self) -> np.ndarray:
        """``T(1)_i = (q-1)! / (q-i)!``."""
        q = self.order
        return np.array([factorial(q - 1) / factorial(q - i) for i in range(q + 1)])

    def coordinate(self, h: Array, i: Any) -> Array:
        """``T(h)_i`` alone; ``i`` may be traced."""
        if isinstance(i, int):
            return self.weights[i] * h ** (1 - i)
        return jnp.asarray(self.weights)[i] * self.powers(h)[..., i]

    def powers(self, ratio: Array) -> Float[Array, " n"]:
        """``ratio^(1-i)``, i = 0..q. With ``ratio = h_old / h_new``: the change of coordinates."""
        inverse = 1.0 / ratio
        rows = [ratio, jnp.ones_like(ratio)]
        for _ in range(self.order - 1):
            rows.append(rows[-1] * inverse)
        return jnp.stack(rows[: self.size], axis=-1)

    def noise_scale(self, ratio: Array) -> Array:
        """How ``s`` grows with the step for one diffusion: ``|h/h_ref|^(q-1/2)``."""
        return jnp.sqrt(jnp.abs(ratio)) * jnp.abs(ratio) ** (self.order - 1)

    def unit_noise(self, h: Array) -> Array:
        """``s`` of unit diffusion: ``|h|^(q-1/2) / (q-1)!``."""
        return self.noise_scale(h) / factorial(self.order - 1)


def times(matrix: Any, x: Float[Array, "n d"]) -> Any:
    """``A x`` for a transition of all components, of each ``(d, n, n)``, or mixed, (nd, nd)."""
    if matrix.ndim == 3:
        return jnp.einsum("dij,jd->id", matrix, x)
    if matrix.shape[-1] != x.shape[0]:
        return (matrix @ x.reshape(-1)).reshape(x.shape)
    return matrix @ x


_NODES, _DOUBLINGS = 16, 20
"""Of the noise of a prior that says nothing of it."""


@lru_cache(maxsize=32)
def gauss(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on ``[0, 1]``."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1.0) / 2.0, weights / 2.0


@dataclass(frozen=True)
class OfStep(Prior):
    """A prior over one step, whose matrices are known."""

    source: Prior
    matrix: Array
    factor: Array

    def transition(self, h: Array) -> Array:
        return self.matrix

    def noise_factor(self, h: Array) -> Array:
        return self.factor

    def inverse_transition(self, h: Array) -> Array:
        return self.source.inverse_transition(h)

    def over(self, h: Array, drift: Array | None = None) -> Prior:
        return self


@dataclass(frozen=True)
class IWP(Prior):
    """The ``order``-times integrated Wiener process: ``y^(order)`` is a Brownian motion.

    Parameters
    ----------
    order
        How many derivatives the state holds, 1 to 11. A solver of this order converges with
        (at least) that power of the step size.

    Examples
    --------
    >>> import probode
    >>> probode.EK1(probode.IWP(3)) == probode.EK1(3)
    True
    """

    def transition(self, h: Any = None) -> np.ndarray:
        """``Ã``, unit upper triangular, shape ``(q+1, q+1)``: the same for every step."""
        return self._transition

    def noise_factor(self, h: Any = None) -> np.ndarray:
        """Right factor of ``Q̃``, the same for every step, exact up to the last rounding."""
        return _noise_cholesky(self.order).T

    def over(self, h: Array, drift: Array | None = None) -> Prior:
        """The same in every step."""
        return self if type(self) is IWP else super().over(h, drift)

    def inverse_transition(self, h: Any = None) -> np.ndarray:
        """``Ã⁻¹``, entries ``(-1)^(i+j) binom(q-i, q-j)``."""
        signs = (-1.0) ** np.add.outer(np.arange(self.size), np.arange(self.size))
        return signs * self._transition

    @cached_property
    def _transition(self) -> np.ndarray:
        q = self.order
        return np.array([[comb(q - i, q - j) for j in range(q + 1)] for i in range(q + 1)], float)


@jax.jit
def transition_over(prior: Prior, h: Array, drift: Array | None) -> Array:
    """The transition of one step, outside of a program: compiled once for all numbers."""
    made: Array = prior.over(h, drift).transition(jnp.abs(h))
    return made


@jax.jit
def _noise_factor(prior: Prior, h: Array) -> Any:
    return prior.noise_factor(h)


def check_prior(prior: Prior) -> Prior:
    """Refuse a prior of a user's own whose matrices cannot be those of one, before any step."""
    if type(prior) is IWP or is_traced(prior):
        return prior
    name, shape = type(prior).__name__, (prior.size, prior.size)
    check_fields(prior)
    with double_precision():
        for what in ("transition", "noise_factor"):
            ours = what == "noise_factor" and type(prior).noise_factor is Prior.noise_factor
            one = jnp.asarray(1.0)
            made = _noise_factor(prior, one) if ours else getattr(prior, what)(one)
            if not isinstance(made, np.ndarray | jax.Array):
                raise TypeError(f"{name}.{what}(h) must return an array, got {made!r}.")
            matrix = np.asarray(made)
            if matrix.shape != shape:
                raise ValueError(
                    f"{name}.{what}(h) must return a matrix of shape {shape}, for the derivatives "
                    f"0 to {prior.order}, got shape {matrix.shape}."
                )
            if not np.all(np.isfinite(matrix)):
                raise ValueError(f"{name}.{what}(1.0) must be finite, got {matrix}.")
    if np.any(np.tril(matrix, -1) != 0.0) or np.any(np.diagonal(matrix) == 0.0):
        raise ValueError(
            f"{name}.noise_factor(h) must be upper triangular without a zero on its diagonal, got "
            f"{matrix}: a right factor R of the noise, RᵀR (leave the method out, and it is "
            "computed from the transition)."
        )
    _check_transition(prior)
    return prior


def _check_transition(prior: Prior) -> None:
    """Two things that are true of every prior, and not of matrices in other coordinates.

    Over short times all of them are alike, ``Ã(h) -> Ã`` of the integrated Wiener process; and two
    steps are one of twice the length, ``A(h)² = A(2h)`` in plain units.
    """
    name, wiener = type(prior).__name__, IWP(prior.order).transition()
    with double_precision():
        lengths = 0.37 * 10.0 ** -np.arange(16.0)
        distance = [np.max(abs(prior.transition(jnp.asarray(h)) - wiener)) for h in lengths]
        if not np.nanmin(distance) < _ALIKE:
            raise ValueError(
                f"{name}.transition(h) must tend to IWP({prior.order}).transition() for short "
                f"steps, got {np.asarray(prior.transition(jnp.asarray(1e-8)))} for h = 1e-8. It is "
                "the matrix in the coordinates of the step: derivative i in units of "
                "h^(1-i) (q-1)! / (q-i)!."
            )
        # Twice the step: coordinates change by 2^(1-i).
        h = jnp.asarray(lengths[int(np.nanargmin(distance))])
        once, change = np.asarray(prior.transition(h)), 2.0 ** (1.0 - np.arange(prior.size))
        twice = np.asarray(prior.transition(2.0 * h)) * change[:, None] / change
        if not np.allclose(once @ once, twice, rtol=1e-3, atol=1e-3):
            raise ValueError(
                f"{name}.transition: two steps must be one of twice the length, but for h = {h} "
                f"they give {once @ once}, and one step gives {twice} (in the same coordinates)."
            )


_ALIKE = 1e-3


@lru_cache(maxsize=MAX_ORDER)
def _noise_cholesky(q: int) -> np.ndarray:
    """Cholesky factor of ``Q̃``, exact up to the last rounding.

    ``Q̃`` is a Hilbert-like matrix (condition number 1e16 at q = 11): the LDLᵀ decomposition is done
    in rational numbers, square roots in 50 digits.
    """
    n = q + 1
    lower = [[Fraction(0)] * n for _ in range(n)]
    diagonal = [Fraction(0)] * n
    for j in range(n):
        diagonal[j] = Fraction(1, 2 * q + 1 - 2 * j) - sum(
            lower[j][k] ** 2 * diagonal[k] for k in range(j)
        )
        for i in range(j, n):
            rest = sum(lower[i][k] * lower[j][k] * diagonal[k] for k in range(j))
            lower[i][j] = (Fraction(1, 2 * q + 1 - i - j) - rest) / diagonal[j]
    with localcontext() as context:
        context.prec = 50

        def decimal(x: Fraction) -> Decimal:
            return Decimal(x.numerator) / Decimal(x.denominator)

        roots = [decimal(x).sqrt() for x in diagonal]
        return np.array(
            [[float(decimal(lower[i][j]) * roots[j]) for j in range(n)] for i in range(n)]
        )
