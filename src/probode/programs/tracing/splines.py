"""SciPy's interpolators as traced functions see them: breakpoints, and Horner's rule."""

from typing import Any

import jax.numpy as jnp

from probode.programs.interpolators import CONSTANT, PERIODIC, Piecewise, read
from probode.programs.tracing.arrays import TracedArray, is_traced, unwrap, wrap
from probode.programs.tracing.watching import watch

_COMPARED = 64
"""Up to so many breakpoints are all compared at once, which is faster than a search."""


class Spline:
    """An interpolator that also takes traced arrays."""

    def __init__(self, original: Any, pieces: Piecewise) -> None:
        self._original, self._pieces = original, pieces

    def __call__(self, x: Any, nu: Any = 0, *args: Any, **kwargs: Any) -> Any:
        if not is_traced(x):
            return wrap(self._original(unwrap(x), *((nu,) if nu else ()), *args, **kwargs))
        if args or kwargs or not isinstance(nu, int):
            raise watch.refuse(
                "another way to extrapolate", None, "choose it where the interpolator is made"
            )
        if nu:
            return self.derivative(nu)(x)
        watch.count()
        return TracedArray(evaluate(self._pieces, jnp.asarray(unwrap(x, as_array=True), float)))

    def derivative(self, nu: int = 1) -> Any:
        """The derivative, an interpolator itself."""
        original = self._original.derivative(nu)
        pieces = read(original)
        return original if pieces is None else Spline(original, pieces)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return wrap(getattr(self._original, name))


def spline(value: Any) -> Spline | None:
    """The stand-in for an interpolator; ``None`` for others."""
    pieces = read(value)
    return None if pieces is None else Spline(value, pieces)


def evaluate(pieces: Piecewise, x: Any) -> Any:
    """Shape ``x.shape`` in the place of the axis along which was interpolated."""
    breaks, coefficients, outside, axis = pieces
    low, high = breaks[0], breaks[-1]
    given = x
    if outside == PERIODIC:
        x = low + (x - low) % (high - low)
    elif outside == CONSTANT:
        x = jnp.clip(x, low, high)
    method = "compare_all" if breaks.size <= _COMPARED else "scan"
    inner = breaks[1:-1]
    i = jnp.searchsorted(inner, x, side="right", method=method) if inner.size else 0 * x.astype(int)
    local = jnp.asarray(coefficients)[:, i]
    distance = (x - jnp.asarray(breaks)[i]).reshape(x.shape + (1,) * (coefficients.ndim - 2))
    value = local[0]
    for row in local[1:]:
        value = value * distance + row
    if not isinstance(outside, str):
        place = given.reshape(distance.shape)
        value = jnp.where(place < low, outside[0], jnp.where(place > high, outside[1], value))
    return jnp.moveaxis(value, tuple(range(x.ndim)), tuple(range(axis, axis + x.ndim)))
