"""Steady states: when a solution has come to rest, where, and how surely.

A solution is taken for steady at ``t`` if it has not moved by more than the tolerance lately, and
one of these holds.

- *A root is near.* Newton's method on ``f(t, y) = 0`` ends within the tolerance; the root is
  stable, and one at all later times that are tried. It is the state that is handed out: what is
  left of its error is that of rounding and of the last correction. Where ``J`` is singular (a
  quantity that is conserved, a line of equilibria) corrections stay in its range, and the part in
  its kernel is as uncertain as the solve has it: ``Π Σ Πᵀ`` with the projector ``Π``.
- *It slows down.* Where ``J`` tells nothing of the direction that is left (an algebraic decay), it
  has moved within the tolerance in half of the time so far, and movements shrink by a third or more
  from one doubling of the time to the next: so they add up to a multiple of the last one, which is
  the error bar.

A drift meets neither, however slow it is.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from probode.ivp.result import Embedding, OdeResult, state_at

_LATELY = 1.6
"""The time so far over that before which it may have moved."""
_BIN = 1.25
"""Elapsed times are looked at in bins of this ratio."""
_SLOWER = 2.0 / 3.0
"""What is left of a movement after a doubling of the time, at most."""
_ITERATIONS = 40
_CONVERGED = 1e-10
"""Corrections, in units of the tolerance, that are not worth another one."""
_SINGULAR = {True: 1e-13, False: 1e-8}
_UNSTABLE = {True: 1e-9, False: 1e-6}
"""Parts of the largest singular value or eigenvalue that count as zero: Jacobians are exact or
differences."""
_NOISE = 100 * float(np.finfo(float).eps)
_LATER = (0.1, 0.5, 1.0, 3.0, 10.0)
"""Times at which a root is to be one, too: after so many times the time so far."""
_SHARE = 2
"""Steps for each evaluation of a test."""


def check_tolerance(name: str, value: Any) -> None:
    """Of an aim: a number or numbers, none of them negative, or ``None``."""
    if value is None:
        return
    try:
        found = np.asarray(value, float)
    except (TypeError, ValueError):
        found = np.asarray(-1.0)
    if not np.all(found >= 0.0) or not np.all(np.isfinite(found)):
        raise ValueError(f"{name} must be a positive number (or one per component), got {value!r}.")


@dataclass(frozen=True)
class Steady:
    """Solve until nothing moves any longer, for ``solve_ivp(..., until=Steady())``.

    Parameters
    ----------
    rtol, atol
        How near to the steady state is near enough: ``atol + rtol |y|``; by default as for steps.

    Examples
    --------
    >>> import numpy as np
    >>> import probode
    >>> until = probode.Steady(rtol=1e-8)
    >>> result = probode.solve_ivp(lambda t, y: 1 - y, (0, np.inf), [0.0], until=until)
    >>> round(float(result.steady.y[0]), 6)
    1.0
    """

    rtol: Any = None
    atol: Any = None

    def __post_init__(self) -> None:
        check_tolerance("rtol", self.rtol)
        check_tolerance("atol", self.atol)

    def looking(self, along: Any) -> "Rest":
        """What looks at the nodes of a solve."""
        rtol = along.rtol if self.rtol is None else np.asarray(self.rtol, float)
        atol = along.atol if self.atol is None else np.asarray(self.atol, float)
        return Rest(along, rtol, atol)


@dataclass(frozen=True)
class SteadyState:
    """A steady state: ``result.steady``."""

    found: bool
    t: float
    """When the solution was within the tolerance of it (not found: the end)."""
    y: np.ndarray
    """The state (not found: the last one)."""
    y_std: np.ndarray
    residual: float
    """The largest component of ``|f(t, y)|``."""
    refined: bool
    """Whether Newton's method was used; else it is the solution at ``t``."""
    stable: bool | None
    """Whether no eigenvalue of the Jacobian has a positive real part; ``None``: not known."""


class Bin(NamedTuple):
    """Where the solution was while the elapsed time grew by a quarter."""

    end: float
    low: np.ndarray
    high: np.ndarray


class Root(NamedTuple):
    """What Newton's method has found, in the units of the tolerance."""

    u: np.ndarray
    left: np.ndarray
    """How far it may still be off."""
    kernel: np.ndarray
    """``Π``, in plain units."""
    stable: bool | None
    refined: bool = True


class Rest:
    """See :class:`probode.ivp.until.Looking`."""

    def __init__(self, along: Any, rtol: Any, atol: Any) -> None:
        self._along, self._rtol, self._atol = along, rtol, atol
        self._bins: list[Bin] = []
        self._number: int | None = None
        self._steps = self._tests = 0
        self._last: np.ndarray | None = None
        self.found: tuple[float, Root] | None = None

    def __call__(self, t: np.ndarray, u: np.ndarray) -> int | None:
        """One row after the other: what is found does not depend on how they come."""
        for i in range(1, len(t)):
            if self._passed(float(t[i]), u[i - 1, 0], u[i, 0]):
                return i
        return None

    def _passed(self, t: float, before: np.ndarray, now: np.ndarray) -> bool:
        elapsed = abs(t - self._along.t0)
        self._steps += 1
        number = int(np.floor(np.log(elapsed) / np.log(_BIN)))
        low, high = np.minimum(before, now), np.maximum(before, now)
        if number == self._number:
            last = self._bins[-1]
            grown = Bin(elapsed, np.minimum(last.low, low), np.maximum(last.high, high))
            self._bins[-1] = grown
            return False
        self._bins.append(Bin(elapsed, low, high))
        self._number = number
        del self._bins[:-_KEPT]
        return self._is_at_rest(t, elapsed, now)

    def _moved(self, first: float, last: float) -> np.ndarray | None:
        """Range of all components between two elapsed times; ``None``: not known."""
        some = [one for one in self._bins if first < one.end <= last]
        if not some or self._bins[0].end > first:
            return None
        low = np.min([one.low for one in some], axis=0)
        return np.asarray(np.max([one.high for one in some], axis=0) - low)

    def _is_at_rest(self, t: float, elapsed: float, u: np.ndarray) -> bool:
        weight = self._atol + self._rtol * np.abs(u)
        weight = np.where(weight > 0.0, weight, np.finfo(float).tiny)
        lately = self._moved(elapsed / _LATELY, elapsed)
        if lately is None or not np.all(lately <= weight):
            return False
        cost = (1 + self._tests) * (len(u) + 1) * _SHARE
        slope = self._along.slope(t, u)
        if not np.all(np.isfinite(slope)):
            return False
        if self._steps < cost and np.any(slope != 0.0):
            return False
        self._tests += 1
        root = self._newton(t, u, weight)
        if root is None:
            early, late = self._moved(elapsed / 4, elapsed / 2), self._moved(elapsed / 2, elapsed)
            if early is not None and late is not None and np.all(late <= weight):
                root = self._slowing(t, u, slope, early, late)
        if root is None:
            return False
        self.found = t, root
        return True

    def _newton(self, t: float, u: np.ndarray, weight: np.ndarray) -> Root | None:
        """A root within the tolerance; ``None``: there is none, or ``J`` does not tell."""
        along, x, step, rate = self._along, u.copy(), np.inf, 0.0
        for _ in range(_ITERATIONS):
            linear = _Linear(along, t, x, weight)
            if not linear.tells:
                return None
            correction = linear.solved(linear.slope)
            following = float(np.max(np.abs(correction)))
            if not np.isfinite(following) or following > 1.0:
                return None
            rate = min(following / step, 0.9) if step > 0.0 else 0.0
            if following >= step:  # rounding is all that is left
                break
            x, step = x - correction * weight, following
            if np.any(np.abs(x - u) > weight):
                return None
            if step <= _CONVERGED:
                break
        else:
            return None
        if not linear.is_stable and np.any(along.slope(t, u) != 0.0):
            return None  # it only passes by
        for later in self._later(t):
            moved = along.slope(later, x) - along.slope(t, x)
            changed = linear.solved(moved)
            settled = np.all(np.abs(changed) <= 1.0) and linear.in_range(moved)
            if not settled:  # NaN too
                return None
        left = weight * (step * rate / (1.0 - rate) + linear.rounding)
        return Root(x, left + np.spacing(np.abs(x)), linear.kernel, linear.is_stable)

    def _slowing(
        self, t: float, u: np.ndarray, slope: np.ndarray, early: np.ndarray, late: np.ndarray
    ) -> Root | None:
        """A solution that moves less and less."""
        weight = self._atol + self._rtol * np.abs(u) + np.finfo(float).tiny
        before, after = (float(np.max(x / weight)) for x in (early, late))
        if not after <= _SLOWER * before:
            return None
        for later in self._later(t):
            changed = self._along.slope(later, u) - slope
            if not np.all(np.abs(changed) <= 1e-6 * np.max(np.abs(slope))):
                return None
        ratio = after / before
        return Root(u, late * ratio / (1.0 - ratio), np.eye(len(u)), None, False)

    def _later(self, t: float) -> list[float]:
        """Times at which nothing should have changed."""
        t0, tf = self._along.t0, self._along.tf
        some = [t + part * (t - t0) for part in _LATER]
        inside = [x for x in some if abs(x - t0) < abs(tf - t0)]
        return inside + ([tf] if np.isfinite(tf) else [])

    def onto(self, result: OdeResult, embedding: Embedding) -> None:
        """The state, and in words whether it was reached."""
        posterior = result.posterior
        mean, std = (np.asarray(x[-1]) for x in state_at(posterior))
        cov = np.diag(std**2)
        if posterior.method.equation.order == 1:
            cov = np.asarray(posterior.state(np.asarray(posterior.t[-1])).cov).reshape(cov.shape)
        t, along = float(np.asarray(result.t)[-1]) if len(result.t) else np.nan, self._along
        found = self.found if result.status == 1 else None
        if found is None:
            rate = np.abs(along.slope(t, mean))
            y, y_std = embedding.values(mean), embedding.stds(std)
            state = SteadyState(False, t, y, y_std, float(np.max(rate)), False, None)
            if result.status == 0:
                result.status, result.success = -1, False
                result.message = (
                    f"No steady state up to t = {t:g}: there the largest slope is "
                    f"{state.residual:.3g}. Integrate further, or loosen the tolerance of Steady."
                )
        else:
            when, root = found
            spread = np.sum((root.kernel @ cov) * root.kernel, axis=1)
            std = np.hypot(np.sqrt(np.maximum(spread, 0.0)), root.left)
            rest = float(np.max(np.abs(along.slope(when, root.u))))
            values = embedding.values(root.u), embedding.stds(std)
            state = SteadyState(True, when, *values, rest, root.refined, root.stable)
            result.message = f"A steady state was reached at t = {when:g}."
            if root.stable is False:
                result.message += " It is not stable: the solution began there."
        result.steady = state


_KEPT = 40
"""Bins that are remembered: eight doublings of the time, and a few."""


class _Linear:
    """``f`` and its Jacobian at a point, in the units of the tolerance."""

    def __init__(self, along: Any, t: float, u: np.ndarray, weight: np.ndarray) -> None:
        slopes, jacobians = along.linearised(np.array([t]), u[None])
        self.slope, jacobian = slopes[0], jacobians[0]
        self._weight = weight
        finite = np.all(np.isfinite(jacobian)) and np.all(np.isfinite(self.slope))
        self._matrix = jacobian * weight / weight[:, None] if finite else np.zeros_like(jacobian)
        self._left, values, right = np.linalg.svd(self._matrix)
        largest = float(values[0]) if len(values) else 0.0
        null = values <= _SINGULAR[along.exact] * largest * len(u)
        self._values, self._null = np.where(null, np.inf, values), null
        self._kernel, self._largest = right[null].T, largest or 1.0
        self._noise = _NOISE * (np.abs(jacobian) @ np.abs(u)) / weight
        self.tells = bool(finite) and self.in_range(self.slope)
        self._unstable = _UNSTABLE[along.exact] * max(largest, 0.0)

    def in_range(self, f: np.ndarray) -> bool:
        """Whether all of a slope is accounted for by ``J``, up to rounding."""
        outside = self._left[:, self._null]
        return bool(np.all(np.abs(outside.T @ (f / self._weight)) <= self._tolerated(outside)))

    def _tolerated(self, outside: np.ndarray) -> np.ndarray:
        return np.asarray(np.abs(outside).T @ self._noise)

    def solved(self, f: np.ndarray) -> np.ndarray:
        """``x`` in the range of ``J`` with ``J x = f``: what is conserved is not changed."""
        if not np.any(self._null):
            return np.asarray(np.linalg.solve(self._matrix, f / self._weight))
        outside = self._left[:, self._null].T
        rows = np.concatenate([self._matrix, self._largest * outside])
        right = np.concatenate([f / self._weight, np.zeros(len(outside))])
        return np.asarray(np.linalg.lstsq(rows, right, rcond=None)[0])

    @property
    def rounding(self) -> float:
        """How far rounding of ``f`` moves a root."""
        return float(np.linalg.norm(self._noise) / np.min(self._values, initial=np.inf))

    @property
    def kernel(self) -> np.ndarray:
        """The projector onto the kernel along the range, in plain units."""
        outside = self._left[:, self._null]
        inside = np.linalg.pinv(outside.T @ self._kernel)
        made = self._kernel @ inside @ outside.T
        return np.asarray(self._weight[:, None] * made / self._weight)

    @property
    def is_stable(self) -> bool:
        """Whether no eigenvalue has a positive real part."""
        return bool(np.all(np.linalg.eigvals(self._matrix).real <= self._unstable))
