"""Covariance structures: isotropic, block-diagonal, dense, behind one small interface.

The state is an array ``x`` of shape ``(n, d)``: ``n = q + 1`` derivatives of ``d`` components. Its
covariance is carried as a right factor (see :mod:`probode.model.gaussian`) in one of three forms:

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
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.precision import on_host
from probode.model.gaussian import norm, unpack


@dataclass(frozen=True)
class Structure:
    """How the covariance of an ``(n, d)`` state is stored."""

    n: int
    d: int

    name: ClassVar[str]
    widest_block: ClassVar[int]
    """Which blocks of a linearisation fit: numbers (0), diagonals (1), matrices (2)."""

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
        """``R (M ⊗ I)ᵀ``: the factor of ``M x`` for a matrix over the derivatives.

        Where it fits, also for one of each component, ``(d, n, n)``, or one that mixes them.
        """
        return factor @ jnp.swapaxes(jnp.asarray(matrix), -1, -2)

    def widen(self, matrix: np.ndarray | Array) -> Any:
        """``M ⊗ I`` for such a matrix, as it acts on the columns of a factor."""
        return matrix

    def noise(self, factor: np.ndarray | Array, scale: Array) -> Array:
        """Factor of process noise: ``scale`` is one standard deviation, or one per component."""
        raise NotImplementedError

    def observe(self, factor: Array, coords: Array, blocks: dict[int, Any]) -> Array:
        """``R Hᵀ`` for ``H = Σ_i T_i B_i E_i`` (see :mod:`probode.model.linearize`)."""
        return self._observed(self._combined(factor, coords, blocks))

    def _combined(self, factor: Array, coords: Array, blocks: dict[int, Any]) -> Array:
        """Columns of ``R Hᵀ``: ``Σ_i T_i R_i B_iᵀ``, the highest derivative first."""
        parts = [
            coords[i] * self.times(self.select(factor, i), blocks[i])
            for i in sorted(blocks, reverse=True)
        ]
        return sum(parts[1:], parts[0])

    def _observed(self, columns: Array) -> Array:
        """Columns of one derivative as those of an observation."""
        return columns[..., None]

    def times(self, columns: Array, block: Any) -> Array:
        """``C Bᵀ`` for the columns ``C`` of one derivative."""
        return columns * block

    def select(self, factor: Array, derivative: Any) -> Array:
        """The columns of a factor that belong to one derivative; leading axes are a batch."""
        return factor[..., derivative]

    def select_packed(self, packed: Array, derivative: int) -> Array:
        """The same from packed factors (:func:`probode.model.gaussian.pack`), no zero rows."""
        return unpack(packed, slice(derivative, derivative + 1))[..., 0]

    def pin(self, factor: Array, coords: Array, blocks: dict[int, Any], exact: int) -> Array:
        """Make ``R Hᵀ`` exactly zero: overwrite derivative ``exact`` by what the others say.

        ``R_k = -(Σ_(i != k) T_i / T_k R_i B_iᵀ) B_k⁻ᵀ``.
        """
        others = {i: block for i, block in blocks.items() if i != exact}
        if not others:
            return self._put(factor, exact, jnp.zeros(()))
        rest = -self._combined(factor, coords / coords[exact], others)
        return self._put(factor, exact, self.divided(rest, blocks[exact]))

    def divided(self, columns: Array, block: Any) -> Array:
        """``C B⁻ᵀ`` for the columns ``C`` of one derivative."""
        return columns / block

    def _put(self, factor: Array, derivative: int, columns: Array) -> Array:
        """The factor with other columns of one derivative."""
        return factor.at[..., derivative].set(columns)

    def from_columns(self, columns: list[Any]) -> Any:
        """The factor whose columns of all derivatives are these: inverse of :meth:`select`."""
        xp: Any = np if all(map(on_host, columns)) else jnp
        return xp.stack(columns, axis=-1)

    def std(self, columns: Array) -> Array:
        """Marginal standard deviations ``(..., d)`` from the columns of one derivative."""
        raise NotImplementedError

    def covariance(self, columns: Array) -> Array:
        """Covariance ``(..., d, d)`` from the columns of one derivative.

        Squares: beyond 1e154 there are none, and the result is infinite.
        """
        return self.std(columns)[..., None] ** 2 * np.eye(self.d)

    def cross(self, columns: Array, others: Array) -> Array:
        """Covariances ``(..., d, d)`` between two derivatives, from their columns."""
        rows = min(columns.shape[-1], others.shape[-1])  # below there are zeros only
        both = (columns[..., :rows] * others[..., :rows]).sum(axis=-1)
        return self.common_to_all(both)[..., None] * np.eye(self.d)

    def common_to_all(self, number: Array) -> Array:
        """What columns say of every component, as ``(..., d)``."""
        return number

    def along(self, columns: Array, direction: np.ndarray) -> Any:
        """Rows of a factor of ``direction · y``: ``(..., d, n)``, or ``(..., n d)`` if dense."""
        return columns * direction[..., None]

    def project(self, columns: Array, direction: np.ndarray) -> Any:
        """Standard deviations of ``direction · y`` from the columns of one derivative."""
        return norm(self.std(columns) * direction)

    def diagonal_factor(self, std: Float[Array, "n d"]) -> Array:
        """Factor of independent components with these standard deviations."""
        raise NotImplementedError


@dataclass(frozen=True)
class Isotropic(Structure):
    """``RᵀR ⊗ I``: every component has the same covariance, and none is correlated."""

    name: ClassVar[str] = "isotropic"
    widest_block: ClassVar[int] = 0

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

    def noise(self, factor: np.ndarray | Array, scale: Array) -> Array:
        return scale * factor

    def std(self, columns: Array) -> Array:
        return self.common_to_all(norm(columns))

    def common_to_all(self, number: Array) -> Array:
        return number[..., None] * np.ones(self.d)

    def along(self, columns: Array, direction: np.ndarray) -> Any:
        return columns[..., None, :] * direction[..., None]

    def diagonal_factor(self, std: Float[Array, "n d"]) -> Array:
        """One standard deviation per derivative: the root mean square over the components."""
        return jnp.diag(norm(std) / np.sqrt(self.d))


@dataclass(frozen=True)
class BlockDiagonal(Structure):
    """Components are independent; each has its own ``(n, n)`` factor."""

    name: ClassVar[str] = "block-diagonal"
    widest_block: ClassVar[int] = 1

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

    def noise(self, factor: np.ndarray | Array, scale: Array) -> Array:
        return jnp.broadcast_to(scale, (self.d,))[:, None, None] * factor

    def times(self, columns: Array, block: Any) -> Array:
        return columns * (block[..., None] if np.ndim(block) else block)

    def divided(self, columns: Array, block: Any) -> Array:
        return columns / (block[..., None] if np.ndim(block) else block)

    def std(self, columns: Array) -> Array:
        return norm(columns)

    def diagonal_factor(self, std: Float[Array, "n d"]) -> Array:
        return std.T[:, :, None] * np.eye(self.n)


@dataclass(frozen=True)
class Dense(Structure):
    """The full covariance of all derivatives of all components."""

    name: ClassVar[str] = "dense"
    widest_block: ClassVar[int] = 2

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

    def widen(self, matrix: np.ndarray | Array) -> Any:
        if matrix.ndim == 3:
            return jnp.einsum("dij,de->idje", matrix, np.eye(self.d)).reshape(self.factor_shape)
        if matrix.shape[-1] != self.n:
            return matrix
        if isinstance(matrix, np.ndarray):
            return np.kron(matrix, np.eye(self.d))
        return jnp.kron(matrix, np.eye(self.d))

    def transit(self, factor: Array, matrix: np.ndarray | Array) -> Array:
        if matrix.shape[-1] != self.n:
            return factor @ matrix.T
        rows = factor.shape[0]
        cube = factor.reshape(rows, self.n, self.d)
        each = "rjd,dij->rid" if matrix.ndim == 3 else "rjd,ij->rid"
        return jnp.einsum(each, cube, jnp.asarray(matrix)).reshape(rows, self.n * self.d)

    def noise(self, factor: np.ndarray | Array, scale: Array) -> Array:
        if jnp.ndim(scale) == 0:
            return scale * self.widen(factor)
        if factor.ndim == 3:
            return self.widen(factor * scale[:, None, None])
        if factor.shape[-1] != self.n:  # the columns of each component, in its own units
            return jnp.asarray(factor) * jnp.tile(scale, self.n)
        return (jnp.asarray(factor)[:, None, :, None] * jnp.diag(scale)[None, :, None, :]).reshape(
            self.factor_shape
        )

    def _observed(self, columns: Array) -> Array:
        return columns

    def times(self, columns: Array, block: Any) -> Array:
        return columns @ block.T if np.ndim(block) == 2 else columns * block

    def divided(self, columns: Array, block: Any) -> Array:
        if np.ndim(block) == 2:
            return jnp.linalg.solve(block, columns.T).T
        return columns / block

    def _put(self, factor: Array, derivative: int, columns: Array) -> Array:
        return factor.at[..., derivative * self.d : (derivative + 1) * self.d].set(columns)

    def from_columns(self, columns: list[Any]) -> Any:
        xp: Any = np if all(map(on_host, columns)) else jnp
        return xp.concatenate(columns, axis=-1)

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

    def cross(self, columns: Array, others: Array) -> Array:
        rows = min(columns.shape[-2], others.shape[-2])
        with np.errstate(over="ignore"):
            return columns[..., :rows, :].swapaxes(-1, -2) @ others[..., :rows, :]

    def along(self, columns: Array, direction: np.ndarray) -> Any:
        return (columns @ direction[..., None])[..., 0]

    def project(self, columns: Array, direction: np.ndarray) -> Any:
        return norm(self.along(columns, direction))

    def diagonal_factor(self, std: Float[Array, "n d"]) -> Array:
        return jnp.diag(std.reshape(-1))


STRUCTURES: dict[str, Any] = {kind.name: kind for kind in (Isotropic, BlockDiagonal, Dense)}
