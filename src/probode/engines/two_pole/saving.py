"""The two-pole filter with the solution kept at chosen times only: memory for these alone."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from probode.base.status import Status
from probode.engines.kept import pack_rows
from probode.engines.monitor import Monitor, drive
from probode.engines.protocol import FIRST_ATTEMPTS, Carry, Given
from probode.engines.two_pole import in_kernels
from probode.engines.two_pole.dense import coefficients, last_term, value
from probode.engines.two_pole.engine import TWO_POLE, Form, advance, row_of, solve_of
from probode.engines.two_pole.machine import SAVE
from probode.filter.loop import Rows
from probode.filter.saving import Saving
from probode.filter.step import Method
from probode.model.gaussian import unpack

Made = Callable[[], Rows]


def solve_saving(given: Given, times: np.ndarray, monitor: Monitor) -> tuple[Saving, Status, Any]:
    """The states at these times (those of dense output), how it ended, and what went along."""
    method, system = given.inputs.method, given.large.system
    begun = [TWO_POLE.traced(given, 1, monitor.limits).begun]
    saved = _Saved(given, times)

    def by_kernels(carry: Carry, attempts: int) -> Carry:
        form, last = carry.form, carry.form.known.counts.attempted + attempts
        while True:
            left = last - form.known.counts.attempted
            form = form.after(form.machine.run(left, save=saved.following))
            if form.known.exit != SAVE:
                return in_kernels.carry_of(method, form, room=room)
            times = form.known.before, form.known.t
            makers = in_kernels.row_of, in_kernels.step_of
            saved.passed(*times, *(partial(one, method, form) for one in makers))

    def by_python(carry: Carry, attempts: int) -> Carry:
        form, status = carry.form, Status.RUNNING
        for _ in range(attempts):
            before = form
            form, status, accepted = advance(given, system, form)
            if accepted:
                times = before.standing.t, form.standing.t
                makers = partial(row_of, method, form), partial(_rows, method, before, form)
                saved.passed(*times, *makers)
            if status != Status.RUNNING:
                break
        return Carry(solve_of(method, form, status), form)

    start, compiled = float(given.inputs.t0), isinstance(begun[0].form, in_kernels.Form)
    none = saved.started(start, Rows.of(begun[0].solve))
    room = np.empty((method.structure.n, method.structure.d)) if compiled else None
    chunk = by_kernels if compiled else by_python
    carry, status = drive(monitor, begun.pop(), chunk, FIRST_ATTEMPTS)  # which is not held here
    rows = saved.rows(none)
    lengths: Any = np.where(rows.t == float(given.inputs.t0), np.nan, rows.h)
    count: Any = np.asarray(len(rows.t))
    state = carry.solve.state
    kept = Saving(carry.solve, state, None, rows, None, count, lengths=lengths)
    follower = carry.form.waiting if compiled else carry.form.follower
    if follower is not None:
        follower = follower._replace(goes_on=False).finished() if compiled else follower.finished()
        follower.watch.unsure = np.stack(saved.unsure) if saved.unsure else None
    return kept, status, follower


class _Saved:
    """Rows at the times that were passed."""

    def __init__(self, given: Given, times: np.ndarray) -> None:
        self._method, self._times = given.inputs.method, times
        self._rows: list[Rows] = []
        self.unsure: list[np.ndarray] = []
        """How far the curve may be off there because they lie between two nodes."""

    @property
    def following(self) -> float:
        """The next time; NaN: there is none."""
        return float(self._times[len(self._rows)]) if len(self._rows) < len(self._times) else np.nan

    def started(self, t: float, row: Rows) -> Rows:
        """At the first time; returns rows of none, with the right shapes."""
        self.passed(t, t, lambda: row, lambda: row)
        none: Rows = jax.tree.map(lambda x: np.zeros((0, *np.shape(x))), row)
        return none

    def passed(self, first: float, last: float, end: Made, both: Made) -> None:
        """The step between two times: its right end alone is asked for if that will do."""
        ends = None
        while len(self._rows) < len(self._times):
            time = self.following
            inside = first <= time <= last if last >= first else last <= time <= first
            if not inside:
                return
            if time == last:
                self._rows.append(end())
                self.unsure.append(np.zeros(self._method.structure.d))
                continue
            if ends is None:
                ends = both()
                length = float(ends.t[1] - ends.t[0])
                left, right = np.asarray(ends.mean)
                polynomial = coefficients(left, right, length)
            self._rows.append(self._between(ends, polynomial, length, time))

    def _between(self, ends: Rows, polynomial: np.ndarray, h: float, time: float) -> Rows:
        """Inside of a step, on which the solution is this polynomial."""
        tau, n = (time - float(ends.t[1])) / h, self._method.structure.n
        states = np.stack([value(polynomial, tau, h, k) for k in range(n)])
        self.unsure.append(last_term(polynomial, tau))
        right: Any = jax.tree.map(lambda x: x[1], ends)
        factor = unpack(right.factor)
        return Rows(np.asarray(time), right.h, right.scale, states, factor)  # type: ignore[arg-type]

    def rows(self, none: Rows) -> Rows:
        """All of them."""
        return _stacked(self._rows) if self._rows else none


def _rows(method: Method, before: Form, after: Form) -> Rows:
    """Both ends of a step."""
    return pack_rows(_stacked([row_of(method, form) for form in (before, after)]))


def _stacked(rows: list[Rows]) -> Rows:
    """Of a single one nothing is copied."""
    found: Rows = jax.tree.map(
        lambda *x: np.stack(x) if len(x) > 1 else np.asarray(x[0])[None], *rows
    )
    return found
