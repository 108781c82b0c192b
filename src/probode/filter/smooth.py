"""Looking back: backward kernels, smoothing, dense output, joint samples.

Everything here goes through one object, the backward kernel ``p(x | x⁺)`` computed from a
*filtering* state, so that marginals, dense output and samples agree.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.record import record
from probode.filter.frozen import moving_as
from probode.filter.loop import Rows
from probode.filter.step import Method, State, extrapolate, moved_factor, of_step
from probode.model import gaussian

_EPSILON = float(np.finfo(float).eps)
_RESOLVED = 10 * _EPSILON
"""Process noise below this part of what it is added to is lost in rounding."""
_GROWN = 2.0
"""Factor of a standard deviation by which only rounding can make it larger going back a step."""


@record
class Kernel:
    """``x | x⁺ ~ N(shift + G (x⁺ - center), RᵀR)``.

    ``shift`` and ``center`` are in plain units. ``Gᵀ`` and ``R`` are in coordinates: those of ``x``
    are ``T(h)``, those of ``x⁺`` are ``T(h_after)``.
    """

    shift: Float[Array, "n d"]
    center: Float[Array, "n d"]
    gain_transposed: Array
    factor: Array
    h: Array
    h_after: Array

    def pull(self, method: Method, after: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """``shift + G (x⁺ - center)``."""
        structure, prior = method.structure, method.prior
        difference = (after - self.center) / prior.coordinates(self.h_after)[:, None]
        moved = jnp.swapaxes(self.gain_transposed, -1, -2) @ structure.cut(difference)
        return self.shift + prior.coordinates(self.h)[:, None] * structure.join(moved)

    def marginalize(self, method: Method, after: State, t: Array) -> State:
        """The marginal of ``x`` (at time ``t``), given that of ``x⁺``."""
        factor = rescaled(method, after.factor, after.h, self.h_after)
        reversal = gaussian.Reversal(self.gain_transposed, self.factor)
        mean = self.pull(method, after.mean)
        return State(t, self.h, mean, gaussian.marginalize(reversal, factor), after.drift)

    def draw(self, method: Method, after: Array, noise: Array, spread: Array) -> Array:
        """A draw of ``x`` given a draw of ``x⁺``; ``noise`` is standard normal, shape (n, d).

        ``spread`` is the factor (or one per component) that calibrates standard deviations.
        """
        return self.pull(method, after) + spread * spread_noise(method, self.factor, self.h, noise)


def rescaled(method: Method, factor: Array, h: Array, h_new: Array) -> Array:
    """A factor in coordinates ``T(h)``, in coordinates ``T(h_new)``."""
    return factor * method.structure.spread(method.prior.powers(h / h_new))


def spread_noise(method: Method, factor: Array, h: Array, noise: Float[Array, "n d"]) -> Array:
    """``T(h) Rᵀ noise``: standard normal numbers turned into a draw of the state."""
    structure = method.structure
    drawn = jnp.swapaxes(factor, -1, -2) @ structure.cut(noise)
    return method.prior.coordinates(h)[:, None] * structure.join(drawn)


def backward_kernel(
    method: Method,
    state: State,
    h: Array,
    scale: Array,
    after: State,
    whole: Array | None = None,
) -> Kernel:
    """Kernel from a filtering state, over a time ``h`` with process noise ``scale``.

    ``after`` is the state at the end of that time, filtered or smoothed. ``whole`` is the length
    of the step of which this is a part, if it is not all of it.
    """
    mean = state.mean  # with frozen gains it moves alone
    state, h, scale, after, whole = method.constant((state, h, scale, after, whole))
    method = of_step(method, state, h)
    prior, structure = method.prior, method.structure
    coords = prior.coordinates(h)
    moved = moved_factor(method, state, h)
    if not method.diffusion.fixed:
        # A step adds at least the rounding of y. A kernel that took y⁺ for more exact than that
        # would turn its last digit into a derivative.
        given, units = method.equation.order, coords if whole is None else prior.coordinates(whole)
        rounding = _EPSILON * jnp.max(jnp.abs(state.mean[:given] / units[:given, None]), axis=0)
        if whole is not None:  # a part of a step has its part of that, and keeps its derivatives
            rounding = rounding * prior.noise_scale(h / whole)
        scale = jnp.maximum(scale, jax.lax.stop_gradient(structure.common(rounding)))
    noise = structure.noise(prior.noise_factor(jnp.abs(h)), scale)
    before = rescaled(method, state.factor, state.h, h)
    reversal = gaussian.revert(jnp.concatenate([moved, noise], axis=-2), before)

    # The regression of x on x⁺ divides by the noise in directions where x is known exactly. Where
    # rounding hides the noise (a step without residual), x⁺ = A x: the kernel is A⁻¹, and certain.
    pivots = jnp.abs(jnp.diagonal(noise, axis1=-2, axis2=-1))
    resolved = jnp.all(pivots >= _RESOLVED * gaussian.std_of(moved), axis=-1)[..., None, None]
    certain = structure.widen(np.swapaxes(prior.inverse_transition(jnp.abs(h)), -1, -2))
    gain = jnp.where(resolved, reversal.gain_transposed, certain)
    factor = jnp.where(resolved, reversal.factor, 0.0)
    kernel = Kernel(mean, prior.predict_mean(mean, h), gain, factor, h, h)
    return unless_grown(method, kernel, replace(state, mean=mean), after)


def unless_grown(method: Method, kernel: Kernel, state: State, after: State) -> Kernel:
    """Return a kernel back to a filtering state, or that state alone where it grows.

    What comes later only makes x more certain. Next to a state of which some parts are known much
    better than others (h times a stiff rate is 1e8 and more), the regression is made of rounding
    instead. Then x does not depend on x⁺, and stays as the filter left it.
    """
    before = rescaled(method, state.factor, state.h, kernel.h)
    pulled = rescaled(method, after.factor, after.h, kernel.h_after) @ kernel.gain_transposed
    std = gaussian.std_of(jnp.concatenate([pulled, kernel.factor], axis=-2))
    grown = jnp.any(std > _GROWN * gaussian.std_of(before), axis=-1)
    block = grown[..., None, None]
    return replace(
        kernel,
        shift=jnp.where(grown, state.mean, kernel.shift),
        gain_transposed=jnp.where(block, 0.0, kernel.gain_transposed),
        factor=jnp.where(block, before, kernel.factor),
    )


def identity_kernel(method: Method, state: State) -> Kernel:
    """The backward kernel over a time of zero: ``x = x⁺``."""
    state = method.constant(state)
    shape = method.structure.factor_shape
    gain = jnp.broadcast_to(jnp.eye(shape[-1]), shape)
    return Kernel(state.mean, state.mean, gain, jnp.zeros(shape), state.h, state.h)


def compose(method: Method, first: Kernel, second: Kernel) -> Kernel:
    """``p(x | x⁺⁺)`` from ``p(x | x⁺)`` and ``p(x⁺ | x⁺⁺)``."""
    change = method.structure.spread(method.prior.powers(second.h / first.h_after))
    gain = change[..., :, None] * first.gain_transposed
    factor = gaussian.triangularize(jnp.concatenate([second.factor @ gain, first.factor], axis=-2))
    shift = first.pull(method, second.shift)
    return Kernel(
        shift, second.center, second.gain_transposed @ gain, factor, first.h, second.h_after
    )


def smooth_step(
    method: Method,
    left: State,
    right: State,
    h: Array,
    scale: Array,
    whole: Array | None = None,
) -> State:
    """Smoothed state on the left from the smoothed state on the right, in the left's coordinates.

    Rows that repeat a time (after a failed grid) pass the state on unchanged.
    """
    still = h == 0.0
    kernel = backward_kernel(method, left, jnp.where(still, 1.0, h), scale, right, whole)
    smoothed = kernel.marginalize(method, right, left.t)
    factor = rescaled(method, smoothed.factor, smoothed.h, left.h)
    factor = jnp.where(still, right.factor, factor)
    mean = jnp.where(still, right.mean, smoothed.mean)
    return State(left.t, left.h, mean, factor, left.drift)


@record
class Marginals:
    """Means and factors of smoothed states, row by row; times and coordinates are the filter's."""

    mean: Array
    factor: Array


def smooth_chunk(
    method: Method, rows: Rows, count: Array, last: Marginals
) -> tuple[Marginals, Marginals]:
    """Smooth rows ``count-1 .. 0`` of a chunk, given the smoothed row ``count``.

    Returns the buffer of all smoothed rows, and row 0 (the last of the chunk before).
    """
    capacity = rows.t.shape[0]
    buffer = Marginals(
        jnp.zeros((capacity, *last.mean.shape)), jnp.zeros((capacity, *last.factor.shape))
    )
    buffer = _write(buffer, count, last)

    def body(k: Array, carry: tuple[Marginals, Marginals]) -> tuple[Marginals, Marginals]:
        buffer, right = carry
        i = count - 1 - k
        smoothed = _smooth_row(method, rows, i, right)
        return _write(buffer, i, smoothed), smoothed

    return jax.lax.fori_loop(0, count, body, (buffer, last))


def smooth_rows(method: Method, rows: Rows) -> Marginals:
    """Smooth all rows of a trajectory of known length (inside a trace)."""
    last = Marginals(rows.mean[-1], rows.factor[-1])

    def body(right: Marginals, i: Array) -> tuple[Marginals, Marginals]:
        smoothed = _smooth_row(method, rows, i, right)
        return smoothed, smoothed

    _, before = jax.lax.scan(body, last, jnp.arange(rows.t.shape[0] - 1), reverse=True)
    every = jax.tree.map(lambda x, end: jnp.concatenate([x, end[None]]), before, last)
    return replace(every, mean=moving_as(every.mean, rows.mean)) if method.frozen else every


def _smooth_row(method: Method, rows: Rows, i: Array, right: Marginals) -> Marginals:
    h = rows.t[i + 1] - rows.t[i]
    state = State(rows.t[i + 1], rows.h[i + 1], right.mean, right.factor)
    whole = rows.whole_at(i + 1)
    smoothed = smooth_step(method, rows.at(i), state, h, rows.scale[i + 1], whole)
    return Marginals(smoothed.mean, smoothed.factor)


def _write(buffer: Marginals, i: Array, row: Marginals) -> Marginals:
    return jax.tree.map(lambda xs, x: xs.at[i].set(x), buffer, row)


def interpolate(
    method: Method, left: State, right: State | None, t: Array, step: Array, scale: Array
) -> State:
    """The state at time ``t`` after the node ``left``.

    Prediction with the noise of the step (of length ``step``) that ``t`` falls into; with the
    smoothed node ``right``, one kernel back from there. Without, the prediction itself.
    """
    h = t - left.t
    inside = extrapolate(method, left, h, scale * method.prior.noise_scale(h / step))
    if right is None:
        return inside
    rest = right.t - t
    scale = scale * method.prior.noise_scale(rest / step)
    kernel = backward_kernel(method, inside, rest, scale, right)
    return kernel.marginalize(method, right, t)


def sample_rows(
    method: Method, rows: Rows, count: Array, last: Array, noise: Array, spread: Array
) -> tuple[Array, Array]:
    """Draw rows ``count-1 .. 0`` jointly, given a draw of row ``count`` (plain units).

    ``noise`` holds standard normal numbers of shape ``(rows, n, d)``. Returns the drawn values
    ``(y, ..., y^(k-1))`` of all rows and the whole state of row 0.
    """

    def value(drawn: Array, i: Any) -> Array:
        return (moving_as(drawn, rows.mean[i]) if method.frozen else drawn)[:order]

    def body(k: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        values, right, smoothed = carry
        i = count - 1 - k
        h, left = rows.t[i + 1] - rows.t[i], rows.at(i)
        still = h == 0.0
        # Draws depend on x⁺ where marginals do.
        after = replace(rows.at(i + 1), factor=smoothed)
        kernel = backward_kernel(
            method,
            left,
            jnp.where(still, 1.0, h),
            rows.scale[i + 1],
            after,
            rows.whole_at(i + 1),
        )
        drawn = jnp.where(still, right, kernel.draw(method, right, noise[i], spread))
        before = kernel.marginalize(method, after, left.t)
        factor = rescaled(method, before.factor, before.h, left.h)
        return values.at[i].set(value(drawn, i)), drawn, jnp.where(still, smoothed, factor)

    order = method.equation.order
    values = jnp.zeros((rows.t.shape[0], order, last.shape[-1])).at[count].set(value(last, count))
    end = rows.factor[count]
    return jax.lax.fori_loop(0, count, body, (values, last, end))[:2]
