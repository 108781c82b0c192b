"""Traces that functions share which differ in numbers only.

A number that a function reads is a constant of its trace at first: compilers make the most of it,
and most functions are solved with the same numbers again. When the same code comes with others, the
numbers become inputs. Those that steer (``if k > 0``, ``range(int(n))``) have to stay constants,
and so do exponents that have not changed: ``y**2.0`` is more than a power in general.
"""

from collections.abc import Callable, Hashable
from typing import Any

from probode.base.jax_inside import Unreadable, is_literal, operation, programs_in, reading
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

    def follow(jaxpr: Any, entering: list[set[int]]) -> list[set[int]]:
        """Which of them the results depend on."""
        reached = dict(zip((*jaxpr.constvars, *jaxpr.invars), entering, strict=True))

        def behind(atom: Any) -> set[int]:
            return set() if is_literal(atom) else reached[atom]

        for equation in jaxpr.eqns:
            read = [behind(atom) for atom in equation.invars]
            if operation(equation) == "pow":
                found.update(read[1])
            inner = [program.jaxpr for program in programs_in(equation.params)]
            if len(inner) == 1 and len(inner[0].invars) == len(read) and not inner[0].constvars:
                results = follow(inner[0], read)
            else:
                results = [set().union(*read)] * len(equation.outvars)
            reached.update(zip(equation.outvars, results, strict=True))
        return [behind(atom) for atom in jaxpr.outvars]

    jaxpr = field.program.closed(field.constants).jaxpr
    before = len(jaxpr.constvars) + len(jaxpr.invars) - count
    follow(jaxpr, [set() for _ in range(before)] + [{k} for k in range(count)])
    return found
