"""The transport of EK1: linearised in mid-step, corrected, by Newton's method where needed.

:mod:`probode.global_error.transport` says what is solved.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.global_error.inverse import Complex, shifted_inverse
from probode.global_error.stages import Collocation
from probode.global_error.transport import (
    DOUBT,
    MOST_ITERATIONS,
    SHRINKS,
    Carry,
    Curve,
    Transported,
    curve,
    is_settled,
    measured,
)
from probode.model.linearize import VectorField


class Linear(NamedTuple):
    """What the Newton method knows of a step beforehand."""

    curve: Curve
    f: Float[Array, "s d"]
    """``f`` on the interpolant."""
    j: Float[Array, "d d"]
    offset: Float[Array, "s d"]
    """``E_i - e_n = offset_i + response_i e_n`` solves the linearised stages."""
    response: Float[Array, "s d d"]
    solve: Complex
    """``(λ_k/h - J)⁻¹``, shape ``(pairs, d, d)``."""


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

    def prepare(self, field: VectorField, t: Array, h: Array, left: Array, right: Array) -> Linear:
        """All of a step that does not depend on ``e_n``; to be vectorised over steps."""
        c = self.collocation
        path = curve(jnp, c, self.k, t, h, left, right)
        f = jax.vmap(field)(path.t, path.value)
        j = field.jacobian(path.t[c.middle], path.value[c.middle])[1]
        return self.linearize(path, f, j)

    def linearize(self, path: Curve, f: Array, j: Array) -> Linear:
        """The affine map from ``e_n`` to the stages."""
        values, columns, rows = self.collocation.spectrum
        solve = shifted_inverse(values, path.h, j)
        # (λ/h - J)⁻¹ J = λ/h (λ/h - J)⁻¹ - 1
        weights = columns * (values * rows.sum(axis=1))
        passed = jnp.tensordot(weights.real, solve.re, 1) - jnp.tensordot(weights.imag, solve.im, 1)
        response = passed / path.h - jnp.eye(f.shape[-1])
        return Linear(path, f, j, self.apply(solve, path.slope - f), response, solve)

    def apply(self, solve: Complex, right: Any) -> Any:
        """``((h a)⁻¹ - J)⁻¹`` applied to stages: ``Re T diag((λ/h - J)⁻¹) T⁻¹``."""
        _, columns, rows = self.collocation.spectrum
        turned = Complex((rows.real @ right)[:, None], (rows.imag @ right)[:, None])
        re, im = solve * turned
        return columns.real @ re.sum(axis=-1) - columns.imag @ im.sum(axis=-1)

    def advance(self, field: VectorField, step: Linear, carry: Carry) -> tuple[Carry, Transported]:
        """Carry the error over one step."""
        e, none = carry.error, jnp.zeros((), int)
        first = step.offset + step.response @ e
        plain = e + first

        def corrected() -> tuple[Array, Array, Array, Array, Array]:
            shifted = jax.vmap(field)(step.curve.t, step.curve.value - plain)
            change = self.apply(step.solve, (step.f - shifted) - plain @ step.j.T)
            changed, moved = measured(jnp, step.curve.value, plain, first, change)
            settled = is_settled(jnp, changed, jnp.ones(()), moved, carry.steps)
            found = jax.lax.cond(
                settled,
                lambda: (plain + change, change, none, none),
                lambda: self._settle(field, step, carry, plain + change, change, changed),
            )
            stages, last, corrections, repeats = found
            last = jnp.where(repeats > 0, last, change)
            return stages, last, corrections, repeats, jnp.where(settled, 0.0, 1.0)

        if self.corrections:
            stages, change, corrections, repeats, due = corrected()
        else:
            stages, change, corrections, repeats, due = jax.lax.cond(
                carry.looks,
                corrected,
                lambda: (plain, jnp.zeros_like(plain), none, none, jnp.zeros(())),
            )
            corrections = corrections + carry.looks
        end, last = stages[-1], change[-1]
        after = carry.after(end, step.curve.h, due, spent=repeats)
        return after, Transported(end, stages, end - last - e, last, corrections, repeats)

    def _settle(
        self,
        field: VectorField,
        step: Linear,
        carry: Carry,
        stages: Array,
        change: Array,
        changed: Array,
    ) -> tuple[Array, Array, Array, Array]:
        """More corrections after the first; where they do not shrink, Newton's method.

        That begins again at ``E = e_n``, and each of its iterations has its own Jacobian.
        """
        path, inner, e = step.curve, self.collocation.middle, carry.error
        inverse_matrix = np.linalg.inv(self.collocation.matrix)
        begin = jnp.broadcast_to(e, path.value.shape)
        affordable = carry.credit >= MOST_ITERATIONS

        class State(NamedTuple):
            stages: Array
            change: Array
            changed: Array
            solve: Complex
            anew: Array
            stop: Array
            corrections: Array
            repeats: Array

        def linearize(f: Array, stages: Array) -> Complex:
            j = field.jacobian(path.t[inner], path.value[inner] - stages[inner])[1]
            return self.linearize(path, f, j).solve

        def iterate(now: State) -> State:
            f = jax.vmap(field)(path.t, path.value - now.stages)
            solve = jax.lax.cond(now.anew, lambda: linearize(f, now.stages), lambda: now.solve)
            change = self.apply(solve, inverse_matrix @ (e - now.stages) / path.h + path.slope - f)
            stages = now.stages + change
            changed, moved = measured(jnp, path.value, stages, stages - e, change)
            settled = is_settled(jnp, changed, now.changed, moved, carry.steps)
            stuck = ~now.anew & ~settled & ~(changed <= SHRINKS * now.changed)
            anew = now.anew | (stuck & affordable)
            restart = anew & ~now.anew
            one = jnp.ones((), int)
            return State(
                jnp.where(restart, begin, stages),
                change,
                jnp.where(restart, 0.0, changed),
                solve,
                anew,
                settled | (stuck & ~affordable),
                now.corrections + jnp.where(now.anew, 0, one),
                now.repeats + jnp.where(now.anew, one, 0),
            )

        def going(now: State) -> Array:
            return ~now.stop & (now.repeats < MOST_ITERATIONS) & (now.corrections < MOST_ITERATIONS)

        anew = ~(changed <= SHRINKS) & affordable
        none = jnp.zeros((), int)
        start = State(
            jnp.where(anew, begin, stages),
            change,
            jnp.where(anew, 0.0, changed),
            step.solve,
            anew,
            ~(changed <= SHRINKS) & ~affordable,
            none,
            none,
        )
        end = jax.lax.while_loop(going, iterate, start)
        return end.stages, end.change, end.corrections, end.repeats
