"""The residual of the ODE at a predicted state, and its linearisation.

The observation is ``z = E1 x - f(t, E0 x)``; linearised at the predicted mean, ``H = E1 - J E0``
with ``J = 0`` (EK0), the diagonal of the Jacobian of ``f`` (DiagonalEK1) or all of it (EK1). In the
coordinates of a step (see :mod:`probode.model.prior`) that is ``H = E1 - c J E0`` with ``c = T_0``.
"""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from probode.model.gaussian import std_of, whiten
from probode.model.prior import IWP
from probode.model.structure import Jacobian


class VectorField(Protocol):
    """What a linearisation needs to know of the problem."""

    def __call__(self, t: Array, y: Float[Array, " d"]) -> Float[Array, " d"]:
        """``f(t, y)``."""
        ...

    def jacobian(self, t: Array, y: Array) -> tuple[Array, Array]:
        """``f(t, y)`` and its Jacobian, ``(d, d)``."""
        ...

    def jacobian_diagonal(self, t: Array, y: Array) -> tuple[Array, Array]:
        """``f(t, y)`` and the diagonal of its Jacobian, ``(d,)``."""
        ...


class Residual(NamedTuple):
    """``z = E1 m - f(t, E0 m)`` and the Jacobian of ``f`` there."""

    z: Float[Array, " d"]
    jacobian: Jacobian
    rounding: Float[Array, " d"]
    """The level below which ``z`` is rounding noise: ``ε (|E1 m| + |f|)``."""


def residual(field: VectorField, t: Array, mean: Float[Array, "n d"], kind: str) -> Residual:
    """Evaluate the residual at a predicted mean; ``kind`` is "none", "diagonal" or "full"."""
    if kind == "none":
        f, jacobian = field(t, mean[0]), None
    elif kind == "diagonal":
        f, jacobian = field.jacobian_diagonal(t, mean[0])
    else:
        f, jacobian = field.jacobian(t, mean[0])
    rounding = jnp.finfo(mean.dtype).eps * (jnp.abs(mean[1]) + jnp.abs(f))
    return Residual(mean[1] - f, jacobian, jax.lax.stop_gradient(rounding))


class LocalNoise(NamedTuple):
    """The residual as seen by one step of unit noise from an exactly known state."""

    whitened: Float[Array, " d"]
    """``w`` with ``wᵀw = zᵀ (H Q̃ Hᵀ)⁻¹ z``."""
    std: Float[Array, " d"]
    """``sqrt(diag(H Q̃ Hᵀ))``."""


def local_noise(prior: IWP, coords: Float[Array, " n"], residual: Residual) -> LocalNoise:
    """Whiten the residual with ``H Q̃ Hᵀ``.

    The factor of ``Q̃`` is triangular, so only its leading entries meet ``H``::

        R_Q Hᵀ = [ l10 I - c l00 Jᵀ ]
                 [ l11 I            ]       (all other rows are zero)

    and a QR of these 2d rows gives the factor. (A Cholesky decomposition of ``H Q̃ Hᵀ`` would lose
    half the digits, and fail for a stiff ``J``.)
    """
    l00, l10, l11 = prior.noise_factor[0, 0], prior.noise_factor[0, 1], prior.noise_factor[1, 1]
    z, jacobian, _ = residual
    if jacobian is None:
        std = jnp.full_like(z, (l10 * l10 + l11 * l11) ** 0.5)
        return LocalNoise(z / std, std)
    head = coords[0] * l00 * jacobian
    if jacobian.ndim == 1:
        std = jnp.sqrt((l10 - head) ** 2 + l11 * l11)
        return LocalNoise(z / std, std)
    d = z.shape[0]
    factor = jnp.concatenate([l10 * jnp.eye(d) - head.T, l11 * jnp.eye(d)])
    return LocalNoise(whiten(factor, z), std_of(factor))
