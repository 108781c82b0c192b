"""Covariance structures: isotropic, block-diagonal, dense, behind one small interface.

The state is an array ``x`` of shape ``(n, d)``: ``n = q + 1`` derivatives of ``d`` components. Its
covariance is carried as a right factor (see :mod:`probode.gaussian`) in one of three forms:

============== ================= ==================================================================
structure      factor's shape    covariance
============== ================= ==================================================================
isotropic      ``(n, n)``        ``RᵀR ⊗ I_d``: one small matrix however large ``d`` is
block-diagonal ``(d, n, n)``     one small matrix per component
dense          ``(n d, n d)``    everything, derivative-major (``x`` flattened in C order)
============== ================= ==================================================================

A structure only says how means and residuals are cut into *blocks* that fit its factor, and how
the prior and the observation act on a factor. The algebra on top is the same for all three.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.gaussian import norm, unpack

Jacobian = Array | None
"""``None`` (zero), shape ``(d,)`` (its diagonal) or ``(d, d)``."""


@dataclass(frozen=True)
class Structure:
    """How the covariance of an ``(n, d)`` state is stored."""

    n: int
    d: int

    @property
    def factor_shape(self) -> tuple[int, ...]:
        """Shape of a square factor."""
        raise NotImplementedError

    def cut(self, mean: Float[Array, "n d"]) -> Array:
        """Blocks of a state: columns that a factor's transpose can be multiplied with."""
        raise NotImplementedError

    def join(self, blocks: Array) -> Float[Array, "n d"]:
        """Inverse of :meth:`cut`."""
        raise NotImplementedError

    def cut_residual(self, residual: Float[Array, " d"]) -> Array:
        """Blocks of an observation."""
        raise NotImplementedError

    def join_residual(self, blocks: Array) -> Float[Array, " d"]:
        """Inverse of :meth:`cut_residual`."""
        raise NotImplementedError

    def cut_noise(self, noise: Float[Array, " d"]) -> Array:
        """Blocks of the standard deviations of an observation noise."""
        raise NotImplementedError

    def common(self, per_component: Float[Array, " d"]) -> Array:
        """A bound per component, in the form that :meth:`noise` can use."""
        return per_component

    def spread(self, per_derivative: Float[Array, " n"]) -> Array:
        """One number per derivative, as one number per column of a factor."""
        return per_derivative

    def transit(self, factor: Array, matrix: np.ndarray | Array) -> Array:
        """``R (M ⊗ I)ᵀ``: the factor of ``M x`` for a matrix over the derivatives."""
        return factor @ jnp.swapaxes(jnp.asarray(matrix), -1, -2)

    def widen(self, matrix: np.ndarray) -> np.ndarray:
        """``M ⊗ I`` for a matrix over the derivatives, as it acts on the columns of a factor."""
        return matrix

    def noise(self, factor: np.ndarray, scale: Array) -> Array:
        """Factor of process noise: ``scale`` is one standard deviation, or one per component."""
        raise NotImplementedError

    def observe(self, factor: Array, weight: Array, jacobian: Jacobian) -> Array:
        """``R Hᵀ`` for ``H = E1 - weight J E0``."""
        raise NotImplementedError

    def select(self, factor: Array, derivative: Any) -> Array:
        """The columns of a factor that belong to one derivative; leading axes are a batch."""
        return factor[..., derivative]

    def select_packed(self, packed: Array, derivative: int) -> Array:
        """The same from packed factors (see :func:`probode.gaussian.pack`); zero rows left out."""
        return unpack(packed, slice(derivative, derivative + 1))[..., 0]

    def from_columns(self, columns: list[Any]) -> Any:
        """The factor whose columns of all derivatives are these: inverse of :meth:`select`."""
        return np.stack(columns, axis=-1)

    def slopes(self, values: Any, weight: Any, jacobian: Jacobian) -> Any:
        """The columns of ``weight J y`` from those of ``y``."""
        raise NotImplementedError

    def pin(self, factor: Array, weight: Array, jacobian: Jacobian) -> Array:
        """Make ``R Hᵀ`` exactly zero: overwrite the slopes by ``weight J`` times the values."""
        raise NotImplementedError

    def std(self, columns: Array) -> Array:
        """Marginal standard deviations ``(..., d)`` from the columns of one derivative."""
        raise NotImplementedError

    def covariance(self, columns: Array) -> Array:
        """Covariance ``(..., d, d)`` from the columns of one derivative.

        Squares: beyond 1e154 there are none, and the result is infinite.
        """
        return self.std(columns)[..., None] ** 2 * np.eye(self.d)

    def project(self, columns: Array, direction: np.ndarray) -> Any:
        """Standard deviations of ``direction · y`` from the columns of one derivative."""
        return norm(self.std(columns) * direction)

    def diagonal_factor(self, std: Float[Array, "n d"]) -> Array:
        """Factor of independent components with these standard deviations."""
        raise NotImplementedError


@dataclass(frozen=True)
class Isotropic(Structure):
    """``RᵀR ⊗ I``: every component has the same covariance, and none is correlated."""

    @property
    def factor_shape(self) -> tuple[int, ...]:
        return (self.n, self.n)

    def cut(self, mean: Float[Array, "n d"]) -> Array:
        return mean

    def join(self, blocks: Array) -> Float[Array, "n d"]:
        return blocks

    def cut_residual(self, residual: Float[Array, " d"]) -> Array:
        return residual[None, :]

    def join_residual(self, blocks: Array) -> Float[Array, " d"]:
        return blocks[0]

    def common(self, per_component: Float[Array, " d"]) -> Array:
        return jnp.max(per_component)

    def cut_noise(self, noise: Float[Array, " d"]) -> Array:
        return norm(noise)[None] / np.sqrt(self.d)

    def noise(self, factor: np.ndarray, scale: Array) -> Array:
        return scale * factor

    def observe(self, factor: Array, weight: Array, jacobian: Jacobian) -> Array:
        return factor[:, 1:2]

    def slopes(self, values: Any, weight: Any, jacobian: Jacobian) -> Any:
        return jnp.zeros_like(values)

    def pin(self, factor: Array, weight: Array, jacobian: Jacobian) -> Array:
        return factor.at[:, 1].set(0.0)

    def std(self, columns: Array) -> Array:
        return norm(columns)[..., None] * np.ones(self.d)

    def diagonal_factor(self, std: Float[Array, "n d"]) -> Array:
        """One standard deviation per derivative: the root mean square over the components."""
        return jnp.diag(norm(std) / np.sqrt(self.d))


@dataclass(frozen=True)
class BlockDiagonal(Structure):
    """Components are independent; each has its own ``(n, n)`` factor."""

    @property
    def factor_shape(self) -> tuple[int, ...]:
        return (self.d, self.n, self.n)

    def cut(self, mean: Float[Array, "n d"]) -> Array:
        return mean.T[:, :, None]

    def join(self, blocks: Array) -> Float[Array, "n d"]:
        return blocks[:, :, 0].T

    def cut_residual(self, residual: Float[Array, " d"]) -> Array:
        return residual[:, None, None]

    def join_residual(self, blocks: Array) -> Float[Array, " d"]:
        return blocks[:, 0, 0]

    def cut_noise(self, noise: Float[Array, " d"]) -> Array:
        return noise[:, None]

    def noise(self, factor: np.ndarray, scale: Array) -> Array:
        return jnp.broadcast_to(scale, (self.d,))[:, None, None] * factor

    def observe(self, factor: Array, weight: Array, jacobian: Jacobian) -> Array:
        observed = factor[:, :, 1:2]
        if jacobian is None:
            return observed
        return observed - (weight * jacobian)[:, None, None] * factor[:, :, 0:1]

    def slopes(self, values: Any, weight: Any, jacobian: Jacobian) -> Any:
        if jacobian is None:
            return jnp.zeros_like(values)
        return (weight * jacobian)[:, None] * values

    def pin(self, factor: Array, weight: Array, jacobian: Jacobian) -> Array:
        return factor.at[:, :, 1].set(self.slopes(factor[:, :, 0], weight, jacobian))

    def std(self, columns: Array) -> Array:
        return norm(columns)

    def diagonal_factor(self, std: Float[Array, "n d"]) -> Array:
        return std.T[:, :, None] * np.eye(self.n)


@dataclass(frozen=True)
class Dense(Structure):
    """The full covariance of all derivatives of all components."""

    @property
    def factor_shape(self) -> tuple[int, ...]:
        return (self.n * self.d, self.n * self.d)

    def cut(self, mean: Float[Array, "n d"]) -> Array:
        return mean.reshape(self.n * self.d, 1)

    def join(self, blocks: Array) -> Float[Array, "n d"]:
        return blocks.reshape(self.n, self.d)

    def cut_residual(self, residual: Float[Array, " d"]) -> Array:
        return residual[:, None]

    def join_residual(self, blocks: Array) -> Float[Array, " d"]:
        return blocks[:, 0]

    def cut_noise(self, noise: Float[Array, " d"]) -> Array:
        return noise

    def spread(self, per_derivative: Float[Array, " n"]) -> Array:
        return jnp.repeat(per_derivative, self.d, axis=-1, total_repeat_length=self.n * self.d)

    def widen(self, matrix: np.ndarray) -> np.ndarray:
        return np.kron(matrix, np.eye(self.d))

    def transit(self, factor: Array, matrix: np.ndarray | Array) -> Array:
        rows = factor.shape[0]
        cube = factor.reshape(rows, self.n, self.d)
        moved = jnp.einsum("rjd,ij->rid", cube, jnp.asarray(matrix))
        return moved.reshape(rows, self.n * self.d)

    def noise(self, factor: np.ndarray, scale: Array) -> Array:
        if jnp.ndim(scale) == 0:
            return scale * self.widen(factor)
        return (jnp.asarray(factor)[:, None, :, None] * jnp.diag(scale)[None, :, None, :]).reshape(
            self.factor_shape
        )

    def observe(self, factor: Array, weight: Array, jacobian: Jacobian) -> Array:
        values, slopes = factor[:, : self.d], factor[:, self.d : 2 * self.d]
        if jacobian is None:
            return slopes
        if jacobian.ndim == 1:
            return slopes - values * (weight * jacobian)
        return slopes - weight * (values @ jacobian.T)

    def from_columns(self, columns: list[Any]) -> Any:
        return np.concatenate(columns, axis=-1)

    def slopes(self, values: Any, weight: Any, jacobian: Jacobian) -> Any:
        if jacobian is None:
            return jnp.zeros_like(values)
        if jacobian.ndim == 1:
            return values * (weight * jacobian)
        return weight * (values @ jacobian.T)

    def pin(self, factor: Array, weight: Array, jacobian: Jacobian) -> Array:
        slopes = self.slopes(factor[:, : self.d], weight, jacobian)
        return factor.at[:, self.d : 2 * self.d].set(slopes)

    def select(self, factor: Array, derivative: Any) -> Array:
        if isinstance(derivative, int):
            return factor[..., derivative * self.d : (derivative + 1) * self.d]
        return jax.lax.dynamic_slice_in_dim(factor, derivative * self.d, self.d, axis=-1)

    def select_packed(self, packed: Array, derivative: int) -> Array:
        return unpack(packed, slice(derivative * self.d, (derivative + 1) * self.d))

    def std(self, columns: Array) -> Array:
        return norm(columns, -2)

    def covariance(self, columns: Array) -> Array:
        with np.errstate(over="ignore"):
            return columns.swapaxes(-1, -2) @ columns

    def project(self, columns: Array, direction: np.ndarray) -> Any:
        return norm((columns @ direction[..., None])[..., 0])

    def diagonal_factor(self, std: Float[Array, "n d"]) -> Array:
        return jnp.diag(std.reshape(-1))


STRUCTURES: dict[str, Any] = {
    "isotropic": Isotropic,
    "block-diagonal": BlockDiagonal,
    "dense": Dense,
}
