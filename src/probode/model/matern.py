"""The Matérn prior: solutions that return to zero, with a length scale."""

from dataclasses import dataclass
from functools import cached_property
from math import comb, factorial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.jax_inside import is_tracer
from probode.model.prior import Prior

_FORGOTTEN = 700.0
"""After so many times ``1/λ`` nothing is left; more would overflow on its way to nothing."""


@dataclass(frozen=True)
class Matern(Prior):
    """The Matérn process with smoothness ``ν = order + 1/2``, ``order`` times differentiable.

    It has the covariance ``σ² p(λ|t-t'|) exp(-λ|t-t'|)`` with a polynomial ``p``, where
    ``λ = sqrt(2ν) / lengthscale``: values further apart than a length scale know little of each
    other, and predictions over a longer time return to zero. Where steps are short beside the
    length scale it is like :class:`IWP` of the same order.

    Parameters
    ----------
    order
        How many derivatives the state holds, 1 to 11.
    lengthscale
        In units of ``t``, positive; no step is longer. Data: other values do not compile again,
        and derivatives by it are possible.

    Examples
    --------
    >>> import probode
    >>> probode.EK1(probode.Matern(3, lengthscale=2.0)).name
    'EK1(Matern(order=3, lengthscale=2.0))'
    """

    lengthscale: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_tracer(self.lengthscale):
            return
        try:
            number = float(self.lengthscale)
        except (TypeError, ValueError):
            raise TypeError(
                f"lengthscale must be a positive number, got {self.lengthscale!r}."
            ) from None
        if not 0.0 < number < np.inf:
            raise ValueError(
                f"lengthscale must be positive and finite, got {self.lengthscale!r}. For processes "
                "without a length scale there is IWP."
            )
        object.__setattr__(self, "lengthscale", number)

    @property
    def longest_step(self) -> Any:
        """A length scale: over longer times a prediction is zero, whatever came before."""
        return self.lengthscale

    @property
    def rate(self) -> Any:
        """``λ = sqrt(2 order + 1) / lengthscale``."""
        return (2 * self.order + 1) ** 0.5 / self.lengthscale

    def transition(self, h: Array) -> Array:
        """``e^(-θ) Σ_k N(θ)^k / k!`` with ``θ = λ h``.

        The drift has one eigenvalue, ``-λ``, as often as there are derivatives: what remains of it
        is nilpotent. In the coordinates of a step ``h F̃ = -θ I + N(θ)``, with::

            N_ii     = θ                     N_i,i+1 = q - i
            N_qj    -= binom(q+1, j) θ^(q+1-j) / (q-j)!
        """
        theta = jnp.minimum(self.rate * h, _FORGOTTEN)
        powers = theta ** (self.order + 1 - np.arange(self.size))
        drift = jnp.asarray(self._superdiagonal) + theta * np.eye(self.size)
        drift = drift.at[-1].add(-self._last_row * powers)
        total, term = jnp.eye(self.size), jnp.eye(self.size)
        for k in range(1, self.size):
            term = term @ drift / k
            total = total + term
        return jnp.exp(-theta) * total

    @cached_property
    def _superdiagonal(self) -> np.ndarray:
        return np.diag(self.order - np.arange(self.order, dtype=float), 1)

    @cached_property
    def _last_row(self) -> np.ndarray:
        q = self.order
        return np.array([comb(q + 1, j) / factorial(q - j) for j in range(q + 1)])
