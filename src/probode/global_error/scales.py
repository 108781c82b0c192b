"""From a signed error estimate to standard deviations.

At every node after the first, with the model's variances ``Σ_i`` and the estimate ``e_i``::

    c  = (1/d) sum_i e_i² / Σ_i              how far the model's scale is off
    c̄  = mean of c over ± max(2, 0.02 N) nodes
    c* = c/2 + min(c̄, 4c)/2
    M_i = e_i²/2 + min(c* Σ_i/2, 9/4 (e_i² + L_i))
    L_i = mean of e_i² over ± max(1, 0.1 N) nodes
    s_i² = clip(L_i, M_i/4, 4 M_i) + u² L_i

``M`` is the scale of an inverse-chi² posterior with one prior degree of freedom: the rescaled
Gaussian is the prior, ``e`` the one observation. It follows ``e`` closely, which makes ``|e|/s``
near one everywhere; the local mean ``L``, kept within a factor of ``M``, lets the error be smaller
than its scale as often as a Gaussian's would be. ``u`` is the part of the error around by which the
estimate itself may be wrong: nothing in the full transport, a third in the fast one, whose estimate
can be small in places where the error is not. Where ``Σ_i = 0``, component ``i`` is left out of
``c`` and ``M_i = e_i²``.

The result is a factor ``s_i/sqrt(Σ_i)`` for the model's standard deviations and, where these are
zero, a standard deviation ``s_i`` of its own.

At save points there are no others between them, and ``c`` of a single component is next to nothing
where its estimate passes through zero, however wrong that is by then: ``c* = c/2 + min(c̄, 4 c₁)/2``
with ``c₁``, the mean of ``c`` over ± 1 save points.

Nothing is squared but ratios: all of it is done with roots (``sqrt(M)``, ``sqrt(L)``), whose sums
of squares are taken by ``hypot`` or in units of the largest, so that values up to the largest
numbers have error bars.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

_EPSILON = float(np.finfo(float).eps)
_TINY = 1e-290
"""A standard deviation below this is none: ratios to it would overflow."""


_LARGEST = 1e150
"""A ratio beyond which it is not squared: what is so far off is far enough."""


_MOST = 1.5
"""The largest scale of the model that is believed, in units of the errors around."""


class Scales(NamedTuple):
    """How the model's standard deviations change."""

    ratio: Float[Array, "*N d"]
    """``s_i / sqrt(Σ_i)``; one where there is nothing to rescale."""
    own: Float[Array, "*N d"]
    """``s_i`` where ``Σ_i = 0``, else zero."""


def by_component(xp: Any, x: Any) -> Any:
    """``(N, d)`` as ``(d, N)``: NumPy reduces along the last axis ten times as fast."""
    return np.ascontiguousarray(x.T) if xp is np else x.T


def window_mean(xp: Any, x: Any, half: int) -> Any:
    """Mean over ``± half`` rows, truncated at the ends.

    Sums of 1, 2, 4, ... rows are put together: differences of cumulative sums would lose small
    values behind large ones.
    """
    n = x.shape[0]
    half = min(half, n - 1)
    pad = xp.zeros((half, *x.shape[1:]))
    power = xp.concatenate([pad, x, pad])
    length, width, start = 2 * half + 1, 1, 0
    total = xp.zeros_like(x)
    while True:
        if length & width:
            total = total + power[start : start + n]
            start += width
        if 2 * width > length:
            break
        power = power[:-width] + power[width:]
        width *= 2
    i = np.arange(n)
    counts = np.minimum(i, half) + np.minimum(n - 1 - i, half) + 1.0
    return total / counts.reshape(-1, *[1] * (x.ndim - 1))


def window_root_mean_square(xp: Any, x: Any, half: int) -> Any:
    """Root of the mean square over ``± half`` rows, in units of the largest of each column."""
    largest = xp.max(xp.abs(x), axis=0)
    unit = xp.where((largest > 0.0) & xp.isfinite(largest), largest, 1.0)
    return unit * xp.sqrt(window_mean(xp, (x / unit) ** 2, half))


def misfit(xp: Any, error: Any, std: Any) -> Any:
    """``c``: the mean of ``e_i²/Σ_i`` over the components that have a variance."""
    known = std > _TINY
    ratio = xp.clip(error / xp.where(known, std, 1.0), -_LARGEST, _LARGEST)
    parts = xp.where(known, ratio**2, 0.0)
    ones = np.ones(parts.shape[-1])  # as a product: NumPy's sums over few components are slow
    return parts @ ones / xp.maximum(known @ ones, 1.0)


class Values(NamedTuple):
    """What else the scales depend on."""

    mean: Float[Array, "*N d"]
    extent: Float[Array, " d"]
    """Range of each component over the whole solution."""


def combine(
    xp: Any,
    error: Any,
    std: Any,
    misfit_mean: Any,
    local: Any,
    values: Values,
    doubt: float,
    several: bool = False,
    near: Any = None,
) -> Scales:
    """``s`` from the estimate, the two local means ``c̄`` and ``sqrt(L)``, and ``u``.

    ``near`` is ``c₁``, of save points.

    No value is known better than its own rounding: ``s >= ε |y|``, except where it is exact. Where
    there is no estimate (it was lost on the way), ``s`` is as wide as the solution varies. Of
    ``several`` derivatives, the last axis but one, each has its own ``c̄``.
    """
    c = misfit(xp, error, std)
    c = _together(xp, c, misfit_mean) if several else c
    blended = _blended(xp, c, misfit_mean, c if near is None else near)
    return _scaled(xp, error, std, blended, local, values, doubt)


def _blended(xp: Any, c: Any, mean: Any, near: Any) -> Any:
    """``c*``."""
    return c / 2 + xp.minimum(mean, 4 * near) / 2


def _scaled(
    xp: Any, error: Any, std: Any, blended: Any, local: Any, values: Values, doubt: float
) -> Scales:
    """``s``, each component for itself."""
    known, size = std > _TINY, xp.abs(error)
    # One misfit for all components: where their proportions in the model are far off, too, its
    # scale says nothing of those whose errors are far smaller.
    around = xp.hypot(size, local)
    most = xp.where(around > 0.0, _MOST * around, xp.inf)
    model = xp.minimum(xp.sqrt(blended / 2)[..., None] * std, most)
    scale = xp.where(known, xp.hypot(np.sqrt(0.5) * size, model), size)
    scale = xp.clip(local, scale / 2, 2 * scale)
    scale = xp.hypot(scale, doubt * local) if doubt else scale
    exact = ~known & (scale == 0.0)
    scale = xp.where(exact, 0.0, xp.maximum(scale, _EPSILON * xp.abs(values.mean)))
    scale = xp.where(xp.isfinite(scale), scale, xp.maximum(values.extent, std))
    own = xp.where(known, 0.0, scale)
    ratio = xp.where(known, scale, 1.0) / xp.where(known, std, 1.0)
    return Scales(ratio, own)


def by_parts(scales: Callable[..., Scales], parts: int, *rows: Any) -> Scales:
    """``scales`` of rows ``(*N, k d)`` that hold ``k`` derivatives, given as ``(*N, k, d)``."""
    if parts == 1:
        return scales(*rows)
    found = scales(*(row.reshape(*row.shape[:-1], parts, -1) for row in rows))
    return Scales(*(each.reshape(rows[0].shape) for each in found))


def _together(xp: Any, c: Any, mean: Any) -> Any:
    """``c`` of each derivative, from all of them: ``c_j = c̄_j (1/k) sum_i c_i/c̄_i``.

    The model may be further off in one derivative than in another, so each has its own ``c̄``. But
    where the error of one passes through zero, the others know how large it is around there.
    """
    part = xp.where(mean > 0.0, c / xp.where(mean > 0.0, mean, 1.0), 0.0)
    return mean * part.mean(axis=-1, keepdims=True)


def around(xp: Any, error: Any, std: Any) -> tuple[Any, Any]:
    """``c̄`` and ``sqrt(L)`` of rows, one after the other in time."""
    return _misfit_around(xp, misfit(xp, error, std)), _error_around(xp, error)


def _misfit_around(xp: Any, c: Any) -> Any:
    return window_mean(xp, c, max(2, int(0.02 * len(c))))


def _error_around(xp: Any, error: Any) -> Any:
    return window_root_mean_square(xp, error, max(1, int(0.1 * len(error))))


def around_saved(xp: Any, error: Any, std: Any, count: int) -> tuple[Any, Any, Any]:
    """The same at save points, of which ``count`` were asked for, from those with an estimate.

    And ``c₁``.

    The errors of the filter at the steps between are others: smoothed means are off by less.
    """
    known = xp.all(xp.isfinite(error), axis=-1)
    e, weight = xp.where(known[..., None], error, 0.0), known.astype(float)
    far, near = max(2, int(0.02 * count)), max(1, int(0.1 * count))

    def part(half: int) -> Any:
        return xp.maximum(window_mean(xp, weight, half), _TINY)

    c = xp.where(known, misfit(xp, e, std), 0.0)
    local = window_root_mean_square(xp, e, near) / xp.sqrt(part(near))[..., None]
    exact = (error == 0.0) & ~(std > _TINY)
    misfits = (window_mean(xp, c, half) / part(half) for half in (far, 1))
    return next(misfits), xp.where(exact, 0.0, local), next(misfits)


def around_end(xp: Any, std: Any, misfit_mean: Any, local: Any) -> Any:
    """``sqrt(L)`` of a single save point: a running mean, but no more than ``sqrt(c̄ Σ)``.

    The last step may be shorter than those before, and the more accurate for it, which ``Σ`` knows.
    """
    own = xp.sqrt(misfit_mean)[..., None] * std
    return xp.where((std > _TINY) & (own < local), own, local)


def of_nodes(
    xp: Any,
    error: Any,
    std: Any,
    mean: Any,
    doubt: float = 0.0,
    several: bool = False,
    exact: bool = True,
) -> Scales:
    """Scales at all nodes; at the first, if that is ``exact``, those of the second.

    Rows are ``(N, d)``, or of ``several`` derivatives ``(N, k, d)``. NumPy does it for some rows,
    and then for some components, at a time: arrays that the cache holds.
    """
    first = 1 if exact else 0
    e, v = error[first:], std[first:]
    if e.shape[0] == 0:
        return Scales(xp.ones_like(error), xp.zeros_like(error))
    # A lost estimate must not spread backwards in time through the windows.
    finite = xp.all(xp.isfinite(e), axis=-1, keepdims=True)
    e = xp.where(finite, e, 0.0)
    c = in_blocks(xp, 0, lambda e, v: misfit(xp, e, v), e, v)
    misfit_mean = _misfit_around(xp, c)
    c = xp.where(finite[..., 0], c, xp.nan)
    c = _together(xp, c, misfit_mean) if several else c
    blended = _blended(xp, c, misfit_mean, c)

    def scaled(e: Any, v: Any, mean: Any) -> Scales:
        across = by_component(xp, mean)
        extent = (xp.max(across, axis=-1) - xp.min(across, axis=-1)).T
        values, local = Values(mean[first:], extent), _error_around(xp, e)
        lost = xp.where(finite, e, xp.nan)
        return _scaled(xp, lost, v, blended, local, values, doubt)

    ratio, own = in_blocks(xp, -1, scaled, e, v, mean)
    if not exact:
        return Scales(ratio, own)
    return Scales(xp.concatenate([ratio[:1], ratio]), xp.concatenate([xp.zeros_like(own[:1]), own]))


_BLOCK = 1 << 15
"""Numbers in an array that stays in the cache, with the dozen that are made of it."""
_LONG = 1 << 20
"""Numbers from which on the memory of that dozen counts, not the time of small blocks."""


def in_blocks(xp: Any, axis: int, function: Any, *arrays: Any) -> Any:
    """What a function makes of arrays, put together from those of their parts along an axis."""
    whole = arrays[0]
    least = 8 if whole.size < _LONG else 1
    size = max(least, _BLOCK * whole.shape[axis] // max(whole.size, 1))
    if xp is not np or whole.shape[axis] <= size:
        return function(*arrays)
    cuts = range(size, whole.shape[axis], size)
    parts = [
        function(*part) for part in zip(*(np.split(x, cuts, axis) for x in arrays), strict=True)
    ]
    if isinstance(parts[0], tuple):
        return tuple(np.concatenate(each, axis) for each in zip(*parts, strict=True))
    return np.concatenate(parts, axis)
