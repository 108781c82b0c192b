"""What a posterior is made of besides its path: Gaussians, costs, the problem it belongs to."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.gaussian import norm
from probode.precision import double_precision, on_host
from probode.record import record, static
from probode.structure import Structure


@record
class Stats:
    """What a solve cost."""

    steps: Array | int
    """Steps attempted."""
    accepted: Array | int
    rejected: Array | int
    f_evaluations: Array | int
    """Evaluations of the vector field, those of the start included (Taylor mode: one per order)."""
    jacobian_evaluations: Array | int
    calibration_f_evaluations: Array | int = 0
    """Evaluations of the vector field by the calibration, not counted above."""
    calibration_jacobian_evaluations: Array | int = 0
    path: str = static(default="jax")
    """How the vector field was evaluated: "jax" (as it is), "numpy" or "scalars" (a NumPy function,
    traced), "python" (called from Python)."""


@record
class Gaussian:
    """A Gaussian over ``y`` (or one of its derivatives), at one time or at several."""

    mean: Array
    """Shape ``(*times, *shape)``."""
    columns: Array
    """Columns of the covariance's right factor, in the form of the solver's structure."""
    spread: Array
    """Calibration: a factor for all standard deviations, or one per component."""
    structure: Structure = static()
    multivariate: bool = static()
    ratio: Array | None = None
    """Factors of the model's standard deviations, ``(*times, d)``, of a calibrated posterior."""
    own: Array | None = None
    """Standard deviations of components for which the model has none, ``(*times, d)``."""

    @property
    def std(self) -> Array:
        """Marginal standard deviations, in the shape of the mean."""
        xp: Any = np if on_host(self.columns) else jnp
        with double_precision():
            std = self.structure.std(self.columns)
            std = std * self._spread_over(std.ndim)
            if self.ratio is not None:
                std = xp.hypot(std * self.ratio, self.own)
            return std.reshape(self.mean.shape)

    @property
    def cov(self) -> Array:
        """Covariance of ``y`` flattened in C order: shape ``(*times, d, d)``.

        It holds squares, which beyond 1e154 are infinite; ``std`` is not.
        """
        with double_precision():
            covariance = self.structure.covariance(self.columns)
            spread = self._spread_over(covariance.ndim - 1)
            if self.ratio is not None:
                spread = spread * self.ratio
            covariance = covariance * spread[..., None] * spread[..., None, :]
            if self.own is not None:
                covariance = covariance + self.own[..., None] ** 2 * np.eye(self.own.shape[-1])
            return covariance

    def project(self, direction: np.ndarray) -> float:
        """Standard deviation of ``direction · y`` (flattened in C order), at one time."""
        spread = np.broadcast_to(self._spread_over(1), direction.shape)
        weights = direction * spread
        if self.ratio is None:
            return float(self.structure.project(self.columns, weights))
        across = self.structure.project(self.columns, weights * self.ratio)
        assert self.own is not None
        return float(np.hypot(across, norm(direction * self.own)))

    def _spread_over(self, ndim: int) -> Array:
        """The calibration with axes for the times, between those of a batch and the components."""
        spread = self.spread if self.multivariate else self.spread[..., None]
        times = ndim - spread.ndim
        return spread.reshape((*spread.shape[:-1], *[1] * times, spread.shape[-1]))


@jax.tree_util.register_pytree_node_class
class Problem:
    """The vector field of a finished solve, for a later calibration.

    No part of the values: functions on pytrees (``jit``, ``vmap``, ``tree.map``) leave it behind.
    """

    def __init__(self, field: Any = None) -> None:
        self.field = field

    def tree_flatten(self) -> tuple[tuple[()], None]:
        """Nothing inside."""
        return (), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[()]) -> "Problem":
        """An empty one."""
        return cls()
