"""``RegularGridInterpolator`` as traced functions see it: tables on a grid of any dimension."""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np

from probode.programs.interpolators import EXTRAPOLATE, Grid, Piecewise, read_grid
from probode.programs.tracing.arrays import TracedArray, is_traced, unwrap, wrap
from probode.programs.tracing.splines import evaluate
from probode.programs.tracing.watching import watch


class GridTable:
    """An interpolator on a grid that also takes traced arrays."""

    def __init__(self, original: Any, grid: Grid) -> None:
        self._original, self._grid = original, grid

    def __call__(self, xi: Any, method: Any = None, *, nu: Any = None) -> Any:
        """Return the values at points ``(..., n)``, as SciPy does; NaN where it raises an error."""
        if not is_traced(xi):
            return wrap(self._original(unwrap(xi), method, nu=nu))
        if nu is not None or method not in (None, self._grid.method):
            raise watch.refuse(
                "another method than that of the interpolator",
                None,
                "choose the method where the interpolator is made",
            )
        watch.count()
        n = len(self._grid.axes)
        points = _points(xi, n)
        rows = [points[..., i] for i in range(n)]
        inside = jnp.ones(points.shape[:-1], bool)
        for x, axis in zip(rows, self._grid.axes, strict=True):
            inside &= (x >= axis[0]) & (x <= axis[-1])
        value = _METHODS.get(self._grid.method, _splines)(self._grid, rows)
        if self._grid.outside is not None:
            more = inside.reshape(inside.shape + (1,) * (value.ndim - inside.ndim))
            value = jnp.where(more, value, self._grid.outside)
        is_nan = jnp.isnan(points).any(-1)
        is_nan = is_nan.reshape(is_nan.shape + (1,) * (value.ndim - is_nan.ndim))
        return TracedArray(jnp.where(is_nan, jnp.nan, value))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return wrap(getattr(self._original, name))


def grid_table(value: Any) -> GridTable | None:
    """The stand-in for an interpolator on a grid; ``None`` for others."""
    grid = read_grid(value)
    return None if grid is None else GridTable(value, grid)


def _points(xi: Any, n: int) -> Any:
    """Coordinates ``(..., n)`` in all the forms in which SciPy takes them."""
    if isinstance(xi, tuple) and len(xi) == 1:
        (xi,) = xi
    if isinstance(xi, tuple):
        parts = [jnp.asarray(unwrap(x, as_array=True), float) for x in xi]
        points = jnp.stack(jnp.broadcast_arrays(*parts), -1)
    else:
        points = jnp.asarray(unwrap(xi, as_array=True), float)
        points = points.reshape(-1, n) if points.ndim == 1 else points
    if points.ndim == 0 or points.shape[-1] != n:
        raise ValueError(f"The points must have {n} coordinates, got the shape {points.shape}.")
    return points


def _places(grid: Grid, rows: list[Any]) -> list[tuple[Any, Any]]:
    """Intervals ``i``, and ``(x - x_i) / (x_(i+1) - x_i)``, along each axis."""
    found = []
    for x, axis in zip(rows, grid.axes, strict=True):
        inner = axis[1:-1]
        # SciPy's search for linear and nearest: the interval to the left of a node.
        i = jnp.searchsorted(inner, x, side="right", method="compare_all") if inner.size else 0
        i = jnp.broadcast_to(i, x.shape)
        low, width = jnp.asarray(axis)[i], jnp.asarray(np.diff(axis))[i]
        found.append((i, (x - low) / width))
    return found


def _linear(grid: Grid, rows: list[Any]) -> Any:
    """``Σ v_corner Π (1 - s or s)`` over the corners of a cell."""
    places, values = _places(grid, rows), jnp.asarray(grid.values)
    total: Any = 0.0
    for corner in itertools.product((0, 1), repeat=len(rows)):
        weight: Any = 1.0
        for (_, share), side in zip(places, corner, strict=True):
            weight = weight * (share if side else 1 - share)
        term = values[tuple(i + side for (i, _), side in zip(places, corner, strict=True))]
        total = total + weight.reshape(weight.shape + (1,) * (term.ndim - weight.ndim)) * term
    return total


def _nearest(grid: Grid, rows: list[Any]) -> Any:
    places = _places(grid, rows)
    return jnp.asarray(grid.values)[tuple(jnp.where(s <= 0.5, i, i + 1) for i, s in places)]


def _splines(grid: Grid, rows: list[Any]) -> Any:
    """``Σ c_ij.. B_i(x) B_j(y) ..`` with the splines of each axis."""
    value: Any = jnp.asarray(grid.values)
    basis = [
        evaluate(Piecewise(breaks, coefficients, EXTRAPOLATE), x)
        for x, (breaks, coefficients) in zip(rows, grid.bases, strict=True)
    ]
    value = jnp.tensordot(basis[0], value, 1)  # the points in front
    for row in basis[1:]:
        points = row.ndim - 1
        row = row.reshape(row.shape + (1,) * (value.ndim - row.ndim))
        value = (row * value).sum(points)
    return value


_METHODS = {"linear": _linear, "nearest": _nearest}
