"""Times at which a vector field switches, read from its program.

``where((t >= 50) & (t < 50.5), 10, 0)`` says when it changes: a solver that stops there jumps over
nothing. A traced program is walked with numbers for everything but ``t`` and ``y``. What depends on
``t`` alone is known as a function of ``t``, most often a piecewise linear one; each comparison,
``floor``, ``%``, ``max``, ``abs``, table lookup of it has its switches where that function crosses
a number::

    a < b, max(a, b), clamp     a - b = 0
    abs(a), sign(a)             a = 0
    floor(a), int(a), round(a)  a = k (round: k + 1/2)
    rem(a, c)                   a = k c
    searchsorted(table, a)      a = table[k]

Between the switches found so far a piecewise linear function is a straight line, whose crossings
are exact; other functions of ``t`` (``sin(t) > 0.9``) are sampled, and changes found by bisection.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from probode.base.jax_inside import (
    IN_NUMPY,
    Closed,
    Unreadable,
    called,
    is_tracer,
    kind,
    operation,
    reading,
    those,
    walk,
)
from probode.programs.constants import Constant, computed_later
from probode.programs.field import Field
from probode.programs.program import SWITCHING, keeps_fractions, timing

_MOST = 10_000
"""Switches of one function: above it is as good as continuous, to be looked at in other ways."""
MOST_OF_A_TABLE = 200
"""Entries of a table to stop at; the steps of a solver pass over finer ones."""
_SAMPLES = 2048
_SAMPLED_WELL = 3
"""Samples between two changes, to be sure that none was missed."""
_BISECTIONS = 60
MARGIN = 8.0 * float(np.finfo(float).eps)
"""Part of the larger end of the interval by which steps end before a switch: less than the shortest
step, so that none fits in between."""


NONE = np.zeros(0)


class Switches(NamedTuple):
    """When a vector field switches within an interval, and how much is known of that."""

    depends_on_time: bool
    times: np.ndarray
    """To stop at, in increasing order."""
    tables: np.ndarray
    """Entries of tables that are too fine to stop at all of them."""
    unresolved: bool = False
    """Whether there are more switches than these: too many, or too short for the samples."""
    finely: bool = False
    """Whether there may be others that nothing is known of: to be looked for at many times."""
    at_ends: tuple[bool, bool] = (False, False)
    """Whether there is a switch at the lower, and at the upper end of the interval."""

    @property
    def numbers(self) -> tuple[bool, int]:
        """Whether the function depends on time, and how often it switches."""
        return self.depends_on_time, len(self.times)

    def joined(self, times: np.ndarray, t0: float, t1: float) -> "Switches":
        """These, and further ones at times of ``t0`` to ``t1`` that somebody else knows of."""
        if len(times) == 0:
            return self
        low, high = min(t0, t1), max(t0, t1)
        near = 4.0 * margin_of(times, t0)
        ends = (
            self.at_ends[0] or bool(np.min(times) <= low + near),
            self.at_ends[1] or bool(np.max(times) >= high - near),
        )
        inside = times[(times > low + near) & (times < high - near)]
        return self._replace(
            depends_on_time=True, times=np.union1d(self.times, inside), at_ends=ends
        )


def stops_before(times: np.ndarray, t0: float, t1: float) -> np.ndarray:
    """Ends of steps right before these times, those between ``t0`` and ``t1``, in their order.

    Right *at* a switch the function may already be what it is afterwards.
    """
    if len(times) == 0:
        return NONE
    direction, margin = 1.0 if t1 >= t0 else -1.0, margin_of(times, t0)
    before = np.unique(direction * np.asarray(times, float)) - margin
    before = before[np.diff(before, prepend=-np.inf) > 4.0 * margin]
    inside = (before > direction * t0 + 4.0 * margin) & (before < direction * t1 - 4.0 * margin)
    return direction * before[inside]


def margin_of(times: Any, t0: Any) -> Any:
    """How long before (and after) a switch its side is sure, in spite of rounding."""
    if is_tracer(times) or is_tracer(t0):
        return MARGIN * jnp.maximum(jnp.abs(t0), jnp.max(jnp.abs(times), initial=0.0))
    return MARGIN * float(max(abs(t0), np.max(np.abs(times), initial=0.0)))


def switches(field: Field, t0: float, t1: float) -> Switches:
    """The switches of a vector field between two times (the end may be infinite: none is found)."""
    kind = timing(field.program)
    if not kind.switches or not np.isfinite(t1):
        return Switches(kind.depends, NONE, NONE)
    found = Walk(min(t0, t1), max(t0, t1))
    arguments = [Constant(value) for value in field.args]
    inputs = [Timed(lambda t: t, linear=True), _STATE, *arguments]
    try:
        with (
            np.errstate(all="ignore"),
            reading("programs with switches in time", "steps do not stop at them"),
        ):
            found.run(field.program.jaxpr, field.constants, inputs)
    except Unreadable:
        pass  # those that were found
    return found.found()


class Timed(NamedTuple):
    """A function of ``t`` alone: from times ``(N,)`` to values ``(N, ...)``; ``None``: unknown."""

    at: Callable[[np.ndarray], np.ndarray] | None
    linear: bool = False
    """Whether it is a straight line between any two neighbouring switches."""


def _at(x: "Constant | Timed", t: np.ndarray) -> np.ndarray:
    """Values at all times, or one for all of them."""
    if isinstance(x, Constant):
        return x.value[None]
    assert x.at is not None
    return x.at(t)


_STATE = object()
"""What depends on ``y``."""


class Walk:
    """A program on an interval, and the switches found in it."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high
        self.times: list[float] = []
        self.tables: list[float] = []
        self.unresolved = False

    def inside(self, times: Sequence[float]) -> np.ndarray:
        """The times within the interval (at its ends rounding has the say), each once."""
        unique, margin = np.unique(np.asarray(times, float)), MARGIN * (self.high - self.low)
        return unique[(unique > self.low + margin) & (unique < self.high - margin)]

    def found(self, finely: bool = False) -> Switches:
        """All switches, and the tables that are too fine to stop at."""
        times, tables = self.inside(self.times), self.inside(self.tables)
        if len(tables) <= MOST_OF_A_TABLE:
            times, tables = self.inside([*times, *tables]), NONE
        near = MARGIN * (self.high - self.low)
        known = np.array([*self.times, *self.tables])
        ends = [bool(np.any(abs(known - end) <= near)) for end in (self.low, self.high)]
        return Switches(True, times, tables, self.unresolved, finely, (ends[0], ends[1]))

    def run(self, jaxpr: Any, constants: Sequence[Any], inputs: list[Any]) -> list[Any]:
        """The results of a program."""
        return walk(
            jaxpr, constants, inputs, lambda value, _: Constant(value), self._apply, _entered
        )

    def _apply(self, equation: Any, operands: list[Any]) -> list[Any]:
        count, inner = len(equation.outvars), called(equation)
        if inner is not None:  # a search
            table, x = operands[:2]
            if not isinstance(x, Timed):
                return self.run(*inner, operands)
            if isinstance(table, Constant) and x.linear:
                self.cross(x, lambda low, high: within(table.value, low, high), True)
            return [Timed(None)] * count
        if all(isinstance(x, Constant) for x in operands):
            return computed_later(equation, operands)
        if any(x is _STATE for x in operands):
            return [_STATE] * count
        name = operation(equation)
        self._note(name, equation, operands)
        return [self._result(name, equation, operands)] * count

    def _result(self, name: str, equation: Any, operands: list[Any]) -> Timed:
        """An operation on functions of time."""
        entrywise, of_axes = name in _ENTRYWISE, name in _OF_AXES
        rule = _ORDER.get(name) or IN_NUMPY.get(name)
        unknown = any(isinstance(x, Timed) and x.at is None for x in operands)
        if rule is None or unknown or not (entrywise or of_axes):
            return Timed(None)
        shapes = [kind(atom)[0] for atom in equation.invars]
        rank = max(map(len, shapes))

        def at(t: np.ndarray) -> np.ndarray:
            rows = []
            for x, shape in zip(operands, shapes, strict=True):
                value = _at(x, t)
                value = np.reshape(value, (value.shape[0], *shape))
                if of_axes:
                    value = np.broadcast_to(value, (len(t), *shape))
                else:  # a number goes with all entries of an array
                    value = value.reshape(value.shape[0], *[1] * (rank - len(shape)), *shape)
                rows.append(value)
            params = _with_times(equation.params, len(t)) if of_axes else equation.params
            result: np.ndarray = rule(params, *rows)
            return result

        moving = [x for x in operands if isinstance(x, Timed)]
        linear = all(x.linear for x in moving) and (
            name in LINEAR
            or (name == "mul" and len(moving) == 1)
            or (name == "div" and isinstance(operands[1], Constant))
        )
        return Timed(_remembering(at), linear)

    def _note(self, name: str, equation: Any, operands: list[Any]) -> None:
        """The switches of an operation on functions of time."""
        if name not in SWITCHING or keeps_fractions(equation):
            return
        linear = all(x.linear for x in operands if isinstance(x, Timed))
        if not linear:
            self.sample(self._result(name, equation, operands))
        elif name == "clamp":
            low, x, high = operands
            for bound in (low, high):
                self.cross(self._difference(equation, x, bound), zero)
        elif name in ("abs", "sign"):
            self.cross(operands[0], zero)
        elif name in LEVELS:
            unit, shift = 1.0, 0.5 if name == "round" else 0.0
            if name == "rem":
                if not isinstance(operands[1], Constant) or operands[1].value.size != 1:
                    return
                unit = abs(float(operands[1].value.reshape(())))
            self.cross(operands[0], lambda low, high: multiples(unit, shift, low, high))
        else:
            self.cross(self._difference(equation, *operands), zero)

    @staticmethod
    def _difference(equation: Any, a: Any, b: Any) -> Timed:
        def at(t: np.ndarray) -> np.ndarray:
            left, right = (_at(x, t) for x in (a, b))
            rank = max(left.ndim, right.ndim)
            left, right = (
                x.reshape(x.shape[0], *[1] * (rank - x.ndim), *x.shape[1:]) for x in (left, right)
            )
            return left.astype(float) - right.astype(float)

        known = not any(isinstance(x, Timed) and x.at is None for x in (a, b))
        return Timed(at if known else None, True)

    def cross(
        self, x: Timed, levels: Callable[[float, float], np.ndarray], table: bool = False
    ) -> None:
        """Note where a piecewise linear function crosses one of its levels."""
        if x.at is None:
            return
        ends = np.concatenate([[self.low], self.inside(self.times), [self.high]])
        length = np.diff(ends)
        first, second = ends[:-1] + length / 3, ends[:-1] + 2 * length / 3
        a, b = (np.reshape(x.at(t), (len(t), -1)).astype(float) for t in (first, second))
        slope = (b - a) / (second - first)[:, None]
        low, high = a - slope * length[:, None] / 3, b + slope * length[:, None] / 3
        found: list[float] = []
        for i, j in zip(*np.nonzero(np.isfinite(slope) & (slope != 0.0)), strict=True):
            crossed = levels(*sorted((low[i, j], high[i, j])))
            if len(crossed) == 0:
                continue
            t = first[i] + (crossed - a[i, j]) / slope[i, j]
            # At its ends belongs to the next; but there is none beyond the interval.
            after = t >= self.low if i == 0 else t > ends[i]
            t = t[after & (t <= self.high if i == len(slope) - 1 else t < ends[i + 1])]
            if t.size and len(found) < _MOST:  # once more from nearby, for the last digits
                k = np.argmin(np.abs(crossed[:, None] - a[i, j] - slope[i, j] * (t - first[i])), 0)
                value = np.reshape(x.at(t), (len(t), -1))[:, j].astype(float)
                t = t + (crossed[k] - value) / slope[i, j]
                found += t.tolist()
        if len(found) < _MOST:
            (self.tables if table else self.times).extend(found)
        else:
            self.unresolved = True

    def sample(self, x: Timed) -> None:
        """Note where a function of time with few values changes, as far as samples show."""
        if x.at is None:
            return
        t = np.linspace(self.low, self.high, _SAMPLES + 1)
        t = np.unique(np.concatenate([t, self.inside(self.times)]))

        def value(t: np.ndarray) -> np.ndarray:
            assert x.at is not None
            return np.reshape(x.at(t), (len(t), -1))

        seen = value(t)
        if seen.dtype.kind == "f" and len(np.unique(seen)) > _SAMPLES // 4:
            return  # max, abs: not few values
        changed = np.nonzero(np.any(seen[1:] != seen[:-1], axis=1))[0]
        low, high, before = t[changed], t[changed + 1], seen[changed]
        for _ in range(_BISECTIONS if len(changed) else 0):
            middle = 0.5 * (low + high)
            same = np.all(value(middle) == before, axis=1)
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        self.times.extend(high.tolist())
        # What is over within a cell or two may also have come and gone within one.
        self.unresolved |= bool(np.any(np.diff(changed) < _SAMPLED_WELL))


def _remembering(function: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    """A function that knows its last answer: many results are made of the same parts."""
    last: list[Any] = [None, None]

    def remembered(t: np.ndarray) -> np.ndarray:
        if last[0] is not t:
            last[:] = t, function(t)
        result: np.ndarray = last[1]
        return result

    return remembered


def zero(low: float, high: float) -> np.ndarray:
    """The level zero."""
    return np.zeros(1)


def within(table: np.ndarray, low: float, high: float) -> np.ndarray:
    """The entries of a table between two numbers."""
    return table[(table >= low) & (table <= high)]


def multiples(unit: float, shift: float, low: float, high: float) -> np.ndarray:
    """``unit (k + shift)`` between two numbers, but no more of them than are ever used."""
    first, last = np.ceil(low / unit - shift), np.floor(high / unit - shift)
    if not last >= first:
        return NONE
    return unit * (first + np.arange(min(last - first + 1, _MOST)) + shift)


def _entered(equation: Any) -> Closed | None:
    return None if equation.params.get("name") == "searchsorted" else called(equation)


def _with_times(params: dict[str, Any], count: int) -> dict[str, Any]:
    """The parameters of an operation, for arrays with one axis more in front: that of the times."""
    further = {
        **{key: lambda axis: axis + 1 for key in ("axis", "dimension")},
        **{key: lambda axes: tuple(axis + 1 for axis in axes) for key in ("axes", "dimensions")},
        "broadcast_dimensions": lambda axes: (0, *(axis + 1 for axis in axes)),
        **{key: lambda sizes: (count, *sizes) for key in ("shape", "new_sizes", "limit_indices")},
        "start_indices": lambda starts: (0, *starts),
        "strides": lambda strides: (1, *strides),
    }
    return {
        key: further[key](value) if key in further and value is not None else value
        for key, value in params.items()
    }


_OF_AXES = frozenset(
    (
        *("broadcast_in_dim", "concatenate", "copy", "copy_p", "expand_dims", "reduce_and"),
        *("reduce_or", "reduce_sum", "reshape", "slice", "squeeze", "stack"),
    )
)
"""Operations that know of axes, and do the same for all times."""

_ORDER: dict[str, Callable[..., np.ndarray]] = {
    "lt_to": lambda params, a, b: a < b,
    "le_to": lambda params, a, b: a <= b,
}
"""As :func:`jax.lax.sort` compares, for which numbers that are none count too."""

_ENTRYWISE = those("entrywise") | _ORDER.keys()
LEVELS = those("levels")

LINEAR = SWITCHING | those("moving", "linear", "logical") | {"stop_gradient"}
"""Piecewise linear results of piecewise linear operands, once their switches are noted."""
