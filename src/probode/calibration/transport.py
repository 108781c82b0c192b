"""Carrying the defect of the posterior mean along the solution: a signed global error estimate.

The interpolant ``P`` of the mean misses the ODE between the nodes. With ``y`` the true solution,
its error ``e = P - y`` satisfies::

    e' = P'(t) - f(t, P(t) - e),      e(t0) = 0,

which collocation solves on the steps that the solver took: stage values ``E_i``, and at the end
``e_(n+1)``. Two ways of solving for the stages, both with a fixed number of evaluations:

- :class:`Newton`, for EK1: with the Jacobian ``J`` in the middle of the step and the defects
  ``δ_i = P'_i - f(t_i, P_i)``, both known for all steps at once, the linearised stages are an
  affine function of ``e_n``. One correction for what ``f`` does beyond ``J`` follows. In the rare
  steps where that correction is not small (a layer that the error has moved) it is not enough: they
  are done again by Newton's method around ``P - e``.
- :class:`Sweeps`, for EK0 and DiagonalEK1: fixed-point sweeps ``E <- e_n + h a G(E)`` without any
  Jacobian, or preconditioned with its diagonal.

Only what depends on ``e_n`` is sequential; everything else is done for many steps at once.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.calibration import interpolant
from probode.calibration.inverse import inverse
from probode.calibration.stages import Collocation
from probode.linearize import VectorField

_SMALL = 8
"""Up to this dimension the inverse of the stages' system is multiplied out."""

_LEFT_OVER = 1e-2
"""Part of the error that the iteration may leave unsettled in a step."""

_SMALL_CHANGE = 0.1
"""Part of the error by which corrections may change it when done for all steps at once."""

_MOST_ITERATIONS = 8
_FIRST_CREDIT, _CREDIT = 32.0, 0.05
"""Iterations beyond the ordinary ones: so many at once, and so many more for each step."""
_ROUNDING = 4 * float(np.finfo(float).eps)


class Carry(NamedTuple):
    """The error at a node, its mean slope over the step that led there, and a budget."""

    error: Float[Array, " d"]
    slope: Float[Array, " d"]
    credit: Array
    """Iterations beyond the ordinary ones that may still be spent."""

    @staticmethod
    def start(xp: Any, d: int) -> "Carry":
        """The initial value has no error."""
        return Carry(xp.zeros(d), xp.zeros(d), xp.asarray(_FIRST_CREDIT))


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
    repeats: Array
    """Newton iterations beyond the ordinary ones (each with a Jacobian of its own)."""


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
    value = left[..., :1, :] + interpolant.value_rows(np, k, method.nodes) @ w
    slope = interpolant.slope_rows(np, k, method.nodes) @ w / h[..., None, None]
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
    solve: Array
    """Inverse of the stages' system: multiplied out ``(s d, s d)``, or ``(pairs, d, d)``."""


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

    def prepare(self, field: VectorField, t: Array, h: Array, left: Array, right: Array) -> Linear:
        """All of a step that does not depend on ``e_n``; to be vectorised over steps."""
        c = self.collocation
        path = curve(jnp, c, self.k, t, h, left, right)
        f = jax.vmap(field)(path.t, path.value)
        j = field.jacobian(path.t[c.middle], path.value[c.middle])[1]
        return self.linearize(path, f, j)

    def linearize(self, path: Curve, f: Array, j: Array) -> Linear:
        """The affine map from ``e_n`` to the stages."""
        c, d = self.collocation, f.shape[-1]
        values, columns, rows = c.spectrum
        shifts = jnp.asarray(values) / path.h
        blocks = inverse(shifts[:, None, None] * jnp.eye(d) - j)
        defect = path.slope - f
        # (λ/h - J)⁻¹ J = λ/h (λ/h - J)⁻¹ - 1
        passed = shifts[:, None, None] * blocks - jnp.eye(d)
        ones = jnp.asarray(columns * rows.sum(axis=1))
        response = jnp.einsum("ik,kab->iab", ones, passed).real
        solve = blocks
        if d <= _SMALL:
            size = c.s * d
            solve = jnp.einsum("ik,kab,kj->iajb", columns, blocks, rows).real.reshape(size, size)
        return Linear(path, f, j, self._apply(solve, defect), response, solve)

    def _apply(self, solve: Any, right: Any) -> Any:
        """``((h a)⁻¹ - J)⁻¹`` applied to stages."""
        if solve.ndim == 2:
            return (solve @ right.reshape(-1)).reshape(right.shape)
        _, columns, rows = self.collocation.spectrum
        return (columns @ jnp.einsum("kab,kb->ka", solve, rows @ right)).real

    def advance(self, field: VectorField, step: Linear, carry: Carry) -> tuple[Carry, Transported]:
        """Carry the error over one step."""
        e = carry.error
        first = step.offset + step.response @ e
        stages = e + first
        if not self.corrections:
            nothing = jnp.zeros_like(e)
            return self._moved(step, carry, stages, first[-1], nothing, jnp.zeros((), int))
        shifted = jax.vmap(field)(step.curve.t, step.curve.value - stages)
        second = self._apply(step.solve, (step.f - shifted) - stages @ step.j.T)
        settled = _is_settled(step.curve.value, stages, first, second)
        settled = settled | (carry.credit < _MOST_ITERATIONS)
        corrected, last, repeats = jax.lax.cond(
            settled,
            lambda: (stages + second, second[-1], jnp.zeros((), int)),
            lambda: self._repeat(field, step, e),
        )
        return self._moved(step, carry, corrected, corrected[-1] - last - e, last, repeats)

    def _moved(
        self, step: Linear, carry: Carry, stages: Array, first: Array, second: Array, repeats: Array
    ) -> tuple[Carry, Transported]:
        slope = (stages[-1] - carry.error) / step.curve.h
        after = Carry(stages[-1], slope, carry.credit + _CREDIT - repeats)
        return after, Transported(stages[-1], stages, first, second, repeats)

    def _repeat(self, field: VectorField, step: Linear, e: Array) -> tuple[Array, Array, Array]:
        """The stages by Newton's method from ``E = e_n``, each iteration with its own Jacobian."""
        path, inner = step.curve, self.collocation.middle
        inverse_matrix = np.linalg.inv(self.collocation.matrix)
        noise = _ROUNDING * jnp.max(jnp.abs(path.value))

        def unsettled(state: tuple[Array, Array, Array]) -> Array:
            stages, change, count = state
            settled = jnp.abs(change) <= _LEFT_OVER * jnp.max(jnp.abs(stages), axis=0) + noise
            return (count < _MOST_ITERATIONS) & ~jnp.all(settled)

        def iterate(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            stages, _, count = state
            f = jax.vmap(field)(path.t, path.value - stages)
            j = field.jacobian(path.t[inner], path.value[inner] - stages[inner])[1]
            solve = self.linearize(path, f, j).solve
            change = self._apply(solve, inverse_matrix @ (e - stages) / path.h + path.slope - f)
            return stages + change, change, count + 1

        begin = jnp.broadcast_to(e, path.value.shape)
        infinite = jnp.full_like(begin, jnp.inf)
        stages, change, count = jax.lax.while_loop(
            unsettled, iterate, (begin, infinite, jnp.zeros((), int))
        )
        return stages, change[-1], count


def carry_at_once(
    scheme: Newton, field: VectorField, t: Array, means: Array, carry: Carry
) -> tuple[Carry, Transported, Array]:
    """What :func:`carry_over` does for a :class:`Newton` scheme, with f for all steps at once.

    The linearised stages make ``e_(n+1)`` an affine function of ``e_n``: a recurrence without any
    evaluation. Corrections at its result, for all steps at once, change the offsets, and the
    recurrence is run once more. The last value says whether that is enough: whether no step would
    repeat its iteration, and the corrections changed no error by more than its tenth (the next ones
    would change it by a tenth of that).
    """
    h = t[1:] - t[:-1]
    still = (h == 0.0)[:, None]
    steps = jax.vmap(lambda *step: scheme.prepare(field, *step))(
        t[:-1], jnp.where(h == 0.0, 1.0, h), means[:-1], means[1:]
    )
    nothing = jnp.zeros_like(steps.offset)

    def errors(offset: Array) -> Array:
        """``e_n`` at all nodes."""

        def move(e: Array, step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            shift, response, stays = step
            after = jnp.where(stays, e, e + shift + response @ e)
            return after, after

        path = (offset[:, -1], steps.response[:, -1], still)
        _, after = jax.lax.scan(move, carry.error, path)
        return jnp.concatenate([carry.error[None], after])

    def stages_of(e: Array, offset: Array) -> Array:
        moved = offset + jnp.einsum("nsab,nb->nsa", steps.response, e)
        return e[:, None] + jnp.where(still[..., None], 0.0, moved)

    e = errors(steps.offset)
    stages = stages_of(e[:-1], steps.offset)
    first, second, settled = stages - e[:-1, None], nothing, jnp.ones((), bool)
    if scheme.corrections:
        values = steps.curve.value
        shifted = jax.vmap(jax.vmap(field))(steps.curve.t, values - stages)
        beyond = (steps.f - shifted) - jnp.einsum("nsb,nab->nsa", stages, steps.j)
        second = jax.vmap(scheme._apply)(steps.solve, beyond)
        second = jnp.where(still[..., None], 0.0, second)
        settled = jnp.all(jax.vmap(_is_settled)(values, stages, first, second))
        before, e = e, errors(steps.offset + second)
        stages = stages_of(e[:-1], steps.offset + second)
        noise = _ROUNDING * jnp.max(jnp.abs(values), axis=(0, 1))
        size = jax.lax.cummax(jnp.abs(e)) + noise
        settled = settled & jnp.all(jnp.abs(e - before) <= _SMALL_CHANGE * size)
    slope = (e[-1] - e[-2]) / jnp.where(h[-1] == 0.0, 1.0, h[-1])
    credit = carry.credit + _CREDIT * jnp.sum(h != 0.0)
    repeats = jnp.zeros(h.shape, int)
    moved = Transported(e[1:], stages, first[:, -1], second[:, -1], repeats)
    return Carry(e[-1], slope, credit), moved, settled & jnp.all(jnp.isfinite(e))


def _is_settled(value: Array, stages: Array, first: Array, second: Array) -> Array:
    """Whether the correction after this one (smaller by as much as this one is) can be left out."""
    noise = _ROUNDING * jnp.max(jnp.abs(value))
    size = jnp.maximum(jnp.max(jnp.abs(stages), axis=0), noise)
    moved = jnp.max(jnp.abs(first) / size)
    changed = jnp.max(jnp.maximum(jnp.abs(second) - noise, 0.0) / size)
    return changed * changed <= _LEFT_OVER * moved


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
    diagonal: bool = False

    @property
    def f_per_step(self) -> int:
        """Evaluations of ``f`` in a step."""
        return self.collocation.s * self.sweeps

    @property
    def jacobians_per_step(self) -> int:
        """Evaluations of the Jacobian's diagonal in a step."""
        return int(self.diagonal)

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
        c, (path, diagonal) = self.collocation, step
        e, h = carry.error, path.h
        stages = e + c.nodes[:, None] * (h * carry.slope)
        ends = []
        for _ in range(self.sweeps):
            slopes = path.slope - jax.vmap(field)(path.t, path.value - stages)
            stages = self.sweep(e, h, stages, slopes, diagonal)
            ends.append(stages[-1] if self.diagonal else e + h * (c.weights @ slopes))
        end = ends[-1]
        second = end - ends[-2] if self.sweeps > 1 else jnp.zeros_like(e)
        after = Carry(end, (end - e) / h, carry.credit)
        none = jnp.zeros((), int)
        return after, Transported(end, stages, ends[0] - e, second, none)

    def sweep(self, e: Array, h: Array, stages: Array, slopes: Array, diagonal: Any) -> Array:
        """One sweep over the stages."""
        c = self.collocation
        if diagonal is None:
            return e + h * (c.matrix @ slopes)
        values, columns, rows = c.spectrum
        inverse_matrix = np.linalg.inv(c.matrix)
        right = inverse_matrix @ (e - stages) / h + slopes
        scaled = (rows @ right) / (values[:, None] / h - diagonal)
        return stages + (columns @ scaled).real


Scheme = Newton | Sweeps


def empty(scheme: Scheme, steps: int, d: int) -> Transported:
    """NumPy arrays for so many steps, all zero."""
    rows: list[Any] = [np.zeros((steps, d)) for _ in range(3)]
    stages: Any = np.zeros((steps, scheme.collocation.s, d))
    repeats: Any = np.zeros(steps, int)
    return Transported(rows[0], stages, rows[1], rows[2], repeats)


def carry_over(
    scheme: Scheme, field: VectorField, t: Array, means: Array, carry: Carry, count: Any = None
) -> tuple[Carry, Transported]:
    """Carry the error along nodes ``t`` with means ``(N, >k, d)``: ``N - 1`` steps.

    With ``count``, only so many steps are taken; the rows after them mean nothing. A step of length
    zero (a repeated node) changes nothing.
    """
    h = t[1:] - t[:-1]
    still = h == 0.0
    steps = jax.vmap(lambda *step: scheme.prepare(field, *step))(
        t[:-1], jnp.where(still, 1.0, h), means[:-1], means[1:]
    )

    def advance(carry: Carry, i: Array) -> tuple[Carry, Transported]:
        step = jax.tree.map(lambda x: x[i], steps)
        after, moved = scheme.advance(field, step, carry)
        nothing = jnp.zeros_like(carry.error)
        stages = jnp.broadcast_to(carry.error, moved.stages.shape)
        stay = Transported(carry.error, stages, nothing, nothing, jnp.zeros((), int))
        return jax.tree.map(lambda a, b: jnp.where(still[i], a, b), (carry, stay), (after, moved))

    if count is None:
        return jax.lax.scan(advance, carry, jnp.arange(h.shape[0]))

    def body(i: Array, state: tuple[Carry, Transported]) -> tuple[Carry, Transported]:
        carry, buffer = state
        carry, moved = advance(carry, i)
        return carry, jax.tree.map(lambda xs, x: xs.at[i].set(x), buffer, moved)

    one = jax.eval_shape(advance, carry, jnp.zeros((), int))[1]
    buffer = jax.tree.map(lambda x: jnp.zeros((h.shape[0], *x.shape), x.dtype), one)
    return jax.lax.fori_loop(0, count, body, (carry, buffer))
