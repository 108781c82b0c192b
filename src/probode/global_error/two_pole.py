"""The global error of the two-pole filter, carried along with its own factorisations.

``P`` interpolates the values ``y_n`` at ``2w + 1`` nodes around ``t_n``. Its error ``e = P - y``
obeys ``e' = P'(t) - f(t, P - e)``, which is solved *at the nodes* (between them, an interpolant of
values and slopes has a defect; at them it has none) for the pair ``(e, h e')``::

    z = h e' - h (P'(t_n) - f(t_n, y_n - e)),   u = W z,  v = W u,   (e, h e') -= α v + β u

with the factorisation ``W`` of the step that led to ``t_n``: no matrix of its own. This is repeated
until a change is a quarter of the one before, in most steps once or twice; one that is longer than
that before is not made. It runs ``w`` steps behind the filter and keeps ``2w + 1`` nodes.
Where the length of the steps changes, what is stiff in ``h e'`` is of no use in the new units, and
is taken out: ``h e' <- (2 W - W²) h e'``. With a mass matrix, ``M e' = M P' - f(t, P - e)``.

Where a fast layer is met with long steps, ``P'`` is whatever polynomials make of it. (Comparing it
with that of fewer nodes was tried as a sign of that: it is as large where the estimate is right.)
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from probode.engines.two_pole import vectors
from probode.engines.two_pole.machine import Carried, Scheme
from probode.engines.two_pole.step import Standing, System
from probode.engines.two_pole.vectors import over
from probode.model.two_pole import error_gains

_QUICK, _MISTRUST = 0.25, 1.3
"""A rate of convergence at which no more is needed; it is trusted less from step to step."""
_ITERATIONS = 4
"""At most. (With two, what is left adds up over steps that share a Jacobian: Robertson's equations
in 100 cells, tolerance 1e-3, ended with errors of five standard deviations.)"""
_SMALL, _TINY = 1e-2, 1e-290
_HARMLESS = 4.0
"""Times the largest error by which all iterations together may be unsettled."""
_EPSILON = float(np.finfo(float).eps)


class Node(NamedTuple):
    """Where a step of the filter ended."""

    t: float
    y: np.ndarray
    h: float = 0.0
    matrix: Any = None
    """That of the step."""


class Judged(NamedTuple):
    """What the estimate is judged by: root mean squares, relative to the solution."""

    unsettled: float = 0.0
    """What iterations after the last ones would have changed, in all steps together."""
    largest: float = 0.0
    """The largest error."""
    errors: float = 0.0
    values: float = 0.0
    """Roots of the sums of squares of errors and of values over the steps."""
    steps: int = 0

    def signs(self, size: float) -> np.ndarray:
        """In the order of :data:`probode.global_error.diagnosis.SIGNS`; ``size`` is given."""
        unsettled = self.unsettled / (_HARMLESS * self.largest + _TINY)
        rounding = _EPSILON * np.sqrt(self.steps) * self.values / (self.errors + _TINY)
        return np.array([unsettled, rounding if self.largest else 0.0, size])


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
    rate: float = 1.0
    """At which iterations shrink, as far as it is known."""
    found: tuple[list[np.ndarray], int] = ([], 0)
    """Errors of all nodes after the first: a list, of which so many are mine."""
    judged: Judged = Judged()
    watch: Any = None
    """Is told of each node, ``(t, y, e)``, whose error then is not kept."""
    f: int = 0
    """Evaluations so far."""
    begins: np.ndarray = np.zeros(0)
    """The error of the first node."""

    @staticmethod
    def start(
        system: System, t: float, y: np.ndarray, watch: Any = None, begins: Any = None
    ) -> "Transport":
        """At an exactly known value, or at one whose error is the one it ``begins`` with."""
        xp, error = system.xp, np.zeros((2, y.size))
        error[0] = 0.0 if begins is None else begins
        node, order = Node(t, xp.array(y, float)), system.highest
        begun = Transport(system, (order + 3) // 2, (node,), error=xp.asarray(error), watch=watch)
        return begun._replace(found=([], 0), begins=error[0])

    def passed(self, now: Standing) -> "Transport":
        """After a step of the filter: its error is found when it has gone on for ``w`` steps."""
        assert now.used is not None
        node = Node(now.t, now.x[0], now.h, now.used)
        mine = self._replace(nodes=(*self.nodes, node), behind=self.behind + 1)
        if mine.behind > self.w:
            mine = mine._carried()
        reached = len(mine.nodes) - 1 - mine.behind
        drop = max(0, min(reached - self.w, len(mine.nodes) - 1 - 2 * self.w))
        return mine._replace(nodes=mine.nodes[drop:])

    def across(self, t: float, y: np.ndarray) -> "Transport":
        """Over a switch: no interpolant reaches from one side to the other."""
        done = self.finished()
        there = done._replace(nodes=(Node(t, y),), behind=0, h=0.0, rate=1.0)
        return there._noted(there.nodes[0], done.error[0])

    def finished(self) -> "Transport":
        """With the nodes that were waiting for later ones."""
        mine = self
        while mine.behind:
            mine = mine._carried()
        return mine

    @property
    def scheme(self) -> Scheme:
        """For the kernels, which do all of this too (``native/src/two_pole_error.hpp``)."""
        around, times = (0.0, 0.0), None
        if self.watch is not None:
            around, times = self.watch.scheme
        habits = _QUICK, _MISTRUST, _SMALL, _TINY, _LITTLE, _LEAST_RATE, _ITERATIONS
        return Scheme(np.array([self.w, *habits, *around]), times, self.begins)

    def found_by_kernels(self, carried: Carried) -> "Transport":
        """With what they have found, up to where they came."""
        if self.watch is not None:
            self.watch.take(carried)
        found = [] if self.watch is not None else carried.errors
        mine = self._replace(found=(found, len(found)), judged=Judged(*carried.judged))
        return mine._replace(behind=0, f=carried.f)

    @property
    def errors(self) -> np.ndarray:
        """At all nodes that were reached, the first one included, ``(N, d)``."""
        known, count = self.found
        first = self.begins[None]
        return np.concatenate([first, np.stack(known[:count])]) if count else first

    def _noted(self, node: Node, error: np.ndarray) -> "Transport":
        """With the error of a node."""
        if self.watch is not None:
            self.watch(node.t, node.y, error)
            return self
        known, count = self.found
        if len(known) != count:  # another one has gone on from here
            known = known[:count]
        known.append(np.asarray(error))
        return self._replace(found=(known, count + 1))

    @np.errstate(all="ignore")  # an estimate that is lost is seen by its numbers
    def _carried(self) -> "Transport":
        """To the next node."""
        n, mass, xp = len(self.nodes) - self.behind, self.system.mass, self.system.xp
        here, h, (e, he), rate = self.nodes[n], self.nodes[n].h, self.error, self.rate
        evaluations = 0

        def weighed(v: np.ndarray) -> np.ndarray:
            return v if mass is None else mass(v)

        if not self.h:
            there, evaluations = self.nodes[n - 1], 1
            he = h * (self._slope(n - 1) - self.system.slope(there.t, there.y - e))
        elif self.h != h:
            he, rate = he * (h / self.h), 1.0
            once = here.matrix.solve(weighed(he))
            he = 2.0 * once - here.matrix.solve(weighed(once))
        e, slope, gains = e + he, self._slope(n), error_gains(here.matrix.gamma)
        moved: list[float] = []
        while not _settled(moved, rate):
            f = self.system.f(here.t, here.y - e)
            u = here.matrix.solve(over(xp, vectors.defect)(weighed(he), h, weighed(slope), f))
            v = here.matrix.solve(weighed(u))
            *better, change = over(xp, vectors.carried)(gains, e, he, v, u)
            moved.append(self._sizes(here, change)[1])
            if len(moved) > 1 and not moved[-1] < moved[-2]:
                break
            e, he = better
        judged, rate = self._judge(here, e, moved, rate)
        mine = self._replace(
            error=xp.stack([e, he]),
            h=h,
            behind=self.behind - 1,
            rate=rate,
            judged=judged,
            f=self.f + evaluations + len(moved),
        )
        return mine._noted(here, e)

    def _judge(
        self, here: Node, error: np.ndarray, moved: list[float], rate: float
    ) -> tuple[Judged, float]:
        """After one more step; and the rate at which iterations shrink."""
        known, (value, off) = self.judged, self._sizes(here, error)
        if not np.isfinite(off):
            return known, 1.0
        left = 0.0
        if len(moved) > 1:
            before, last = moved[-2:]
            rate = min(1.0, last / (before + _TINY))
            left = last * rate
            rate = rate if last > _LITTLE * off else 0.0  # of next to nothing
        judged = Judged(
            float(np.hypot(known.unsettled, left)),
            max(known.largest, off),
            float(np.hypot(known.errors, off)),
            float(np.hypot(known.values, value)),
            known.steps + 1,
        )
        return judged, _MISTRUST * max(rate, _LEAST_RATE)

    def _sizes(self, here: Node, some: Any) -> tuple[float, float]:
        """Root mean squares of ``y`` and of something else at a node, relative to ``y``."""
        value, size = over(self.system.xp, vectors.relative)(_SMALL, _TINY, here.y, some).tolist()
        return value, size

    def _slope(self, n: int) -> np.ndarray:
        """``P'`` at a node, from ``w`` on both sides as far as there are."""
        last, here = len(self.nodes) - 1, self.nodes[n]
        first = max(0, min(n - self.w, last - 2 * self.w))
        some = self.nodes[first : first + 2 * self.w + 1]
        unit = here.h or some[1].h
        lengths = tuple(round(node.h / unit, 12) for node in some[1:])
        weights, values = _weights(lengths, n - first) / unit, [node.y for node in some]
        found: np.ndarray = over(self.system.xp, vectors.slope)(weights, values, here.y)
        return found


_LITTLE, _LEAST_RATE = 1e-4, 0.01


def _settled(moved: list[float], rate: float) -> bool:
    """Whether iterations have done enough; ``moved`` is by how much each of them."""
    if len(moved) < 2:
        return len(moved) == 1 and rate < _QUICK
    return len(moved) == _ITERATIONS or moved[-1] < _QUICK * moved[-2]


@lru_cache(maxsize=4096)  # steps are held: most of them are equal
def _weights(lengths: tuple[float, ...], at: int) -> np.ndarray:
    """Weights in the slope at a node, of values between which steps of these ``lengths`` lie.

    They are those of differences to its own value.
    """
    s = np.concatenate([[0.0], np.cumsum(lengths)])
    found = np.zeros(len(s))
    for j in range(len(s)):  # Lagrange's polynomials: Π (s_a - s_k) / (s_j - s_k) / (s_j - s_a)
        others = [k for k in range(len(s)) if k not in (j, at)]
        if j != at:
            found[j] = np.prod((s[at] - s[others]) / (s[j] - s[others])) / (s[j] - s[at])
    return found
