"""Step sizes: error norm, proportional and PI control, fixed steps, a user's grid.

A control proposes where the next step ends and judges its error. No probability in it.
"""

from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.jax_inside import is_tracer
from probode.base.precision import is_traced
from probode.base.record import checked_record, record, unchecked
from probode.filter.first_step import Outset, from_derivatives, from_evaluations, highest_known

_SMALLEST_ERROR = 1e-10
"""Errors below this (in units of the tolerance) ask for the largest growth anyway."""

_STRETCH = 1.0 + 1e-10
"""A step that would end this close to the end is stretched to it."""


_SLIVER = 1e-6
"""A constant step that ends nearer to the end than this part of its length goes there."""


class ControlState(NamedTuple):
    """What a control remembers between steps."""

    h: Array
    """Signed length of the next step, as proposed."""
    error: Array
    """Norm of the error of the last accepted step."""
    accepted: Array
    """Accepted steps so far."""
    rejected: Array
    """Whether the last attempt was rejected."""


class Tried(NamedTuple):
    """A step to be judged: from ``y0`` at ``t0`` to ``y1`` at ``t1``."""

    t0: Array
    t1: Array
    y0: Array
    y1: Array
    error: Array
    """Estimate of its local error."""


class Verdict(NamedTuple):
    """What a control says about an attempted step."""

    accepted: Array
    state: ControlState
    failed: Array
    """Whether it makes no sense to try again."""


def error_norm(error: Array, y0: Array, y1: Array, rtol: Array, atol: Array) -> Array:
    """Root mean square of ``error_i / (atol_i + rtol_i max(|y0_i|, |y1_i|))``."""
    scale = atol + rtol * jnp.maximum(jnp.abs(y0), jnp.abs(y1))
    return jnp.sqrt(jnp.mean(jnp.square(error / scale)))


class Control:
    """Base of all controls; step sizes are data, so that new values do not recompile."""

    crossings: Any = None
    """Steps across switches inside a trace."""

    def begin(self, h: Array) -> ControlState:
        """State before the first step, whose length is ``h``."""
        return ControlState(h, jnp.ones(()), jnp.zeros((), int), jnp.zeros((), bool))

    def next_time(self, state: ControlState, t: Array, t1: Array) -> Array:
        """Where the next step ends."""
        # Reaching t1 exactly, and never leaving a sliver that a last tiny step would have to cover.
        left = t1 - t
        return jnp.where(jnp.abs(state.h) * _STRETCH >= jnp.abs(left), t1, t + state.h)

    def next_stop(self, t: Array, t1: Array) -> Array:
        """Where steps from ``t`` on must end at the latest."""
        return t1

    def without_stops(self) -> "Control":
        """The same control with no stops on the way."""
        return self

    def measure(self, tried: Tried) -> Array:
        """The error in units of what is tolerated; zero where steps are not judged by errors."""
        return jnp.zeros(())

    def judge(self, state: ControlState, tried: Tried, q: int) -> Verdict:
        """Accept or reject a step of a method of order ``q``; propose the next."""
        raise NotImplementedError

    def initial_step(self, outset: Outset) -> Array:
        """Signed length of the first step."""
        raise NotImplementedError

    def start_evaluations(self, q: int, exact: bool) -> int:
        """Evaluations of ``f`` for the first step, beyond the ``q`` of an exact start."""
        return 0


@checked_record
class PControl(Control):
    """Proportional control: ``h ← h ρ E^(-1/(q+1))``, as in the paper.

    Parameters
    ----------
    rtol, atol
        Relative and absolute tolerance for the local error: numbers, or one per component.
    first_step
        Length of the first step; by default what the derivatives at ``t0`` suggest, or Hairer's
        rule where a start does not compute them.
    min_step, max_step
        Bounds for the length of a step.
    rho, eta_min, eta_max
        Safety factor, and bounds for the change from one step to the next.

    Examples
    --------
    >>> import probode
    >>> control = probode.PControl(rtol=1e-6, atol=1e-9, max_step=0.1)
    >>> posterior = probode.solve(lambda t, y: -y, (0, 1), 1.0, control=control)
    >>> bool(abs(posterior.mean[-1] - 0.36787944) < 1e-6)
    True
    """

    rtol: Any = 1e-6
    atol: Any = 1e-9
    first_step: Any = field(default=None, kw_only=True)
    min_step: Any = field(default=0.0, kw_only=True)
    max_step: Any = field(default=np.inf, kw_only=True)
    rho: Any = field(default=0.9, kw_only=True)
    eta_min: Any = field(default=0.2, kw_only=True)
    eta_max: Any = field(default=10.0, kw_only=True)
    stops: Any = field(default=None, kw_only=True)
    """Times, in the order of integration, at which a step has to end; set by the library."""
    crossings: Any = field(default=None, kw_only=True)
    """Steps across switches (:class:`probode.filter.crossing.Crossings`); set by the library."""

    def __post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        for name in ("rtol", "atol", "max_step"):
            _check_range(name, getattr(self, name), "positive", lambda x: x > 0)
        if self.first_step is not None:
            _check_range("first_step", self.first_step, "positive", lambda x: x > 0)
        _check_range("min_step", self.min_step, "zero or positive", lambda x: x >= 0)
        _check_range("rho", self.rho, "in (0, 1]", lambda x: (x > 0) & (x <= 1))
        _check_range("eta_min", self.eta_min, "in (0, 1)", lambda x: (x > 0) & (x < 1))
        _check_range("eta_max", self.eta_max, "greater than 1", lambda x: x > 1)

    def flat(self, shape: tuple[int, ...]) -> "PControl":
        """The same control for ``y`` flattened, its numbers as float64 arrays."""
        for name in ("rtol", "atol"):
            given = np.shape(getattr(self, name))
            if given not in ((), shape):
                raise ValueError(
                    f"{name} must be a number or have the shape {shape} of y0, got {given}."
                )

        def number(value: Any) -> Any:
            # Outside a trace NumPy will do, and costs less.
            array = (jnp if isinstance(value, jax.Array) else np).asarray(value, float)
            return array.reshape(-1) if array.ndim > 1 else array

        return unchecked(
            type(self),
            {name: None if value is None else number(value) for name, value in vars(self).items()},
        )

    def within(self, longest: Any) -> "PControl":
        """The same control with steps that are no longer than this, either."""
        if isinstance(longest, float) and longest == np.inf:
            return self
        shortest = jnp.minimum(jnp.asarray(self.max_step), longest)
        return unchecked(type(self), {**vars(self), "max_step": shortest})

    def with_stops(self, stops: Any, t1: Any) -> "PControl":
        """The same control with steps that end at ``stops``, given in the order of integration.

        Programs depend on their number: it is filled up to a power of two with the end.
        """
        if len(stops) == 0:
            return self.without_stops()
        room = 1 << (len(stops) - 1).bit_length()
        xp: Any = jnp if is_traced(stops, t1) else np
        padded = xp.append(stops, xp.full(room - len(stops), t1))
        return unchecked(type(self), {**vars(self), "stops": padded})

    def without_stops(self) -> "PControl":
        """The same control with no stops on the way."""
        if self.stops is None and self.crossings is None:
            return self
        return unchecked(type(self), {**vars(self), "stops": None, "crossings": None})

    def next_stop(self, t: Array, t1: Array) -> Array:
        """The first stop after ``t``, or ``t1``."""
        if self.stops is None:
            return t1
        xp: Any = jnp if is_traced(self.stops, t, t1) else np
        sign = xp.where(t1 < t, -1.0, 1.0)  # then later is larger
        ahead = xp.where(sign * self.stops > sign * t, sign * self.stops, xp.inf)
        return sign * xp.minimum(xp.min(ahead), sign * t1)

    def next_time(self, state: ControlState, t: Array, t1: Array) -> Array:
        """As far as the control proposes, or to the next stop: never past one."""
        if self.stops is None:
            return Control.next_time(self, state, t, t1)
        end = self.next_stop(t, t1)
        left = end - t
        # Two steps of one length to a stop, not a long one and a sliver.
        halved = (jnp.abs(left) < 2.0 * jnp.abs(state.h)) & (end != t1)
        following = jnp.where(halved, t + 0.5 * left, t + state.h)
        return jnp.where(jnp.abs(state.h) * _STRETCH >= jnp.abs(left), end, following)

    def factor(self, error: Array, state: ControlState, q: int) -> Array:
        """Proposed change of the step size, before safety and limits."""
        return error ** (-1.0 / (q + 1))

    def measure(self, tried: Tried) -> Array:
        """The norm that is at most one in an accepted step."""
        norm = error_norm(tried.error, tried.y0, tried.y1, self.rtol, self.atol)
        return jax.lax.stop_gradient(norm)

    def judge(self, state: ControlState, tried: Tried, q: int) -> Verdict:
        """Accept if the norm is at most one. NaN compares false with everything: a rejection."""
        norm = self.measure(tried)
        h = jax.lax.stop_gradient(tried.t1 - tried.t0)
        accepted = norm <= 1.0
        finite = jnp.isfinite(norm)
        bounded = jnp.where(finite, jnp.maximum(norm, _SMALLEST_ERROR), 1.0)
        factor = jnp.clip(self.rho * self.factor(bounded, state, q), self.eta_min, self.eta_max)
        factor = jnp.where(finite, factor, self.eta_min)
        size = jnp.abs(h) * factor
        smallest = jnp.maximum(_spacing(tried.t0), self.min_step)
        # A step is tried once more at the smallest length (which rounding may make a bit longer).
        failed = ~accepted & (size < smallest) & (jnp.abs(h) <= 1.5 * smallest)
        failed = failed | (~accepted & (size < jnp.finfo(jnp.float64).tiny)) | (h == 0.0)
        size = jnp.clip(size, smallest, self.max_step)
        following = ControlState(
            jnp.sign(h) * size,
            jnp.where(accepted, bounded, state.error),
            state.accepted + accepted,
            ~accepted,
        )
        return Verdict(accepted, following, failed)

    def initial_step(self, outset: Outset) -> Array:
        """See :mod:`probode.filter.first_step`; or the length that was given."""
        span = outset.span
        direction = jnp.where(span < 0, -1.0, 1.0)
        if self.first_step is not None:
            size = self.first_step
        elif outset.known is not None:
            size = from_derivatives(outset.known, span, self.rtol, self.atol)
        else:
            size = from_evaluations(outset, self.rtol, self.atol)
        size = jnp.clip(size, self.min_step, self.max_step)
        size = jnp.minimum(jnp.maximum(size, _spacing(outset.t0)), jnp.abs(span))
        return direction * jax.lax.stop_gradient(size)

    def start_evaluations(self, q: int, exact: bool) -> int:
        """One for each further derivative, or two for Hairer's rule."""
        if self.first_step is not None:
            return 0
        return highest_known(q) - q if exact else 2


@checked_record
class PIControl(PControl):
    """Proportional-integral control: ``h ← h ρ E_n^(-(k_I+k_P)/(q+1)) E_(n-1)^(k_P/(q+1))``.

    Looking one step back damps the oscillation of step sizes that makes purely proportional
    control reject up to every third step. After a rejection the proportional rule is used, and
    the step does not grow.

    Parameters are those of :class:`PControl`, and the weights of the two parts:

    Parameters
    ----------
    integral, proportional
        ``k_I`` and ``k_P``.

    Examples
    --------
    >>> import probode
    >>> control = probode.PIControl(rtol=1e-6, atol=1e-9)
    >>> posterior = probode.solve(lambda t, y: -y, (0, 1), 1.0, control=control)
    >>> bool(abs(posterior.mean[-1] - 0.36787944) < 1e-6)
    True
    """

    integral: Any = field(default=0.3, kw_only=True)
    proportional: Any = field(default=0.4, kw_only=True)

    def _check(self) -> None:
        PControl._check(self)
        for name in ("integral", "proportional"):
            _check_range(
                name, getattr(self, name), "between 0 and 1", lambda x: (x >= 0) & (x <= 1)
            )

    def factor(self, error: Array, state: ControlState, q: int) -> Array:
        """PI rule after an accepted step, P rule after a rejected one."""
        power = 1.0 / (q + 1)
        damped = error ** (-(self.integral + self.proportional) * power) * (
            state.error ** (self.proportional * power)
        )
        plain = error**-power
        after_rejection = jnp.minimum(damped, 1.0 / self.rho)
        return jnp.where(error > 1.0, plain, jnp.where(state.rejected, after_rejection, damped))


@record
class ConstantStep(Control):
    """Steps of one length, whatever the error; the last one is shortened to end at ``t1``."""

    size: Array
    start: Array
    """Where the solve begins: steps are counted from there, so that rounding does not add up."""

    def next_time(self, state: ControlState, t: Array, t1: Array) -> Array:
        """``start + k size``, or ``t1`` where that is as near as rounding can tell."""
        following = self.start + (state.accepted + 1) * state.h
        reached = jnp.abs(t1 - following) < _SLIVER * self.size
        beyond = (following - t1) * state.h > 0.0
        return jnp.where(reached | beyond, t1, following)

    def initial_step(self, outset: Outset) -> Array:
        """The length, with the sign of the direction of integration."""
        return jnp.where(outset.t1 < outset.t0, -self.size, self.size)

    def judge(self, state: ControlState, tried: Tried, q: int) -> Verdict:
        """Accept whatever is finite."""
        return _accept_finite(state, tried)


@record
class GridSteps(Control):
    """Steps from point to point of a given grid, whatever the error."""

    grid: Float[Array, " N"]
    crossings: Any = None

    def initial_step(self, outset: Outset) -> Array:
        """Length of the first interval."""
        return self.grid[1] - self.grid[0]

    def next_time(self, state: ControlState, t: Array, t1: Array) -> Array:
        """The next point of the grid."""
        return self.grid[jnp.minimum(state.accepted + 1, self.grid.shape[0] - 1)]

    def judge(self, state: ControlState, tried: Tried, q: int) -> Verdict:
        """Accept whatever is finite."""
        return _accept_finite(state, tried)


def _spacing(t: Array) -> Array:
    """The length of a step that floating point numbers can just resolve."""
    return 10.0 * jnp.finfo(jnp.float64).eps * jnp.abs(t)


def _accept_finite(state: ControlState, tried: Tried) -> Verdict:
    finite = jnp.all(jnp.isfinite(tried.error)) & jnp.all(jnp.isfinite(tried.y1))
    following = state._replace(accepted=state.accepted + finite, rejected=~finite)
    return Verdict(finite, following, ~finite)


def _check_range(name: str, value: Any, words: str, fits: Callable[[Any], Any]) -> None:
    if is_tracer(value) or (type(value) in (float, np.float64) and fits(value)):
        return
    try:
        array = np.asarray(value)
        if np.iscomplexobj(array):
            raise TypeError
        fitting = bool(np.all(fits(array.astype(float))))
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number that is {words}, got {value!r}.") from None
    if not fitting or array.dtype == object:
        raise ValueError(f"{name} must be {words}, got {value!r}.")
