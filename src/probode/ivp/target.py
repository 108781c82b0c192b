"""A tolerance on the answer: solve, estimate the global error, solve again more (or less) exactly.

With ``w_i = global_atol_i + global_rtol_i |y_i|``, the target is ``max |e_i| / w_i <= 1`` over all
nodes and components (or those at the end). The global error follows the local tolerance as
``error ~ tol^p``. Two rounds give ``p``; before that, a solver whose local error is of order
``q + 1`` and whose step control asks for just that has ``p = q/(q+1)``, near one. Each round aims
below the target by a margin: a round too many costs more than one digit too many.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from probode.base.errors import check_choice
from probode.base.status import Status
from probode.filter.control import Control, PControl
from probode.ivp.result import state_at
from probode.posterior.posterior import Posterior

_MOST_ROUNDS = 6
_MET, _AIM = 0.9, 0.3
"""Parts of the target: that are good enough (the estimate has its own error), to aim at."""
_HEAD_START = 100.0
_LOOSEST_RTOL = 1e-2
_SMALLEST_RTOL = 100 * float(np.finfo(float).eps)
_LARGEST_CHANGE = 1e-4
"""Of the tolerances from one round to the next: no power law holds for longer."""
_UNKNOWN_CHANGE = 0.1
"""The same after a round whose error has no measure."""
_EXPONENTS = (0.5, 2.0)
"""Where a fitted exponent is believed."""

_WHY: dict[Any, str] = {
    None: "the solve did not reach the end",
    Status.TIME_LIMIT: "the time limit was reached",
    Status.MEMORY_LIMIT: "max_memory was reached",
    Status.NOT_A_FUNCTION: "f gives other values at the same point",
}

Integrated = tuple[Posterior, str, dict[str, int]]
"""A posterior, how its function was evaluated, and what it cost."""


class Target(NamedTuple):
    """What the global error is to be, relative to what."""

    rtol: Any
    atol: Any
    at_end: bool

    @staticmethod
    def read(options: Any, embedding: Any, control: Control) -> "Target | None":
        """The target among the options of ``solve_ivp``, if there is one."""
        check_choice("global_at", options.global_at, ("interval", "end"))
        if options.global_rtol is None and options.global_atol is None:
            return None
        if options.calibration == "model":
            raise ValueError(
                "global_rtol and global_atol need an error estimate: use calibration='defect'."
            )
        if not isinstance(control, PControl):
            raise ValueError("global_rtol and global_atol choose the steps: leave out grid.")
        values = []
        for name in ("global_rtol", "global_atol"):
            given = getattr(options, name)
            value = np.asarray(0.0 if given is None else given, float)
            if value.ndim > 0 and value.shape not in ((embedding.size,), (embedding.n,)):
                raise ValueError(f"{name} must be a number or have shape ({embedding.size},).")
            if not np.all(value >= 0.0):
                raise ValueError(f"{name} must not be negative, got {given!r}.")
            values.append(embedding.repeated(value))
        if np.any(values[0] + values[1] <= 0.0):
            raise ValueError("global_rtol and global_atol must not both be zero.")
        return Target(values[0], values[1], options.global_at == "end")

    def measure(self, posterior: Posterior) -> float:
        """``max |e_i| / w_i``: at most one where the target is met; infinite without a result."""
        if not bool(posterior.success):
            return np.inf
        pieces: Any = getattr(posterior, "pieces", None)
        if pieces is not None:
            some = pieces[-1:] if self.at_end else pieces
            return max(map(self.measure, some))
        parts = self._parts(posterior)
        largest = float(np.max(parts))
        return largest if np.isfinite(largest) else np.inf

    def is_largest_on_bounds(self, posterior: Posterior) -> bool:
        """Whether ``|e_i| / w_i`` is largest where a bound took the place of the steps' solution.

        There the error is that of the bound, and shorter steps leave it as it is.
        """
        pieces: Any = getattr(posterior, "pieces", None)
        if pieces is not None:
            some = pieces[-1:] if self.at_end else pieces
            return self.is_largest_on_bounds(max(some, key=self.measure))
        held = getattr(posterior.path, "held", None)
        constraint = None if held is None else held.constraint
        if constraint is None or constraint.bounds is None:
            return False
        parts, y = self._parts(posterior), state_at(posterior)[0]
        row, k = np.unravel_index(np.argmax(parts), parts.shape)
        value = y[len(y) - len(parts) + row, k]
        ends = (constraint.bounds.low, constraint.bounds.high)
        return any(value == np.broadcast_to(np.asarray(end), parts.shape[1:])[k] for end in ends)

    def _parts(self, posterior: Posterior) -> np.ndarray:
        """``|e_i| / w_i`` at all nodes, or at the end."""
        assert posterior.calibration is not None
        error = np.abs(np.asarray(posterior.calibration.error))
        weight = self.atol + self.rtol * np.abs(state_at(posterior)[0])
        rows = slice(-1, None) if self.at_end else slice(None)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(error[rows] == 0.0, 0.0, error[rows] / weight[rows])


class Round(NamedTuple):
    """One solve: the factor of the tolerances it was made with, and the error it had."""

    factor: float
    measure: float
    result: Integrated


class Report(NamedTuple):
    """How a target was reached, or not."""

    met: bool
    rounds: int
    measure: float
    why: str
    nfev: int
    njev: int

    def onto(self, result: Any) -> Any:
        """Write it down in a result of ``solve_ivp``."""
        result["global_met"], result["global_rounds"] = self.met, self.rounds
        result["global_estimate"] = self.measure
        result["nfev"], result["njev"] = self.nfev, self.njev
        if not self.met and result["success"]:
            result["success"], result["status"] = False, -1
            result["message"] = (
                f"The tolerance on the answer was not met ({self.why}): the estimated error is "
                f"{self.measure:.2g} times what was asked for; this is the best of {self.rounds} "
                "rounds."
            )
        return result


def reach(
    target: Target, control: Control, integrate: Callable[[Control], Integrated]
) -> tuple[Integrated, Report]:
    """Solve with local tolerances that make the global error meet the target.

    ``integrate`` solves with a control; the one given says where to begin, as far as that is not
    coarser than the target itself.
    """
    assert isinstance(control, PControl)
    rtol, atol = _begin(target, control)
    base = replace(control, rtol=rtol, atol=atol)
    floor = _SMALLEST_RTOL / float(np.max(base.rtol))
    rounds: list[Round] = []
    factor, why = 1.0, "no more rounds"
    while len(rounds) < _MOST_ROUNDS:
        result = integrate(replace(base, rtol=factor * base.rtol, atol=factor * base.atol))
        measure = target.measure(result[0])
        rounds.append(Round(factor, measure, result))
        if measure <= _MET or not bool(result[0].success):
            why = "" if measure <= _MET else _WHY.get(result[0].status, _WHY[None])
            break
        if factor <= floor:
            why = "rounding level"
            break
        if len(rounds) > 1 and np.isinf(measure) and np.isinf(rounds[-2].measure):
            why = "it is relative to a solution that is zero: give global_atol as well"
            break
        least = 1 if target.is_largest_on_bounds(result[0]) else 2
        if len(rounds) > least and not measure <= 0.7 * rounds[-2].measure:
            why = "a tighter tolerance no longer helps"
            break
        equation = result[0].method.equation
        exponent = _exponent(rounds, equation.lowered(result[0].solver.order))
        change = (_AIM / measure) ** (1.0 / exponent) if np.isfinite(measure) else _UNKNOWN_CHANGE
        factor = max(factor * min(max(change, _LARGEST_CHANGE), 0.5), floor)
    best = min(rounds, key=lambda r: r.measure)
    trusted = _trusted(best)
    met = best.measure <= _MET and trusted
    if best.measure <= _MET and not trusted:
        why = "the error estimate cannot be trusted, see posterior.diagnose()"
    costs = [r.result[2] for r in rounds]
    report = Report(
        met,
        len(rounds),
        best.measure,
        why,
        sum(c["nfev"] for c in costs),
        sum(c["njev"] for c in costs),
    )
    return best.result, report


def _trusted(best: Round) -> bool:
    """Whether the estimate holds, or is off by rounding only and small enough all the same."""
    diagnosis = best.result[0].diagnose()
    if diagnosis.flags == ("rounding",):
        return best.measure * (1.0 + diagnosis.numbers["rounding"]) <= _MET
    return diagnosis.trusted


def _begin(target: Target, control: PControl) -> tuple[Any, Any]:
    """Local tolerances of the first round: cheap, and enough where the solver exceeds them.

    High orders stay below their local tolerance by orders of magnitude, so the target itself would
    be too tight. A target of zero, relative or absolute, leaves the other one to decide.
    """
    rtol = np.where(target.rtol > 0.0, _HEAD_START * target.rtol, control.rtol)
    rtol = np.clip(rtol, _SMALLEST_RTOL, _LOOSEST_RTOL)
    looser = rtol / np.where(target.rtol > 0.0, target.rtol, rtol / _HEAD_START)
    atol = np.where(target.atol > 0.0, looser * target.atol, 1e-3 * rtol)
    return rtol, atol


def _exponent(rounds: list[Round], order: int) -> float:
    """``p`` of ``error ~ tol^p``: from the last two rounds, before that from the order."""
    if len(rounds) < 2:
        return order / (order + 1)
    a, b = rounds[-2:]
    if not (np.isfinite(a.measure) and np.isfinite(b.measure)):
        return order / (order + 1)
    fitted = np.log(a.measure / b.measure) / np.log(a.factor / b.factor)
    return float(np.clip(fitted, *_EXPONENTS))
