"""The integrated Wiener process prior, in step-independent coordinates.

``y`` and its first ``q`` derivatives form the state ``x = (y, y', ..., y^(q))``, an array of shape
``(q + 1, d)``. A step of length ``h`` works in coordinates ``x = T(h) x̃`` with::

    T(h)_i = h^(1-i) (q-1)! / (q-i)!                i = 0..q,    so T_1 = 1
    Ã_ij   = binom(q-i, q-j)                         j >= i
    Q̃_ij   = 1 / (2q+1-i-j)

in which transition and noise do not depend on the step. The process noise of the step is
``s² Q̃`` with ``s = σ |h|^(q-1/2) / (q-1)!``: *a standard deviation in the units of y'*. Carrying
``s`` instead of the diffusion ``σ²`` keeps every number near the size of the residual, whatever the
time scale and the order, where ``σ²`` itself would overflow. The sign of ``h`` sits in ``T``:
integrating backwards in time is exactly the time-reversed problem.
"""

from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from math import comb, factorial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MAX_ORDER = 11


@dataclass(frozen=True)
class IWP:
    """The ``order``-times integrated Wiener process: ``y^(order)`` is a Brownian motion.

    Parameters
    ----------
    order
        How many derivatives the state holds, 1 to 11. A solver of this order converges with
        (at least) that power of the step size.
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

    @cached_property
    def transition(self) -> np.ndarray:
        """``Ã``, unit upper triangular, shape ``(q+1, q+1)``."""
        q = self.order
        return np.array([[comb(q - i, q - j) for j in range(q + 1)] for i in range(q + 1)], float)

    @cached_property
    def inverse_transition(self) -> np.ndarray:
        """``Ã⁻¹``, entries ``(-1)^(i+j) binom(q-i, q-j)``."""
        signs = (-1.0) ** np.add.outer(np.arange(self.size), np.arange(self.size))
        return signs * self.transition

    @cached_property
    def noise_factor(self) -> np.ndarray:
        """Right factor of ``Q̃``: upper triangular, ``noise_factorᵀ noise_factor = Q̃``."""
        return _noise_cholesky(self.order).T.copy()

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

    def predict_mean(self, mean: Float[Array, "n d"], coords: Array) -> Float[Array, "n d"]:
        """``A(h) m`` as ``m + T (Ã - I) T⁻¹ m``: the increment first, to lose no digit."""
        scale = coords[:, None]
        return mean + scale * ((self.transition - np.eye(self.size)) @ (mean / scale))

    def noise_scale(self, ratio: Array) -> Array:
        """How ``s`` grows with the step for one diffusion: ``|h/h_ref|^(q-1/2)``."""
        return jnp.sqrt(jnp.abs(ratio)) * jnp.abs(ratio) ** (self.order - 1)

    def unit_noise(self, h: Array) -> Array:
        """``s`` of unit diffusion: ``|h|^(q-1/2) / (q-1)!``."""
        return self.noise_scale(h) / factorial(self.order - 1)


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
