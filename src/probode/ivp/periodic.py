"""Periodic orbits: when a solution has come back to where it was, after which time, how surely.

From a *reference* ``p`` on the solution (the start, and points that are taken anew whenever the
time has doubled) the plane through ``p`` across the flow is watched. Where the solution comes back
through it, to ``x`` within the tolerance of ``p`` after a time ``T``, the way there gives

- the monodromy matrix ``Φ`` (``Φ' = J Φ``): the orbit counts only if no multiplier, an eigenvalue
  of ``Φ``, is larger than one. Solutions that are chaotic pass near periodic orbits, which are not
  stable;
- the error ``ε`` of the solve along this way (``e' = J e + m' - f(m)``, with ``m`` the curve
  through its nodes);
- the orbit itself, by one step of Newton's method on ``φ_T(p) = p``::

    (Φ - I) δ + f dT = p - x,   n·δ = 0,   p + δ,  T + dT

  which has to end within the tolerance. Where ``x - p`` is no more than the error of the solve, the
  orbit through ``p`` is closed as it is (every solution around a centre is): then ``δ = 0``.

The standard deviation of the period is what ``ε`` makes of ``dT``.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from probode.global_error.stages import Collocation
from probode.ivp.result import Embedding, OdeResult, state_at
from probode.ivp.steady import check_tolerance
from probode.posterior.hermite import Curve

_DERIVATIVES = 3
"""Of the filter's means: the higher ones jump at the nodes."""
_FIRST = 8
"""Steps before the first reference after the start."""
_FAR = 30.0
"""Tolerances by which a solution has to leave a reference before it can come back."""
_STABLE = 1.1
"""Multipliers that count as not larger than one: a double one is known to a few digits."""
_CLOSED = 2.0
"""Times the error of the solve by which an orbit may be open."""
_AMPLIFIED = 20.0
"""Times by which an orbit is off, more than the error of the solve: larger around a centre."""
_TRIES = 3
"""Ways back to a reference that are looked at."""
_STAGES = 4
_NEAR = 30.0
"""Tolerances within which a way back is looked at: the solve may be off by more than one."""
_CURVED = 10.0
"""Part of a correction that counts as uncertain, in units of its own relative size."""
_ROUNDING = 100 * float(np.finfo(float).eps)
_MOST = 20_000
"""Nodes that are remembered: a longer way is not found."""


@dataclass(frozen=True)
class Periodic:
    """Solve until the solution repeats itself, for ``solve_ivp(..., until=Periodic())``.

    Parameters
    ----------
    rtol, atol
        How near a solution has to come back: ``atol + rtol max |y|`` over the orbit; by default as
        for steps.

    Examples
    --------
    >>> import numpy as np
    >>> import probode
    >>> def van_der_pol(t, y):
    ...     return np.array([y[1], (1 - y[0] ** 2) * y[1] - y[0]])
    >>> until = probode.Periodic(rtol=1e-6)
    >>> result = probode.solve_ivp(van_der_pol, (0, np.inf), [2.0, 0.0], until=until)
    >>> round(result.period, 3)
    6.663
    """

    rtol: Any = None
    atol: Any = None

    def __post_init__(self) -> None:
        check_tolerance("rtol", self.rtol)
        check_tolerance("atol", self.atol)

    def looking(self, along: Any) -> "Returns":
        """What looks at the nodes of a solve."""
        rtol = along.rtol if self.rtol is None else np.asarray(self.rtol, float)
        atol = along.atol if self.atol is None else np.asarray(self.atol, float)
        return Returns(along, rtol, atol)


@dataclass(frozen=True)
class PeriodicOrbit:
    """A periodic orbit: ``result.periodic``; ``result.period`` and ``period_std`` are its own."""

    found: bool
    period: float
    """NaN if there is none."""
    period_std: float
    t: float
    """When the solution was at ``y`` (not found: the end)."""
    y: np.ndarray
    """A point of the orbit (not found: the last state)."""
    y_std: np.ndarray
    multipliers: np.ndarray
    """Floquet multipliers: how a small distance from the orbit grows in one period. One of them, of
    the distance along the orbit, is one."""


@dataclass
class Reference:
    """A point of the solution, the plane across the flow there, and what has come since."""

    node: int
    point: np.ndarray
    normal: np.ndarray
    largest: np.ndarray
    """Sizes of the components."""
    before: float = 0.0
    """The side of the last node."""
    left: bool = False
    """Whether the solution has left it."""
    tries: int = 0

    def side(self, u: np.ndarray) -> Any:
        """Of the plane: positive where the flow goes to."""
        return (u - self.point) @ self.normal


class Found(NamedTuple):
    """A periodic orbit."""

    period: float
    period_std: float
    t: float
    u: np.ndarray
    u_std: np.ndarray | None
    """``None``: as uncertain as the solution there is."""
    multipliers: np.ndarray


class Returns:
    """See :class:`probode.ivp.until.Looking`."""

    def __init__(self, along: Any, rtol: Any, atol: Any) -> None:
        self._along, self._rtol, self._atol = along, rtol, atol
        self._t: list[float] = []
        self._u: list[np.ndarray] = []
        self._dropped = 0
        self._references: list[Reference] = []
        self._next = 0.0
        self.found: Found | None = None

    def __call__(self, t: np.ndarray, u: np.ndarray) -> int | None:
        """One row after the other: what is found does not depend on how they come."""
        if not self._t:
            self._note(float(t[0]), u[0])
            self._refer()
        for i in range(1, len(t)):
            self._note(float(t[i]), u[i])
            if any(self._returned(one) for one in self._references):
                return i
            elapsed = abs(float(t[i]) - self._along.t0)
            if self._dropped + len(self._t) > _FIRST and elapsed >= self._next:
                self._next = 2.0 * elapsed
                self._refer()
        return None

    def _note(self, t: float, u: np.ndarray) -> None:
        self._t.append(t)
        self._u.append(np.array(u[:_DERIVATIVES]))

    def _refer(self) -> None:
        """The last node as a reference; the first one of all, and the last two, stay."""
        t, u = self._t[-1], self._u[-1][0]
        slope = self._along.slope(t, u)
        weight = self._weight(np.abs(u))
        node = self._dropped + len(self._t) - 1
        if not np.all(np.isfinite(slope)) or not np.any(slope):
            return
        normal = slope / weight**2
        kept = self._references
        first = kept[:1] if kept and kept[0].node == 0 and node < _MOST else []
        others = [one for one in kept[-2:] if one not in first and one.node > node - _MOST]
        self._references = [*first, *others[-1:], Reference(node, u, normal, np.abs(u))]
        drop = self._references[0].node - self._dropped
        del self._t[:drop], self._u[:drop]
        self._dropped += drop

    def _weight(self, size: np.ndarray) -> np.ndarray:
        weight = self._atol + self._rtol * size
        return np.where(weight > 0.0, weight, np.finfo(float).tiny)

    def _returned(self, reference: Reference) -> bool:
        """Whether the last step has led back to a reference, along an orbit that is periodic."""
        now = self._u[-1][0]
        before, reference.before = reference.before, float(reference.side(now))
        reference.largest = np.maximum(reference.largest, np.abs(now))
        weight = self._weight(reference.largest)
        away = np.abs(now - reference.point) / weight
        reference.left = reference.left or bool(np.any(away > _FAR))
        if not (before < 0.0 <= reference.before and reference.left and reference.tries < _TRIES):
            return False
        from scipy.optimize import brentq  # loads what others do not need

        last = _Way(self._t[-2:], self._u[-2:])
        near = float(brentq(lambda s: reference.side(last.at_last(s)), 0.0, 1.0, xtol=1e-15))
        if np.any(np.abs(last.at_last(near) - reference.point) > _NEAR * weight):
            return False
        reference.tries += 1
        first = reference.node - self._dropped
        way = _Way(self._t[first:], self._u[first:])
        self.found = _closed(self._along, way, near, reference, weight)
        return self.found is not None

    def onto(self, result: OdeResult, embedding: Embedding) -> None:
        """The orbit, and in words whether there is one."""
        found = self.found if result.status == 1 else None
        if found is None:
            t = float(np.asarray(result.t)[-1]) if len(result.t) else np.nan
            mean, std = (np.asarray(x[-1]) for x in state_at(result.posterior))
            values = embedding.values(mean), embedding.stds(std)
            orbit = PeriodicOrbit(False, np.nan, np.nan, t, *values, np.zeros(0))
            if result.status == 0:
                result.status, result.success = -1, False
                result.message = (
                    f"No periodic orbit up to t = {t:g}: the solution has not come back to where "
                    "it was, or not to stay. Integrate further, or loosen Periodic's tolerance."
                )
        else:
            own = found.u_std
            if own is None:
                own = state_at(result.posterior, np.asarray([found.t]))[1][0]
            values = embedding.values(found.u), embedding.stds(own)
            numbers = found.period, found.period_std, found.t
            orbit = PeriodicOrbit(True, *numbers, *values, found.multipliers)
            result.message = (
                f"A periodic orbit was found: its period is {found.period:.6g} ± "
                f"{found.period_std:.2g}."
            )
        result.periodic = orbit
        result.period, result.period_std = orbit.period, orbit.period_std


class _Way:
    """The solution from a reference to the last node."""

    def __init__(self, t: list[float], u: list[np.ndarray]) -> None:
        self.curve = Curve(np.array(t), np.stack(u))

    @property
    def states(self) -> np.ndarray:
        return self.curve.derivatives[:, 0]

    def at_last(self, s: float) -> np.ndarray:
        """After a part of the last step."""
        return np.asarray(self.curve(np.array([len(self.curve.h) - 1]), np.array([s]))[0])

    def carried(self, along: Any, last: float) -> tuple[np.ndarray, np.ndarray]:
        """``Φ`` and ``ε`` up to a part of the last step, by Radau's method."""
        collocation, d = Collocation("radau", _STAGES), self.states.shape[1]
        nodes, matrix = np.asarray(collocation.nodes), np.asarray(collocation.matrix)
        steps = len(self.curve.h)
        parts = np.where(np.arange(steps) == steps - 1, last, 1.0)
        at, s = np.repeat(np.arange(steps), _STAGES), np.outer(parts, nodes).reshape(-1)
        m = self.curve(at, s)
        f, jacobians = along.linearised(self.curve.t[at] + s * self.curve.h[at], m)
        defects = (self.curve.slope(at, s) - f).reshape(steps, _STAGES, d)
        jacobians = jacobians.reshape(steps, _STAGES, d, d)
        both, size = np.concatenate([np.eye(d), np.zeros((d, 1))], axis=1), _STAGES * d
        for n, h in enumerate(parts * self.curve.h):
            blocks = np.einsum("ij,iab->iajb", matrix, jacobians[n]).reshape(size, size)
            right = jacobians[n] @ both
            right[:, :, -1] += defects[n]
            stages = np.linalg.solve(np.eye(size) - h * blocks, right.reshape(size, d + 1))
            both = both + h * np.tensordot(matrix[-1], stages.reshape(_STAGES, d, d + 1), 1)
        return both[:, :-1], both[:, -1]


def _closed(
    along: Any, way: _Way, last: float, reference: Reference, weight: np.ndarray
) -> Found | None:
    """The periodic orbit that a way back belongs to, if there is one and it is stable."""
    begin = float(way.curve.t[0])
    period = float(way.curve.t[-2]) + last * float(way.curve.h[-1]) - begin
    if not _repeats(along, way, period, weight):
        return None
    try:
        monodromy, error = way.carried(along, last)
        multipliers = np.linalg.eigvals(monodromy)
        back, d = way.at_last(last), len(error)
        slope = along.slope(begin + period, back)
        # In units of the tolerance; an error along the orbit is one of the time.
        gap, off, speed = ((x / weight) for x in (back - reference.point, error, slope))
        normal = reference.normal * weight
        late = normal * off / (normal @ speed)
        across = off - speed * np.sum(late)
        bordered = np.zeros((d + 1, d + 1))
        bordered[:d, :d] = monodromy * weight / weight[:, None] - np.eye(d)
        bordered[:d, d], bordered[d, :d] = speed, normal / np.linalg.norm(normal)
        right = np.zeros((d + 1, d + 1))
        right[:d, 0], right[:d, 1:] = -gap, np.diag(off)
        change, *doubts = np.linalg.solve(bordered, right).T
    except np.linalg.LinAlgError:
        return None
    if not np.all(np.isfinite(change)) or np.max(np.abs(multipliers)) > _STABLE:
        return None
    multipliers = multipliers[np.argsort(-np.abs(multipliers))]
    resolved = _ROUNDING * max(abs(begin + period), abs(period))
    doubt = np.linalg.norm(doubts, axis=0)
    isolated = np.max(doubt[:d]) <= _AMPLIFIED * np.max(np.abs(off))
    if not isolated and np.max(np.abs(gap)) <= _CLOSED * np.max(np.abs(across)):
        spread = float(np.hypot(np.linalg.norm(late), resolved))
        return Found(abs(period), spread, begin, reference.point, None, multipliers)
    if not np.max(np.abs(change[:d])) <= 1.0:
        return None
    moved = float(np.max(np.abs(change[:d]) * weight / reference.largest.max()))
    doubt = np.hypot(doubt, _CURVED * moved * change)
    point, spreads = reference.point + change[:d] * weight, doubt[:d] * weight
    spread = float(np.hypot(doubt[d], resolved))
    return Found(abs(period + float(change[d])), spread, begin, point, spreads, multipliers)


def _repeats(along: Any, way: _Way, period: float, weight: np.ndarray) -> bool:
    """Whether ``f`` is the same one period later, at some places on the way."""
    for n in np.unique(np.linspace(0, len(way.states) - 2, 8).astype(int)):
        t, u = float(way.curve.t[n]), way.states[n]
        changed = along.slope(t + period, u) - along.slope(t, u)
        if not np.all(np.abs(changed * period) <= weight):
            return False
    return True
