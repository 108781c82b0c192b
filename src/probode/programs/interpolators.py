"""SciPy's interpolators as what they are: polynomials between breakpoints."""

import sys
from typing import Any, NamedTuple

import numpy as np

_POLYNOMIALS = (
    *("PPoly", "CubicSpline", "CubicHermiteSpline", "PchipInterpolator", "Akima1DInterpolator"),
)
_FITPACK = ("UnivariateSpline", "InterpolatedUnivariateSpline", "LSQUnivariateSpline")

EXTRAPOLATE, PERIODIC, CONSTANT = "extrapolate", "periodic", "constant"


class Piecewise(NamedTuple):
    """``p(x) = sum_j c[k-1-j, i] (x - b_i)^j`` for ``x`` between the breakpoints ``b_i, b_(i+1)``.

    ``outside`` says how it goes on: the polynomials at the ends, periodically, with the values at
    the ends, or with a pair of numbers (NaN where SciPy raises an error or gives NaN).
    """

    breaks: np.ndarray
    """``(m + 1,)``, increasing."""
    coefficients: np.ndarray
    """``(k, m, *shape of a value)``, the highest power first."""
    outside: str | tuple[float, float]
    axis: int = 0
    """Where the axes of ``x`` go among those of a value."""


def read(value: Any) -> Piecewise | None:
    """An interpolator of ``scipy.interpolate``, taken apart; ``None`` for everything else.

    Subclasses are not among them: a user's may do anything.
    """
    kind = type(value)
    module = sys.modules.get("scipy.interpolate")
    name = kind.__name__
    if module is None or getattr(module, name, None) is not kind:
        return None
    if name in _POLYNOMIALS:
        return _checked(value.x, value.c, _outside(value.extrapolate), value.axis)
    if name == "BSpline":
        return _of_b_spline(module, value, _outside(value.extrapolate), value.axis)
    if name in _FITPACK:
        knots, coefficients, degree = value._eval_args
        outside = {0: EXTRAPOLATE, 1: (0.0, 0.0), 2: _NOWHERE, 3: CONSTANT}[int(value.ext)]
        return _of_b_spline(module, module.BSpline(knots, coefficients, degree), outside)
    if name == "interp1d":
        return _of_interp1d(module, value)
    return None


_NOWHERE = (np.nan, np.nan)


class Grid(NamedTuple):
    """A table on a grid, ``(n_1, n_2, ..., *shape of a value)``, and how to interpolate in it."""

    axes: tuple[np.ndarray, ...]
    values: np.ndarray
    """Values at the nodes, or the coefficients of splines."""
    method: str
    outside: float | None
    """Value outside of the grid (NaN if SciPy raises an error); ``None``: extrapolation."""
    bases: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    """Breakpoints and coefficients of the splines of each axis, as in :class:`Piecewise`."""


def read_grid(value: Any) -> Grid | None:
    """A ``RegularGridInterpolator``, taken apart; ``None`` for everything else."""
    module = sys.modules.get("scipy.interpolate")
    if module is None or type(value) is not getattr(module, "RegularGridInterpolator", None):
        return None
    axes = tuple(np.asarray(axis, float) for axis in value.grid)
    values, method, fill = np.asarray(value.values), str(value.method), value.fill_value
    if values.dtype.kind not in "iuf" or any(axis.size < 2 for axis in axes):
        return None
    outside = None if fill is None else float(np.asarray(fill))
    outside = float(np.nan) if value.bounds_error else outside
    if method in ("linear", "nearest"):
        return Grid(axes, values.astype(float), method, outside)
    spline = getattr(value, "_spline", None)
    if spline is None or getattr(spline, "t", None) is None:  # pchip is no spline of the grid
        return None
    bases = []
    for knots, degree in zip(spline.t, spline.k, strict=True):
        count = len(knots) - degree - 1
        one = module.BSpline(knots, np.eye(count), degree)
        pieces = _of_b_spline(module, one, EXTRAPOLATE)
        if pieces is None:
            return None
        bases.append((pieces.breaks, pieces.coefficients))
    return Grid(axes, np.asarray(spline.c, float), method, outside, tuple(bases))


def _outside(extrapolate: Any) -> str | tuple[float, float]:
    if isinstance(extrapolate, str):
        return PERIODIC
    return EXTRAPOLATE if extrapolate else _NOWHERE


def _checked(breaks: Any, coefficients: Any, outside: Any, axis: Any = 0) -> Piecewise | None:
    breaks, coefficients = np.asarray(breaks), np.asarray(coefficients)
    if coefficients.dtype.kind != "f" or breaks.size < 2 or not np.all(np.diff(breaks) > 0.0):
        return None
    return Piecewise(breaks, coefficients, outside, int(axis))


def _of_b_spline(module: Any, spline: Any, outside: Any, axis: Any = 0) -> Piecewise | None:
    """Between the knots that count; repeated ones are left out."""
    k, n = spline.k, spline.c.shape[0]
    breaks = np.unique(spline.t[k : n + 1])
    derivatives = [spline]
    for _ in range(k):
        derivatives.append(derivatives[-1].derivative())
    # From the right of each breakpoint: Taylor coefficients of the polynomial there.
    rows, factorial = [], 1.0
    for j, derivative in enumerate(derivatives):
        factorial *= max(j, 1)
        at = module.BSpline(derivative.t, derivative.c, derivative.k)(breaks[:-1])
        rows.append(np.asarray(at) / factorial)
    return _checked(breaks, np.stack(rows[::-1]), outside, axis)


def _of_interp1d(module: Any, value: Any) -> Piecewise | None:
    outside: Any = EXTRAPOLATE if value._extrapolate else _NOWHERE
    if outside != EXTRAPOLATE and not value.bounds_error:
        ends = value._fill_value_below, value._fill_value_above
        if any(np.size(end) != 1 for end in ends):
            return None
        outside = tuple(float(np.ravel(end)[0]) for end in ends)
    if getattr(value, "_kind", None) == "linear" and np.ndim(value.y) == 1:
        x, y = np.asarray(value.x, float), np.asarray(value.y, float)
        return _checked(x, np.stack([np.diff(y) / np.diff(x), y[:-1]]), outside)
    spline = getattr(value, "_spline", None)
    if isinstance(spline, module.BSpline) and np.ndim(value.y) == 1:
        flat = module.BSpline(spline.t, np.ravel(spline.c), spline.k)
        return _of_b_spline(module, flat, outside)
    return None
