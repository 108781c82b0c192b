"""One step of the two-pole filter: predict, correct by Newton's method, judge, choose the next.

Steps are held at one length: every change costs a factorisation, and stability is that of constant
steps. The order rises from 1 at the start, where no derivatives but the slope are known, to that of
the solver, as soon as a higher one allows a longer step. (Going down again was tried, and does not
pay: it saves a few steps and costs more factorisations.)

- *Newton.* Corrections ``u = W z``, ``v = W u`` are repeated until the next would not matter:
  ``error |u| θ < 0.03 max(err, 0.01)`` with ``θ`` the measured rate of convergence (which is
  trusted less from step to step). A new Jacobian is taken where the rate is bad, after fifty steps,
  and after a failure; a shorter step where that does not help.
- *Error.* ``err = rms(error u / (atol + rtol |y|))``, from the first correction.
- *Length and order.* Once a length has been held for ``q + 2`` steps: ``0.8 err^(-1/(q+1))`` times
  as long, with the largest of the last errors, if that is a change worth a factorisation. Of the
  next order the error is ``error_(q+1) (u_n - u_(n-1)) / (q + 1)``.
- *Growth.* An error that grows in time is a mode of ``J`` with ``λ > 0``, and ``W`` multiplies it
  by ``1/(1 - γ h λ)``: beyond ``γ h λ = 1`` with the wrong sign. What grows may be far below the
  tolerance, and then no error is seen (ahead of a front that moves into an unstable state, say): a
  step is too long, whatever its error, if ``|W u| > 1.5 |u|``, which is ``γ h λ > 1/3``.
- *Failures.* After three in a row the filter begins anew from ``y`` and its slope.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from probode.engines.two_pole import vectors
from probode.engines.two_pole.linear import Linear
from probode.engines.two_pole.sparse_lu import Singular, Solve
from probode.engines.two_pole.vectors import over
from probode.model.two_pole import Gains, gains

_ITERATIONS = 4
_ENOUGH, _LEAST = 0.03, 0.01
"""What Newton's method may leave, in units of the error; which counts as at least so much."""
_DIVERGES, _SLOW = 0.9, 0.3
"""Rates at which Newton's method gives up, and at which a new Jacobian is worth its cost."""
_MISTRUST = 1.5
_OLD = 50
_SAFETY, _GROWTH, _SHRINK = 0.8, 2.5, 0.2
"""Longer steps at once would save few of them, and spoil the interpolants of the error estimate."""
_LONGER, _SHORTER = 1.2, 0.95
"""Changes of the length between which it is kept."""
_AMPLIFIED = 1.5
"""Times ``|u|`` that ``|W u|`` may be."""
_REMEMBERED = 0.95
"""Of the growth in one step, in the next. With that of the last three steps alone a front ran off;
with that of all steps of one length, these stay as short as a layer has made them."""
_CAREFUL = 10.0
"""Part of the tolerance that steps of a lower order are held to: there are few of them, and the
error estimate, which follows smooth errors, would not see those that a start leaves behind."""
_SAME = 1e-12
"""Lengths that differ by no more than this part are one."""
_FAR = 10.0
"""An error after which the Jacobian is not believed any more."""
_ANEW = 3
"""Failures in a row after which derivatives are not believed, either."""
STRETCH = 1.0 + 1e-10
"""A step that would end this close to the end is stretched to it."""
HABITS = (
    *(_ITERATIONS, _ENOUGH, _LEAST, _DIVERGES, _SLOW, _MISTRUST, _OLD, _SAFETY, _GROWTH, _SHRINK),
    *(_LONGER, _SHORTER, _CAREFUL, _SAME, _FAR, _ANEW, STRETCH, _AMPLIFIED, _REMEMBERED),
)
"""All of these, for the kernels."""


class System(NamedTuple):
    """What is solved: ``M y' = f(t, y)``."""

    f: Callable[[float, np.ndarray], np.ndarray]
    jacobian: Callable[[float, np.ndarray], Any]
    """``(t, y)`` to what ``linear`` takes."""
    linear: Linear
    highest: int
    """Order of the solver."""
    mass: Callable[[np.ndarray], np.ndarray] | None = None
    """``v -> M v``; ``None``: the identity."""

    invert: Callable[[np.ndarray], np.ndarray] | None = None
    """``v -> M⁻¹ v``, for the slope at the start."""
    size: int = 0
    """Components."""
    weights: Any = None
    """``M``, sparse."""
    loop: Callable[[int], None] | None = None
    """Evaluates ``f`` for the kernels (:mod:`probode.engines.two_pole.machine`)."""
    xp: Any = np
    """Whose arrays the long vectors are: NumPy's, or JAX's, wherever its device is."""

    def slope(self, t: float, y: np.ndarray) -> np.ndarray:
        """``y' = M⁻¹ f(t, y)``."""
        f = self.f(t, y)
        return f if self.invert is None else self.invert(f)

    def residual(self, t: float, y: np.ndarray, slope: np.ndarray, h: float) -> np.ndarray:
        """``z = M x_1 - h f(t, x_0)``."""
        moved = slope if self.mass is None else self.mass(slope)
        return moved - h * self.f(t, y)


class Matrix(NamedTuple):
    """``M - γ h J``, factorised."""

    solve: Solve
    h: float
    gamma: float
    jacobian: Any

    @property
    def iteration(self) -> Any:
        """One of Newton's method as a whole, where there is more to it than solving twice."""
        return getattr(self.solve, "iteration", None)


class Counts(NamedTuple):
    """How often things happened."""

    attempted: int = 0
    accepted: int = 0
    f: int = 0
    jacobians: int = 0
    factorisations: int = 0
    solves: int = 0


class Standing(NamedTuple):
    """The filter between two steps. Nothing in it is changed: a later one is another one."""

    t: float
    h: float
    """Length of the step that led here; coefficients are in units of it."""
    x: np.ndarray
    """``x_i = h^i y^(i)/i!``, shape ``(q+1, d)`` with the order ``q`` of the next step."""
    following: float
    """Length of the next step, as proposed."""
    jacobian: Any = None
    age: int = 0
    matrix: Matrix | None = None
    """For the next step, if it can be used again."""
    used: Matrix | None = None
    """Of the last step."""
    rate: float = 1.0
    held: int = 0
    """Steps since the length or the order was changed."""
    recent: tuple[float, ...] = ()
    """The last errors, in units of the tolerance."""
    growth: float = 0.0
    """``γ h λ`` of what has grown in steps of this length and order, forgotten little by little."""
    correction: np.ndarray | None = None
    """``u`` of the last step."""
    earlier: np.ndarray | None = None
    """``u`` of the one before, if it was as long and of the same order."""
    failures: int = 0
    counts: Counts = Counts()
    resolved: bool = True
    """Whether what was rejected last was finite."""

    @property
    def order(self) -> int:
        """``q`` of the next step."""
        return len(self.x) - 1

    def scaled(self, h: float) -> "Standing":
        """In units of another step; what rounding leaves of two times is no other one."""
        if abs(h - self.h) <= _SAME * abs(h):
            return self
        powers = (h / self.h) ** np.arange(len(self.x))
        return self.changed(x=self.x * powers[:, None], h=h)

    def changed(self, **more: Any) -> "Standing":
        """With nothing known of steps of this length and order."""
        return self._replace(held=0, recent=(), growth=0.0, earlier=None, **more)

    def counted(self, **more: int) -> "Standing":
        """With so many more of these."""
        counts = {name: getattr(self.counts, name) + n for name, n in more.items()}
        return self._replace(counts=self.counts._replace(**counts))


class Weights(NamedTuple):
    """What makes one of the tolerance: ``1 / (atol + rtol |y|)``."""

    atol: Any
    rtol: Any

    def __call__(self, size: Any) -> Any:
        """Of a solution of this size."""
        return 1.0 / (self.atol + self.rtol * size)


def attempt(
    system: System, weights: Weights, now: Standing, t: float, judged: bool = True
) -> Standing:
    """Try a step to ``t``. Accepted, the outcome stands there; else where it was, with a new plan.

    Unless steps are ``judged``, all are accepted that Newton's method finishes.
    """
    now = now.scaled(t - now.t)
    gain, x, h = gains(now.order), now.x, now.h
    careful = _CAREFUL if now.order < system.highest else 1.0
    foresee = over(system.xp, vectors.predicted)
    predicted, weight = foresee(gain.predict, x, *weights, careful)
    try:
        now = _ready(system, gain, now, t, predicted[0])
    except Singular:
        return _failed(now.counted(attempted=1), 0.5, resolved=True)
    now, solved = _newton(system, gain, now, t, predicted, weight, judged)
    err, done = solved.error, solved.done
    if judged and err > 1.0:
        stale = now.age > 0 and err > _FAR
        factor = max(_SHRINK, _SAFETY * err ** (-1.0 / (gain.order + 1)))
        return _failed(now, factor, resolved=solved.finite, stale=stale)
    if judged and solved.amplified > _AMPLIFIED:
        factor = max(_SHRINK, _SAFETY * _room(_growth(solved.amplified)))
        return _failed(now, factor, resolved=solved.finite)
    if not done:
        if now.age > 0:  # a new Jacobian first
            return now._replace(jacobian=None, matrix=None, resolved=solved.finite)
        return _failed(now, 0.5 if solved.iterations else 0.25, resolved=solved.finite)
    following = over(system.xp, vectors.corrected)(gain.predict, x, gain.both, solved.sums)
    slow = solved.iterations > 1 and now.rate > _SLOW
    accepted = now._replace(
        t=t,
        x=following,
        used=now.matrix,
        following=h,
        age=now.age + 1,
        held=now.held + 1,
        recent=(*now.recent[-2:], err),
        growth=max(_growth(solved.amplified), _REMEMBERED * now.growth),
        correction=solved.first,
        earlier=now.correction if now.held > 0 else None,
        failures=0,
        counts=now.counts._replace(accepted=now.counts.accepted + 1),
    )
    if slow or accepted.age > _OLD:
        accepted = accepted._replace(jacobian=None, matrix=None)
    if judged:
        return _raised(system, weight, gain, accepted, x[-1])
    return _at_top(system, accepted, x[-1])


class _Solved(NamedTuple):
    done: bool
    error: float
    sums: np.ndarray
    """Of all ``v`` and all ``u``, ``(2, d)``."""
    first: np.ndarray
    """The first ``u``."""
    iterations: int
    finite: bool
    amplified: float


def _newton(
    system: System,
    gain: Gains,
    now: Standing,
    t: float,
    at: np.ndarray,
    weight: np.ndarray,
    judged: bool,
) -> tuple[Standing, _Solved]:
    """Corrections from the prediction ``x_0, x_1`` on, and the rate at which they shrink."""
    assert now.matrix is not None
    iteration = now.matrix.iteration or partial(_iteration, system, now.matrix.solve)
    h, both = now.h, gain.both[:2]
    rate, error, before, done, finite, first = now.rate, np.inf, 0.0, False, True, at[0]
    amplified = 1.0
    sums = system.xp.zeros_like(at)
    for k in range(_ITERATIONS):
        longest = 1.0 if k == 0 and judged else _DIVERGES * before if before > 0.0 else np.inf
        u, v, length, twice = iteration(t, at, h, weight, longest / gain.error)
        length, twice = gain.error * length, gain.error * twice
        finite = math.isfinite(length)
        if not finite:
            break
        if k == 0:
            first, error = u, length
            if judged and error > 1.0:
                break
            rate = min(1.0, _MISTRUST * rate)
        else:
            rate = max(length / before, 0.1 * rate) if before > 0.0 else 0.0
            if rate > _DIVERGES:
                break
        assert v is not None
        finite = math.isfinite(twice)  # an iterative solver may give up
        if not finite:
            break
        if k == 0 and length > 0.0:
            amplified = twice / length
            if judged and amplified > _AMPLIFIED:
                break
        sums, at = over(system.xp, vectors.moved)(sums, at, both, v, u)
        before = length
        done = length * min(1.0, rate) < _ENOUGH * min(1.0, max(error, _LEAST))
        if done:
            break
    done = done or (not judged and finite and length < _ENOUGH)
    if not finite and now.matrix.iteration is not None:  # is it f, or what solves by iterations?
        finite = bool(system.xp.all(system.xp.isfinite(system.f(t, at[0]))))
    counts = now.counts
    counts = counts._replace(
        attempted=counts.attempted + 1, f=counts.f + k + 1, solves=counts.solves + 2 * k + 1 + done
    )
    now = now._replace(rate=rate, counts=counts)
    return now, _Solved(done, error, sums, first, k, finite, amplified)


def _iteration(
    system: System, solve: Solve, t: float, at: Any, h: float, weight: Any, longest: float
) -> tuple[Any, Any, float, float]:
    """``u = W z``, ``v = W u`` and their lengths; no ``v`` where ``u`` is too long."""
    u = solve(system.residual(t, at[0], at[1], h))
    length = _norm(system.xp, u, weight)
    if not length <= longest:
        return u, None, length, length
    v = solve(u if system.mass is None else system.mass(u))
    return u, v, length, _norm(system.xp, v, weight)


def _norm(xp: Any, u: Any, weight: Any) -> float:
    return float(over(xp, vectors.norm)(u, weight))


def _ready(system: System, gain: Gains, now: Standing, t: float, y: np.ndarray) -> Standing:
    """With a Jacobian and a factorisation for this step."""
    if now.jacobian is None:
        found = system.jacobian(t, y)
        now = now._replace(jacobian=found, age=0, matrix=None, rate=1.0).counted(jacobians=1)
    matrix = now.matrix
    if matrix is None or matrix.h != now.h or matrix.gamma != gain.gamma:
        solve = system.linear.factorised(now.jacobian, gain.gamma * now.h)
        matrix = Matrix(solve, now.h, gain.gamma, now.jacobian)
        now = now._replace(matrix=matrix).counted(factorisations=1)
    return now


def _failed(now: Standing, factor: float, *, resolved: bool, stale: bool = False) -> Standing:
    """Rejected, with a shorter step to try; after several failures from the slope alone."""
    failures = now.failures + 1
    x = now.x[:2] if failures >= _ANEW else now.x
    if stale or failures >= _ANEW:
        now = now._replace(jacobian=None, matrix=None)
    following = now.h * factor
    return now.changed(x=x, failures=failures, following=following, resolved=resolved)


def _raised(
    system: System, weight: np.ndarray, gain: Gains, now: Standing, highest: np.ndarray
) -> Standing:
    """With the length and the order of the next step; ``highest`` was ``x_q`` before this one."""
    q = gain.order
    if now.held <= q + 1:
        return now
    factor, raised = _factor(max(now.recent), q), False
    if q < system.highest and now.earlier is not None:
        assert now.correction is not None
        change = _norm(system.xp, now.correction - now.earlier, weight) / (q + 1)
        above = _factor(gains(q + 1).error * change, q + 1)
        factor, raised = max(factor, above), above >= factor
    factor = min(factor, _room(now.growth))
    factor = float(np.clip(factor, _SHRINK, _GROWTH))
    if raised:
        now = _with_one_more(system.xp, now, highest)
    elif _SHORTER <= factor <= _LONGER:
        return now
    return now.changed(following=now.h * factor)


def _at_top(system: System, now: Standing, highest: np.ndarray) -> Standing:
    """With the order of the next step where its length is given: raised as soon as may be."""
    if now.order == system.highest or now.held < now.order:
        return now
    return _with_one_more(system.xp, now, highest)._replace(held=0)


def _with_one_more(xp: Any, now: Standing, before: np.ndarray) -> Standing:
    """Of the next order: ``x_(q+1) = Δx_q / (q+1)``, with ``Δ`` the change over the last step."""
    q = now.order
    following = (now.x[q] - before)[None] / (q + 1)
    return now._replace(x=xp.concatenate([now.x, following]))


def _growth(amplified: float) -> float:
    """``γ h λ``, by what ``W`` does."""
    return 1.0 - 1.0 / amplified if amplified > 1.0 else 0.0


def _room(growth: float) -> float:
    """How many times as long a step may be."""
    return _growth(_AMPLIFIED) / growth if growth > 0.0 else np.inf


def _factor(error: float, q: int) -> float:
    return _SAFETY * max(error, 1e-10) ** (-1.0 / (q + 1))
