"""Branches on traced values: a function is run once along every path, and results are selected.

``if``, ``while``, ``and``, ``not`` and conditional expressions want the truth of a comparison,
which is not known while tracing. A function that has two paths is run twice, once for each answer::

    def f(t, y):                          where(t > 5, a, b)
        return a if t > 5 else b

A path remembers what has been decided on it: after ``t < 1`` was false, ``t >= 1`` is true and
``t < 0.5`` is false. So a schedule of ``n`` intervals has about ``2 n`` paths, and no path is
followed that numbers cannot take. (A comparison with NaN is false, here as everywhere; only paths
that need a number to be neither smaller nor larger nor equal are left out.)
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probode.programs.tracing.watching import watch

_MOST_PATHS = 256
"""Paths after which a function is left to Python."""
_MOST_QUESTIONS = 50_000
"""Largest number of decisions on all paths: a loop may never end if its condition is traced."""

_TURNS = "give the loop a fixed number of iterations"

_Bound = tuple[float, int]
"""An end of an interval: a number, and 0 for the number itself or ±1 for right above or below."""

_FLIPPED = {"less": "greater", "less_equal": "greater_equal"}
_FLIPPED |= {after: before for before, after in _FLIPPED.items()}
_NEGATED = {"greater": "less_equal", "greater_equal": "less", "not_equal": "equal"}


class BranchPath:
    """The decisions of one run of a function.

    Parameters
    ----------
    outcomes
        The first answers; further questions are answered with true.
    """

    def __init__(self, outcomes: Sequence[bool] = ()) -> None:
        self._given = outcomes
        self.conditions: list[Any] = []
        self.outcomes: list[bool] = []
        self._known: dict[Any, bool] = {}
        self._intervals: dict[Any, tuple[_Bound, _Bound]] = {}

    def decide(self, condition: jax.Array) -> bool:
        """Return the truth of ``condition`` on this path."""
        comparison = _in_normal_form(watch.comparisons.get(id(condition)))
        known = self._implied(id(condition), comparison)
        if known is not None:
            return known
        here = len(self.outcomes)
        outcome = self._given[here] if here < len(self._given) else True
        self.conditions.append(condition)
        self.outcomes.append(outcome)
        self._known[id(condition)] = outcome
        if comparison is not None:
            self._learn(comparison, outcome)
        return outcome

    def _implied(self, name: int, comparison: Any) -> bool | None:
        """Return the truth of a condition if earlier decisions imply it."""
        if name in self._known or comparison is None:
            return self._known.get(name)
        kind, quantity, number, positive = comparison
        low, high = self._intervals.get(quantity, _EVERYWHERE)
        found = self._known.get((kind, quantity, number))
        if kind == "less":
            found = True if high < (number, 0) else False if low >= (number, 0) else None
        elif kind == "less_equal":
            found = True if high <= (number, 0) else False if low > (number, 0) else None
        elif low > (number, 0) or high < (number, 0):
            found = False
        elif low == high:
            found = True
        return found if found is None else found is positive

    def _learn(self, comparison: Any, outcome: bool) -> None:
        kind, quantity, number, positive = comparison
        holds = outcome is positive
        low, high = self._intervals.get(quantity, _EVERYWHERE)
        if kind == "equal":
            self._known[kind, quantity, number] = holds
            if holds:
                low, high = (number, 0), (number, 0)
        elif holds:
            high = min(high, (number, -1 if kind == "less" else 0))
        else:
            low = max(low, (number, 0 if kind == "less" else 1))
        self._intervals[quantity] = low, high


_EVERYWHERE: tuple[_Bound, _Bound] = ((-np.inf, 0), (np.inf, 0))


def _in_normal_form(comparison: Any) -> tuple[str, Any, float, bool] | None:
    """Return ``less``, ``less_equal`` or ``equal``, a quantity, a number, and whether it is so.

    A quantity is a traced value, or the difference of two.
    """
    if comparison is None:
        return None
    kind, left, right = comparison
    if not isinstance(left, jax.Array) or (isinstance(right, jax.Array) and id(left) > id(right)):
        kind, left, right = _FLIPPED.get(kind, kind), right, left
    quantity: Any = id(left)
    if isinstance(right, jax.Array):
        quantity, right = (id(left), id(right)), 0.0
    number = float(right)
    if np.isnan(number):
        return None
    return _NEGATED.get(kind, kind), quantity, number, kind not in _NEGATED


def along_every_path(call: Callable[[], jax.Array]) -> jax.Array:
    """Return ``call()``, whose branches are selected by the conditions they were taken on."""
    count = 0

    def along(outcomes: Sequence[bool]) -> jax.Array:
        nonlocal count
        count += 1
        if count > _MOST_PATHS:
            raise watch.refuse(
                f"its branches have more than {_MOST_PATHS} combinations",
                None,
                "write numpy.where, numpy.maximum or numpy.select, with whole arrays",
            )
        path = watch.path = BranchPath(outcomes)
        value = call()
        for k in reversed(range(len(outcomes), len(path.outcomes))):
            other = along([*path.outcomes[:k], not path.outcomes[k]])
            if other.shape != value.shape:
                raise TypeError(f"The branches return shapes {value.shape} and {other.shape}.")
            if other is not value:
                value = jnp.where(path.conditions[k], value, other)
        return value

    try:
        return along(())
    finally:
        watch.path = None
        watch.forget()


def decide(value: Any) -> bool:
    """Return the truth of a traced number on the path that is being followed."""
    path = watch.path
    if path is None:
        raise watch.refuse("a branch needs a number that is known while tracing", value)
    watch.questions += 1
    if watch.questions > _MOST_QUESTIONS:
        raise watch.refuse("a loop that does not end for some values", value, _TURNS)
    if value.dtype != bool:
        value = compared("not_equal", value, 0.0)
    return bool(path.decide(value.reshape(()) if value.ndim else value))


def compared(kind: str, left: Any, right: Any) -> Any:
    """Return ``left < right`` and the like, noted if they are single numbers.

    The same comparison of the same numbers is the same value.
    """
    value = watch.once((kind, left, right), lambda: getattr(jnp, kind)(left, right))
    if all(jnp.ndim(x) == 0 and not jnp.iscomplexobj(x) for x in (left, right)):
        watch.comparisons[id(value)] = (kind, left, right)
    return value


COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
