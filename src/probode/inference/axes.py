"""Directions of the parameters that data determine, and the others."""

from typing import NamedTuple

import numpy as np

SEEN = 1e-3
"""Change of the expected data over a long way, in units of the noise, that cannot be seen."""
_SINGULAR, _SMALL = 1e-12, 1e-6
"""Eigenvalues of a curvature of unit diagonal: below the first made of rounding, above the second
large enough to be inverted."""


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
        """Take ``C`` apart; ``way`` is how far each coordinate may be from here.

        Directions are unknown along which ``√(dᵀ C d)``, what all data together change by in units
        of their noise, is next to nothing on that way.
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
        """Return ``½ gᵀ C⁻¹ g``, or less where a step along an axis is longer than the ways."""
        along = self.vectors.T @ (gradient / self.size)
        steps = self.vectors * (along / np.abs(self.values)) / self.size[:, None]
        with np.errstate(divide="ignore"):
            shares = np.where(steps < 0.0, down[:, None], up[:, None]) / np.abs(steps)
        share = np.min(shares, axis=0, initial=1.0)
        return float(np.sum(share * (1.0 - 0.5 * share) * along**2 / np.abs(self.values)))
