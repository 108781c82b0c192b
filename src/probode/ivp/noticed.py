"""Discontinuities of ``f`` that are not ``breakpoints``: noticed in the steps, located, reported.

A step across a jump of ``f`` is short, and ``f`` changes much faster in it than in the steps around
it. There ``f`` is evaluated along the solution, and the interval bisected: the half in
which it changes more is kept. A change that remains when the interval has shrunk to rounding is a
jump; a layer, however thin, has none.

Evaluations of ``f`` next to the solution tell whether ``t`` switches or ``y``: a switch in time
stays where it is for other states. Such a time becomes a breakpoint of another solve, which may
show further ones. Where the state switches, the time is not known before the solution is: the short
steps stay, which resolve for the error estimate, too, by how much an error moves the switch.

The steps are the only source of switches for a function that only Python can evaluate, so smaller
changes of their lengths count there. A traced function has its switches in time read from its
program (:mod:`probode.programs.switches`).
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from probode.base.limits import Limits
from probode.base.status import Status
from probode.global_error.between import places as places_between
from probode.global_error.between import rough_between
from probode.ivp.evaluation import Evaluation
from probode.ivp.result import Embedding
from probode.ivp.run import Task
from probode.ivp.target import Integrated
from probode.model.implicit import Implicit
from probode.posterior.hermite import Curve, horner
from probode.posterior.paths import NodePath
from probode.posterior.posterior import Posterior
from probode.programs.branches import numbers_in
from probode.programs.switches import NONE, Switches

_DIP, _DIP_IN_PYTHON = 1e-2, 0.5
"""Largest length of a step across a jump, as a part of the longest steps before and after it."""
_AROUND = 40
"""Number of steps before and after with which a step is compared."""
_STEEP, _NEAR = 10.0, 3
"""Factor by which ``f`` changes faster than usual at a jump, and the number of steps before and
after that define the usual rate."""
_MOST, _MOST_IN_PYTHON = 50, 1000
"""Largest number of places that are examined, the most suspicious ones first; and the same for an
``f`` that Python runs."""
_MOST_ROUNDS, _MOST_UNRESOLVED = 32, 2
"""Largest number of solves, each with more breakpoints (one that gets stuck at a jump shows none
after it); and of those with more jumps than can be found."""
_MOST_NUMBERS = 200
"""Largest number of constants in the code of a function that are tried as times of jumps, at two
evaluations each."""
_SAMPLES = 2048
"""Number of samples of a function that may switch, if no error estimate has evaluated it."""
_LEFT = 1e-3
"""Smallest size of a jump, as a part of the range of ``f``."""
_BESIDE = 1e-3
"""Distance of another state, as a part of the state."""

_TINY, _DOUBLINGS = 1e-6, 20
"""Part of a solve that its last step is where it gets stuck; how often that is doubled to get
across."""

_RECENT, _FLIPS, _FLIP, _SOON = 1000, 4, 0.5, 0.05
"""Numbers by which a solution that slides along a jump is recognised: among the last ``_RECENT``
steps, ``_FLIPS`` changes of ``f`` by ``_FLIP`` of its range there, within ``_SOON`` of the time so
far."""
_ACROSS = 10
"""Largest number of times that the distance of a step is doubled to get across the jump."""

Jump = tuple[np.ndarray, float, float]
"""The state at a jump, and the times right before and right after it."""


class Noticed(NamedTuple):
    """Times at which ``f`` jumps along a solution."""

    in_time: np.ndarray
    """Whatever the state is."""
    by_state: np.ndarray
    stuck: float | None = None
    """Time at which a solve got stuck at a jump."""
    evaluations: int = 0
    """Number of evaluations of ``f`` for locating the jumps."""
    unresolved: bool = False
    """Whether some jumps follow each other more closely than the samples of ``f``: others may have
    been missed."""
    resets: bool = True
    """Whether this equation allows events with a reset."""

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
    """Solve a task; again with breakpoints where the steps show that ``f`` switches in time."""
    begun, in_time, rounds, unresolved = task.limits.elapsed, NONE, 1, False
    posterior, path, counts = solve(task)
    while True:
        took = task.limits.elapsed - begun
        found = notice(posterior, evaluation, task)
        counts["nfev"] += found.evaluations
        new = np.setdiff1d(found.in_time, in_time)
        unresolved |= found.unresolved
        most = _MOST_UNRESOLVED if unresolved else _MOST_ROUNDS
        if len(new) == 0 or rounds >= most or task.limits.left < took:
            break
        in_time, begun, rounds = np.union1d(in_time, new), task.limits.elapsed, rounds + 1
        posterior, path, again = solve(
            replace(task, breakpoints=np.union1d(task.breakpoints, in_time))
        )
        counts = {name: counts[name] + again[name] for name in counts}
    if unresolved:
        posterior = _unresolved(posterior)
    found = found._replace(in_time=in_time, by_state=np.union1d(new, found.by_state))
    if found.words is None:
        return posterior, path, counts
    return replace(posterior, problem=posterior.problem.noted(found.words)), path, counts


def _unresolved(posterior: Posterior) -> Posterior:
    """The posterior with the flag of switches that were not all found."""
    problem = copy.copy(posterior.problem)
    problem.switches = (problem.switches or Switches(True, NONE, NONE))._replace(unresolved=True)
    posterior = replace(posterior, problem=problem)
    if posterior.calibration is None or problem.look is None:
        return posterior
    return posterior.with_looked(*problem.look.numbers)


def notice(posterior: Posterior, evaluation: Evaluation, task: Task) -> Noticed:
    """Locate the jumps of an equation along a solution that are no breakpoints yet."""
    none = Noticed(NONE, NONE)
    if not isinstance(posterior.path, NodePath) or len(posterior.t) < 4:
        return none
    if posterior.status == Status.NOT_A_FUNCTION:
        return none
    t, ended = np.asarray(posterior.t), bool(posterior.success)
    in_python = posterior.stats.path == "python"
    places = _dips(t, _DIP_IN_PYTHON if in_python else _DIP, ended)
    switches, look = posterior.problem.switches, posterior.problem.look
    samples = switches is not None and switches.finely and not evaluation.is_residual
    around = _around_numbers(task, t) if samples else np.zeros((0, 2))
    if len(places) == 0 and ended and not samples:
        return none
    along = _Along(posterior, evaluation, task.embedding)
    known = task.breakpoints if switches is None else np.union1d(task.breakpoints, switches.times)
    places = places[along.steepness[places] > 1.0]
    steps = np.stack([t[places], t[places + 1]], axis=1)
    places = places[_are_away(steps, known)]
    most = _MOST_IN_PYTHON if in_python else _MOST
    places = np.sort(places[np.argsort(-along.steepness[places])[:most]])
    with np.errstate(all="ignore"):
        jumps = along.bisected(places, task.limits)
        jumps += [] if ended else along.ahead(task.tf)
        if samples:
            rough = along.rough(task.limits) if look is None else look.rough
            jumps += along.in_time(rough[_are_away(rough, known)], task.limits)
            met = np.union1d(known, [b for _, _, b in jumps])
            jumps += along.in_time(around[_are_away(around, met)], task.limits)
        stays = [along.stays(*jump) for jump in jumps]
        stuck = None if ended or any(stays[-1:]) or not along.slides() else float(t[-1])
    times, of_time = np.array([b for _, _, b in jumps]), np.array(stays, bool)
    in_time, by_state = np.unique(times[of_time]), np.unique(times[~of_time])
    gap = abs(t[-1] - t[0]) / _SAMPLES if look is None else look.gap
    every = np.union1d(in_time, known)
    every = every[_are_away(np.stack([every, every], axis=1), np.mean(around, axis=1))]
    seen = samples and len(np.intersect1d(in_time, every)) > 0
    unresolved = seen and bool(np.min(np.diff(every), initial=np.inf) < gap)
    resets = not isinstance(evaluation.equation, Implicit)
    return Noticed(in_time, by_state, stuck, along.evaluations, unresolved, resets)


def _around_numbers(task: Task, t: np.ndarray) -> np.ndarray:
    """Return intervals around the numbers in the code of a function, shape ``(N, 2)``.

    A pulse ``1.0 < t < 1.001`` is shorter than the distance of any looks along the solution.
    """
    low, high = sorted((float(t[0]), float(t[-1])))
    numbers = numbers_in(task.fun, task.arguments)
    numbers = numbers[(numbers > low) & (numbers < high)][:_MOST_NUMBERS]
    width = 8.0 * np.spacing(np.maximum(np.abs(numbers), high - low))
    return np.stack([numbers - width, numbers + width], axis=1)


def _are_away(intervals: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Whether intervals, shape ``(N, 2)``, are farther than their lengths from all known times."""
    if len(known) == 0:
        return np.ones(len(intervals), bool)
    length = np.abs(intervals[:, 1] - intervals[:, 0])
    length += 8.0 * np.spacing(np.max(np.abs(intervals), axis=1))
    middle, known = np.mean(intervals, axis=1), np.sort(known)
    i = np.searchsorted(known, middle)
    last = len(known) - 1
    before, behind = known[np.maximum(i - 1, 0)], known[np.minimum(i, last)]
    return np.asarray(np.minimum(np.abs(middle - before), np.abs(middle - behind)) > length)


def _dips(t: np.ndarray, part: float, ended: bool) -> np.ndarray:
    """Find the steps shorter than this part of the longest one before and the longest one after.

    A solve that did not reach its end counts as if long steps followed.
    """
    h = np.abs(np.diff(t))
    ends = (0.0, 0.0 if ended else np.inf)
    padded = np.pad(h, _AROUND, constant_values=ends)
    window = np.lib.stride_tricks.sliding_window_view(padded, _AROUND + 1)
    before, behind = np.max(window[: len(h)], axis=1), np.max(window[_AROUND:], axis=1)
    return np.flatnonzero((h < part * before) & (h < part * behind))


class _Along:
    """The equation along a solution: ``f(t, y)``, or a residual ``F(t, y, y')``.

    A residual is about zero on both sides of a jump if each is evaluated with its own slope.
    Therefore both are evaluated with the slope before the jump.
    """

    def __init__(self, posterior: Posterior, evaluation: Evaluation, embedding: Embedding) -> None:
        self._evaluation, self._embedding = evaluation, embedding
        self.evaluations = 0
        path: Any = posterior.path
        means, equation = np.asarray(path.means), posterior.method.equation
        self._curve = Curve(
            np.asarray(posterior.t), equation.stacked(means), closed=path.smoothed is not None
        )
        self._values = means[:, equation.order]
        some = np.linspace(0, len(means) - 1, min(len(means), 12)).astype(int)
        values = self._values[some]
        self._slopes_vary = self._varies = np.nan_to_num(np.ptp(values, axis=0))
        if evaluation.is_residual:
            times, states = self._curve.t[some].tolist(), self._curve.derivatives[some, 0]
            first = self._values[0]
            seen = [self._state(y, first) for y in states]
            with np.errstate(all="ignore"):
                values = np.array([self._value(t, u) for t, u in zip(times, seen, strict=True)])
            self._varies = np.nan_to_num(np.ptp(values, axis=0))

    @property
    def steepness(self) -> np.ndarray:
        """Ratio of the rate at which ``f`` changes in a step to the smallest rate of a jump.

        Zero where it changes less than a jump does.
        """
        with np.errstate(all="ignore"):
            change = np.abs(np.diff(self._values, axis=0))
            least = self._least(self._values[:-1], self._values[1:], self._slopes_vary)
            size = np.max(np.nan_to_num(change / least), axis=1)
            rate = size / np.abs(self._curve.h)
        around = np.pad(rate, _NEAR, mode="reflect")
        around = np.lib.stride_tricks.sliding_window_view(around, 2 * _NEAR + 1)
        usual = np.median(around, axis=1)
        with np.errstate(over="ignore"):
            return np.where(size > 1.0, rate / np.maximum(_STEEP * usual, 1e-300), 0.0)

    def _least(
        self, fa: np.ndarray, fb: np.ndarray, varies: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the smallest jump, given values on both sides."""
        varies = self._varies if varies is None else varies
        return np.asarray(_LEFT * varies + 1e-9 * (np.abs(fa) + np.abs(fb)) + 1e-300)

    def _state(self, y: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Return the state at which the equation is evaluated; for residuals with a slope."""
        return np.concatenate([y, slope]) if self._evaluation.is_residual else y

    def _value(self, t: float, y: np.ndarray) -> np.ndarray:
        """Evaluate the equation in real form, at a state in real form."""
        self.evaluations += 1
        found = np.ravel(
            np.asarray(self._evaluation(t, np.array(self._embedding.values(y[None])[0])))
        )
        return np.concatenate([found.real, found.imag]) if self._embedding.is_complex else found

    def bisected(self, places: np.ndarray, limits: Limits) -> list[Jump]:
        """Locate states at jumps within these steps, with the times right before and after."""
        found = []
        for step in places.tolist():
            if limits.left <= 0.0:
                break
            jump = self._bisected(step)
            if jump is not None:
                found.append(jump)
        return found

    def rough(self, limits: Limits) -> np.ndarray:
        """Find pairs of times between which ``f`` may jump, from samples of the whole solution."""
        curve, values = self._curve, []
        times, step = places_between(curve.t, _SAMPLES)
        part = (times - curve.t[step]) / curve.h[step]
        states = curve(step, part)
        for t, y in zip(times.tolist(), states, strict=True):
            if limits.left <= 0.0:
                return np.zeros((0, 2))
            values.append(self._value(t, y))
        f = np.array(values)
        if f.shape != states.shape:  # of an equation of higher order: the last component
            f = np.concatenate([states[:, f.shape[1] :], f], axis=1)
        good = np.all(np.isfinite(f), axis=1)
        return rough_between(times[good], (curve.slope(step, part) - f)[good], f[good])

    def in_time(self, intervals: np.ndarray, limits: Limits) -> list[Jump]:
        """Locate jumps within intervals that are there for other states, too."""
        curve, sign = self._curve, 1.0 if self._curve.t[-1] >= self._curve.t[0] else -1.0
        found = []

        def at(t: float) -> np.ndarray:
            step = np.searchsorted(sign * curve.t, sign * t, side="right") - 1
            number = np.array([min(max(int(step), 0), len(curve.h) - 1)])
            part = (t - curve.t[number]) / curve.h[number]
            return np.asarray(curve(number, part)[0])

        for a, b in intervals.tolist():
            if limits.left <= 0.0:
                break
            jump = self._between(at, a, b)
            if jump is not None and self.stays(*jump):
                found.append(jump)
        return found

    def _bisected(self, step: int) -> Jump | None:
        curve = self._curve
        begin, h = float(curve.t[step]), float(curve.h[step])
        pieces = curve.pieces(np.array([step]))

        def at(t: float) -> np.ndarray:
            y = np.asarray(horner(pieces, np.array([(t - begin) / h]))[0])
            return self._state(y, self._values[step])

        return self._between(at, begin, float(curve.t[step + 1]))

    def _between(self, at: Callable[[float], np.ndarray], a: float, b: float) -> Jump | None:
        """The jump between two times, if there is one, along the states ``at`` them."""
        fa, fb = self._value(a, at(a)), self._value(b, at(b))
        while np.any(np.abs(fb - fa) > self._least(fa, fb)):
            middle = 0.5 * (a + b)
            if middle in (a, b) or abs(b - a) <= 8.0 * np.spacing(max(abs(a), abs(b))):
                return at(a), a, b
            fm = self._value(middle, at(middle))
            if not np.all(np.isfinite(fm)):
                return None
            if np.linalg.norm(fm - fa) >= np.linalg.norm(fb - fm):
                b, fb = middle, fm
            else:
                a, fa = middle, fm
        return None

    def ahead(self, t1: float) -> list[Jump]:
        """The jump right behind the end of a solve that did not get across it, if there is one.

        It lies within some of the last, tiny steps; the first change that is large is bisected.
        """
        curve = self._curve
        end, length = float(curve.t[-1]), float(curve.h[-1])
        state, slope = curve.derivatives[-1, :2]
        if not abs(length) < _TINY * abs(end - float(curve.t[0])):
            return []

        def at(t: float) -> np.ndarray:
            return self._state(state + (t - end) * slope, slope)

        before = self._value(end, at(end))
        for k in range(_DOUBLINGS):
            t = end + 2.0**k * length
            if abs(t - end) > abs(t1 - end):
                break
            value = self._value(t, at(t))
            if np.any(np.abs(value - before) > self._least(before, value)):
                jump = self._between(at, end, t)
                return [] if jump is None else [jump]
        return []

    def stays(self, y: np.ndarray, a: float, b: float) -> bool:
        """Whether a jump between two times is there for other states, too."""
        for sign in (1.0, -1.0):
            other = y + sign * _BESIDE * np.maximum(np.abs(y), np.max(np.abs(y)))
            change = np.abs(self._value(b, other) - self._value(a, other))
            if not np.any(change > 0.5 * _LEFT * self._varies):
                return False
        return True

    def slides(self) -> bool:
        """Whether ``f`` jumps back and forth at the end of the solution because of the state.

        Either the last steps show several such jumps within a small part of the time, or they are
        tiny and there is a jump a little ahead or behind.
        """
        t, states = self._curve.t, self._curve.derivatives[:, 0]
        end, elapsed, f = float(t[-1]), abs(t[-1] - t[0]), self._values[-_RECENT:]
        height = np.ptp(f, axis=0)
        jumps = np.abs(np.diff(f, axis=0)) > _FLIP * height
        jumps &= height > _LEFT * self._slopes_vary
        flips = np.flatnonzero(np.any(jumps, axis=1))[-_FLIPS:]
        flips += max(len(t) - _RECENT, 0)
        if len(flips) == _FLIPS and abs(end - t[flips[0]]) <= _SOON * elapsed:
            slopes = self._curve.derivatives[flips[-1] : flips[-1] + 2, 1]
            across = abs(t[-1] - t[-2]) * (slopes[1] - slopes[0])
            least = _FLIP * float(np.min(height[np.any(jumps, axis=0)])) / 2.0
            return any(
                self._differ(end, states[-1], 2.0**k * across, least) for k in range(_ACROSS)
            )
        if abs(t[-1] - t[-2]) > _TINY * elapsed:
            return False
        y, slope = states[-1], self._curve.derivatives[-1, 1]
        size = np.linalg.norm(slope)
        if not 0.0 < size < np.inf:
            return False
        move = 1e-6 * max(float(np.max(np.abs(states[0]))), float(np.max(np.abs(y))))
        return self._differ(end, y, move / size * slope, 1e-3 * float(np.max(np.abs(slope))))

    def _differ(self, t: float, y: np.ndarray, move: np.ndarray, more: float = 0.0) -> bool:
        """Whether ``f`` is another one at ``y + move`` than at ``y - move``.

        A residual takes the last slope at both.
        """
        slope = self._values[-1]
        ahead, behind = (
            self._value(t, self._state(y + sign * move, slope)) for sign in (1.0, -1.0)
        )
        return bool(np.any(np.abs(ahead - behind) > _LEFT * self._varies + more))
