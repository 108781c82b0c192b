"""Events that act again and again without end: whether time goes on between them.

A ball that loses a part of its speed at every bounce has bounced infinitely often after a finite
time (Zeno). With ``a`` the time that a number of resets took and ``b`` that of as many before
them, the ratio ``r = a/b < 1`` says when: after another ``a r / (1 - r)``. Where a reset leads to
the next one at once, forth and back, time does not go on at all (chattering).
"""

import numpy as np

_WINDOW = 6
"""Resets that are taken together: several events may take turns."""
_CLOSE = 1e-10
"""Part of the time so far that may be left before the limit."""
_AT_ONE_TIME = 20
"""Resets at one time, or within next to none, from which on they do not end."""


class Accumulation:
    """The times of resets so far; ``span`` is the length of the interval."""

    def __init__(self, span: float) -> None:
        self._span = span if np.isfinite(span) else 0.0
        self._times: list[float] = []

    def add(self, t: float) -> None:
        """One more."""
        self._times.append(t)

    def verdict(self) -> str | None:
        """In words why there is no going on, if that is so."""
        count, t = len(self._times), self._times[-1]
        short = _CLOSE * max(abs(t), self._span)
        gaps = np.abs(np.diff(self._times[-2 * _AT_ONE_TIME - 1 :]))
        if len(gaps) >= _AT_ONE_TIME and np.sum(gaps[-_AT_ONE_TIME:]) <= 1e-3 * short:
            return (
                f"{_AT_ONE_TIME} resets followed each other at t = {t:.10g}, with next to no time "
                "between them (chattering): each leads to the next one. Let them depend on the "
                "direction of the event, or leave a distance between the states at which they "
                "switch (a hysteresis)."
            )
        if len(gaps) < 2 * _WINDOW:
            return None
        last, before = np.sum(gaps[-_WINDOW:]), np.sum(gaps[-2 * _WINDOW : -_WINDOW])
        if not 0.0 < last < before:
            return None
        rest = last * last / (before - last)
        if rest > short:
            return None
        limit = t + np.copysign(rest, t - self._times[0])
        return (
            f"Events accumulate at t = {limit:.10g}: after {count} resets the last ones are "
            f"{gaps[-1]:.2g} apart, and infinitely many follow in the next {rest:.2g}. To go on "
            "behind it, let the reset return a probode.Restart with what holds there (a ball at "
            "rest), once little is left of the motion."
        )
