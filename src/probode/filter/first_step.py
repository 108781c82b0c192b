"""The length of the first step: from derivatives where they are known, else from two evaluations.

Sizes are measured as the control measures errors: root mean squares over the components, in units
of ``atol_i + rtol_i |y0_i|``.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_SETTLED = 0.8
"""What steps settle to, in units of ``|y^(q+1)|^(-1/(q+1))``."""

_PART = (0.5, 0.5, 0.5, 0.5, 0.2)
_PART_OF_HIGH_ORDERS = 0.06
"""The first step in parts of that, with a dynamic diffusion: for orders 1 to 5, and above.

Residuals are smallest at first, while the derivatives are still those of the solution, and so is
the noise that they are taken for. The higher the order, the more so: steps that grow as far as that
allows leave wrong high derivatives behind, and it takes tens of tiny steps to learn these again. A
fixed diffusion has seen the noise of all steps, and would be misled by one that is far too short.
"""

_OF_THE_LAST = 3.0
"""How much longer the first step may be than the second highest derivative suggests."""

_OF_THE_INTERVAL = 0.5
"""How much of the interval the first step may cover: little at ``t0`` says what comes later."""


class Known(NamedTuple):
    """What an exact start knows before the first step."""

    derivatives: Float[Array, "m d"]
    """``y, y', ...`` up to :func:`highest_known`."""
    order: int
    part: float
    """The first step in parts of what steps settle to."""


class Outset(NamedTuple):
    """Where a solve begins: what its first step is chosen from."""

    field: Callable[[Array, Array], Array]
    t0: Array
    t1: Array
    y0: Array
    order: int
    known: Known | None = None
    """``None``: ``field`` has to be evaluated."""

    @property
    def span(self) -> Array:
        """The interval's length, with the sign of the direction."""
        return self.t1 - self.t0


def highest_known(q: int) -> int:
    """The derivative up to which a first step asks: ``q + 1``, but none of ``f`` at order 1.

    There nothing else needs ``f`` to be differentiable.
    """
    return q + 1 if q > 1 else 1


def part_of_settled(q: int, fixed_diffusion: bool) -> float:
    """How much of the settled length to begin with."""
    if fixed_diffusion:
        return 1.0
    return _PART[q - 1] if q <= len(_PART) else _PART_OF_HIGH_ORDERS


def from_derivatives(known: Known, span: Array, rtol: Array, atol: Array) -> Array:
    """A part of the length that steps settle to.

    Where ``y^(q+1)`` is constant, the residuals of a filter of order ``q`` settle to
    ``h^q |y^(q+1)|`` (over a number between 1 and 5), its error estimate to ``h`` times that, and
    PI control to a length somewhat below that of an error of one. Hence

        ``h = part 0.8 min(|y^(q+1)|^(-1/(q+1)), 3 |y^(q)|^(-1/q))``

    where the second is for a ``y^(q+1)`` that happens to vanish, and at most half of the interval.
    At order 1 ``|y'|² / max(|y|, 1)`` stands for ``|y''|``. Units of time and of the state cancel.
    """
    y, q = jax.lax.stop_gradient(known.derivatives), known.order
    norm = _norm(y[0], rtol, atol)

    sizes = jax.vmap(norm)(y[1:])
    # A zero bounds nothing, and what overflows has nothing to say.
    says = jnp.isfinite(sizes) & (sizes > 0.0)
    lengths = jnp.where(says, sizes, 1.0) ** (-1.0 / np.arange(1, y.shape[0]))
    length = (None, *jnp.where(says, lengths, jnp.inf))
    if q == 1:
        longest = length[1] * jnp.sqrt(jnp.maximum(norm(y[0]), 1.0))
    else:
        longest = jnp.minimum(length[q + 1], _OF_THE_LAST * length[q])
    size = jnp.minimum(known.part * _SETTLED * longest, _OF_THE_INTERVAL * jnp.abs(span))
    # An interval without end, and a polynomial: until one of its terms is as large as a tolerance.
    shortest = jnp.min(jnp.stack(length[1 : q + 1]))
    return jnp.where(jnp.isfinite(size), size, jnp.where(jnp.isfinite(shortest), shortest, 1.0))


def from_evaluations(outset: Outset, rtol: Array, atol: Array) -> Array:
    """Hairer, Nørsett & Wanner, Section II.4.

    A step for which an explicit Euler step is harmless and the error of order q+1 acceptable.
    """
    field, t0, y0, span = outset.field, outset.t0, outset.y0, outset.span
    norm = _norm(y0, rtol, atol)
    f0 = field(t0, y0)
    d0, d1 = norm(y0), norm(f0)
    tiny = (d0 < 1e-5) | (d1 < 1e-5)
    h0 = jnp.where(tiny, 1e-6, 0.01 * d0 / jnp.where(tiny, 1.0, d1))
    # f may not exist outside the interval.
    h0 = jnp.where(span == 0.0, h0, jnp.minimum(h0, jnp.abs(span)))
    direction = jnp.where(span < 0, -1.0, 1.0)
    near = jnp.where(h0 == jnp.abs(span), t0 + span, t0 + direction * h0)
    f1 = field(near, y0 + direction * h0 * f0)
    d2 = norm(f1 - f0) / h0
    largest = jnp.maximum(d1, d2)
    flat = largest <= 1e-15
    h1 = jnp.where(
        flat,
        jnp.maximum(1e-6, h0 * 1e-3),
        (0.01 / jnp.where(flat, 1.0, largest)) ** (1.0 / (outset.order + 1)),
    )
    size = jnp.minimum(100 * h0, h1)
    return jnp.where(jnp.isfinite(size) & (size > 0), size, 1e-6)


def _norm(y0: Array, rtol: Array, atol: Array) -> Callable[[Array], Array]:
    """Root mean square in units of the tolerance; no square overflows."""
    scale = atol + rtol * jnp.abs(y0)

    def norm(x: Array) -> Array:
        parts = jnp.abs(x / scale)
        largest = jnp.max(parts, initial=0.0)
        unit = jnp.where((largest > 0.0) & jnp.isfinite(largest), largest, 1.0)
        return unit * jnp.sqrt(jnp.mean(jnp.square(parts / unit)))

    return norm
