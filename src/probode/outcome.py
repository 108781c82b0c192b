"""What a posterior is made of besides its path: Gaussians, costs, the problem it belongs to."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

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
            variance = self.structure.variance(self.columns)
            # Zero variance: a derivative of zero. NaN (never reached) stays NaN.
            zero = variance == 0.0
            root = xp.where(zero, 0.0, xp.sqrt(xp.where(zero, 1.0, variance)))
            std = root * self._spread_over(variance.ndim)
            if self.ratio is not None:
                std = xp.hypot(std * self.ratio, self.own)
            return std.reshape(self.mean.shape)

    @property
    def cov(self) -> Array:
        """Covariance of ``y`` flattened in C order: shape ``(*times, d, d)``."""
        with double_precision():
            covariance = self.structure.covariance(self.columns)
            spread = self._spread_over(covariance.ndim - 1)
            if self.ratio is not None:
                spread = spread * self.ratio
            covariance = covariance * spread[..., None] * spread[..., None, :]
            if self.own is not None:
                covariance = covariance + self.own[..., None] ** 2 * np.eye(self.own.shape[-1])
            return covariance

    def project(self, direction: np.ndarray) -> Any:
        """Standard deviations of ``direction · y`` (flattened in C order), one per time."""
        weights = direction * self._spread_over(direction.ndim)
        if self.ratio is None:
            return self.structure.project(self.columns, weights)
        across = self.structure.project(self.columns, weights * self.ratio)
        assert self.own is not None
        return np.hypot(across, np.linalg.norm(direction * self.own, axis=-1))

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

    def __init__(
        self, field: Any = None, notes: tuple[str, ...] = (), switches: Any = None, look: Any = None
    ) -> None:
        self.field = field
        self.notes = notes
        """What was done otherwise than asked for, and why, in words."""
        self.switches = switches
        """When the vector field switches (:class:`probode.switches.Switches`), if that is known."""
        self.look = look
        """What was seen between the steps (:class:`probode.calibration.between.Look`), if asked."""

    def seen(self, look: Any) -> "Problem":
        """The same after a look between the steps."""
        return Problem(self.field, self.notes, self.switches, look)

    def tree_flatten(self) -> tuple[tuple[()], None]:
        """Nothing inside."""
        return (), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[()]) -> "Problem":
        """An empty one."""
        return cls()
