"""Discontinuities that nobody announced: noticed in the steps, located, and said.

Steps that run into a jump of ``f`` are rejected again and again: at one time they shrink by orders
of magnitude, and grow again behind it. There ``f`` is followed along the solution, and bisected:
between ``a`` and ``b`` the half in which it changes more. A jump is what is left of the change when
the interval has shrunk to rounding; a layer, however thin, has none.

Whether it is ``t`` that switches, or ``y``, is seen next to the solution: a switch in time stays
where it is for other states. Such a time is a breakpoint. Where the state switches, the time is not
known before the solution is: the short steps stay, which resolve for the error estimate, too, by
how much an error moves the switch.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from probode.ivp.evaluation import Evaluation
from probode.ivp.run import Task
from probode.ivp.target import Integrated
from probode.model.implicit import Implicit
from probode.posterior.paths import NodePath
from probode.posterior.posterior import Posterior

_DIP = 1e-2
"""Part of the steps before and after that a step is, where they run into something."""
_AROUND = 40
"""Steps before and after that are compared."""
_MOST = 50
"""Places that are looked at."""
_LEFT = 1e-3
"""Part of how much ``f`` varies that a jump is, at least."""
_BESIDE = 1e-3
"""Part of a state by which another one is away from it."""


class Noticed(NamedTuple):
    """Times at which ``f`` jumps along a solution."""

    in_time: np.ndarray
    """Whatever the state is."""
    by_state: np.ndarray
    stuck: float | None = None
    """Where it has not got away from a jump."""
    resets: bool = True
    """Whether events with a reset are for this equation."""

    @property
    def words(self) -> str | None:
        """What there is to say of it."""
        parts = []
        if len(self.in_time):
            parts.append(
                f"f jumps at t = {_listed(self.in_time)}, which was not announced: solved with "
                "breakpoints there"
            )
        if len(self.by_state):
            parts.append(
                f"f jumps where the solution is at t = {_listed(self.by_state)}, which took many "
                "short steps"
            )
            if self.resets:
                parts[-1] += (
                    ": an event with a reset to another function (probode.Restart) takes fewer"
                )
        if self.stuck is not None:
            parts.append(
                f"at t = {self.stuck:.10g} the solution does not get away from a jump of f: it "
                "seems to slide along it, as dry friction and relays do. Give f a narrow "
                "transition, such as tanh(v / width), or switch by an event to what holds on it"
            )
        return "; ".join(parts) or None


def _listed(times: np.ndarray) -> str:
    first = ", ".join(f"{t:.10g}" for t in times[:3])
    return first if len(times) <= 3 else f"{first}, ... ({len(times)} times)"


def with_notice(
    task: Task, evaluation: Evaluation, solve: Callable[[Task], Integrated]
) -> Integrated:
    """What ``solve`` makes of a task; with breakpoints where a switch in time was noticed."""
    posterior, path, counts = solve(task)
    switches = posterior.problem.switches
    known = task.breakpoints if switches is None else np.union1d(task.breakpoints, switches.times)
    found = notice(posterior, evaluation, task.embedding.values, np.asarray(known, float))
    if len(found.in_time) and task.limits.left > task.limits.elapsed:
        times = np.union1d(task.breakpoints, found.in_time)
        posterior, path, again = solve(replace(task, breakpoints=times))
        counts = {name: counts[name] + again[name] for name in counts}
    elif len(found.in_time):
        by_state = np.union1d(found.in_time, found.by_state)
        found = found._replace(in_time=np.zeros(0), by_state=by_state)
    if found.words is None:
        return posterior, path, counts
    return replace(posterior, problem=posterior.problem.noted(found.words)), path, counts


def notice(
    posterior: Posterior, evaluation: Evaluation, convert: Any, known: np.ndarray
) -> Noticed:
    """Find jumps of the equation along a solution, other than at the times ``known``.

    ``convert`` makes states as the user writes them of flat real ones.
    """
    none = Noticed(np.zeros(0), np.zeros(0))
    if not isinstance(posterior.path, NodePath) or len(posterior.t) < 4:
        return none
    t = np.asarray(posterior.t)
    places, ended = _dips(t), bool(posterior.success)
    if len(places) == 0 and ended:
        return none

    reads = 2 if evaluation.is_residual else posterior.method.equation.order

    def state(t: float) -> np.ndarray:
        parts = [posterior.derivative(np.array([t]), j).mean for j in range(reads)]
        return np.asarray(convert(np.ravel(np.asarray(parts))[None])[0])

    def value(t: float, u: np.ndarray) -> np.ndarray:
        return np.ravel(np.asarray(evaluation(t, u.copy())))

    def slope(t: float, u: np.ndarray) -> np.ndarray:
        """``u'``, of a residual that of ``y`` alone."""
        if not evaluation.is_residual:
            return value(t, u).reshape(u.shape)
        return np.concatenate([u[len(u) // 2 :], np.zeros(len(u) // 2)])

    def with_slope_at(begin: float) -> Callable[[float], np.ndarray]:
        """Return the states, those of a residual with the slope at ``begin``.

        With their own slopes it is about zero on both sides of a jump.
        """
        if not evaluation.is_residual:
            return state
        half = len(state(begin)) // 2
        return lambda t: np.concatenate([state(t)[:half], state(begin)[half:]])

    found: dict[bool, list[float]] = {True: [], False: []}
    with np.errstate(all="ignore"):
        varies = _variation(t, value, with_slope_at(float(t[0])))
        for a, b in places[:_MOST]:
            if len(known) and np.min(np.abs(known - t[a])) <= abs(t[b] - t[a]):
                continue
            seen = with_slope_at(float(t[a]))
            jump = _bisected(
                lambda t, seen=seen: value(t, seen(t)), float(t[a]), float(t[b]), varies
            )
            if jump is not None:
                found[_stays(value, seen(jump[0]), *jump, varies)].append(jump[1])
        stuck = None if ended or not _is_stuck(value, slope, state, varies, t) else t[-1]
    resets = not isinstance(evaluation.equation, Implicit)
    return Noticed(np.unique(found[True]), np.unique(found[False]), stuck, resets)


def _dips(t: np.ndarray) -> np.ndarray:
    """Where steps are short in comparison to those before and behind: nodes before and after."""
    h = np.abs(np.diff(t))
    window = np.lib.stride_tricks.sliding_window_view(
        np.pad(h, _AROUND, constant_values=0.0), _AROUND + 1
    )
    before, behind = np.max(window[: len(h)], axis=1), np.max(window[_AROUND:], axis=1)
    dip = (h < _DIP * before) & (h < _DIP * behind)
    edges = np.flatnonzero(np.diff(np.r_[0, dip.astype(int), 0]))
    return np.stack([np.maximum(edges[::2] - 1, 0), edges[1::2]], axis=1)


def _variation(t: np.ndarray, value: Any, state: Any) -> np.ndarray:
    """How much the components of ``f`` vary along the solution."""
    some = t[np.linspace(0, len(t) - 1, min(len(t), 12)).astype(int)]
    rows = np.array([value(float(x), state(float(x))) for x in some])
    return np.nan_to_num(np.ptp(rows, axis=0))


def _bisected(f: Any, a: float, b: float, varies: np.ndarray) -> tuple[float, float] | None:
    """Times right before and right after a jump of ``f`` between ``a`` and ``b``, if any."""
    fa, fb = f(a), f(b)
    while abs(b - a) > 8.0 * np.spacing(max(abs(a), abs(b))):
        middle = 0.5 * (a + b)
        if middle in (a, b):
            break
        fm = f(middle)
        if not np.all(np.isfinite(fm)):
            return None
        if np.linalg.norm(fm - fa) >= np.linalg.norm(fb - fm):
            b, fb = middle, fm
        else:
            a, fa = middle, fm
    jumps = np.any(np.abs(fb - fa) > _LEFT * varies + 1e-9 * (np.abs(fa) + np.abs(fb)))
    return (a, b) if jumps else None


def _is_stuck(value: Any, slope: Any, state: Any, varies: np.ndarray, t: np.ndarray) -> bool:
    """Whether the last steps were tiny, and ``f`` jumps a little way ahead or behind in ``y``."""
    if abs(t[-1] - t[-2]) > 1e-6 * abs(t[-1] - t[0]):
        return False
    end = float(t[-1])
    y = state(end)
    rate = slope(end, y)
    size = np.linalg.norm(rate)
    if not 0.0 < size < np.inf:
        return False
    move = 1e-6 * max(float(np.max(np.abs(state(float(t[0]))))), float(np.max(np.abs(y))))
    here = value(end, y)
    ahead, behind = (value(end, y + sign * move / size * rate) for sign in (1.0, -1.0))
    return bool(np.any(np.abs(ahead - behind) > _LEFT * varies + 1e-3 * np.max(np.abs(here))))


def _stays(value: Any, y: np.ndarray, a: float, b: float, varies: np.ndarray) -> bool:
    """Whether a jump between two times is there for other states, too."""
    for sign in (1.0, -1.0):
        other = y + sign * _BESIDE * np.maximum(np.abs(y), np.max(np.abs(y)))
        change = np.abs(value(b, other) - value(a, other))
        if not np.any(change > 0.5 * _LEFT * varies):
            return False
    return True
