"""The two-pole filter with the solution kept at chosen times only: memory for these alone."""

from typing import Any

import jax
import numpy as np

from probode.base.status import Status
from probode.engines.kept import pack_rows
from probode.engines.monitor import Monitor, drive
from probode.engines.protocol import FIRST_ATTEMPTS, Carry, Given
from probode.engines.two_pole.dense import interpolate, unsure
from probode.engines.two_pole.engine import TWO_POLE, Form, advance, row_of, solve_of
from probode.filter.loop import Rows
from probode.filter.saving import Saving
from probode.model.gaussian import unpack


def solve_saving(given: Given, times: np.ndarray, monitor: Monitor) -> tuple[Saving, Status, Any]:
    """The states at these times (those of dense output), how it ended, and what went along."""
    method, system = given.inputs.method, given.large.system
    begun = TWO_POLE.traced(given, 1, monitor.limits).begun
    saved = _Saved(given, times)
    saved.passed(begun.form, begun.form)

    def chunk(carry: Carry, attempts: int) -> Carry:
        form, status = carry.form, Status.RUNNING
        for _ in range(attempts):
            before = form
            form, status, accepted = advance(given, system, form)
            if accepted:
                saved.passed(before, form)
            if status != Status.RUNNING:
                break
        return Carry(solve_of(method, form, status), form)

    carry, status = drive(monitor, begun, chunk, FIRST_ATTEMPTS)
    rows = saved.rows(begun.form)
    lengths: Any = np.where(rows.t == float(given.inputs.t0), np.nan, rows.h)
    count: Any = np.asarray(len(rows.t))
    state = carry.solve.state
    kept = Saving(carry.solve, state, None, rows, None, count, lengths=lengths)
    follower = carry.form.follower
    if follower is not None:
        follower = follower.finished()
        follower.watch.unsure = np.stack(saved.unsure) if saved.unsure else None
    return kept, status, follower


class _Saved:
    """Rows at the times that were passed."""

    def __init__(self, given: Given, times: np.ndarray) -> None:
        self._method, self._times = given.inputs.method, times
        self._rows: list[Rows] = []
        self.unsure: list[np.ndarray] = []
        """How far the curve may be off there because they lie between two nodes."""

    def passed(self, before: Form, after: Form) -> None:
        """The step between two states; twice the same: the start alone."""
        first, last, ends = before.standing.t, after.standing.t, None
        while len(self._rows) < len(self._times):
            time = float(self._times[len(self._rows)])
            inside = first <= time <= last if last >= first else last <= time <= first
            if not inside:
                return
            if ends is None:
                pair = [row_of(self._method, form) for form in (before, after)]
                ends = pack_rows(jax.tree.map(lambda *each: np.stack(each), *pair))
            self._rows.append(self._at(ends, time))

    def _at(self, ends: Rows, time: float) -> Rows:
        right = np.array([0 if time == float(ends.t[0]) else 1])
        at, n = np.array([time]), self._method.structure.n
        states = [interpolate(self._method, ends, None, right, at, k)[0][0] for k in range(n)]
        self.unsure.append(unsure(self._method, ends, right, at)[0])
        row: Any = jax.tree.map(lambda x: x[right[0]], ends)
        factor = unpack(row.factor)
        return Rows(np.asarray(time), row.h, row.scale, np.stack(states), factor)  # type: ignore[arg-type]

    def rows(self, begun: Form) -> Rows:
        """All of them; of none, with the right shapes."""
        some = self._rows or [row_of(self._method, begun)]
        found: Rows = jax.tree.map(lambda *each: np.stack(each), *some)
        return found if self._rows else jax.tree.map(lambda x: x[:0], found)
