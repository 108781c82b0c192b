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
from probode.calibration.inverse import Complex, shifted_inverse
from probode.calibration.stages import Collocation
from probode.linearize import VectorField

LEFT_OVER = 1e-2
"""Part of the error that the iteration may leave unsettled in a step."""

_DOUBT = 1 / 3
"""Of an estimate without a correction, beside the error around."""

MOST_ITERATIONS = 8
FIRST_CREDIT, CREDIT = 32.0, 0.05
"""Iterations beyond the ordinary ones: so many at once, and so many more for each step."""
ROUNDING = 4 * float(np.finfo(float).eps)


class Carry(NamedTuple):
    """The error at a node, its mean slope over the step that led there, and a budget."""

    error: Float[Array, " d"]
    slope: Float[Array, " d"]
    credit: Array
    """Iterations beyond the ordinary ones that may still be spent."""

    @staticmethod
    def start(xp: Any, d: int) -> "Carry":
        """The initial value has no error."""
        return Carry(xp.zeros(d), xp.zeros(d), xp.asarray(FIRST_CREDIT))


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
        e = carry.error
        first = step.offset + step.response @ e
        stages = e + first
        if not self.corrections:
            nothing = jnp.zeros_like(e)
            return self._moved(step, carry, stages, first[-1], nothing, jnp.zeros((), int))
        shifted = jax.vmap(field)(step.curve.t, step.curve.value - stages)
        second = self.apply(step.solve, (step.f - shifted) - stages @ step.j.T)
        settled = is_settled(step.curve.value, stages, first, second)
        settled = settled | (carry.credit < MOST_ITERATIONS)
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
        after = Carry(stages[-1], slope, carry.credit + CREDIT - repeats)
        return after, Transported(stages[-1], stages, first, second, repeats)

    def _repeat(self, field: VectorField, step: Linear, e: Array) -> tuple[Array, Array, Array]:
        """The stages by Newton's method from ``E = e_n``, each iteration with its own Jacobian."""
        path, inner = step.curve, self.collocation.middle
        inverse_matrix = np.linalg.inv(self.collocation.matrix)
        noise = ROUNDING * jnp.max(jnp.abs(path.value))

        def unsettled(state: tuple[Array, Array, Array]) -> Array:
            stages, change, count = state
            settled = jnp.abs(change) <= LEFT_OVER * jnp.max(jnp.abs(stages), axis=0) + noise
            return (count < MOST_ITERATIONS) & ~jnp.all(settled)

        def iterate(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            stages, _, count = state
            f = jax.vmap(field)(path.t, path.value - stages)
            j = field.jacobian(path.t[inner], path.value[inner] - stages[inner])[1]
            solve = self.linearize(path, f, j).solve
            change = self.apply(solve, inverse_matrix @ (e - stages) / path.h + path.slope - f)
            return stages + change, change, count + 1

        begin = jnp.broadcast_to(e, path.value.shape)
        infinite = jnp.full_like(begin, jnp.inf)
        stages, change, count = jax.lax.while_loop(
            unsettled, iterate, (begin, infinite, jnp.zeros((), int))
        )
        return stages, change[-1], count


def is_settled(value: Array, stages: Array, first: Array, second: Array) -> Array:
    """Whether the correction after this one (smaller by as much as this one is) can be left out."""
    noise = ROUNDING * jnp.max(jnp.abs(value))
    size = jnp.maximum(jnp.max(jnp.abs(stages), axis=0), noise)
    moved = jnp.max(jnp.abs(first) / size)
    changed = jnp.max(jnp.maximum(jnp.abs(second) - noise, 0.0) / size)
    return changed * changed <= LEFT_OVER * moved


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
        c, (path, diagonal) = self.collocation, step
        e, h = carry.error, path.h
        stages = e + c.nodes[:, None] * (h * carry.slope)
        ends = []
        for _ in range(self.sweeps):
            slopes = path.slope - jax.vmap(field)(path.t, path.value - stages)
            stages = self.sweep(e, h, stages, slopes, diagonal)
            ends.append(stages[-1] if self.diagonal else e + h * mix(c.weights, slopes))
        end = ends[-1]
        second = end - ends[-2] if self.sweeps > 1 else jnp.zeros_like(e)
        after = Carry(end, (end - e) / h, carry.credit)
        none = jnp.zeros((), int)
        return after, Transported(end, stages, ends[0] - e, second, none)

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
