"""Looking between the steps: whether f does something there that the steps did not see.

A pulse that is over before the next step ends leaves no trace in the solution. So ``f`` is asked at
more times than the solver did: one in each of many cells of equal length, at golden-ratio places
that no period can hide from. There the interpolant ``P`` of the posterior mean (see
:mod:`probode.global_error.interpolant`) should satisfy the equation, up to the defect that goes
with its error. A residual ``r = P' - f(t, P)`` over a gap ``w`` between looks would have moved the
solution by about::

    |r| w / (1 + w ρ),        ρ = |f(t, P + ε r) - f(t, P)| / (ε |r|)

where ``ρ`` stands for the rate at which a stiff equation forgets. Where that is far above what the
tolerance and the error bars allow, the steps have missed something.

Functions that do not depend on ``t`` are left alone: nothing happens to them but what happens in
the solution.
"""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.compile import compiled
from probode.base.limits import Limits
from probode.engines.native import library
from probode.engines.native.tape import tape_of
from probode.global_error import interpolant
from probode.global_error.in_python import HostProblem
from probode.model.consistent import split
from probode.programs.field import Field
from probode.programs.program import timing

_LISTED, _COMPILED = 1024, 256
"""Looks at a function that is a list of operations, which costs less than a solve does; and at one
that XLA has compiled, which may be of any price."""
_NUMBERS = 1 << 20
"""Numbers in the states that XLA is given at once."""
_FEWEST_ON_HOST, _PART_ON_HOST, _MOST_ON_HOST = 48, 0.15, 20_000
"""Looks at a Python function: at least so many, or this part of the evaluations of the solve."""
_ROUGH, _MOST_ROUGH = 1e-2, 1000
"""Smallest change of the residual that may be a jump, as a part of the range of ``f``; and the
largest number of pairs of times."""
_GOLDEN = 0.6180339887498949
_ALLOWED_TOLERANCES, _ALLOWED_ERRORS = 30.0, 10.0
_DIFFERENCE = 1e-6


class Look(NamedTuple):
    """What was looked at between the steps, and what was seen."""

    probes: int
    """Evaluations of ``f`` for it; zero where ``f`` does not depend on ``t``."""
    gap: float
    """Longest time between two looks: what is shorter may not have been seen."""
    excess: float
    """The largest effect of a residual, in units of what is allowed."""
    suspects: np.ndarray
    """Times of looks ``(M, 3)`` around each that saw more than allowed: before, there, after."""
    rough: np.ndarray = np.zeros((0, 2))
    """Pairs of neighbouring times at which a function that may switch was evaluated, and between
    which it changes in another way than the solution does."""

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        """Probes, gap, excess, and the first time at which something was seen."""
        first = float(self.suspects[0, 1]) if self.seen else 0.0
        return float(self.probes), self.gap, self.excess, first

    @property
    def seen(self) -> bool:
        """Whether something was seen that the steps did not see."""
        return len(self.suspects) > 0


NOTHING_TO_LOOK_FOR = Look(0, 0.0, 0.0, np.zeros((0, 3)))


class Nodes(NamedTuple):
    """A solution at the steps of its solve: times, means ``(N, q+1, d)``, errors ``(N, d)``."""

    t: np.ndarray
    means: np.ndarray
    error: np.ndarray
    """Sizes, as estimated; where the estimate was lost nothing is allowed for it."""
    tolerance: np.ndarray
    """``atol + rtol |y|``; zero without a control."""


def may_depend_on_time(problem: Field | HostProblem) -> bool:
    """Whether there may be anything to look for: of a Python function nobody knows."""
    return not isinstance(problem, Field) or timing(problem.program).depends


def look_between(
    problem: Any,
    k: int,
    nodes: Nodes,
    extra: np.ndarray,
    evaluations: int,
    finely: bool = False,
    limits: Limits | None = None,
) -> Look | None:
    """Look at ``f`` along the interpolant with contact ``k``, also at the times ``extra``.

    ``evaluations`` is the number that the solve has made: a Python function is not evaluated much
    more often, except ``finely`` if it may switch. Return ``None`` if there is no time within the
    ``limits``.
    """
    f, cells = evaluator(problem)
    if isinstance(problem, HostProblem) and finely:
        cells = min(_MOST_ON_HOST, max(2 * cells, evaluations))
    elif isinstance(problem, HostProblem):
        cells = min(cells, max(_FEWEST_ON_HOST, int(_PART_ON_HOST * evaluations)))
    if isinstance(problem, HostProblem):
        extra = extra[:cells]
    direction = 1.0 if nodes.t[-1] >= nodes.t[0] else -1.0
    times, i = _places(direction * nodes.t, direction * extra, cells)
    times = direction * times
    h = nodes.t[i + 1] - nodes.t[i]
    tau = (times - nodes.t[i]) / h
    w = interpolant.data(np, k, nodes.means[i], nodes.means[i + 1], h)
    value = nodes.means[i, 0] + np.einsum("nw,nwd->nd", interpolant.value_rows(np, k, tau), w)
    slope = np.einsum("nw,nwd->nd", interpolant.slope_rows(np, k, tau), w) / h[:, None]
    known = None
    if isinstance(problem, HostProblem) and limits is not None and limits.left < np.inf:
        known, seen = _in_time(problem, times, value, limits)
        if not np.any(seen):
            return None
        times, i, value, slope, known = (x[seen] for x in (times, i, value, slope, known))
    every = np.sort(np.concatenate([direction * nodes.t, direction * times]))
    at = np.searchsorted(every, direction * times)
    before, after = every[np.maximum(at - 1, 0)], every[np.minimum(at + 1, len(every) - 1)]
    gap = 0.5 * (after - before)
    implicit = isinstance(problem, Field) and problem.reads > 1
    with np.errstate(all="ignore"):
        if implicit:
            both = np.concatenate([value, slope, direction * gap[:, None]], axis=1)
            residual = _in_jax(_forgetting, problem, times, both)
        else:
            residual = slope - (f(times, value) if known is None else known)
    residual = np.where(np.isfinite(residual), residual, 0.0)  # a step there would be rejected
    rough = rough_between(times, residual, slope - residual) if finely else np.zeros((0, 2))
    allowed = _ALLOWED_TOLERANCES * np.maximum(nodes.tolerance[i], nodes.tolerance[i + 1])
    allowed += _ALLOWED_ERRORS * np.nan_to_num(np.maximum(nodes.error[i], nodes.error[i + 1]))
    allowed = np.maximum(allowed, 1e3 * np.finfo(float).eps * np.abs(value) + 1e-300)

    def worst(rate: Any) -> np.ndarray:
        effect = np.abs(residual) * (gap / (1.0 + gap * rate))[:, None]
        largest: np.ndarray = np.max(effect / allowed, axis=1)
        return largest

    excess = worst(0.0)
    found = np.nonzero(~(excess <= 1.0))[0]
    if len(found) and not implicit:
        size = np.linalg.norm(residual[found], axis=1)
        length = _DIFFERENCE * (1.0 + np.linalg.norm(value[found], axis=1)) / size
        moved = f(times[found], value[found] + length[:, None] * residual[found])
        change = moved - (slope - residual)[found]
        rate = np.zeros(len(times))
        rate[found] = np.linalg.norm(change, axis=1) / (length * size)
        excess = worst(rate)
        found = np.nonzero(excess > 1.0)[0]
    suspects = direction * np.stack([before[found], direction * times[found], after[found]], axis=1)
    longest = float(np.max(np.diff(every), initial=0.0))
    return Look(len(times), longest, float(np.max(excess, initial=0.0)), suspects, rough)


def _in_time(
    problem: HostProblem, t: np.ndarray, y: np.ndarray, limits: Limits
) -> tuple[np.ndarray, np.ndarray]:
    """``f`` at as many times as there is time for, spread evenly, and which these are."""
    found, seen = np.zeros_like(y), np.zeros(len(t), bool)
    for k in np.argsort(_GOLDEN * np.arange(len(t)) % 1.0).tolist()[::-1]:
        if limits.left <= 0.0:
            break
        found[k], seen[k] = problem.function(float(t[k]), y[k]), True
    return found, seen


def rough_between(t: np.ndarray, residual: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Find the neighbours among times, shape ``(M, 2)``, between which the residual jumps.

    It changes there by more than a hundredth of how much ``f`` varies in all.
    """
    if len(t) < 2:
        return np.zeros((0, 2))
    varies = np.ptp(f, axis=0) + 1e-9 * np.max(np.abs(f), axis=0) + 1e-300
    change = np.max(np.abs(np.diff(residual, axis=0)) / varies, axis=1)
    found = np.flatnonzero(change > _ROUGH)
    found = np.sort(found[np.argsort(-change[found])[:_MOST_ROUGH]])
    return np.stack([t[found], t[found + 1]], axis=1)


def places(t: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Times to look at along the nodes ``t``, in their order, and the step each falls into."""
    direction = 1.0 if t[-1] >= t[0] else -1.0
    times, i = _places(direction * t, np.zeros(0), cells)
    return direction * times, i


def _places(t: np.ndarray, extra: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Times to look at, in order, none of them a node; and the step that each falls into."""
    width = (t[-1] - t[0]) / cells
    number = np.arange(cells)
    times = t[0] + (number + (_GOLDEN * (number + 1)) % 1.0) * width
    times = np.unique(np.concatenate([times, extra]))
    times = times[(times > t[0]) & (times < t[-1])]
    i = np.clip(np.searchsorted(t, times, side="right") - 1, 0, len(t) - 2)
    inside = (times > t[i]) & (times < t[i + 1])
    return times[inside], i[inside]


Evaluator = Callable[[np.ndarray, np.ndarray], np.ndarray]


def evaluator(problem: Any) -> tuple[Evaluator, int]:
    """``f`` at several times and states, and at how many at most to look."""
    if isinstance(problem, HostProblem):
        return lambda t, y: problem.at_stages(t, y) if len(t) else np.zeros_like(y), _LISTED
    implicit = isinstance(problem, Field) and problem.reads > 1
    tape = tape_of("none", problem) if library.available() and not implicit else None
    if tape is None:
        return lambda t, y: _in_jax(_values, problem, t, y), _COMPILED
    loaded: Any = library.load()
    numbers, d = np.asarray(tape.numbers(problem)), problem.d

    def evaluate(t: np.ndarray, y: np.ndarray) -> np.ndarray:
        at, out = np.concatenate([t[:, None], y], axis=1), np.empty((len(t), d))
        counts = ctypes.c_int(d), ctypes.c_long(len(t)), ctypes.c_long(d)
        loaded.probode_evaluate_all(
            *tape.given(numbers), *counts, library.address(at), library.address(out)
        )
        return out

    return evaluate, _LISTED


def _in_jax(evaluate: Any, field: Any, t: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Filled up to one size, for which the program is compiled once."""
    size = max(1, min(_COMPILED, _NUMBERS // y.shape[1]))
    room = -len(t) % size
    if len(t) == 0:
        return np.zeros_like(y)
    times = np.concatenate([t, np.repeat(t[-1:], room)])
    states = np.concatenate([y, np.repeat(y[-1:], room, axis=0)])
    parts = [
        np.asarray(evaluate(field, times[i : i + size], states[i : i + size]))
        for i in range(0, len(times), size)
    ]
    return np.concatenate(parts)[: len(t)]


@compiled()
def _values(field: Any, t: Array, y: Array) -> Array:
    return jax.vmap(field)(t, y)


@compiled()
def _forgetting(field: Any, t: Array, both: Array) -> Array:
    """Of an implicit equation, ``r`` with ``(A + w B) r = F(t, P, P')`` over a gap ``w``.

    ``A`` and ``B`` are its derivatives by ``y'`` and by ``y``: with ``A = 1``, ``B = ρ`` it is the
    effect of an explicit one, in units of ``w``. ``both`` has ``P``, ``P'``, ``w`` in each row.
    """

    def one(t: Array, both: Array) -> Array:
        value, jacobian = field.jacobian(t, both[:-1])
        by_value, by_slope = split(jacobian)
        return jnp.linalg.solve(by_slope + both[-1] * by_value, value)

    return jax.vmap(one)(t, both)
