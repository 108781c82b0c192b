"""The integrated Ornstein-Uhlenbeck prior: solutions whose highest derivative grows or decays.

``d y^(q) = L y^(q) dt + σ dW``: of the transition only the last column differs from that of the
integrated Wiener process. In the coordinates of a step of length ``h``, with ``z = L h``::

    Ã_ij = binom(q-i, q-j)   j < q          Ã_iq = k! φ_k(z),   k = q - i

    φ_0(z) = e^z         φ_(k+1)(z) = (φ_k(z) - 1/k!) / z

For numbers ``z`` everything here is a sum of positive terms, or a difference that loses no digit:
of any size and either sign. For matrices it is computed for a part of the step and doubled.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from math import comb, factorial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.jax_inside import is_tracer
from probode.base.record import unchecked
from probode.model.gaussian import triangularize
from probode.model.prior import IWP, OfStep, Prior, gauss, times

JACOBIAN = "jacobian"


@dataclass(frozen=True, eq=False)
class IOUP(Prior):
    """The integrated Ornstein-Uhlenbeck process, ``d y^(order) = rate y^(order) dt + σ dW``.

    With the linear part of an equation as its rate, the solver is an exponential integrator: it
    makes no error on ``y' = rate y``, and steps need not follow what the linear part does. Where
    ``rate`` times the step is small it is like :class:`IWP` of the same order. EK0 linearises the
    part of ``f`` that the rate stands for, ``H = E_1 - rate E_0``: with a constant rate it is an
    L-stable method without a Jacobian of the rest.

    Parameters
    ----------
    order
        How many derivatives the state holds, 1 to 11.
    rate
        A number; an array ``(d,)``, one for each component of ``y`` (flattened in C order); a
        matrix ``(d, d)``; or ``"jacobian"``: the Jacobian of ``f`` where a step begins, for each
        step anew (a probabilistic Rosenbrock method; one more Jacobian for each accepted step,
        its entries that are not finite count as zero). Of the Jacobian the whole is used, and with
        block-diagonal covariances its diagonal. For ``y'' = f(t, y, y')`` it is that by ``y'``.
        Numbers are data: others do not compile again, and derivatives by them are possible.

    Examples
    --------
    >>> import probode
    >>> probode.EK0(probode.IOUP(2, rate=-50.0)).name  # y' = -50 y + N(t, y), N slow
    'EK0(IOUP(order=2, rate=-50.0))'
    """

    rate: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_step:
            return
        rate = self.rate
        if isinstance(rate, str):
            raise ValueError(f"rate must be numbers or {JACOBIAN!r}, got {rate!r}.")
        if not is_tracer(rate):
            try:
                rate = np.asarray(rate, float)
            except (TypeError, ValueError):
                raise TypeError(
                    "rate must be a real number, an array (d,), a matrix (d, d) or 'jacobian', got "
                    f"{self.rate!r}."
                ) from None
            if not np.all(np.isfinite(rate)):
                raise ValueError(f"rate must be finite, got {self.rate!r}.")
            object.__setattr__(self, "rate", float(rate) if rate.ndim == 0 else rate)
        shape = rate.shape
        if len(shape) > 2 or 0 in shape or len(set(shape)) == 2:
            raise ValueError(
                "rate must be a number, an array (d,) with one for each component, or a matrix "
                f"(d, d), got shape {shape}."
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IOUP) or type(self) is not type(other):
            return NotImplemented
        if is_tracer(self.rate) or is_tracer(other.rate):
            return self is other
        return self.order == other.order and np.array_equal(self.rate, other.rate)

    def __hash__(self) -> int:
        return hash((self.order, np.shape(self.rate)))

    @property
    def per_step(self) -> bool:
        return isinstance(self.rate, str) and self.rate == JACOBIAN

    @property
    def knows_linear_part(self) -> bool:
        return True

    def linear_part(self, drift: Array | None) -> Any:
        """The rate: all that EK0, which has no other Jacobian, linearises."""
        return drift if self.per_step else self.rate

    @property
    def widest(self) -> int:
        return 1 if self.per_step else np.ndim(self.rate)

    def check_components(self, d: int) -> None:
        shape = np.shape(self.rate)
        if shape and shape[0] != d:
            wanted = f"({d},)" if len(shape) == 1 else f"({d}, {d})"
            raise ValueError(
                f"the rate of IOUP has shape {shape}, but y has {d} components (flattened in C "
                f"order): it must be a number or have shape {wanted}."
            )

    def over(self, h: Array, drift: Array | None = None) -> Prior:
        """Backwards in time what decays grows: ``e^(L h)`` for an ``h`` of either sign."""
        rate = self.linear_part(drift) * jnp.where(h < 0.0, -1.0, 1.0)
        source = unchecked(IOUP, {"order": self.order, "rate": rate})
        matrix, factor = source._made(jnp.abs(h), True)
        return _ExponentialStep(self.order, source, matrix, factor)

    def transition(self, h: Array) -> Array:
        """``Ã(h)``: ``(n, n)``, for each component ``(d, n, n)``, or mixed, ``(n d, n d)``."""
        return self._made(h, False)[0]

    def noise_factor(self, h: Array) -> Any:
        """Right factor of ``Q̃(h)``, of the same shape as the transition."""
        return self._made(h, True)[1]

    def inverse_transition(self, h: Array) -> Array:
        """``Ã(h)⁻¹ = S Ã(-z) S`` with alternating signs ``S``; zero where it is not finite."""
        rate = jax.lax.stop_gradient(jnp.asarray(self.rate))
        matrix = unchecked(IOUP, {"order": self.order, "rate": -rate}).transition(h)
        signs = np.repeat((-1.0) ** np.arange(self.size), matrix.shape[-1] // self.size)
        return jnp.where(jnp.isfinite(matrix), matrix * np.outer(signs, signs), 0.0)

    def _made(self, h: Array, noise: bool) -> tuple[Array, Any]:
        if self.per_step:
            raise ValueError(
                "IOUP(..., 'jacobian') has a transition for each step: prior.over(h, jacobian)."
            )
        z = jnp.asarray(self.rate) * h
        if z.ndim == 2:
            columns, factor = _doubled(self.order, noise, z)
            return _mixed_transition(self.order, columns), factor
        if noise:
            columns, factor = _with_noise(self.order, z)
        else:
            columns, factor = responses(self.order, z), None
        known = jnp.broadcast_to(_known_columns(self.order), (*z.shape, self.size, self.size))
        return known.at[..., -1].set(jnp.flip(columns, -1)), factor


@dataclass(frozen=True)
class _ExponentialStep(OfStep):
    """One step of it: what decays is not formed as a difference."""

    def predict_mean(self, mean: Float[Array, "n d"], h: Array) -> Float[Array, "n d"]:
        """``y^(i)`` by its increment, for ``i < q``; ``y^(q)`` as ``e^(L h) y^(q)``."""
        scale, n = self.coordinates(h)[:, None], self.size
        goes_on = (np.arange(n) < n - 1).astype(float)
        known = np.diag(np.repeat(goes_on, self.matrix.shape[-1] // n))
        return goes_on[:, None] * mean + scale * times(self.matrix - known, mean / scale)


@lru_cache(maxsize=32)
def _known_columns(q: int) -> np.ndarray:
    """The transition without its last column."""
    return np.asarray(IWP(q).transition()) * (np.arange(q + 1) < q)


# Numbers --------------------------------------------------------------------------------------

_FAR, _HALVINGS, _TERMS = 32.0, 6, 14
"""Up to where ``φ`` is doubled, from a half, where its series has converged after so many terms."""


@lru_cache(maxsize=32)
def _series(q: int, terms: int = _TERMS) -> np.ndarray:
    """``k! / (k + j)!``, row ``k``, column ``j``: the coefficients of ``k! φ_k``."""
    return np.array(
        [[factorial(k) / factorial(k + j) for j in range(terms + 1)] for k in range(q + 1)]
    )


def responses(q: int, z: Float[Array, "*b"]) -> Float[Array, "*b n"]:
    """``k! φ_k(z)`` for ``k = 0..q``, along a new last axis.

    Near zero by the series for ``z / 64``, and ``e^z`` in ``6`` doublings of positive terms::

        k! φ_k(2z) = 2^-k (e^z k! φ_k(z) + Σ_l binom(k, l) l! φ_l(z))       l = 1..k

    further away by their recursion, whose differences are then harmless.
    """
    near, k = jnp.abs(z) < _FAR, np.arange(q + 1)
    small = jnp.where(near, z, 0.0) * 0.5**_HALVINGS
    binomials = np.array([[comb(a, b) * (b > 0) for b in k] for a in k], float)

    # Loops, not because there is much to compute: written out they take seconds to compile.
    def add(found: Array, coefficients: Array) -> tuple[Array, None]:
        return found * small[..., None] + coefficients, None

    def double(found: Array, power: Array) -> tuple[Array, None]:
        growth = jnp.exp(small * power)[..., None]
        return (growth * found + found @ binomials.T) * 0.5**k, None

    begun = jnp.zeros((*z.shape, q + 1))
    found = jax.lax.scan(add, begun, jnp.asarray(_series(q).T[::-1]))[0]
    found = jax.lax.scan(double, found, 2.0 ** jnp.arange(_HALVINGS))[0]

    far = jnp.where(near, jnp.where(z < 0.0, -_FAR, _FAR), z)
    recursive = [jnp.exp(far)]
    for j in range(q):
        recursive.append((j + 1) * (recursive[-1] - 1.0) / far)
    found = jnp.where(near[..., None], found, jnp.stack(recursive, -1))
    return found.at[..., 0].set(jnp.exp(z))


_INTERVALS, _NODES = 12, 16


def _with_noise(q: int, z: Float[Array, "*b"]) -> tuple[Array, Float[Array, "*b n n"]]:
    """:func:`responses`, and by quadrature the factor of ``∫₀¹ v vᵀ``, ``v_i = τ^k k! φ_k(τ z)``.

    What fades does so from ``τ = 0`` on, what grows has its largest values at ``τ = 1``, in a time
    of ``1/|z|``: from there intervals grow geometrically.
    """
    known = jax.lax.stop_gradient(z)[..., None]
    shortest = 1.0 / jnp.maximum(jnp.abs(known), 1.0)
    ends = shortest ** (1.0 - np.arange(_INTERVALS + 1.0) / _INTERVALS)
    ends = jnp.concatenate([jnp.zeros_like(shortest), ends], -1)
    low, length = ends[..., :-1, None], jnp.diff(ends)[..., None]
    nodes, weights = gauss(_NODES)
    x = (low + length * nodes).reshape(*z.shape, -1)
    roots = jnp.sqrt(length * weights).reshape(x.shape)
    tau = jnp.where(known < 0.0, x, 1.0 - x)
    every = responses(q, jnp.concatenate([tau, jnp.ones_like(known)], -1) * z[..., None])
    rows = roots[..., None] * tau[..., None] ** np.arange(q + 1) * every[..., :-1, :]
    return every[..., -1, :], triangularize(jnp.flip(rows, -1), q + 1)


# Matrices -------------------------------------------------------------------------------------

_MOST_DOUBLINGS = 64


def _mixed_transition(q: int, columns: Float[Array, "n d d"]) -> Float[Array, "nd nd"]:
    """``(n d, n d)`` from the last column, block by block from the top."""
    n, d = q + 1, columns.shape[-1]
    known = np.einsum("ij,ab->iajb", _known_columns(q), np.eye(d))
    return jnp.asarray(known).at[:, :, -1].set(columns).reshape(n * d, n * d)


def _halvings(z: Float[Array, "d d"]) -> Array:
    """How often a step is halved, until ``|z| < 1/2`` in a norm of matrices."""
    size = jnp.abs(jax.lax.stop_gradient(z))
    norm = jnp.minimum(jnp.max(jnp.sum(size, 0)), jnp.max(jnp.sum(size, 1)))
    least = jnp.ceil(jnp.log2(jnp.where((norm > 0.0) & jnp.isfinite(norm), norm, 1.0)))
    return jnp.clip(least + 1.0, 0.0, _MOST_DOUBLINGS).astype(int)


def _of_part(q: int, noise: bool, z: Float[Array, "d d"]) -> tuple[Array, Any]:
    """Last column and noise factor for a small ``z``, by series in its powers."""
    n, d = q + 1, z.shape[-1]
    powers = [jnp.eye(d)]
    for _ in range(_TERMS):
        powers.append(powers[-1] @ z)
    series, stack = _series(q), jnp.stack(powers)
    columns = jnp.flip(jnp.einsum("kj,jab->kab", series, stack), 0)
    if not noise:
        return columns, None
    nodes, weights = gauss(q + 10)
    exponents = np.add.outer(np.arange(n), np.arange(_TERMS + 1))
    known = np.sqrt(weights)[:, None, None] * nodes[:, None, None] ** exponents * series
    rows = jnp.einsum("ikj,jba->iakb", known[:, ::-1], stack).reshape(-1, n * d)
    return columns, triangularize(rows, n * d)


def _double(q: int, made: tuple[Array, Any]) -> tuple[Array, Any]:
    """The same for twice the time: ``A(2h) = A(h)²``, ``Q(2h) = A Q Aᵀ + Q``, in coordinates."""
    columns, factor = made
    n, d, k = q + 1, columns.shape[-1], q - np.arange(q + 1)
    known = _known_columns(q)
    twice = jnp.einsum("ij,jab->iab", known, columns) + columns @ columns[-1]
    twice = twice * 0.5 ** k[:, None, None]
    if factor is None:
        return twice, None
    cube = factor.reshape(n * d, n, d)
    moved = jnp.einsum("rjb,ij->rib", cube, known)
    moved = moved + jnp.einsum("rb,iab->ria", cube[:, -1], columns)
    both = jnp.concatenate([moved, cube]) * 0.5 ** (k[:, None] + 0.5)
    return twice, triangularize(both.reshape(2 * n * d, n * d), n * d)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _doubled(q: int, noise: bool, z: Float[Array, "d d"]) -> tuple[Array, Any]:
    """Blocks of the last column ``(n, d, d)`` and the noise factor ``(n d, n d)``.

    For ``h / 2^m`` by series, and doubled ``m`` times.
    """
    count = _halvings(z)
    begun = _of_part(q, noise, z * 0.5**count)
    return jax.lax.fori_loop(0, count, lambda _, made: _double(q, made), begun)


@_doubled.defjvp
def _doubled_jvp(q: int, noise: bool, primals: Any, tangents: Any) -> Any:
    """A loop of known length, with a derivative in reverse."""

    def unrolled(z: Array) -> tuple[Array, Any]:
        count = _halvings(z)

        def maybe(made: Any, i: Array) -> tuple[Any, None]:
            return jax.lax.cond(i < count, partial(_double, q), lambda made: made, made), None

        begun = _of_part(q, noise, z * 0.5**count)
        return jax.lax.scan(maybe, begun, jnp.arange(_MOST_DOUBLINGS))[0]

    return jax.jvp(unrolled, primals, tangents)
