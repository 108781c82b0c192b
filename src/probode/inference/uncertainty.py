"""Covariances of parameters, and directions that the data do not determine.

Given ``C`` (the curvature from first derivatives, whose zeros are exact) and ``H`` (the negative
Hessian, by differences, whose zeros are not)::

    C = D (K Λ Kᵀ + 0 U Uᵀ) D       Σ = D⁻¹ K (Kᵀ D⁻¹ H D⁻¹ K)⁻¹ Kᵀ D⁻¹

``K`` are directions that the data determine, ``U`` are the others.
"""

from typing import NamedTuple

import numpy as np

from probode.inference.axes import DeterminedAxes
from probode.inference.objective import Objective
from probode.inference.space import Space

_UNKNOWN = 1e-10
"""Eigenvalues of the correlation-like form of the Hessian below this say nothing."""
_WIDE = 10.0
"""Ratio of a standard error to a bounded number (and its start) above which it is meaningless."""
_PART = 1e-2
"""Least share in an undetermined direction for a number to be called undetermined."""
_LENGTH = 0.1
"""Largest change of a coordinate in the steps along undetermined directions."""


class Spread(NamedTuple):
    """The uncertainty of the parameters on the scale without bounds."""

    covariance: np.ndarray
    """Covariance in the directions which the data determine."""
    unknown: np.ndarray
    """Columns: small steps in directions that the data do not determine."""
    lost: np.ndarray
    """Whether each number changes along these."""


def spread(objective: Objective, z: np.ndarray, hessian: np.ndarray | None) -> Spread:
    """Return the covariance at a maximum; numbers on a bound are held there."""
    n, space = len(z), objective.space
    curvature = curvature_at(objective, z)
    hessian = curvature if hessian is None else hessian
    free = np.flatnonzero(space.at_bound(z) == 0)
    among = np.ix_(free, free)
    way = space.way(z)[free]
    axes = DeterminedAxes.of(curvature[among], way)
    size = axes.size[:, None]
    bent = hessian[among] / (size * size.T)
    unseen = axes.unknown * size
    # A second derivative may know of numbers about which the first ones say nothing.
    plain = np.abs(unseen) > 1.0 - _PART
    seen = np.any(plain & (np.diagonal(hessian[among]) * way**2 > 1.0)[:, None], axis=0)
    known = np.linalg.qr(np.hstack([axes.vectors, unseen[:, seen]]))[0]
    values, vectors = np.linalg.eigh(known.T @ bent @ known)
    good = values > _UNKNOWN
    steps = (known @ vectors[:, good]) / size / np.sqrt(values[good])
    found = steps @ steps.T
    others = np.hstack([unseen[:, ~seen], known @ vectors[:, ~good]])
    lost = np.any(np.abs(others) > _PART, axis=1)
    directions = list((others / size).T)
    widths = (space.slopes(z) / _sizes(space, z))[free]
    while free.size:
        spreads, axis = np.linalg.eigh(found * np.outer(widths, widths))
        if spreads[-1] <= _WIDE**2:
            break
        held = widths * axis[:, -1]
        along = found @ held
        found = found - np.outer(along, along) / (held @ along)
        lost |= np.abs(along * widths) > _PART * np.max(np.abs(along * widths))
        directions.append(along)
    covariance, unknown = np.zeros((n, n)), np.zeros((n, len(directions)))
    covariance[among] = found
    for i, direction in enumerate(directions):
        unknown[free, i] = _LENGTH * direction / np.max(np.abs(direction))
    return Spread(covariance, unknown, np.isin(np.arange(n), free[lost]))


def curvature_at(objective: Objective, z: np.ndarray) -> np.ndarray:
    """Return the curvature from first derivatives; of the plain likelihood where there is none."""
    found = objective.look(z).curvature
    if found is None:
        plan = objective.plan._replace(kind="plain", calibration="model")
        statement, solver, control = objective.statement, objective.solver, objective.control
        found = Objective(statement, plan, solver, control).look(z).curvature
    assert found is not None
    return found


def _sizes(space: Space, z: np.ndarray) -> np.ndarray:
    """Return the sizes of bounded numbers, in their units; infinite for those without a bound."""
    sizes = []
    for piece, part in space:
        width = space.widths[part]
        if piece.kind == "free":
            width = np.full(piece.start.size, np.inf)
        elif piece.kind != "both":
            width = np.maximum(width, np.exp(z[part]))
        sizes.append(width)
    return np.concatenate([np.zeros(0), *sizes])
