"""Times at which a vector field switches, where these depend on numbers that are not known yet.

Inside ``jit``, ``vmap`` and ``grad`` the time in ``where(t > lag, ...)`` is a function of ``lag``.
The rules are those of :mod:`probode.programs.switches`, with arrays of a fixed length instead of
lists: a crossing that is not there is infinite. The times have derivatives::

    t = t_1 + (c - g(t_1, θ)) / g'      for the crossing g(t, θ) = c of a straight line
    ∂t/∂θ = -∂g/∂θ / ∂g/∂t              for that of any other function
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.jax_inside import (
    Closed,
    Unreadable,
    apply,
    called,
    operation,
    reading,
    those,
    walk,
)
from probode.base.precision import is_traced
from probode.programs.field import Field
from probode.programs.program import SWITCHING, keeps_fractions, timing
from probode.programs.switches import LEVELS, LINEAR, MOST_OF_A_TABLE, NONE, switches

_ROOM = 128
"""Largest number of crossings, of a line with the multiples of a number or of a curve with a level,
that are found if their number is not known: at any others steps do not end."""
_MOST = 20_000
"""Largest number of places at which the crossings of one operation are sought."""
_SAMPLES, _BISECTIONS = 1024, 60
_SLACK = 1e-12
"""Part of the interval by which a crossing may be outside of the piece it was computed from."""


def switch_times(field: Field, t0: Any, t1: Any, finest: int = MOST_OF_A_TABLE) -> Any:
    """Times from ``t0`` to ``t1`` at which a vector field switches, in any order.

    They are traced if they depend on traced numbers; then some may be infinite, or outside of the
    interval. Tables of more than ``finest`` entries are skipped.
    """
    kind = timing(field.program)
    if not kind.switches:
        return NONE
    if not is_traced(field.args, field.constants, t0, t1):
        found = switches(field, float(t0), float(t1))
        ends = sorted((float(t0), float(t1)))
        return np.concatenate([found.times, np.array(ends)[list(found.at_ends)]])
    walked = _Walk(t0, t1, finest)
    arguments = [_ConstantValue(value) for value in field.args]
    time = _TimeFunction(lambda t: t, linear=True, straight=True, known=True)
    try:
        with reading("programs with switches in time", "steps do not stop at them"):
            walked.run(field.program.jaxpr, field.constants, [time, _STATE, *arguments])
    except Unreadable:
        pass  # those that were found
    return walked.found()


class _ConstantValue(NamedTuple):
    """A value that depends on neither ``t`` nor ``y``."""

    value: Any


@dataclass(frozen=True)
class _TimeFunction:
    """A function of ``t`` alone; ``None``: unknown."""

    at: Callable[[Any], Any] | None
    linear: bool = False
    """Whether it is a straight line between any two neighbouring switches."""
    straight: bool = False
    """Whether it is one straight line."""
    known: bool = False
    """Whether all its numbers are known."""


_STATE = object()
"""Value that stands for everything that depends on ``y``."""

_STRAIGHT = (LINEAR - SWITCHING - those("logical")) - {"select_n"}
_BENDS = those("compares", "bends")


class _Walk:
    """A program, and the switches found in it."""

    def __init__(self, t0: Any, t1: Any, finest: int) -> None:
        self.finest = finest
        self.known = not is_traced(t0, t1)
        xp: Any = np if self.known else jnp
        self.low, self.high = xp.minimum(t0, t1), xp.maximum(t0, t1)
        self.times: list[Any] = []

    def found(self) -> Any:
        """All times in one array."""
        if not is_traced(self.times):
            return np.concatenate([NONE, *map(np.asarray, self.times)])
        return jnp.concatenate([jnp.asarray(one, float) for one in self.times])

    def run(self, jaxpr: Any, constants: Sequence[Any], inputs: list[Any]) -> list[Any]:
        """The results of a program."""
        return walk(
            jaxpr, constants, inputs, lambda value, _: _ConstantValue(value), self._apply, _entered
        )

    def _apply(self, equation: Any, operands: list[Any]) -> list[Any]:
        count, inner = len(equation.outvars), called(equation)
        moving = [x for x in operands if isinstance(x, _TimeFunction)]
        if any(x is _STATE for x in operands) and (inner is None or not moving):
            return [_STATE] * count
        if inner is not None:  # a search
            table, x = operands[:2]
            if not moving:
                return self.run(*inner, operands)
            if isinstance(table, _ConstantValue) and isinstance(x, _TimeFunction) and x.linear:
                entries = table.value
                if np.size(entries) <= self.finest:
                    self._cross(x, _Levels(entries=entries))
            return [_TimeFunction(None)] * count
        if not moving:
            values = [x.value for x in operands]
            with nullcontext() if is_traced(values) else jax.ensure_compile_time_eval():
                return [_ConstantValue(value) for value in apply(equation, values)]
        self._note(operation(equation), equation, operands)
        return self._results(operation(equation), equation, operands)

    def _results(self, name: str, equation: Any, operands: list[Any]) -> list[_TimeFunction]:
        moving = [x for x in operands if isinstance(x, _TimeFunction)]
        if any(x.at is None for x in moving):
            return [_TimeFunction(None)] * len(equation.outvars)
        every = _remembering(lambda t: apply(equation, [_at(x, t) for x in operands]))
        factor = (name == "mul" and len(moving) == 1) or (
            name == "div" and isinstance(operands[1], _ConstantValue)
        )
        linear = all(x.linear for x in moving) and (name in LINEAR or factor)
        straight = all(x.straight for x in moving) and (
            name in _STRAIGHT
            or factor
            or (name == "convert_element_type" and keeps_fractions(equation))
        )
        known = all(x.known for x in moving) and not is_traced(
            [x.value for x in operands if isinstance(x, _ConstantValue)]
        )
        count = len(equation.outvars)
        return [
            _TimeFunction(partial(_part, every, i), linear, straight, known) for i in range(count)
        ]

    def _note(self, name: str, equation: Any, operands: list[Any]) -> None:
        """The switches of an operation on functions of time."""
        if name not in SWITCHING or keeps_fractions(equation):
            return
        if any(isinstance(x, _TimeFunction) and x.at is None for x in operands):
            return
        if name == "clamp":
            low, x, high = operands
            for bound in (low, high):
                self._cross(_difference(x, bound), _Levels())
        elif name in LEVELS:
            unit: Any = 1.0
            if name == "rem":
                if not isinstance(operands[1], _ConstantValue) or np.size(operands[1].value) != 1:
                    return
                unit = jnp.abs(jnp.ravel(jnp.asarray(operands[1].value, float))[0])
            self._cross(operands[0], _Levels(unit=unit, shift=0.5 if name == "round" else 0.0))
        elif name in ("abs", "sign"):
            self._cross(operands[0], _Levels())
        else:
            self._cross(_difference(*operands), _Levels())

    def _cross(self, x: Any, levels: "_Levels") -> None:
        """Note where a function crosses one of some levels."""
        if not isinstance(x, _TimeFunction) or x.at is None:
            return
        known = x.known and self.known and not is_traced(levels)
        known = known and (x.straight or not is_traced(self.times))
        with jax.ensure_compile_time_eval() if known else nullcontext():
            t = self._of_lines(x, levels, known) if x.linear else self._of_curve(x, levels)
        if known:
            found = np.asarray(t)
            t = found[np.isfinite(found)]
        self.times.append(t)

    def _of_lines(self, x: _TimeFunction, levels: "_Levels", known: bool) -> Any:
        """Crossings of straight lines, each computed from two points of its piece."""
        ends = jnp.stack([jnp.asarray(self.low, float), jnp.asarray(self.high, float)])
        if not x.straight and self.times:
            inner = jnp.concatenate([jnp.asarray(one, float) for one in self.times])
            inner = jnp.clip(jnp.where(jnp.isfinite(inner), inner, self.high), *ends)
            ends = jnp.sort(jnp.concatenate([ends, inner]))
        ends = jax.lax.stop_gradient(ends)
        length = jnp.diff(ends)
        first, second = ends[:-1] + length / 3, ends[:-1] + 2 * length / 3
        a, b = _values(x, first), _values(x, second)
        apart = jnp.where(length > 0.0, second - first, 1.0)[:, None]
        slope = (b - a) / apart
        reach = slope * length[:, None] / 3
        lowest, highest = jnp.minimum(a, b) - jnp.abs(reach), jnp.maximum(a, b) + jnp.abs(reach)
        wanted = levels.between(lowest, highest, known)
        if np.size(wanted) > _MOST:
            return jnp.zeros(0)
        # A piece between two roundings of one time has no slope to speak of.
        slack = _SLACK * (ends[-1] - ends[0])
        crosses = (jnp.isfinite(slope) & (slope != 0.0) & (length > slack)[:, None])[..., None]
        t = first[:, None, None] + (wanted - a[..., None]) / jnp.where(
            crosses, slope[..., None], 1.0
        )
        inside = (t >= ends[:-1, None, None] - slack) & (t <= ends[1:, None, None] + slack)
        return jnp.where(crosses & inside, t, jnp.inf).reshape(-1)

    def _of_curve(self, x: _TimeFunction, levels: "_Levels") -> Any:
        """Crossings of any other function, as far as samples show: by bisection."""
        grid = jax.lax.stop_gradient(
            self.low + (self.high - self.low) * jnp.linspace(0.0, 1.0, _SAMPLES + 1)
        )
        seen = levels.passed(_values(x, grid))
        width = seen.shape[1]
        changed = jnp.ravel(seen[1:] != seen[:-1])
        places = jnp.sort(jnp.where(changed, np.arange(changed.size, dtype=float), np.inf))[:_ROOM]
        real = jnp.isfinite(places)
        places = jnp.where(real, places, 0.0).astype(int)
        rows, mine = places // width, (places % width)[:, None] == np.arange(width)

        def own(t: Array) -> Array:
            return jnp.sum(jnp.where(mine, _values(x, t), 0.0), axis=1)

        before = levels.passed(own(grid[rows]))

        def halve(_: Any, pair: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = pair
            middle = 0.5 * (low + high)
            same = levels.passed(own(middle)) == before
            return jnp.where(same, middle, low), jnp.where(same, high, middle)

        bracket = grid[rows], grid[rows + 1]
        t = jax.lax.stop_gradient(jax.lax.fori_loop(0, _BISECTIONS, halve, bracket)[1])
        value, slope = jax.jvp(own, (t,), (jnp.ones_like(t),))
        slope = jax.lax.stop_gradient(slope)
        moved = (value - jax.lax.stop_gradient(value)) / jnp.where(slope == 0.0, 1.0, slope)
        return jnp.where(real, t - moved, jnp.inf)


class _Levels(NamedTuple):
    """Levels at which an operation switches: zero, entries of a table, or ``unit (k + shift)``."""

    entries: Any = None
    unit: Any = None
    shift: float = 0.0

    def between(self, low: Any, high: Any, known: bool) -> Any:
        """Return the levels between two numbers along a further axis; some may lie outside."""
        if self.entries is not None:
            entries = jnp.ravel(jnp.asarray(self.entries, float))
            return jnp.broadcast_to(entries, (*low.shape, entries.size))
        if self.unit is None:
            return jnp.zeros((*low.shape, 1))
        first = jnp.ceil(low / self.unit - self.shift)
        last = jnp.floor(high / self.unit - self.shift)
        room = _ROOM
        if known:
            most = np.max(np.asarray(last - first), initial=0.0)
            room = int(min(most, _MOST)) + 1 if np.isfinite(most) else 1
        return self.unit * (first[..., None] + jnp.arange(room) + self.shift)

    def passed(self, value: Any) -> Any:
        """Count the levels below a value, up to a constant."""
        if self.entries is not None:
            return jnp.searchsorted(jnp.ravel(jnp.asarray(self.entries, float)), value)
        if self.unit is None:
            return jnp.sign(value)
        return jnp.floor(value / self.unit - self.shift)


def _part(function: Callable[[Any], Any], i: int, t: Any) -> Any:
    return function(t)[i]


def _at(x: Any, t: Any) -> Any:
    if not isinstance(x, _TimeFunction):
        return x.value
    assert x.at is not None
    return x.at(t)


def _values(x: _TimeFunction, t: Array) -> Array:
    """Values at all times, ``(len(t), entries)``."""
    return jax.vmap(lambda one: jnp.ravel(jnp.asarray(_at(x, one), float)))(t)


def _difference(a: Any, b: Any) -> _TimeFunction:
    def at(t: Any) -> Any:
        return jnp.asarray(_at(a, t), float) - jnp.asarray(_at(b, t), float)

    moving = [x for x in (a, b) if isinstance(x, _TimeFunction)]
    numbers = [x.value for x in (a, b) if isinstance(x, _ConstantValue)]
    return _TimeFunction(
        at,
        all(x.linear for x in moving),
        all(x.straight for x in moving),
        all(x.known for x in moving) and not is_traced(numbers),
    )


def _remembering(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that remembers its last result, since many results share their parts."""
    last: list[Any] = [None, None]

    def remembered(t: Any) -> Any:
        if last[0] is not t:
            last[:] = t, function(t)
        return last[1]

    return remembered


def _entered(equation: Any) -> Closed | None:
    return None if equation.params.get("name") == "searchsorted" else called(equation)
