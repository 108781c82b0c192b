"""The global error of the two-pole filter, carried along with its own factorisations.

``P`` interpolates the values ``y_n`` at ``2w + 1`` nodes around ``t_n``. Its error ``e = P - y``
obeys ``e' = P'(t) - f(t, P - e)``, which is solved *at the nodes* (between them, an interpolant of
values and slopes has a defect; at them it has none) for the pair ``(e, h e')``::

    z = h e' - h (P'(t_n) - f(t_n, y_n - e)),   u = W z,  v = W u,   (e, h e') -= α v + β u

with the factorisation ``W`` of the step that led to ``t_n``: no matrix of its own, one or two
evaluations of ``f`` a step. It runs ``w`` steps behind the filter and keeps ``2w + 1`` nodes.
Where the length of the steps changes, what is stiff in ``h e'`` is of no use in the new units, and
is taken out: ``h e' <- (2 W - W²) h e'``. With a mass matrix, ``M e' = M P' - f(t, P - e)``.

Where a fast layer was met with long steps, ``P'`` is whatever polynomials make of it. The slope of
one with two nodes less says so: if what it would change of the error in a step, ``W h ΔP'``, is
more than three times the largest error, the estimate is flagged.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from probode.engines.two_pole.step import Standing, System
from probode.global_error import scales
from probode.global_error.diagnosis import Tally
from probode.global_error.result import Calibration
from probode.global_error.transport import Transported
from probode.model.two_pole import error_gains

_QUICK = 0.2
"""A rate of convergence at which one iteration is enough."""
_HARMLESS = 4.0
"""Times the largest error by which the iterations of all steps together may be unsettled."""


_UNSURE = 3.0
"""Times the largest error by which a single step may be unsure: nodes around see what it was."""
_FEWEST = 2
"""Nodes on each side with which a comparison says nothing: one less is a parabola."""
_SMALL, _TINY = 1e-2, 1e-290


class Node(NamedTuple):
    """Where a step of the filter ended."""

    t: float
    y: np.ndarray
    h: float = 0.0
    solve: Any = None
    gamma: float = 0.0
    iterations: int = 1


class Transport(NamedTuple):
    """The error up to some node, and the nodes around it. A later one is another one."""

    system: System
    w: int
    nodes: tuple[Node, ...]
    """The last ones that the filter has passed."""
    behind: int = 0
    """How many of them the error has not reached."""
    error: np.ndarray = np.zeros(0)
    """``e`` and ``h e'``, ``(2, d)``."""
    h: float = 0.0
    """Length of the last step; zero: there was none."""
    found: tuple[list[np.ndarray], int] = ([], 0)
    """Errors of all nodes after the first: a list, of which so many are mine."""
    tally: Tally | None = None
    doubt: float = 0.0
    """The most that two nodes less in the interpolant would have changed of the error in a step."""
    largest: float = 0.0
    """The largest error; both relative to the solution, and root mean squares."""
    watch: Any = None
    """Is told of the error of each node, ``(t, e)``, which then is not kept."""
    f: int = 0
    """Evaluations so far."""

    @staticmethod
    def start(system: System, t: float, y: np.ndarray, watch: Any = None) -> "Transport":
        """At an exactly known value."""
        node, zero = Node(t, np.array(y, float)), np.zeros((2, y.size))
        tally: Any = Tally.start(np, node.y)  # type: ignore[arg-type]
        w = (system.highest + 3) // 2
        begun = Transport(system, w, (node,), 0, zero, 0.0, ([], 0), tally)
        return begun._replace(watch=watch)

    def passed(self, now: Standing) -> "Transport":
        """After a step of the filter: its error is found when it has gone on for ``w`` steps."""
        assert now.used is not None
        iterations = 1 if now.rate < _QUICK else 2
        node = Node(now.t, now.x[0], now.h, now.used.solve, now.used.gamma, iterations)
        mine = self._replace(nodes=(*self.nodes, node), behind=self.behind + 1)
        if mine.behind > self.w:
            mine = mine._carried()
        reached = len(mine.nodes) - 1 - mine.behind
        drop = max(0, min(reached - self.w, len(mine.nodes) - 1 - 2 * self.w))
        return mine._replace(nodes=mine.nodes[drop:])

    def across(self, t: float, y: np.ndarray) -> "Transport":
        """Over a switch: no interpolant reaches from one side to the other."""
        done, none = self.finished(), np.zeros_like(y)
        there = done._replace(nodes=(Node(t, y),), behind=0, h=0.0)
        return there._noted(there.nodes[0], done.error[0], none, none)

    def finished(self) -> "Transport":
        """With the nodes that were waiting for later ones."""
        mine = self
        while mine.behind:
            mine = mine._carried()
        return mine

    @property
    def errors(self) -> np.ndarray:
        """At all nodes that were reached, the first one included, ``(N, d)``."""
        known, count = self.found
        zero = np.zeros((1, self.error.shape[1]))
        return np.concatenate([zero, np.stack(known[:count])]) if count else zero

    def _noted(
        self, node: Node, error: np.ndarray, first: np.ndarray, second: np.ndarray
    ) -> "Transport":
        """With the error of a node, and the first and second iteration to it."""
        (known, count), none, y = self.found, np.zeros(0), node.y
        if self.watch is not None:
            self.watch(node.t, error)
        else:
            if len(known) != count:  # another one has gone on from here
                known = known[:count]
            known.append(error)
        assert self.tally is not None
        moved: Any = Transported(error, none, first, second, none, none)  # type: ignore[arg-type]
        tally = self.tally.add(np, y, moved)  # type: ignore[arg-type]
        return self._replace(found=(known, count + 1), tally=tally)

    @np.errstate(all="ignore")  # an estimate that is lost is seen by its numbers
    def _carried(self) -> "Transport":
        """To the next node."""
        n, mass = len(self.nodes) - self.behind, self.system.mass
        here, h, (e, he), more = self.nodes[n], self.nodes[n].h, self.error, 0

        def weighed(v: np.ndarray) -> np.ndarray:
            return v if mass is None else mass(v)

        if not self.h:
            there, more = self.nodes[n - 1], 1
            he = h * (self._slope(n - 1) - self.system.slope(there.t, there.y - e))
        elif self.h != h:
            he = he * (h / self.h)
            once = here.solve(weighed(he))
            he = 2.0 * once - here.solve(weighed(once))
        e, slope, gains, moved = e + he, self._slope(n), error_gains(here.gamma), []
        for _ in range(here.iterations):
            z = weighed(he) - h * (weighed(slope) - self.system.f(here.t, here.y - e))
            u = here.solve(z)
            both = np.empty((2, len(u)))
            both[0], both[1] = here.solve(weighed(u)), u
            change = gains.T @ both
            e, he = e - change[0], he - change[1]
            moved.append(change[0])
        mine = self
        if self.w > _FEWEST:
            mine = self._doubted(n, e, h * weighed(slope - self._slope(n, self.w - 1)))
        mine = mine._replace(
            error=np.stack([e, he]),
            h=h,
            behind=self.behind - 1,
            f=self.f + more + here.iterations,
        )
        return mine._noted(here, e, moved[0], moved[1] if len(moved) > 1 else 0.0 * u)

    def _doubted(self, n: int, error: np.ndarray, moved: np.ndarray) -> "Transport":
        """With how far the error would be another one, had the interpolant two nodes less."""
        here = self.nodes[n]
        size = np.abs(here.y)
        weight = 1.0 / (size + _SMALL * size.max(initial=0.0) + _TINY)

        def norm(x: np.ndarray) -> float:
            parts = x * weight
            return float(np.sqrt(np.dot(parts, parts) / parts.size))

        doubt = norm(moved)
        if doubt > self.doubt:  # else it is not the largest, either, once it is damped
            doubt = min(doubt, norm(here.solve(moved)))
        largest = norm(error)
        largest = max(self.largest, largest) if np.isfinite(largest) else self.largest
        return self._replace(doubt=max(self.doubt, doubt), largest=largest)

    def _slope(self, n: int, w: int | None = None) -> np.ndarray:
        """``P'`` at a node, with ``w`` on both sides as far as there are."""
        last, w = len(self.nodes) - 1, self.w if w is None else w
        first = max(0, min(n - w, last - 2 * w))
        return _slope(self.nodes[first : first + 2 * w + 1], self.nodes[n])


def _slope(nodes: tuple[Node, ...], here: Node) -> np.ndarray:
    """``P'(t_n)`` of the polynomial through some nodes: differences from ``y_n``, weighted."""
    unit = here.h or nodes[1].h
    lengths = tuple(round(node.h / unit, 12) for node in nodes[1:])
    at = next(i for i, node in enumerate(nodes) if node is here)
    slope = np.zeros_like(here.y)
    for weight, node in zip(_first_derivative(lengths, at), nodes, strict=True):
        if node is not here:
            slope += (weight / unit) * (node.y - here.y)
    return slope


@lru_cache(maxsize=4096)  # steps are held: most of them are equal
def _first_derivative(lengths: tuple[float, ...], at: int) -> tuple[float, ...]:
    """Weights of values, between which steps of these ``lengths`` lie, in the slope at one."""
    s = np.concatenate([[0.0], np.cumsum(lengths)])
    s -= s[at]
    unit, right = np.abs(s).max(), np.zeros(len(s))
    right[1] = 1.0
    weights = np.linalg.solve(np.vander(s / unit, len(s), increasing=True).T, right) / unit
    return tuple(weights.tolist())


@np.errstate(all="ignore")  # what overflows is seen by its signs
def calibration(mode: str, done: Transport, values: np.ndarray, std: np.ndarray) -> Calibration:
    """Scales and signs, from the errors of all nodes.

    ``values`` are those of all nodes, ``(N, d)``, and ``std`` the model's, ``(N,)``: one for all
    components. Nodes that the transport did not reach have no estimate (NaN).
    """
    assert done.tally is not None
    error = done.errors[: len(values)]
    error = np.pad(error, ((0, len(values) - len(error)), (0, 0)), constant_values=np.nan)
    scale = _scales(error, values)
    return _made(mode, error, scale, std, _signs(done), done.f)


def _signs(done: Transport) -> np.ndarray:
    """What to judge by: where steps are too long to estimate from, nothing settles, either."""
    assert done.tally is not None
    signs = np.array(done.tally.signs(np, _HARMLESS))
    signs[0] = max(signs[0], done.doubt / (_UNSURE * done.largest + _TINY))
    return signs


def _scales(error: np.ndarray, values: np.ndarray) -> np.ndarray:
    """``s_i² = (e_i² + L_i)/2 + (0.01 rms(e))²``, ``L_i`` the mean of ``e_i²`` over nodes around.

    The window is ``± max(2, 0.02 N)`` nodes. What passes through zero is as uncertain as around
    there. No value is known better than its own rounding; and where the estimate was lost, ``s`` is
    as wide as the solution varies.
    """
    n, d = error.shape
    half, found = max(2, int(0.02 * (n - 1))), np.empty_like(error)
    floor = 0.01 * np.sqrt(np.mean(error**2, axis=1, keepdims=True))
    some = max(1, _BLOCK // n)
    for begin in range(0, d, some):  # in pieces that fit the cache
        part = slice(begin, min(begin + some, d))
        size, y = np.abs(error[:, part]), values[:, part]
        finite = np.isfinite(size)
        around = scales.window_mean(np, np.where(finite, size, 0.0)[1:], half, np.hypot)
        around = np.concatenate([around[:1], around]) if n > 1 else size
        scale = np.sqrt(0.5 * (size**2 + around**2) + floor**2)
        scale = np.maximum(scale, _EPSILON * np.abs(y))
        lost = ~np.isfinite(scale)
        if lost.any():
            scale = np.where(lost, y.max(axis=0) - y.min(axis=0), scale)
        found[:, part] = scale
    return found


def _made(
    mode: str, error: np.ndarray, scale: np.ndarray, std: np.ndarray, signs: Any, f: int
) -> Calibration:
    """Factors of the model's standard deviations, or where these are zero, one's own."""
    known = (std > 0.0)[:, None]
    ratio = np.where(known, scale / np.where(known, std[:, None], 1.0), 1.0)
    own = np.where(known, 0.0, scale) if not known.all() else np.broadcast_to(0.0, scale.shape)
    if len(scale) > 1 and not known[0]:  # the first node is exact
        ratio[0], own[0] = ratio[1], 0.0
    rest = signs, f, 0
    return Calibration(mode, 1, KIND, error, None, ratio, own, *rest)  # type: ignore[arg-type]


_BLOCK = 2**15
"""Numbers of an array that are dealt with at a time."""
_EPSILON = float(np.finfo(float).eps)
KIND = "two-pole"
"""``Calibration.kind`` of what is known at the nodes alone."""


class AtTimes:
    """Errors at chosen times, of a solve that keeps nothing else.

    Between two nodes they are linear in time. Scales need the errors around: a running root mean
    square, over a fifth of the steps so far.
    """

    def __init__(self, times: np.ndarray, t: float, d: int) -> None:
        self._times, self._last, self._steps = times, (t, np.zeros(d)), 0
        self._square, self._sign = np.zeros(d), 1.0
        self.errors: list[np.ndarray] = []
        self.around: list[np.ndarray] = []
        self._save(t, np.zeros(d))

    @np.errstate(all="ignore")
    def __call__(self, t: float, error: np.ndarray) -> None:
        """The next node."""
        self._steps += 1
        part = 1.0 / min(self._steps, max(_LEAST, _WINDOW * self._steps))
        self._square = np.hypot(np.sqrt(1.0 - part) * self._square, np.sqrt(part) * error)
        self._save(t, error)
        self._last = (t, error)

    def _save(self, t: float, error: np.ndarray) -> None:
        before, known = self._last
        forward = t >= before
        while len(self.errors) < len(self._times):
            time = float(self._times[len(self.errors)])
            if (time > t) if forward else (time < t):
                break
            part = 1.0 if t == before else (time - before) / (t - before)
            self.errors.append((1.0 - part) * known + part * error)
            self.around.append(self._square)

    @np.errstate(all="ignore")
    def calibration(self, mode: str, done: Transport, values: Any, std: Any) -> Calibration:
        """Of the times that were reached."""
        assert done.tally is not None
        tally, count = done.tally, len(values)
        error, local = (np.stack(rows)[:count] for rows in (self.errors, self.around))
        floor = 0.01 * np.sqrt(np.mean(local**2, axis=1, keepdims=True))
        scale = np.sqrt(0.5 * (error**2 + local**2) + floor**2)
        scale = np.maximum(scale, _EPSILON * np.abs(values))
        scale = np.where(np.isfinite(scale), scale, tally.high - tally.low)
        scale[np.all(local == 0.0, axis=1)] = 0.0  # at the start, which is exact
        return _made(mode, error, scale, std, _signs(done), done.f)


_WINDOW, _LEAST = 0.2, 3.0
