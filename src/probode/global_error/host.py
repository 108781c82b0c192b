"""The transport for a vector field that only Python can evaluate.

The same methods as in :mod:`probode.global_error.transport`, step by step in NumPy: each stage is
one call of the user's function.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from probode.base.limits import Limits
from probode.global_error.carry import empty
from probode.global_error.drive import block_steps
from probode.global_error.newton import Newton
from probode.global_error.schemes import Scheme
from probode.global_error.sweeps import Sweeps
from probode.global_error.transport import (
    MOST_ITERATIONS,
    MOST_SWEEPS,
    SHRINKS,
    SWEEPS_SHRINK,
    Carry,
    Transported,
    curve,
    is_settled,
    measured,
)

_STEPS_BETWEEN_LOOKS = 4
"""Looks at the clock, with a time limit: an evaluation in Python may take long."""


class HostProblem(NamedTuple):
    """A vector field evaluated in Python: NumPy in, NumPy out."""

    function: Callable[[float, np.ndarray], np.ndarray]
    jacobian: Callable[[float, np.ndarray, np.ndarray], np.ndarray] | None
    """``(t, y, f(t, y)) -> J``, the matrix or its diagonal; ``None`` for EK0."""

    def at_stages(self, t: Any, y: Any) -> np.ndarray:
        """``f`` at all stages of a step."""
        return np.stack([self.function(float(a), b) for a, b in zip(t, y, strict=True)])

    def jacobian_at(self, t: float, y: Any, f: Any) -> Any:
        """The Jacobian where ``f`` is known."""
        assert self.jacobian is not None
        return np.asarray(self.jacobian(t, y, f), float)


def transport_on_host(
    scheme: Scheme, problem: HostProblem, t: Any, means: Any, limits: Limits
) -> Transported:
    """Carry the error along all nodes, or as many as there is time for."""
    d, steps = means.shape[-1], t.shape[0] - 1
    means = means[:, : scheme.k + 1]
    out: Any = empty(scheme, steps, d)
    carry = Carry.start(np, d)
    if isinstance(scheme, Newton):
        size = block_steps(scheme, d) if limits.left == np.inf else _STEPS_BETWEEN_LOOKS
        for begin in range(0, steps, size):
            part = slice(begin, min(begin + size, steps))
            if limits.expired():
                return Transported(*(rows[:begin] for rows in out))
            block = _Newton(scheme, problem, t, means, part)
            for n in range(part.stop - begin):
                if limits.expired():
                    return Transported(*(rows[: begin + n] for rows in out))
                carry = _keep(out, begin + n, block.h[n], carry, *block.advance(n, carry))
        return out
    for n in range(steps):
        if limits.expired():
            return Transported(*(rows[:n] for rows in out))
        h = t[n + 1] - t[n]
        carry = _keep(out, n, h, carry, *_sweeps(scheme, problem, t[n], h, means[n : n + 2], carry))
    return out


def _keep(out: Any, n: int, h: Any, carry: Carry, moved: Transported, due: bool) -> Carry:
    """Write down a step; what it leaves to the next."""
    for rows, value in zip(out, moved, strict=True):
        rows[n] = value
    return carry.after(moved.error, h, float(due), spent=moved.repeats)


class _Newton:
    """``((h a)⁻¹ - J) (E - e_n) = δ + J e_n - r(E)``, first with ``r = 0``, then corrected.

    For the steps ``part``: what does not depend on ``e_n`` for all of them at once. In the
    eigenbasis of ``a⁻¹`` the systems fall apart into ``λ_k/h - J``.
    """

    def __init__(self, scheme: Newton, problem: HostProblem, t: Any, means: Any, part: slice):
        self._scheme, self._problem = scheme, problem
        c, m = scheme.collocation, scheme.collocation.middle
        after = slice(part.start + 1, part.stop + 1)
        self.h = h = t[after] - t[part]
        self._path = path = curve(np, c, scheme.k, t[part], h, means[part], means[after])
        d = means.shape[-1]
        self._f, self._j = np.empty(path.value.shape), np.empty((h.size, d, d))
        for n in range(h.size):
            self._f[n] = problem.at_stages(path.t[n], path.value[n])
            at = (float(path.t[n, m]), path.value[n, m], self._f[n, m])
            self._j[n] = problem.jacobian_at(*at)
        self._inverses = self._inverted(h[:, None], self._j[:, None])
        self._inverse_matrix = np.linalg.inv(c.matrix)

    def _inverted(self, h: Any, j: Any) -> Any:
        """``(λ_k/h - J)⁻¹`` for all ``k``."""
        shifts = self._scheme.collocation.spectrum[0] / h
        return np.linalg.inv(shifts[..., None, None] * np.eye(j.shape[-1]) - j)

    def _solved(self, inverses: Any, right: Any) -> Any:
        _, columns, rows = self._scheme.collocation.spectrum
        turned = inverses @ (rows @ right)[..., None]
        return (columns @ turned[..., 0]).real

    def advance(self, n: int, carry: Carry) -> tuple[Transported, bool]:
        """The error over step ``n`` of these, and whether one correction was not enough."""
        e, path, h = carry.error, self._path, self.h[n]
        value, inverses = path.value[n], self._inverses[n]
        first = self._solved(inverses, (path.slope[n] - self._f[n]) + self._j[n] @ e)
        plain = e + first
        if not (self._scheme.corrections or carry.looks):
            return _moved(plain[-1], plain, first[-1], np.zeros_like(e), 0, 0), False
        shifted = self._problem.at_stages(path.t[n], value - plain)
        change = self._solved(inverses, (self._f[n] - shifted) - plain @ self._j[n].T)
        changed, moved = measured(np, value, plain, first, change)
        stages, counts, noted = plain + change, [1 - self._scheme.corrections, 0], change
        before: Any = 1.0
        anew, due = False, not is_settled(np, changed, before, moved, carry.steps)
        settled = not due
        affordable = carry.credit >= MOST_ITERATIONS
        while not settled and max(counts) < MOST_ITERATIONS:
            if not (anew or changed <= SHRINKS * before):
                if not affordable:
                    break
                anew, changed = True, np.asarray(0.0)
                stages = np.broadcast_to(e, stages.shape)
            f = self._problem.at_stages(path.t[n], value - stages)
            if anew:
                inner = self._scheme.collocation.middle
                at = (float(path.t[n, inner]), value[inner] - stages[inner], f[inner])
                inverses = self._inverted(h, self._problem.jacobian_at(*at))
            right = self._inverse_matrix @ (e - stages) / h + path.slope[n] - f
            change = self._solved(inverses, right)
            stages = stages + change
            counts[anew] += 1
            before = changed
            changed, moved = measured(np, value, stages, stages - e, change)
            settled = is_settled(np, changed, before, moved, carry.steps)
        end, last = stages[-1], (change if anew else noted)[-1]
        return _moved(end, stages, end - last - e, last, *counts), due


def _sweeps(
    scheme: Sweeps, problem: HostProblem, t: Any, h: Any, pair: Any, carry: Carry
) -> tuple[Transported, bool]:
    """``E <- E + ((h a)⁻¹ - D)⁻¹ ((h a)⁻¹ (e_n - E) + G)``, without ``D``: ``e_n + h a G``."""
    c, e = scheme.collocation, carry.error
    path = curve(np, c, scheme.k, t, h, pair[0], pair[1])
    diagonal = None
    if scheme.diagonal:
        m = c.middle
        y: Any = path.value[m]
        j = problem.jacobian_at(float(path.t[m]), y, problem.function(float(path.t[m]), y))
        diagonal = np.diagonal(j) if j.ndim == 2 else j
    stages: Any = carry.guess(np, c.nodes, h)
    most = MOST_SWEEPS if scheme.sweeps > 1 or carry.looks else 1
    ends: list[Any] = []
    changed: Any = 0.0
    while len(ends) < most:
        slopes = path.slope - problem.at_stages(path.t, path.value - stages)
        swept = np.asarray(scheme.sweep(e, h, stages, slopes, diagonal))
        ends.append(swept[-1] if scheme.diagonal else e + h * (c.weights @ slopes))
        before = changed
        changed, moved = measured(np, path.value, swept, swept - e, swept - stages)
        stages = swept
        if len(ends) > 1 and (
            is_settled(np, changed, before, moved, carry.steps)
            or not changed <= SWEEPS_SHRINK * before
        ):
            break
    second = ends[-1] - ends[-2] if len(ends) > 1 else np.zeros_like(e)
    more = len(ends) - scheme.sweeps
    return _moved(ends[-1], stages, ends[0] - e, second, more, 0), len(ends) > 2


def _moved(*parts: Any) -> Transported:
    return Transported(*parts)
