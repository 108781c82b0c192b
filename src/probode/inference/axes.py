"""Directions of the parameters that data determine, and the others."""

from typing import NamedTuple

import numpy as np

SEEN = 1e-3
"""Largest change of the expected data over a long way that is invisible, in units of noise."""
_SINGULAR, _SMALL = 1e-12, 1e-6
"""Eigenvalues of a curvature with unit diagonal: those below the first are rounding, those above
the second are large enough to be inverted."""


class DeterminedAxes(NamedTuple):
    """A curvature ``C = D V Λ Vᵀ D``, ``D⁻¹ C D⁻¹`` of unit diagonal, where data determine it."""

    size: np.ndarray
    """``D``."""
    values: np.ndarray
    vectors: np.ndarray
    unknown: np.ndarray
    """Columns of ``D⁻¹ V`` along which nothing changes."""

    @classmethod
    def of(cls, curvature: np.ndarray, way: np.ndarray) -> "DeterminedAxes":
        """Decompose ``C``; ``way`` is the largest distance of each coordinate from here.

        A direction is unknown if ``√(dᵀ C d)``, the change of all data together in units of their
        noise, is negligible over that distance.
        """
        size = np.sqrt(np.maximum(np.diagonal(curvature), 0.0))
        seen = size * way >= SEEN
        size = np.where(size > 0.0, size, 1.0)
        scaled = np.where(np.outer(seen, seen), curvature / np.outer(size, size), 0.0)
        values, vectors = np.linalg.eigh(scaled)
        with np.errstate(divide="ignore"):
            longest = np.min(way[:, None] * size[:, None] / np.abs(vectors), axis=0, initial=np.inf)
        change = np.sqrt(np.abs(values)) * longest
        known = (np.abs(values) > _SMALL) | ((np.abs(values) > _SINGULAR) & (change >= SEEN))
        unknown = vectors[:, ~known] / size[:, None]
        return cls(size, values[known], vectors[:, known], unknown)

    def curvature(self) -> np.ndarray:
        """Return ``C`` without the unknown directions."""
        rows = self.vectors * self.size[:, None]
        return (rows * self.values) @ rows.T

    def newton(self, gradient: np.ndarray) -> np.ndarray:
        """Return ``C⁻¹ g``, a step without part in the unknown directions."""
        along = self.vectors.T @ (gradient / self.size)
        return self.vectors @ (along / np.abs(self.values)) / self.size

    def gain(self, gradient: np.ndarray, down: np.ndarray, up: np.ndarray) -> float:
        """Return ``½ gᵀ C⁻¹ g``, or less if a step along an axis exceeds ``down`` or ``up``."""
        along = self.vectors.T @ (gradient / self.size)
        steps = self.vectors * (along / np.abs(self.values)) / self.size[:, None]
        with np.errstate(divide="ignore"):
            shares = np.where(steps < 0.0, down[:, None], up[:, None]) / np.abs(steps)
        share = np.min(shares, axis=0, initial=1.0)
        return float(np.sum(share * (1.0 - 0.5 * share) * along**2 / np.abs(self.values)))
