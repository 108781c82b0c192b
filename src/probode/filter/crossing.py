"""Steps across the switches of a right-hand side: their places, and the state after them.

A step ends right before a switch; from there to right after it the filter takes one more, its *step
across*, which is as long as rounding leaves the time of the switch uncertain::

    y⁺ = y + h ((1 - c) f⁻ + c f⁺),   derivatives of the solution that starts from (t⁺, y⁺)

with ``c`` the part of the step that lies after the switch. ``y⁺`` is as uncertain as ``y``, and an
error of ``y`` changes the derivatives by ``y^(i) ~ J^i y`` (for equations of higher order, ``y`` is
replaced by all values that a start needs). The process noise ``s`` of the step is so large
that the derivatives of one side say nothing about those of the other, while in ``y`` it is next to
nothing.

Engines that return to Python between steps take steps across in Python
(:mod:`probode.filter.restart`); inside a trace :func:`probode.filter.loop.advance` takes them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.in_double import in_double
from probode.base.precision import is_traced, on_host
from probode.base.record import record, static, unchecked
from probode.filter.control import PControl
from probode.filter.start import Initialization, SlopeStart
from probode.filter.step import Method, State
from probode.model import gaussian
from probode.programs.field import Field
from probode.programs.moving_switches import switch_times
from probode.programs.program import timing
from probode.programs.switches import MARGIN, MOST_OF_A_TABLE

_BEYOND_THE_JUMP = 3.0
"""Noise of a step across, in units of the jump of the slope."""
_UNNOTICED, _RESOLVED = 1e-4, 1e-12
"""Alternative noise: it adds the first part to the least uncertain component of ``y``, and at least
the second part to the most uncertain one, the smallest that rounding does not lose."""


@record
class Crossings:
    """Steps across switches, in the order of integration; unused places begin at infinity."""

    initialization: Initialization = static()
    """Method by which the derivatives on the other side are found."""
    before: Array
    after: Array
    share: Array
    """Part of each step that lies after the switch."""

    def begins_at(self, t: Array) -> Array:
        """Whether a step across begins at this time."""
        return jnp.any(self.before == t)

    def has_ended_at(self, t: Array) -> Array:
        """Whether a step across has ended at this time."""
        return jnp.any((self.after == t) & jnp.isfinite(self.before))

    def beyond(self, t: Array) -> tuple[Array, Array]:
        """Return the end of the step across from ``t``, and its share.

        If no step across begins at ``t``, the end is ``t + 1``, which is not used.
        """
        here = self.before == t
        after, share = (jnp.sum(jnp.where(here, x, 0.0)) for x in (self.after, self.share))
        return jnp.where(jnp.any(here), after, t + 1.0), share


def crossings_at(
    times: Any, t0: Any, t1: Any, initialization: Initialization
) -> tuple[Crossings, Any]:
    """Return steps across switches at ``times``, and the stops before these steps.

    ``times`` are in any order, and some may lie outside of the interval. The stops are in the order
    of integration, filled up with ``t1``. If the times are known, the arrays are NumPy's.
    """
    xp: Any = jnp if is_traced(times, t0, t1) else np
    times, t0, t1 = (xp.asarray(x, float) for x in (times, t0, t1))
    direction = xp.where(t1 >= t0, 1.0, -1.0)
    margin = MARGIN * xp.maximum(xp.abs(t0), xp.abs(t1))
    near, begin, end = 4.0 * margin, direction * t0, direction * t1
    at = direction * times
    at = xp.sort(xp.where((at >= begin - near) & (at <= end + near), at, xp.inf))
    at_start, at_end = at <= begin + near, (at >= end - near) & xp.isfinite(at)
    before = xp.where(at_end, end - 2.0 * margin, at - margin)
    before = xp.where(at_start, begin, before)
    after = xp.where(at_end & ~at_start, end, before + 2.0 * margin)
    share = xp.where(at_start, 1.0, xp.where(at_end, 0.0, 0.5))
    previous = xp.concatenate([xp.full(1, -xp.inf), before[:-1]])
    real = xp.isfinite(before) & (before > previous + near) & (begin < end)
    before, after = xp.where(real, before, xp.inf), xp.where(real, after, end)
    stops = direction * xp.where(real, before, end)
    made = unchecked(
        Crossings,
        {
            "initialization": initialization,
            "before": direction * before,
            "after": direction * after,
            "share": share,
        },
    )
    return made, stops


def across_switches(
    control: PControl,
    field: Field,
    breaks: Any,
    t0: Any,
    t1: Any,
    initialization: Initialization,
    finest: int = MOST_OF_A_TABLE,
) -> PControl:
    """Return the control with steps across all switches of the program, and across ``breaks``.

    Tables of more than ``finest`` entries are skipped.
    """
    if len(breaks) == 0 and not timing(field.program).switches:
        return control
    given = field, breaks, t0, t1
    if not is_traced(given):
        found = _crossings(given, initialization, finest)
    else:  # as one operation: derivatives of it are formed where numbers may have 32 bits
        leaves, tree = jax.tree.flatten(given)
        moving = [leaf if is_traced(leaf) else None for leaf in leaves]
        known = _Known(tree, [None if is_traced(leaf) else leaf for leaf in leaves])
        found = in_double(_crossings_in_trace, (known, initialization, finest), moving)
    if not isinstance(found, tuple):
        return control
    crossings, stops = found
    return unchecked(type(control), {**vars(control), "stops": stops, "crossings": crossings})


class _Known(NamedTuple):
    """The leaves of a tree without those that are traced; compared by identity."""

    tree: Any
    leaves: list[Any]

    def __hash__(self) -> int:
        return id(self.leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self.leaves is other.leaves


def _crossings_in_trace(static: tuple[_Known, Initialization, int], moving: list[Any]) -> Any:
    """Return the result of :func:`_crossings`, or the number zero if there are no switches."""
    known, initialization, finest = static
    leaves = [b if a is None else a for a, b in zip(moving, known.leaves, strict=True)]
    found = _crossings(jax.tree.unflatten(known.tree, leaves), initialization, finest)
    return jnp.zeros(()) if found is None else found


def _crossings(
    given: tuple[Field, Any, Any, Any], initialization: Initialization, finest: int
) -> tuple[Crossings, Any] | None:
    """Return the steps across all switches and the stops before them, if there are any."""
    field, breaks, t0, t1 = given
    found = switch_times(field, t0, t1, finest)
    if len(found) == 0 and len(breaks) == 0:
        return None
    xp: Any = jnp if is_traced(found, breaks) else np
    times = xp.concatenate([xp.asarray(found, float), xp.asarray(breaks, float)])
    if xp is np:
        times = np.unique(times)
    room = 1 << max(len(times) - 1, 0).bit_length()  # programs depend on their number
    times = xp.concatenate([times, np.full(room - len(times), np.inf)])
    return crossings_at(times, t0, t1, initialization)


def stopping_at_switches(
    control: PControl, field: Field, breaks: Any, t0: Any, t1: Any
) -> PControl:
    """Return the control with steps that end before switches, for equations without restarts."""
    made = across_switches(control, field, breaks, t0, t1, SlopeStart())
    return unchecked(type(made), {**vars(made), "crossings": None})


def also_stopping_at(control: PControl, times: Any, t0: Any, t1: Any) -> PControl:
    """Return the control with steps that also end at further times."""
    if control.crossings is not None:
        xp: Any = jnp if is_traced(times, control.stops, t0, t1) else np
        direction = xp.where(xp.asarray(t1) >= xp.asarray(t0), 1.0, -1.0)
        times = direction * xp.sort(direction * xp.concatenate([control.stops, times]))
    return unchecked(type(control), {**vars(control), "stops": times})


def snapped(times: Any, control: PControl) -> Any:
    """Return the times at which a solution is needed, with switches moved to the ends of steps."""
    crossings = control.crossings
    if crossings is None:
        return times
    xp: Any = jnp if is_traced(times, crossings.before) else np
    before, after = (xp.asarray(x) for x in (crossings.before, crossings.after))
    inner = crossings.share == 0.5
    known = xp.isfinite(before) & inner
    length = xp.where(known, xp.abs(after - xp.where(known, before, 0.0)), 0.0)
    near = xp.abs(times[:, None] - xp.where(known, before, xp.inf)) <= 3.0 * length
    there = xp.max(xp.where(near, before, -xp.inf), axis=1)
    return xp.where(xp.any(near, axis=1), there, times)


def landing(state: State, order: int, t: Any, share: Any, f: Any) -> Any:
    """Return ``y`` (and all else a start needs) after the step across to ``t``; ``f`` is there."""
    mean, k = state.mean, order
    u, slope = mean[:k].reshape(-1), mean[1 : k + 1].reshape(-1)
    xp: Any = np if on_host(mean) else jnp
    beyond = xp.concatenate([u[len(f) :], f])
    return u + (t - state.t) * ((1.0 - share) * slope + share * beyond)


def across(
    method: Method, left: State, right: State, jacobian: Any, predicted: Any, h: Any
) -> tuple[State, Any]:
    """Return the state after a step across from ``left``, and the noise ``s`` of that step.

    ``right`` is a start there, ``predicted`` the mean that ``left`` predicts over the step's length
    ``h``.
    """
    xp: Any = np if on_host(left.mean) and on_host(right.mean) else jnp
    structure, prior, k = method.structure, method.prior, method.equation.order
    n = prior.size
    powers = 1.0 - np.arange(n)
    coords = prior.weights * h**powers
    at_left = prior.weights * left.h**powers
    columns = [structure.select(left.factor, j) * at_left[j] for j in range(k)]
    values = columns[0]
    jacobians = [] if jacobian is None else xp.split(jacobian, k, axis=-1)
    for _ in range(k, n):
        owing = [structure.times(*pair) for pair in zip(columns[-k:], jacobians, strict=False)]
        columns.append(sum(owing) if owing else xp.zeros_like(values))
    owed = structure.from_columns([columns[i] / coords[i] for i in range(n)])
    change = (right.h / h) ** powers
    own = structure.from_columns([structure.select(right.factor, i) * change[i] for i in range(n)])
    stack = method.constant(xp.concatenate([xp.where(xp.isfinite(owed), owed, 0.0), own], axis=-2))
    factor: Any = np.linalg.qr(stack, mode="r") if xp is np else gaussian.triangularize(stack)
    std = xp.asarray(structure.std(values))
    jump = xp.max(xp.abs((right.mean - predicted) / coords[:, None])[k:], axis=0)
    scale = method.constant(_noise(xp, method, _BEYOND_THE_JUMP * jump, std / xp.abs(coords[0])))
    return State(right.t, h, right.mean, factor, right.drift), scale


def _noise(xp: Any, method: Method, jump: Any, std: Any) -> Any:
    """Return ``s`` of a step across, from the jump and the uncertainty of ``y`` per step."""
    if method.diffusion.varies_by_component:
        return xp.maximum(jump, _UNNOTICED * std)
    least = xp.min(xp.where(std > 0.0, std, xp.inf))
    least, most = xp.where(xp.isfinite(least), least, 0.0), xp.max(std, initial=0.0)
    return xp.asarray(xp.maximum(xp.max(jump), xp.maximum(_UNNOTICED * least, _RESOLVED * most)))
