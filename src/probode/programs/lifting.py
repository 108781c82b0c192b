"""Traces that functions share which differ in numbers only.

A number that a function reads is a constant of its trace at first: compilers make the most of it,
and most functions are solved with the same numbers again. When the same code comes with others, the
numbers become inputs. Those that steer (``if k > 0``, ``range(int(n))``) have to stay constants,
and so do exponents that have not changed: ``y**2.0`` is more than a power in general.
"""

from collections.abc import Callable, Hashable
from typing import Any

from probode.base.jax_inside import Closed, Unreadable, operation, programs_in, reading, walk
from probode.programs.field import Field
from probode.programs.identity import Signature
from probode.programs.tracing import Numbers

_AT_MOST = 40
"""Numbers above which none becomes an input."""
_TRIED_ALONE = 12
_KEPT = 8


Lift = Callable[[Numbers], Any]
"""Trace with some numbers as inputs; ``None`` where that fails."""


class Shared:
    """The traces of one code, for whatever numbers.

    Parameters
    ----------
    first
        The function that came first.
    """

    def __init__(self, first: Signature) -> None:
        self._first = first.values()
        self._free: tuple[int, ...] | None = None
        """Numbers (by position) that do not steer; not known before there are others."""
        self._exponents: set[int] = set()
        """Those among them that are exponents, and have not changed."""
        self._known: list[tuple[Hashable, Any]] = []
        """Traces, by which numbers are inputs, and by the values of the others."""

    def get(self, signature: Signature, lift: Lift) -> Any | None:
        """A trace with the numbers of ``signature`` put in; ``None`` where it has to be its own."""
        values = signature.values()
        if not values or len(values) > _AT_MOST or values == self._first:
            return None
        if self._free is None:
            self._free, self._exponents = _choose(signature, lift)
        self._exponents = {i for i in self._exponents if values[i] == self._first[i]}
        inputs = tuple(i for i in self._free if i not in self._exponents)
        if not inputs:
            return None
        numbers = _numbers(signature, inputs)
        kind = (inputs, tuple(value for i, value in enumerate(values) if i not in inputs))
        for known, trace in self._known:
            if known == kind:
                return trace._replace(numbers=numbers)
        found = lift(numbers)
        if found is not None and found.field.may_be_kept():
            self._known = [(kind, found), *self._known[: _KEPT - 1]]
        return found


def _numbers(signature: Signature, inputs: tuple[int, ...]) -> Numbers:
    return Numbers({signature.places[i]: signature.numbers[i] for i in inputs})


def _choose(signature: Signature, lift: Lift) -> tuple[tuple[int, ...], set[int]]:
    """Which numbers can be inputs (all that do not steer), and which of them are exponents."""
    free = tuple(range(len(signature.numbers)))
    found = _attempt(signature, free, lift)
    if found is None and len(free) <= _TRIED_ALONE:
        free = tuple(i for i in free if _attempt(signature, (i,), lift) is not None)
        found = _attempt(signature, free, lift) if free else None
    if found is None:
        return (), set()
    try:
        with reading("programs with exponents", "numbers that change are compiled anew"):
            exponents = {free[k] for k in _exponents(found.field, len(free))}
    except Unreadable:
        return (), set()
    return tuple(i for i in free if signature.places[i] in found.numbers.replaced), exponents


def _attempt(signature: Signature, inputs: tuple[int, ...], lift: Lift) -> Any | None:
    try:
        return lift(_numbers(signature, inputs))
    except Exception:  # what is traced with other inputs than it was written for fails in any way
        return None


def _exponents(field: Field, count: int) -> set[int]:
    """Which of the last ``count`` inputs enter an exponent."""
    found: set[int] = set()

    def apply(equation: Any, read: list[set[int]]) -> list[set[int]]:
        if operation(equation) == "pow":
            found.update(read[1])
        return [set().union(*read)] * len(equation.outvars)

    def enter(equation: Any) -> Closed | None:
        inner = programs_in(equation.params)
        if len(inner) != 1 or inner[0].jaxpr.constvars:
            return None
        return inner[0] if len(inner[0].jaxpr.invars) == len(equation.invars) else None

    jaxpr = field.program.jaxpr
    inputs = [set[int]() for _ in jaxpr.invars[count:]] + [{k} for k in range(count)]
    walk(jaxpr, field.constants, inputs, lambda *_: set[int](), apply, enter)
    return found
