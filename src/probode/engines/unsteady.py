"""Where a Python function gives other values at the same point, and a solve gets nowhere for it.

Noise in ``f`` (``numpy.random`` in it, a clock) has no derivatives: steps get shorter until they do
not see it, and are then so many that the solve has no end. Steps may be as short for good reasons,
and a function may remember something and be solved all the same: so it is asked twice only when the
end is out of reach, and stopped only if the values differ by more than rounding.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from probode.base.status import Status
from probode.filter.loop import Rows
from probode.model.equation import FIRST_ORDER, Equation

_STEPS = 500
"""Steps after which to look how far they have led."""
_OUT_OF_REACH = 1e6
"""Steps to the end, if they stay as long as the last ones were."""
_ROUNDING = 1e-9
"""Part of ``f`` that the order of its operations may change (threads take turns)."""


def stops_where_unsteady(
    function: Callable[[float, np.ndarray], np.ndarray],
    t1: float,
    notes: list[str],
    equation: Equation = FIRST_ORDER,
) -> Callable[[Rows], Status | None]:
    """What looks at rows of steps, and says how the solve ends if it is to; ``notes`` say why."""
    taken, covered = 0, 0.0

    def judge(rows: Rows) -> Status | None:
        nonlocal taken, covered
        t = float(rows.t[-1])
        taken, covered = taken + rows.steps, covered + abs(t - float(rows.t[0]))
        if taken < _STEPS:
            return None
        h, taken, covered = covered / taken, 0, 0.0
        if not np.isfinite(t1) or abs(t1 - t) <= _OUT_OF_REACH * h:
            return None
        state: Any = equation.read(rows.mean[-1])
        first, second = (function(t, np.array(state)) for _ in range(2))
        difference = float(np.max(np.abs(first - second)))
        if not difference > _ROUNDING * float(np.max(np.abs(first))):
            return None
        notes.append(f"two calls of f at t = {t:.6g} and the same y differed by {difference:.3g}")
        return Status.NOT_A_FUNCTION

    return judge
