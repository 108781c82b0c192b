"""Uncertain inputs: distributions for initial values and parameters, and draws of them.

Every distribution is made a function of independent standard normals ``z``: Gaussians by a factor
of their covariance, others by their quantile function. Then all uncertain inputs are drawn together
at the points of one rule for ``z``: random ones, or a cubature.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from probode.base.errors import whole_number
from probode.base.later import special
from probode.ensemble.inputs import Sweep
from probode.ensemble.moments import DRAW
from probode.model.distributions import Normal

CUBATURES = (3, 5)
_LARGEST_OF_DEGREE_5 = 4
"""In more dimensions the weights of this rule are negative, and so may be a variance."""


class Uncertain(NamedTuple):
    """A distribution as a function of ``dimension`` standard normals."""

    dimension: int
    transform: Callable[[np.ndarray], np.ndarray]
    """``(m, dimension)`` to ``(m, *shape)``."""


def is_distribution(value: Any) -> bool:
    """Whether a value is one of ours, or a frozen distribution of SciPy's."""
    return isinstance(value, Normal) or (
        type(value).__module__.startswith("scipy.stats") and hasattr(value, "rvs")
    )


def draw_inputs(
    y0: Any, args: Any, draws: int, cubature: int | None, seed: int, order: int = 1
) -> tuple[Any, Any, np.ndarray | None]:
    """``y0`` and ``args`` with draws, along ``"draw"``, in place of distributions; their weights.

    Weights are ``None`` where all draws weigh the same (or nothing is uncertain). Of an equation
    of higher ``order``, ``y0`` is a tuple of ``y, ..., y^(k-1)``.
    """
    several = order > 1 and isinstance(y0, tuple | list)
    starts = [_joined(one) for one in y0] if several else [_joined(y0)]
    tree = (tuple(starts) if several else starts[0], args)
    leaves, form = jax.tree.flatten(
        tree, is_leaf=lambda x: is_distribution(x) or any(x is one for one in starts)
    )
    known = {i: _read(leaf) for i, leaf in enumerate(leaves) if is_distribution(leaf)}
    known |= {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Uncertain)}
    if not known:
        return y0, args, None
    total = sum(one.dimension for one in known.values())
    points, weights = _points(total, draws, cubature, seed)
    first = 0
    for i, one in known.items():
        values = one.transform(points[:, first : first + one.dimension])
        leaves[i] = Sweep(values, DRAW)
        first += one.dimension
    y0, args = jax.tree.unflatten(form, leaves)
    return y0, args, weights


def _joined(y0: Any) -> Any:
    """A list of numbers and distributions as one distribution of a vector."""
    if not isinstance(y0, list | tuple) or not any(map(is_distribution, y0)):
        return _read(y0) if is_distribution(y0) else y0
    parts = [_read(one) if is_distribution(one) else None for one in y0]

    def transform(z: np.ndarray) -> np.ndarray:
        columns, first = [], 0
        for value, part in zip(y0, parts, strict=True):
            if part is None:
                columns.append(np.full(len(z), float(value)))
                continue
            columns.append(part.transform(z[:, first : first + part.dimension]))
            first += part.dimension
        return np.stack(columns, axis=1)

    return Uncertain(sum(part.dimension for part in parts if part is not None), transform)


def _read(distribution: Any) -> Uncertain:
    if isinstance(distribution, Normal):
        return _gaussian(distribution.mean, distribution.cov)
    if hasattr(distribution, "ppf"):
        try:
            shape = np.shape(distribution.mean())
        except TypeError as error:
            name = getattr(distribution, "name", "norm")
            raise TypeError(
                f"a distribution of SciPy's needs its parameters, as in scipy.stats.{name}(...), "
                f"got one without: {error}"
            ) from None

        def quantiles(z: np.ndarray) -> np.ndarray:
            return distribution.ppf(special.ndtr(z.reshape(len(z), *shape)))

        return Uncertain(int(np.prod(shape, dtype=int)), quantiles)
    if hasattr(distribution, "cov") and not callable(distribution.cov):
        return _gaussian(distribution.mean, distribution.cov)
    raise TypeError(
        f"{type(distribution).__name__} has neither quantiles (ppf) nor a covariance: draw samples "
        f"yourself and pass them as probode.Sweep(samples, dim={DRAW!r})."
    )


def _gaussian(mean: Any, cov: Any) -> Uncertain:
    centre, spread = np.asarray(mean, float), np.asarray(cov, float)
    d = centre.size
    if not (np.all(np.isfinite(centre)) and np.all(np.isfinite(spread))):
        raise ValueError(f"Normal: mean and cov must be finite, got {mean!r} and {cov!r}.")
    if spread.shape in ((), centre.shape):
        spread = np.diag(np.broadcast_to(spread, centre.shape).ravel())
    if spread.shape != (d, d) or not np.allclose(spread, spread.T):
        raise ValueError(
            f"Normal: for a mean of shape {centre.shape} cov must be a symmetric matrix {(d, d)}, "
            f"or variances {centre.shape}, got shape {spread.shape}."
        )
    values, vectors = np.linalg.eigh(spread)
    if values.min() < -1e-10 * max(values.max(), 0.0) or not np.all(np.isfinite(values)):
        raise ValueError(f"Normal: cov must have no negative eigenvalues, got {values.min():g}.")
    factor = vectors * np.sqrt(np.maximum(values, 0.0))

    def transform(z: np.ndarray) -> np.ndarray:
        return (centre.ravel() + z @ factor.T).reshape(len(z), *centre.shape)

    return Uncertain(d, transform)


def _points(
    n: int, draws: int, cubature: int | None, seed: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Points and weights for ``n`` standard normals."""
    if cubature is None:
        draws = whole_number("draws", draws, 2)
        try:
            generator = np.random.default_rng(seed)
        except (TypeError, ValueError):
            raise TypeError(f"seed must be a whole number, got {seed!r}.") from None
        return generator.standard_normal((draws, n)), None
    if cubature not in CUBATURES:
        raise ValueError(
            f"cubature must be the degree of the rule, one of {CUBATURES}, or None for random "
            f"draws, got {cubature!r}."
        )
    if cubature == 3:
        return third_degree(n)
    if n > _LARGEST_OF_DEGREE_5:
        raise ValueError(
            f"the cubature of degree 5 has negative weights in more than {_LARGEST_OF_DEGREE_5} "
            f"dimensions, and {n} numbers are uncertain: use cubature=3, or None for random draws."
        )
    return fifth_degree(n)


def third_degree(n: int) -> tuple[np.ndarray, np.ndarray]:
    """``±sqrt(n) e_i``, each of weight ``1 / 2n``: exact for polynomials of degree 3."""
    axes = np.sqrt(n) * np.eye(n)
    return np.concatenate([axes, -axes]), np.full(2 * n, 0.5 / n)


def fifth_degree(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Exact for polynomials of degree 5, with ``2n² + 1`` points.

    The origin, weight ``2 / (n + 2)``; ``±sqrt(n + 2) e_i``, ``(4 - n) / 2(n + 2)²``;
    ``sqrt((n + 2) / 2) (±e_i ± e_j)``, ``1 / (n + 2)²``.
    """
    unit = np.eye(n)
    axes = np.sqrt(n + 2) * unit
    pairs = [
        np.sqrt((n + 2) / 2) * (a * unit[i] + b * unit[j])
        for i, j in itertools.combinations(range(n), 2)
        for a, b in itertools.product((1.0, -1.0), repeat=2)
    ]
    points = np.concatenate([np.zeros((1, n)), axes, -axes, np.reshape(pairs, (-1, n))])
    weights = np.concatenate(
        [
            [2 / (n + 2)],
            np.full(2 * n, (4 - n) / (2 * (n + 2) ** 2)),
            np.full(len(pairs), 1 / (n + 2) ** 2),
        ]
    )
    return points, weights
