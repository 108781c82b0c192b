"""The two-pole filter with the solution kept at chosen times only: memory for these alone."""

from typing import Any

import jax
import numpy as np

from probode.base.status import Status
from probode.engines.monitor import Monitor, drive
from probode.engines.protocol import FIRST_ATTEMPTS, Carry, Given
from probode.engines.two_pole.dense import interpolate
from probode.engines.two_pole.engine import TWO_POLE
from probode.filter.loop import Rows
from probode.filter.saving import Saving
from probode.model.gaussian import unpack


def solve_saving(given: Given, times: np.ndarray, monitor: Monitor) -> tuple[Saving, Status, Any]:
    """The states at these times (those of dense output), how it ended, and what went along."""
    method, saved = given.inputs.method, list[Rows]()
    begun, fill, _ = TWO_POLE.traced(given, 1, monitor.limits)
    n = method.structure.n

    def chunk(carry: Carry, attempts: int) -> Carry:
        for _ in range(attempts):
            following, rows = fill(carry, 1, 1)
            _keep(rows)
            carry = following
            if int(carry.solve.status) != Status.RUNNING:
                break
        return carry

    def _keep(rows: Rows) -> None:
        """What lies in the last step; at the start, where it begins."""
        first, last = float(rows.t[0]), float(rows.t[-1])
        while len(saved) < len(times):
            time = float(times[len(saved)])
            inside = first <= time <= last if last >= first else last <= time <= first
            if not inside:
                break
            right = np.array([rows.steps if time != first else 0])
            at = np.array([time])
            states = [interpolate(method, rows, None, right, at, k)[0][0] for k in range(n)]
            row: Any = jax.tree.map(lambda x: x[right[0]], rows)  # noqa: B023
            factor = unpack(row.factor)
            saved.append(Rows(np.asarray(time), row.h, row.scale, np.stack(states), factor))  # type: ignore[arg-type]

    carry, status = drive(monitor, begun, chunk, FIRST_ATTEMPTS)
    if not saved:  # no step was taken
        _keep(fill(begun, 0, 1)[1])
    rows: Any = jax.tree.map(lambda *each: np.stack(each), *saved) if saved else None
    if rows is None:
        empty: Any = fill(begun, 0, 1)[1]
        rows = jax.tree.map(lambda x: x[:0], empty)
        rows = Rows(rows.t, rows.h, rows.scale, rows.mean, unpack(rows.factor))
    state = carry.solve.state
    lengths: Any = np.where(rows.t == float(given.inputs.t0), np.nan, rows.h)
    count: Any = np.asarray(len(saved))
    kept = Saving(carry.solve, state, None, rows, None, count, lengths=lengths)
    follower = carry.form.follower
    return kept, status, None if follower is None else follower.finished()
