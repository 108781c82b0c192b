"""Carrying the defect of the posterior mean along the solution: a signed global error estimate.

The interpolant ``P`` of the mean misses the ODE between the nodes. With ``y`` the true solution,
its error ``e = P - y`` satisfies::

    e' = P'(t) - f(t, P(t) - e),      e(t0) = 0,

which collocation solves on the steps that the solver took: stage values ``E_i``, and at the end
``e_(n+1)``. Two ways of solving for the stages, both with a fixed number of evaluations:

- :class:`Newton`, for EK1: with the Jacobian ``J`` in the middle of the step and the defects
  ``δ_i = P'_i - f(t_i, P_i)``, both known for all steps at once, the linearised stages are an
  affine function of ``e_n``. A correction for what ``f`` does beyond ``J`` follows, and more of
  them while they are needed. In the rare steps where they do not shrink (a layer that the error has
  moved) the step is done again by Newton's method around ``P - e``.
- :class:`Sweeps`, for EK0 and DiagonalEK1: fixed-point sweeps ``E <- e_n + h a G(E)`` without any
  Jacobian, or preconditioned with its diagonal; two, and more of them while they are needed.

How many are needed is a matter of all steps together. What an iteration leaves out has the same
sign in every step where the solution keeps coming back: along a Kepler orbit one correction leaves
out 2e-4 of the error a step, which acts like a friction and within 30 periods hides the drift of
the energy. And where errors grow in proportion to time (orbits of different energy drift apart),
what is left out in a step is multiplied by the steps that follow. So the part of the error that
step ``n`` may leave unsettled falls like ``1/n²``.

Only what depends on ``e_n`` is sequential; everything else is done for many steps at once.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.calibration import interpolant
from probode.calibration.inverse import Complex, shifted_inverse
from probode.calibration.stages import Collocation
from probode.linearize import VectorField

LEFT_OVER = 1e-2
"""Part of its change over a step that the iteration may leave unsettled in the error."""
EARLY = 20.0
"""Part of the error itself: ``1 / (EARLY + n)²`` in step ``n``, ``1 / EARLY`` in all together."""
SHRINKS, SWEEPS_SHRINK = 0.25, 0.8
"""Part of the correction, or of the sweep, before it that one may be, to go on in the same way.
Sweeps shrink by ``h J``, and in a system of second order in two of them by its square."""
LOOK = 16
"""Steps between two looks, in the fast mode, at whether corrections are needed."""

_DOUBT = 1 / 3
"""Of an estimate without a correction, beside the error around."""

MOST_ITERATIONS = 8
MOST_SWEEPS = 8
FIRST_CREDIT, CREDIT = 32.0, 0.05
"""Iterations with a Jacobian of their own: so many at once, and so many more for each step."""
ROUNDING = 4 * float(np.finfo(float).eps)
_TINY = 1e-300


class Carry(NamedTuple):
    """The error at a node, its mean slope over the step that led there, and what was spent."""

    error: Float[Array, " d"]
    slope: Float[Array, " d"]
    credit: Array
    """Iterations with a Jacobian of their own that may still be spent."""
    steps: Array
    """Steps so far."""
    due: Array
    """One if the first correction of the last step was not enough, else zero."""

    @staticmethod
    def start(xp: Any, d: int) -> "Carry":
        """The initial value has no error."""
        return Carry(xp.zeros(d), xp.zeros(d), xp.asarray(FIRST_CREDIT), *2 * [xp.asarray(0.0)])

    def after(self, end: Any, h: Any, due: Any, spent: Any = 0.0) -> "Carry":
        """At the end of a step of length ``h``, in which ``spent`` iterations had a Jacobian."""
        credit = self.credit + CREDIT - spent
        return Carry(end, (end - self.error) / h, credit, self.steps + 1.0, due)

    @property
    def looks(self) -> Array:
        """In the fast mode: whether the next step is corrected."""
        return (self.due > 0.0) | (self.steps % LOOK == 0.0)


class Transported(NamedTuple):
    """What a step (or, stacked, all steps) contributes; shapes are those of one step."""

    error: Float[Array, " d"]
    """``e_(n+1)``."""
    stages: Float[Array, "s d"]
    """``E_i``."""
    first: Float[Array, " d"]
    """Change of the error over the step after the first iteration, at the end of the step."""
    second: Float[Array, " d"]
    """What the last iteration changed there."""
    corrections: Array
    """Corrections or sweeps beyond the ordinary ones (``s`` evaluations each)."""
    repeats: Array
    """Newton iterations (``s`` evaluations and a Jacobian each)."""

    @property
    def ends(self) -> tuple[Array, Array, Array]:
        """What is known at the end of the step."""
        return self.error, self.first, self.second


class Curve(NamedTuple):
    """The interpolant at the stages of steps: all that is known before the error is."""

    h: Float[Array, "*steps"]
    t: Float[Array, "*steps s"]
    value: Float[Array, "*steps s d"]
    slope: Float[Array, "*steps s d"]


def curve(
    xp: Any, method: Collocation, k: int, t: Array, h: Array, left: Array, right: Array
) -> Curve:
    """``P`` and ``P'`` at the stages of steps of length ``h`` from ``t``."""
    w = interpolant.data(xp, k, left, right, h)
    values, slopes = interpolant.rows_at(k, tuple(method.nodes.tolist()))
    value = left[..., :1, :] + values @ w
    slope = slopes @ w / h[..., None, None]
    return Curve(h, t[..., None] + h[..., None] * method.nodes, value, slope)


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
        """What may be left unsettled, beside the error: with half of it the estimate is a guess."""
        return 0.5

    @property
    def doubt(self) -> float:
        """Part of the error around by which the estimate may be wrong."""
        return 0.0 if self.corrections else _DOUBT

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
            return (*found, jnp.where(settled, 0.0, 1.0))

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

        That begins anew at ``E = e_n``, and each of its iterations has its own Jacobian.
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


def measured(xp: Any, value: Any, stages: Any, moved: Any, change: Any) -> tuple[Any, Any]:
    """Largest parts of the stages that a change and the whole step moved, rounding left out."""
    noise = ROUNDING * xp.max(xp.abs(value))
    size = xp.maximum(xp.maximum(xp.max(xp.abs(stages), axis=0), noise), _TINY)
    changed = xp.max(xp.maximum(xp.abs(change) - noise, 0.0) / size)
    return changed, xp.max(xp.abs(moved) / size)


def allowed(steps: Array) -> Array:
    """Part of the error that may be left unsettled in the step after so many."""
    return 1.0 / (EARLY + steps) ** 2


def is_settled(xp: Any, changed: Any, before: Any, moved: Any, steps: Any) -> Any:
    """Whether the correction after this one can be left out.

    It is smaller than this one by as much as this one is than the one ``before``, which for the
    first correction is the error itself: of size one.
    """
    left = changed * changed / xp.maximum(xp.maximum(changed, before), _TINY)
    return (left <= LEFT_OVER * moved) & (left <= allowed(steps))


class Loose(NamedTuple):
    """What the sweeps know of a step beforehand."""

    curve: Curve
    diagonal: Float[Array, " d"] | None


@dataclass(frozen=True)
class Sweeps:
    """Fixed-point sweeps; ``diagonal`` preconditions them with the Jacobian's diagonal ``D``.

    From ``E_i = e_n + c_i h g`` (``g`` the slope over the step before), ``sweeps`` times::

        G_i = P'_i - f(t_i, P_i - E_i)
        E  <- E + ((h a)⁻¹ - D)⁻¹ ((h a)⁻¹ (e_n - E) + G),    without D: E <- e_n + h a G

    and ``e_(n+1) = E_s`` (Radau) or, with the last ``G``, ``e_n + h b·G`` (Gauss, without ``D``).
    """

    collocation: Collocation
    k: int
    sweeps: int
    """Ordinary ones: two, or one in the fast mode."""
    diagonal: bool = False

    @property
    def f_per_step(self) -> int:
        """Evaluations of ``f`` in a step."""
        return self.collocation.s * self.sweeps

    @property
    def jacobians_per_step(self) -> int:
        """Evaluations of the Jacobian's diagonal in a step."""
        return int(self.diagonal)

    @property
    def harmless(self) -> float:
        """What may be left unsettled, beside the error.

        Sweeps converge slowly where ``h J`` is near one; but there errors fade within a few steps,
        of which the sum over all steps takes no account.
        """
        return 10.0

    @property
    def doubt(self) -> float:
        """Part of the error around by which the estimate may be wrong."""
        return 0.0 if self.sweeps > 1 else _DOUBT

    def prepare(self, field: VectorField, t: Array, h: Array, left: Array, right: Array) -> Loose:
        """All of a step that does not depend on ``e_n``; to be vectorised over steps."""
        path = curve(jnp, self.collocation, self.k, t, h, left, right)
        diagonal = None
        if self.diagonal:
            m = self.collocation.middle
            diagonal = field.jacobian_diagonal(path.t[m], path.value[m])[1]
        return Loose(path, diagonal)

    def advance(self, field: VectorField, step: Loose, carry: Carry) -> tuple[Carry, Transported]:
        """Carry the error over one step."""
        c, path, diagonal = self.collocation, step.curve, step.diagonal
        e, h = carry.error, path.h

        class State(NamedTuple):
            stages: Array
            end: Array
            second: Array
            changed: Array
            before: Array
            moved: Array
            sweeps: Array

        def sweep(now: State) -> State:
            slopes = path.slope - jax.vmap(field)(path.t, path.value - now.stages)
            stages = self.sweep(e, h, now.stages, slopes, diagonal)
            end = stages[-1] if self.diagonal else e + h * mix(c.weights, slopes)
            change = stages - now.stages
            changed, moved = measured(jnp, path.value, stages, stages - e, change)
            return State(stages, end, end - now.end, changed, now.changed, moved, now.sweeps + 1)

        def unsettled(now: State) -> Array:
            """Where ``h J`` is no small number, more sweeps do not help."""
            settled = is_settled(jnp, now.changed, now.before, now.moved, carry.steps)
            shrinks = now.changed <= SWEEPS_SHRINK * now.before
            return ~settled & shrinks & (now.sweeps < MOST_SWEEPS)

        stages = e + c.nodes[:, None] * (h * carry.slope)
        zero = jnp.zeros(())
        state = sweep(State(stages, e, e, zero, zero, zero, jnp.zeros((), int)))
        first = state.end - e
        state = state._replace(second=jnp.zeros_like(e))

        def swept_again() -> tuple[State, Array]:
            again = sweep(state)
            due = unsettled(again).astype(float)
            return jax.lax.while_loop(unsettled, sweep, again), due

        if self.sweeps > 1:
            state, due = swept_again()
        else:
            state, due = jax.lax.cond(carry.looks, swept_again, lambda: (state, zero))
        more = state.sweeps - self.sweeps
        after = carry.after(state.end, h, due)
        none = jnp.zeros((), int)
        return after, Transported(state.end, state.stages, first, state.second, more, none)

    def sweep(self, e: Array, h: Array, stages: Array, slopes: Array, diagonal: Any) -> Array:
        """One sweep over the stages."""
        c = self.collocation
        if diagonal is None:
            return e + h * mix(c.matrix, slopes)
        values, columns, rows = c.spectrum
        inverse_matrix = np.linalg.inv(c.matrix)
        right = inverse_matrix @ (e - stages) / h + slopes
        scaled = (rows @ right) / (values[:, None] / h - diagonal)
        return stages + (columns @ scaled).real


def mix(matrix: np.ndarray, rows: Any) -> Any:
    """``matrix @ rows`` as a sum: inside a loop cheaper than the call of a library."""
    return sum(matrix[..., j, None] * rows[j] for j in range(matrix.shape[-1]))


Scheme = Newton | Sweeps
