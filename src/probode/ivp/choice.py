"""Choosing a method and an order: from the tolerance, the size of a problem, and how fast it is.

The rules are those that come nearest to the best choice on eight problems (EK1) and 21 (EK0) with
tolerances from 1e-1 to 1e-12 (``docs/performance.md`` has the figures).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from probode.base.jax_inside import readable, trace
from probode.filter.solvers import EK0, EK1, Solver, SparseEK1, build
from probode.model.diffusion import as_diffusion
from probode.model.gaussian import norm
from probode.model.prior import IWP
from probode.programs.program import work

_SMALL = 5
"""Up to this dimension EK1 is the better choice on any problem: its steps cost little more."""
_STIFF = 1e4
"""A problem is called stiff when its fastest time fits so many times into the interval."""
_TYPICAL_CHANGES = 50.0
"""Changes of the slope in an interval, where they are not known."""
_TYPICAL_STEPS = 300
"""Steps of EK1 that are assumed when its cost is guessed."""
_PRICE = 1e-4
"""Microseconds per number that a vector field computes, where it computes many."""
_TANGENT = 0.5
"""A column of the Jacobian, in evaluations."""
_DEAR = 2.0
"""Microseconds of an evaluation from which on EK0 may pay in small problems, too."""
_LARGEST_EK1 = 5000
"""Above this size of the state EK1 is no alternative: one step takes seconds."""
_LARGEST_DENSE = 60
"""Components above which SparseEK1 takes the place of EK1: its steps are a part of the work."""
_WITH_ALL = 30.0
"""A step of EK0 with many components, kept, smoothed and calibrated, in units of taking it: what is
as long as all steps together no longer fits into a cache."""
_BY_CORRECTIONS = 6
"""Highest order at which steps of EK1 are judged by corrections, too."""
_PATIENCE = 2.0
"""EK0 may cost so many times what EK1 is guessed to cost before EK1 takes its place."""


def order_of_ek1(rtol: float, stiff: bool) -> int:
    """``3 + k/2`` for ``k = -log10(rtol)`` digits, at most 8; if stiff two more, at most 6."""
    order = 3.0 - 0.5 * np.log10(rtol) + (2.0 if stiff else 0.0)
    return int(np.clip(np.floor(order + 0.5), 3, _BY_CORRECTIONS if stiff else 8))


def error_of_ek1(order: int, derivatives: int = 1) -> str:
    """What steps are judged by: up to order 6 no more by residuals than by corrections.

    Steps with large ``|h λ|``, which that allows, cost the smoother its digits at higher orders.
    Solvers that users build are the paper's: only names (``method="EK1"``, ``"auto"``) ask here.
    """
    return "correction" if order <= _BY_CORRECTIONS and derivatives == 1 else "residual"


def order_of_ek0(
    rtol: float,
    times: float,
    changes: float,
    evaluations: int = 2,
    d: int = 1,
    evaluation: float = 0.0,
) -> int:
    """The order with the cheapest steps that are enough for the tolerance, and for stability.

    From 2 to 8; with one evaluation in a step stability never allows more than 5.
    """

    def cost(order: int) -> float:
        steps = steps_of_ek0(order, rtol, times, changes, evaluations)
        return steps * price_of_ek0(d, order, evaluations * evaluation)

    return min(range(2, 6 if evaluations == 1 else 9), key=cost)


def steps_of_ek0(order: int, rtol: float, times: float, changes: float, evaluations: int) -> float:
    """Steps for the tolerance or, if these are more, for stability."""
    stable = steps_for_stability(order, times, evaluations)
    return max(steps_for_tolerance(order, rtol, changes), stable)


def steps_for_tolerance(order: int, rtol: float, changes: float) -> float:
    """``(n/5) N rtol^(-1/n)``, ``n = order + 1``, when ``y'`` changes ``N`` times as at the start.

    Less than three changes are not believed. Not their number, but how it depends on all this.
    """
    n = order + 1
    return n / 5 * max(changes, 3.0) * rtol ** (-1 / n)


def steps_for_stability(order: int, times: float, evaluations: int) -> float:
    """Steps that EK0 takes at least, when the fastest time fits ``times`` into the interval."""
    return times / stability_limit(order, evaluations)


def price_of_ek0(d: int, order: int, evaluations: float) -> float:
    """Microseconds of a step: ``0.1 + 0.08 n + 0.001 n d`` with ``n = order + 1``, and ``f``."""
    n = order + 1
    return 0.1 + 0.08 * n + 0.001 * n * d + evaluations


def price_of_ek1(d: int, order: int, evaluation: float) -> float:
    """Microseconds of a step: ``0.3 + 0.7 x + 0.05 x³``, ``x = n d / 12``, ``f``, a Jacobian."""
    x = (order + 1) * d / 12
    return 0.3 + 0.7 * x + 0.05 * x**3 + (1 + _TANGENT * d) * evaluation


def seconds_of_dense_step(d: int, order: int) -> float:
    """Seconds of a step of EK1, smoothed and calibrated: ``2.5e-10 (n d)³``, ``n = order + 1``.

    From measurements at ``n d`` = 360, 600 and 1200 (13 ms, 50 ms, 0.8 s on a slow core).
    """
    return 2.5e-10 * ((order + 1) * d) ** 3


def price_of_sparse(d: int, evaluation: float) -> float:
    """Microseconds of a step of SparseEK1, where a factorisation is a few numbers a row."""
    return 300.0 + 0.5 * d + 3.0 * evaluation


def steps_worth_trying(
    d: int, order: int, evaluations: int = 2, evaluation: float = 0.0, implicit: float | None = None
) -> int:
    """Steps of EK0 that together cost twice what EK1 is guessed to cost for the whole solve.

    ``implicit`` is the price of a step of another solver in its place.
    """
    ek0 = price_of_ek0(d, order, evaluations * evaluation)
    if implicit is not None:
        return int(_PATIENCE * _TYPICAL_STEPS * implicit / (_WITH_ALL * ek0))
    return int(_PATIENCE * _TYPICAL_STEPS * price_of_ek1(d, order, evaluation) / ek0)


def price_of_evaluation(function: Callable[[float, np.ndarray], Any], y: np.ndarray) -> float:
    """Microseconds of ``f``, from the numbers that it computes; zero if it cannot be traced.

    Nothing is timed: the choice has to be the same whenever it is made.
    """
    try:
        program = trace(function, 0.0, y)
    except Exception:  # whatever a function does with arrays that are not NumPy's
        return 0.0
    amount = work(program.jaxpr)
    return _PRICE * amount if readable() else 0.0


@lru_cache(maxsize=32)
def stability_limit(order: int, evaluations: int = 1) -> float:
    """Largest ``h |λ|`` with which EK0 is stable on ``y' = λ y``, ``λ < 0``, with constant steps.

    The filter's gain ``K`` then settles, and its mean follows ``m⁺ = (I - K (e_1 - h λ y)ᵀ) A m``
    with ``y = e_0``, where ``f`` is evaluated, or ``y = e_0 - K_0 (e_1 - h λ e_0)`` for the second
    time: stable while the spectral radius is at most one.
    """
    prior = IWP(order)
    n = order + 1
    transition, noise = prior.transition(), prior.noise_factor()
    # The filter's own coordinates, with a step of length one; y = weight x_0, y' = x_1.
    weight = float(prior.weights[0])
    factor, gain = np.asarray(noise), np.zeros(n)
    for _ in range(200):
        stack = np.concatenate([factor @ transition.T, noise])
        columns = np.concatenate([stack[:, 1:2], stack], axis=1)
        triangle: Any = np.linalg.qr(columns, mode="r")
        gain, before = triangle[0, 1:] / triangle[0, 0], gain
        factor = triangle[1:, 1:]
        if np.allclose(gain, before, rtol=1e-12, atol=0.0):
            break
    observed = np.eye(n)

    def unstable(z: float) -> bool:
        value = observed[0]
        for _ in range(evaluations - 1):
            value = observed[0] - gain[0] * (observed[1] + z * weight * value)
        step = (observed - np.outer(gain, observed[1] + z * weight * value)) @ transition
        return bool(np.abs(np.linalg.eigvals(step)).max() > 1.0 + 1e-9)

    low, high = 0.0, 4.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if unstable(middle) else (middle, high)
    return low


def _in_real_form(
    function: Callable[[float, np.ndarray], Any], y: np.ndarray
) -> tuple[Callable[[float, np.ndarray], Any], np.ndarray]:
    """Return a function of complex states and a state as those of ``(Re y, Im y)``."""
    if not np.iscomplexobj(y):
        return function, y

    def real_form(t: float, u: np.ndarray) -> np.ndarray:
        real, imaginary = np.split(u, 2)
        value = np.ravel(np.asarray(function(t, (real + 1j * imaginary).reshape(y.shape))))
        return np.concatenate([value.real, value.imag])

    return real_form, np.concatenate([y.real.ravel(), y.imag.ravel()])


@np.errstate(all="ignore")  # f is tried where the solution need not go
def spectral_radius(
    function: Callable[[float, np.ndarray], Any], t: float, y: np.ndarray, rounds: int = 6
) -> float:
    """The spectral radius of ``∂f/∂y``, roughly: power iteration with finite differences.

    ``v ← J v / |v|`` with ``J v ≈ (f(y + ε v) - f(y)) / ε``; the largest of the last two lengths,
    since those of a pair of complex eigenvalues take turns.
    """
    function, y = _in_real_form(function, y)
    slope = np.asarray(function(t, y)).reshape(y.shape)
    size = float(norm(y)) or 1.0
    direction = slope if np.any(slope) and np.all(np.isfinite(slope)) else np.ones_like(y)
    # A little of everything: the slope may be an eigenvector of its own.
    direction = direction / norm(direction) + 0.1 * np.cos(np.arange(y.size)) / y.size
    rates = [0.0]
    for _ in range(rounds):
        step = 1e-7 * size * (direction / norm(direction))
        change = np.asarray(function(t, y + step)).reshape(y.shape) - slope
        rate = float(norm(change) / norm(step))
        if not np.isfinite(rate) or rate == 0.0:
            break
        rates.append(rate)
        direction = change
    return max(rates[-2:])


class Pace(NamedTuple):
    """How fast a problem is where it starts, for the length of its interval."""

    times: float
    """The spectral radius of the Jacobian: how often the fastest time fits into the interval."""
    changes: float = _TYPICAL_CHANGES
    """``|y''| / |y'|``: how often the slope changes by as much as itself."""


@np.errstate(all="ignore")  # f is tried where the solution need not go
def pace(
    function: Callable[[float, np.ndarray], Any], t: float, y: np.ndarray, length: float
) -> Pace:
    """How fast a problem is at its start ``(t, y)``, over ``length`` (with the sign of time).

    ``y'' ≈ (f(t + ε, y + ε y') - y') / ε``, with the sign of time as well.
    """
    function, y = _in_real_form(function, y)
    times = abs(length) * spectral_radius(function, t, y)
    slope = np.asarray(function(t, y)).reshape(y.shape)
    speed = float(norm(slope))
    if length == 0.0 or not 0.0 < speed < np.inf:
        return Pace(times)
    size = float(norm(y)) or 1.0
    step = np.copysign(min(1e-6 * size / speed, 1e-3 * abs(length)), length)
    change = np.asarray(function(t + step, y + step * slope)).reshape(y.shape) - slope
    changes = float(norm(change)) / speed * abs(length / step)
    return Pace(times, changes if np.isfinite(changes) else _TYPICAL_CHANGES)


def is_limited_by_stability(solver: EK0, step: float, rate: float) -> bool:
    """Whether steps of this length are about as long as EK0's stability allows.

    Where they are, ``h |λ|`` is 0.8 to 1 times the limit, and where not it soon falls below a half.
    """
    return abs(step) * rate > 0.7 * stability_limit(solver.order, solver.evaluations)


class Candidate(NamedTuple):
    """A solver to try, and the steps after which to try the next one."""

    solver: Solver
    budget: int | None = None


def candidates(
    method: type[Solver] | None,
    order: int | None,
    diffusion: Any,
    rtol: float,
    d: int,
    pace: Callable[[], Pace],
    evaluation: Callable[[], float] = lambda: 0.0,
    evaluations: int | None = None,
    more: int = 0,
    sparse: bool = False,
) -> list[Candidate]:
    """Solvers in the order in which to try them; ``None`` stands for a choice of ours.

    For equations of higher order the chosen orders are so many ``more``, which are as accurate as
    those for the system of first order.

    ``pace()`` is that of the start, ``evaluation()`` the price of ``f``. EK0 is tried first where
    it may pay, with two evaluations in a step; when it has spent twice what EK1 would cost, EK1
    takes over: a problem that turns stiff costs little more. If that may be ``sparse``, for more
    than a few components it is SparseEK1.
    """

    def built(kind: type[Solver], order: int, evaluations: int | None) -> Solver:
        rest = {"error": error_of_ek1(order, more + 1)} if kind is EK1 else {}
        return build(kind, order, diffusion, evaluations, **rest)

    if method is not None and order is not None:
        return [Candidate(built(method, order, evaluations))]
    times, changes = pace()
    price = evaluation() if method is None or issubclass(method, EK0) else 0.0
    twice = 2 if evaluations is None else evaluations

    def solver(kind: type[Solver]) -> Solver:
        if issubclass(kind, EK0):
            best = order
            if best is None:
                best = order_of_ek0(rtol, times, changes, twice, d, price) + more
            return built(kind, best, twice)
        best = order_of_ek1(rtol, times > _STIFF) + more if order is None else order
        return built(kind, best, evaluations if kind is method else None)

    if method is not None:
        return [Candidate(solver(method))]
    explicit = solver(EK0)
    if as_diffusion(diffusion).multivariate:  # derived for EK0 alone
        return [Candidate(explicit)]
    if sparse and d > _LARGEST_DENSE:
        budget = steps_worth_trying(d, explicit.order, twice, price, price_of_sparse(d, price))
        large = Candidate(SparseEK1(diffusion=diffusion))
        if steps_for_stability(explicit.order, times, twice) > budget:
            return [large]
        return [Candidate(explicit, budget), large]
    implicit = solver(EK1)
    budget = steps_worth_trying(d, explicit.order, twice, price)
    steps = steps_of_ek0(explicit.order, rtol, times, changes, twice)
    ek0 = steps * price_of_ek0(d, explicit.order, twice * price)
    steps = steps_for_tolerance(implicit.order, rtol, changes)
    ek1 = steps * price_of_ek1(d, implicit.order, price)
    pays = d > _SMALL or (price > _DEAR and ek0 < ek1)
    if not pays or steps_for_stability(explicit.order, times, twice) > budget:
        return [Candidate(implicit)]
    if d * (implicit.order + 1) > _LARGEST_EK1:
        return [Candidate(explicit)]
    return [Candidate(explicit, budget), Candidate(implicit)]
