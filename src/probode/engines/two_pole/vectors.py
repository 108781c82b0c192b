"""Operations on long vectors: as they are on NumPy's arrays, compiled on JAX's.

Each is a function whose first argument says whose arrays the others are.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from probode.base.compile import compiler_options


@lru_cache(maxsize=64)
def over(xp: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for arrays of ``xp``."""
    bound = partial(function, xp)
    return bound if xp is np else jax.jit(bound, compiler_options=compiler_options())


def predicted(xp: Any, predict: Any, x: Any, atol: Any, rtol: Any, careful: Any) -> tuple[Any, Any]:
    """``x_0`` and ``x_1`` after a step, and what makes one of the tolerance."""
    first = predict[:2] @ x
    size = xp.maximum(xp.abs(x[0]), xp.abs(first[0]))
    return first, careful / (atol + rtol * size)


def corrected(xp: Any, predict: Any, x: Any, both: Any, sums: Any) -> Any:
    """``A x - α v - β u``."""
    return predict @ x - both @ sums


def moved(xp: Any, sums: Any, at: Any, both: Any, v: Any, u: Any) -> tuple[Any, Any]:
    """The sums of all corrections with these, and where they lead."""
    new = xp.stack([v, u])
    return sums + new, at - both @ new


def norm(xp: Any, u: Any, weight: Any) -> Any:
    """Root mean square, in units of the tolerance."""
    parts = u * weight
    return xp.sqrt(parts @ parts / parts.size)


def slope(xp: Any, weights: Any, values: Any, here: Any) -> Any:
    """Of an interpolant, from differences to the value at one of its nodes."""
    around = xp.stack(values)
    around -= here
    return weights @ around


def relative(xp: Any, small: float, tiny: float, y: Any, *rows: Any) -> Any:
    """Root mean squares of rows and of ``y``, relative to the latter."""
    size = xp.abs(y)
    each = xp.stack([y, *rows])
    each *= 1.0 / (size + small * size.max(initial=0.0) + tiny)
    return xp.sqrt(xp.einsum("ij,ij->i", each, each) / size.size)


def carried(xp: Any, gains: Any, e: Any, he: Any, v: Any, u: Any) -> tuple[Any, Any, Any]:
    """The error and its slope after an iteration, and what it has changed."""
    change = gains.T @ xp.stack([v, u])
    return e - change[0], he - change[1], change[0]


def gathered(
    xp: Any, square: Any, low: Any, high: Any, largest: Any, y: Any, error: Any, part: Any
) -> tuple[Any, Any, Any, Any]:
    """With one more value: mean squares of errors (the new one a ``part``), extremes."""
    square = square + part * (error * error - square)
    largest = xp.maximum(largest, xp.abs(error))
    return square, xp.minimum(low, y), xp.maximum(high, y), largest


def defect(xp: Any, he: Any, h: Any, rise: Any, f: Any) -> Any:
    """``h e' - h (P' - f)``."""
    return he - h * (rise - f)
