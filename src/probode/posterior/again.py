"""The same problem solved again, at a tenth of the tolerance: are bars as large as the difference.

What an estimate of the error cannot see (a layer that is passed in a few steps, a kink) a second
solve does. Its own error, the estimate of which is taken off, is small next to that of the first:
the difference ``δ`` of the two is about the error of the first, at all times ``t_n`` at which that
is known::

    χ²/d = mean over n, i of (δ_i(t_n) / s_i(t_n))²,   s_i² = std_i² + b_i² + (30 ε √N max |y_i|)²

in the mean over the ``d`` components and the times after an exact start. ``N`` are the steps: what
their rounding adds up to says nothing of the bars, nor does what the curve of the second solve is
off by between its nodes, ``b`` (zero in most steps).

The estimate is taken off since there, where the nodes of the first solve are, errors may be a
thousand times those of nodes. Of 288 solves of large systems with steps kept 21 had bars too small
at their nodes: without it 17 of them were found and 6 others suspected, with it 19 and 5. With the
bars of both solves in ``s``, 6 and none.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from probode.filter.control import PControl
from probode.global_error.diagnosis import Diagnosis

PART = 0.1
"""Of the tolerances of the first solve, those of the second."""
MODE = "defect"
"""``calibration`` of the second."""
_STEPS = ("first_step", "min_step", "max_step")
_LOST = {"convergence", "size", "lost"}
"""Flags of an estimate that is better not taken off."""
_EPSILON = float(np.finfo(float).eps)
_LEAST = 100 * _EPSILON
"""Relative tolerance below which rounding decides."""


class Compared(NamedTuple):
    """Squares of differences in units of the bars, summed up."""

    total: float
    numbers: int
    """How many there are."""
    ended: float | None = None
    """Where the second solve ended, if it did not get as far as the first."""

    @property
    def chi2(self) -> float:
        """Their mean."""
        return self.total / self.numbers if self.numbers else 0.0

    def onto(self, found: Diagnosis) -> Diagnosis:
        """A verdict that knows of it."""
        return found.with_again(self.chi2 if self.numbers else None, self.ended)


def tightened(control: PControl, order: int, part: float) -> PControl:
    """The control of a solve with ``part`` of the tolerances.

    Steps of the user's own are shorter by as much as the others will be, ``part^(1/(q+1))``: with
    the same ones the second solve would be the first.
    """
    shorter = part ** (1.0 / (order + 1))

    def relative(given: Any) -> np.ndarray:
        rtol = np.asarray(given, float)
        return np.maximum(part * rtol, np.minimum(rtol, _LEAST))

    def times(factor: float, given: Any) -> Any:
        return jax.tree.map(lambda x: factor * np.asarray(x, float), given)

    steps = {name: times(shorter, getattr(control, name)) for name in _STEPS}
    rtol = jax.tree.map(relative, control.rtol)
    return replace(control, rtol=rtol, atol=times(part, control.atol), **steps)


def compared(first: Any, second: Any, inside: bool = False) -> Compared:
    """A posterior with a more exact one.

    ``inside``: they need not begin and end together, and are compared where both of them are.
    """
    t, reached = np.asarray(first.t), np.asarray(second.t)
    same = len(reached) <= len(t) and np.array_equal(reached, t[: len(reached)])
    here = np.zeros(len(t), bool)
    if len(reached):
        low, high = sorted((reached[0], reached[-1]))
        here = (t >= low) & (t <= high)
    total, count = 0.0, 0
    if not np.any(here):
        return Compared(0.0, 0, float("nan"))
    for k in range(first.method.equation.order):
        known = first.derivative(k=k)
        better, doubt = _known(second, None if same else t[here], k)
        mean, std = (np.asarray(x).reshape(len(t), -1) for x in (known.mean, known.std))
        level = 30.0 * _EPSILON * np.sqrt(int(first.stats.accepted)) * np.max(np.abs(mean), axis=0)
        for n, value, unsure in zip(np.flatnonzero(here), better, doubt, strict=True):
            off = value.reshape(-1) - mean[n]
            scale = np.hypot(np.hypot(std[n], level), unsure)
            if not (np.any(off) or np.any(std[n])):
                continue  # an exact start
            with np.errstate(all="ignore"):
                total += float(np.sum(np.where(off == 0.0, 0.0, off / scale) ** 2))
            count += off.size
    early = not (inside or here[-1])
    return Compared(total, count, float(reached[-1]) if early else None)


def _known(posterior: Any, t: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Values with the estimated error taken off; and how far curves may be off between nodes."""
    found = posterior.derivative(t, k)
    mean = np.asarray(found.mean)
    if posterior.calibration is None or _LOST & set(posterior.diagnose().flags):
        return mean, np.zeros((len(mean), 1))
    with np.errstate(all="ignore"):
        corrected = np.asarray(posterior.corrected(t, k))
    better = np.where(np.isfinite(corrected), corrected, mean)
    own = np.zeros(1) if found.own is None else np.asarray(found.own)
    return better, np.broadcast_to(own, (len(mean), mean[0].size))


def lost_repeat(why: str) -> str:
    """That a problem cannot be solved again, in words."""
    return (
        f"this posterior does not know how it was solved ({why}): ask for diagnose(again=True) "
        "where that was, or solve with a tenth of rtol and atol, and compare."
    )
