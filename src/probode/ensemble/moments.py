"""Uncertain inputs and an uncertain solver together: the law of total variance."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from probode.ensemble.result import Ensemble

DRAW = "draw"
"""The dimension along which uncertain inputs are drawn."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and variance over uncertain inputs, shape ``(..., T, *shape)``, and their parts."""

    mean: np.ndarray
    input_variance: np.ndarray
    """Variance of the means over the inputs."""
    solver_variance: np.ndarray
    """Mean of the solver's variances over the inputs."""
    used: np.ndarray
    """Draws that were used: those that reached the time."""
    dims: tuple[str, ...]
    """Dimensions that are left."""

    @property
    def variance(self) -> np.ndarray:
        """The total variance: the sum of both parts."""
        return self.input_variance + self.solver_variance

    @property
    def std(self) -> np.ndarray:
        """The total standard deviation: of inputs and solver together."""
        return np.sqrt(self.variance)

    @property
    def input_fraction(self) -> np.ndarray:
        """The part of the variance that comes from the inputs, between 0 and 1."""
        with np.errstate(invalid="ignore"):
            return self.input_variance / self.variance


def moments(ensemble: "Ensemble", over: str | tuple[str, ...] | None) -> Moments:
    """See :meth:`Ensemble.moments`."""
    dims = ensemble.dims
    if over is None:
        over = DRAW if DRAW in dims else dims
    chosen = (over,) if isinstance(over, str) else tuple(over)
    unknown = [dim for dim in chosen if dim not in dims]
    if unknown or not chosen:
        raise ValueError(f"over must name dimensions of the ensemble, {dims}, got {over!r}.")
    axes = tuple(dims.index(dim) for dim in chosen)
    mean, variance = ensemble.mean, ensemble.std**2
    weights = np.ones(mean.shape)
    if ensemble.weights is not None and DRAW in chosen:
        place = [1] * mean.ndim
        place[dims.index(DRAW)] = -1
        weights = weights * ensemble.weights.reshape(place)
    weighted = ensemble.weights is not None and DRAW in chosen
    known = np.isfinite(mean) & np.isfinite(variance)
    weights = np.where(known, weights, 0.0)
    total = weights.sum(axis=axes, keepdims=True)
    count = known.sum(axis=axes)
    with np.errstate(invalid="ignore", divide="ignore"):
        weights = weights / total
        centre = np.sum(weights * np.where(known, mean, 0.0), axis=axes, keepdims=True)
        spread = np.sum(weights * np.where(known, mean - centre, 0.0) ** 2, axis=axes)
        if not weighted:  # samples: the unbiased estimate
            spread = spread * count / (count - 1)
        solver = np.sum(weights * np.where(known, variance, 0.0), axis=axes)
    rest = tuple(dim for dim in dims if dim not in chosen)
    return Moments(np.squeeze(centre, axes), spread, solver, count, rest)
