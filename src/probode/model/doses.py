"""Doses at given times: what is put into a compartment at once, or at a constant rate."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from probode.programs.inputs import Constant

__all__ = ["Doses", "doses"]


@dataclass(frozen=True)
class Doses:
    """A dosing table, one row a dose; made by :func:`doses`.

    Examples
    --------
    >>> import probode
    >>> table = probode.doses([0.0, 12.0], [100.0, 50.0])
    >>> table.times.tolist(), table.amounts.tolist()
    ([0.0, 12.0], [100.0, 50.0])
    """

    times: np.ndarray
    amounts: np.ndarray
    compartments: np.ndarray
    durations: np.ndarray
    """Zero: at once."""

    @property
    def jumps(self) -> list[tuple[float, Callable[[Any, Any], Any]]]:
        """Doses that are given at once: ``(time, map)``, with ``map(t, y)`` the state after it."""
        rows = zip(self.times, self.compartments, self.amounts, self.durations, strict=True)
        return [(float(t), Bolus(int(c), float(a))) for t, c, a, d in rows if d == 0.0]

    @property
    def infused(self) -> np.ndarray:
        """Compartments into which something flows, each once."""
        return np.unique(self.compartments[self.durations > 0.0])

    @property
    def rate(self) -> Constant | None:
        """The rates of all infusions together, ``(time) -> (number in infused,)``, if any."""
        slow = self.durations > 0.0
        if not np.any(slow):
            return None
        begin, end = self.times[slow], (self.times + self.durations)[slow]
        times = np.unique(np.concatenate([[np.min(begin) - 1.0], begin, end]))
        on = (times[:, None] >= begin) & (times[:, None] < end)
        into = self.compartments[slow][:, None] == self.infused
        each = (self.amounts / np.where(slow, self.durations, 1.0))[slow][:, None] * into
        return Constant(times, on @ each)

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True)
class Bolus:
    """``y`` with an amount more in one component."""

    compartment: int
    amount: float

    def __call__(self, t: Any, y: Any) -> Any:
        """The state after the dose."""
        after = np.array(y)
        after[self.compartment] += self.amount
        return after


def doses(
    times: Any,
    amounts: Any,
    compartment: Any = 0,
    duration: Any = None,
    *,
    repeats: Any = 1,
    every: Any = None,
) -> Doses:
    """A dosing table, for ``solve_ivp(..., doses=...)``: numbers, or one for each row.

    Parameters
    ----------
    times
        When a dose is given, or begins to be.
    amounts
        What is added to the state.
    compartment
        The component of the state that it is added to.
    duration
        How long an infusion takes, at a constant rate, which the solver adds to ``fun``; by default
        (and where it is zero) all of it is given at once.
    repeats, every
        How many times in all each dose is given, and the time from one to the next.

    Examples
    --------
    >>> import probode
    >>> table = probode.doses(0.0, 100.0, repeats=3, every=8.0)
    >>> table.times.tolist()
    [0.0, 8.0, 16.0]
    """
    given = {
        "times": times,
        "amounts": amounts,
        "compartment": compartment,
        "duration": 0.0 if duration is None else duration,
        "repeats": repeats,
        "every": 0.0 if every is None else every,
    }
    try:
        rows = [np.atleast_1d(np.asarray(value, float)) for value in given.values()]
        t, amount, into, length, count, gap = np.broadcast_arrays(*rows)
        if t.ndim != 1:
            raise ValueError("more than one axis")
    except (TypeError, ValueError) as error:
        shapes = ", ".join(f"{name} {np.shape(value)}" for name, value in given.items())
        raise ValueError(
            f"doses takes numbers, or vectors of one length (a row a dose); got shapes {shapes}: "
            f"{error}."
        ) from None
    for name, value in zip(given, (t, amount, into, length, count, gap), strict=True):
        if not np.all(np.isfinite(value)):
            raise ValueError(f"{name} of doses must be finite, got {value}.")
    if np.any(length < 0.0):
        raise ValueError(f"duration must not be negative, got {length.min():g}.")
    if np.any(into != np.floor(into)) or np.any(into < 0):
        raise ValueError(f"compartment must be an index into the state, 0, 1, ..., got {into}.")
    if np.any(count != np.floor(count)) or np.any(count < 1):
        raise ValueError(f"repeats must be positive whole numbers, got {count}.")
    if np.any((count > 1) & (gap <= 0.0)):
        raise ValueError("repeats needs every: the (positive) time from one dose to the next.")
    which = np.repeat(np.arange(len(t)), count.astype(int))
    number = np.concatenate([np.arange(n) for n in count.astype(int)])
    when = t[which] + number * gap[which]
    order = np.argsort(when, kind="stable")
    which = which[order]
    return Doses(when[order], amount[which], into[which].astype(int), length[which])
