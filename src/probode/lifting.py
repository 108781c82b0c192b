"""Traces that functions share which differ in numbers only.

A number that a function reads is a constant of its trace at first: compilers make the most of it,
and most functions are solved with the same numbers again. When the same code comes with others, the
numbers become inputs. Those that steer (``if k > 0``, ``range(int(n))``) have to stay constants,
and so do exponents that have not changed: ``y**2.0`` is more than a power in general.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from jax.extend import core

from probode.identity import Signature
from probode.problem import Field
from probode.tracing import Numbers

_AT_MOST = 40
"""Numbers above which none becomes an input."""
_TRIED_ALONE = 12
_KEPT = 8


Lift = Callable[[Numbers], Any]
"""Trace with some numbers as inputs; ``None`` where that fails."""


class _Known(NamedTuple):
    """A trace, the numbers (by position) that are inputs, and the values of the others."""

    trace: Any
    inputs: tuple[int, ...]
    others: tuple[Hashable, ...]


class Shared:
    """The traces of one code, for whatever numbers.

    Parameters
    ----------
    first
        The function that came first.
    """

    def __init__(self, first: Signature) -> None:
        self._first = first.values()
        self._inputs: tuple[int, ...] | None = None
        self._known: list[_Known] = []

    def get(self, signature: Signature, lift: Lift) -> Any | None:
        """A trace with the numbers of ``signature`` put in; ``None`` where it has to be its own."""
        values = signature.values()
        if not values or len(values) > _AT_MOST or values == self._first:
            return None
        if self._inputs is None:
            pairs = zip(values, self._first, strict=True)
            changed = [i for i, (now, before) in enumerate(pairs) if now != before]
            self._inputs = _choose(signature, changed, lift)
        if not self._inputs:
            return None
        others = tuple(value for i, value in enumerate(values) if i not in self._inputs)
        for known in self._known:
            if known.others == others:
                return known.trace._replace(numbers=_numbers(signature, self._inputs))
        found = lift(_numbers(signature, self._inputs))
        if found is not None and found.field.may_be_kept():
            self._known = [_Known(found, self._inputs, others), *self._known[: _KEPT - 1]]
        return found


def _numbers(signature: Signature, inputs: tuple[int, ...]) -> Numbers:
    return Numbers({signature.places[i]: signature.numbers[i] for i in inputs})


def _choose(signature: Signature, changed: list[int], lift: Lift) -> tuple[int, ...]:
    """Which numbers can be inputs: all that do not steer, but for exponents that stay the same."""
    every = tuple(range(len(signature.numbers)))
    chosen, found = every, _attempt(signature, every, lift)
    if found is None:
        if len(every) > _TRIED_ALONE:
            return ()
        chosen = tuple(i for i in every if _attempt(signature, (i,), lift) is not None)
        found = _attempt(signature, chosen, lift) if chosen else None
        if found is None:
            return ()
    exponents = _exponents(found.field, len(chosen))
    return tuple(
        i
        for k, i in enumerate(chosen)
        if signature.places[i] in found.numbers.replaced and (i in changed or k not in exponents)
    )


def _attempt(signature: Signature, inputs: tuple[int, ...], lift: Lift) -> Any | None:
    try:
        return lift(_numbers(signature, inputs))
    except Exception:  # what is traced with other inputs than it was written for fails in any way
        return None


def _exponents(field: Field, count: int) -> set[int]:
    """Which of the last ``count`` inputs enter an exponent."""
    jaxpr = field.program.closed(field.constants).jaxpr
    last = jaxpr.invars[len(jaxpr.invars) - count :]
    reached: dict[Any, set[int]] = {variable: {k} for k, variable in enumerate(last)}
    found: set[int] = set()

    def behind(atoms: Any) -> set[int]:
        known = (reached.get(atom, set()) for atom in atoms if not isinstance(atom, core.Literal))
        return set().union(*known)

    for equation in jaxpr.eqns:
        if equation.primitive.name == "pow":
            found |= behind(equation.invars[1:])
        elif "pow" in str(equation.params):
            found |= behind(equation.invars)
        for variable in equation.outvars:
            reached[variable] = behind(equation.invars)
    return found
