"""The transport of EK1: linearised in mid-step, corrected, by Newton's method where needed.

:mod:`probode.global_error.transport` says what is solved.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from probode.global_error.inverse import Complex, applied, combined, shifted_inverse
from probode.global_error.stages import Collocation
from probode.global_error.transport import (
    DOUBT,
    MOST_ITERATIONS,
    SHRINKS,
    Arithmetic,
    Carry,
    Curve,
    Transported,
    curve,
    is_settled,
    measured,
)


class Linear(NamedTuple):
    """What the Newton method knows of a step beforehand."""

    curve: Curve
    f: Float[Array, "s d"]
    """``f`` on the interpolant."""
    j: Float[Array, "d d"]
    offset: Float[Array, "s d"]
    """``E_i - e_n = offset_i + response_i e_n`` solves the linearised stages."""
    response: Float[Array, "s d d"]
    solve: Complex | np.ndarray
    """``(λ_k/h - J)⁻¹``, shape ``(pairs, d, d)``."""


class _State(NamedTuple):
    """Corrections in progress."""

    stages: Array
    change: Array
    changed: Array
    solve: Complex | np.ndarray
    anew: Array
    """Whether each has a Jacobian of its own."""
    stop: Array
    corrections: Array
    repeats: Array


@dataclass(frozen=True)
class Newton:
    """Linearised transport with the Jacobian in mid-step, and ``corrections`` (0 or 1) to it.

    The stages solve ``E = e_n + h a G(E)``. With ``G(E) = δ + J E - r(E)``, multiplied by
    ``(h a)⁻¹``::

        ((h a)⁻¹ - J) (E - e_n) = δ + J e_n - r(E)

    First ``r = 0``; then ``r_i = J E_i - (f(P_i) - f(P_i - E_i))`` at the result. In the eigenbasis
    ``a⁻¹ = T diag(λ) T⁻¹`` the system falls apart into ``λ_k/h - J``, one of each complex pair.
    """

    collocation: Collocation
    k: int
    corrections: int

    @property
    def f_per_step(self) -> int:
        """Evaluations of ``f`` in a step."""
        return self.collocation.s * (1 + self.corrections)

    @property
    def jacobians_per_step(self) -> int:
        """Evaluations of the Jacobian in a step."""
        return 1

    @property
    def harmless(self) -> float:
        """What may be left unsettled, in parts of the error: with a half, it is a guess."""
        return 0.5

    @property
    def doubt(self) -> float:
        """Part of the error nearby by which the estimate may be wrong."""
        return 0.0 if self.corrections else DOUBT

    def prepare(self, problem: Arithmetic, t: Array, h: Array, left: Array, right: Array) -> Linear:
        """All of a step that does not depend on ``e_n``: the affine map from that to the stages.

        To be vectorised over steps, or given several of them.
        """
        xp, m = problem.xp, self.collocation.middle
        path = curve(xp, self.collocation, self.k, t, h, left, right)
        f = problem.at_stages(path.t, path.value)
        j = problem.jacobian_at(path.t[..., m], path.value[..., m, :], f[..., m, :])
        values, columns, rows = self.collocation.spectrum
        solve = shifted_inverse(xp, values, h, j)
        # (λ/h - J)⁻¹ J = λ/h (λ/h - J)⁻¹ - 1
        weights = columns * (values * rows.sum(axis=1))
        response = combined(weights, solve) / h[..., None, None, None] - xp.eye(f.shape[-1])
        return Linear(path, f, j, self.apply(solve, path.slope - f), response, solve)

    def apply(self, solve: Complex | np.ndarray, right: Any) -> Any:
        """``((h a)⁻¹ - J)⁻¹`` applied to stages: ``Re T diag((λ/h - J)⁻¹) T⁻¹``."""
        _, columns, rows = self.collocation.spectrum
        return applied(columns, solve, rows, right)

    def slopes(self, path: Curve, e: Array, stages: Array) -> Any:
        """``(h a)⁻¹ (E - e_n)``: slopes of the polynomial through the stages."""
        return np.linalg.inv(self.collocation.matrix) @ (stages - e) / path.h

    def evaluate(self, problem: Arithmetic, path: Curve, e: Array, stages: Array) -> Array:
        """``f(t_i, P_i - E_i)``."""
        return problem.at_stages(path.t, path.value - stages)

    def beyond(self, step: Linear, plain: Array, f: Array) -> Array:
        """``-r`` at the linearised stages, as a difference of small numbers."""
        return (step.f - f) - plain @ step.j.T

    def rest(self, path: Curve, e: Array, stages: Array, f: Array) -> Array:
        """What the stages leave of their equation."""
        return path.slope - f - self.slopes(path, e, stages)

    def linearize(
        self, problem: Arithmetic, path: Curve, e: Array, stages: Array, f: Array
    ) -> Complex | np.ndarray:
        """``(λ_k/h - J)⁻¹`` with the Jacobian around ``P - E`` in mid-step."""
        inner, shifts = self.collocation.middle, self.collocation.spectrum[0]
        j = problem.jacobian_at(path.t[inner], path.value[inner] - stages[inner], f[inner])
        return shifted_inverse(problem.xp, shifts, path.h, j)

    def advance(self, problem: Arithmetic, step: Linear, carry: Carry) -> tuple[Carry, Transported]:
        """Carry the error over one step."""
        xp, e = problem.xp, carry.error
        none = xp.zeros((), int)
        first = step.offset + step.response @ e
        plain = e + first

        def corrected() -> tuple[Array, Array, Array, Array, Array]:
            shifted = self.evaluate(problem, step.curve, e, plain)
            change = self.apply(step.solve, self.beyond(step, plain, shifted))
            changed, moved = measured(xp, step.curve.value, plain, first, change)
            settled = is_settled(xp, changed, 1.0, moved, carry.steps)
            found = problem.cond(
                settled,
                lambda: (plain + change, change, none, none),
                lambda: self._settle(problem, step, carry, plain + change, change, changed),
            )
            return *found, 1.0 - settled

        if self.corrections:
            stages, change, corrections, repeats, due = corrected()
        else:
            stages, change, corrections, repeats, due = problem.cond(
                carry.looks,
                corrected,
                lambda: (plain, xp.zeros_like(plain), none, none, xp.zeros(())),
            )
            corrections = corrections + carry.looks
        end, last = stages[-1], change[-1]
        after = carry.after(end, step.curve.h, due, spent=repeats)
        return after, Transported(end, stages, end - last - e, last, corrections, repeats)

    def _settle(
        self,
        problem: Arithmetic,
        step: Linear,
        carry: Carry,
        stages: Array,
        change: Array,
        changed: Array,
    ) -> tuple[Array, Array, Array, Array]:
        """More corrections after the first; where they do not shrink, Newton's method.

        That begins again at ``E = e_n``, and each of its iterations has its own Jacobian.
        """
        xp, path, e = problem.xp, step.curve, carry.error
        begin = xp.broadcast_to(e, path.value.shape)
        affordable = carry.credit >= MOST_ITERATIONS

        def iterate(now: _State) -> _State:
            f = self.evaluate(problem, path, e, now.stages)
            solve = problem.cond(
                now.anew,
                lambda: self.linearize(problem, path, e, now.stages, f),
                lambda: now.solve,
            )
            change = self.apply(solve, self.rest(path, e, now.stages, f))
            stages = now.stages + change
            changed, moved = measured(xp, path.value, stages, stages - e, change)
            settled = is_settled(xp, changed, now.changed, moved, carry.steps)
            stuck = ~now.anew & ~settled & ~(changed <= SHRINKS * now.changed)
            anew = now.anew | (stuck & affordable)
            restart = anew & ~now.anew
            one = xp.ones((), int)
            return _State(
                xp.where(restart, begin, stages),
                change,
                xp.where(restart, 0.0, changed),
                solve,
                anew,
                settled | (stuck & ~affordable),
                now.corrections + xp.where(now.anew, 0, one),
                now.repeats + xp.where(now.anew, one, 0),
            )

        def going(now: _State) -> Array:
            return ~now.stop & (now.repeats < MOST_ITERATIONS) & (now.corrections < MOST_ITERATIONS)

        anew = ~(changed <= SHRINKS) & affordable
        none = xp.zeros((), int)
        start = _State(
            xp.where(anew, begin, stages),
            change,
            xp.where(anew, 0.0, changed),
            step.solve,
            anew,
            ~(changed <= SHRINKS) & ~affordable,
            none,
            none,
        )
        end = problem.while_loop(going, iterate, start)
        noted = xp.where(end.repeats > 0, end.change, change)
        return end.stages, noted, end.corrections, end.repeats
