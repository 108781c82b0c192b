"""The transport of EK0 and DiagonalEK1: fixed-point sweeps over the stages of a step.

:mod:`probode.global_error.transport` says what is solved.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.global_error.stages import Collocation
from probode.global_error.transport import (
    DOUBT,
    MOST_SWEEPS,
    PATIENCE,
    SWEEPS_SHRINK,
    Arithmetic,
    Carry,
    Curve,
    Transported,
    curve,
    is_settled,
    measured,
)


class Loose(NamedTuple):
    """What the sweeps know of a step beforehand."""

    curve: Curve
    diagonal: Float[Array, " d"] | None


class _State(NamedTuple):
    """Sweeps in progress."""

    stages: Array
    end: Array
    second: Array
    changed: Array
    before: Array
    moved: Array
    sweeps: Array


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
    order: int = 1
    """Of the equation: ``u`` holds so many derivatives of each component. They are swept in turn,
    the highest first; ``D`` has the blocks of the system of first order that they make, with the
    diagonals below (:class:`System`)."""

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
        """What may be left unsettled, relative to the error.

        Sweeps converge slowly where ``h J`` is near one; but there errors fade within a few steps,
        of which the sum over all steps takes no account.
        """
        return 10.0

    @property
    def doubt(self) -> float:
        """Part of the error nearby by which the estimate may be wrong."""
        return 0.0 if self.sweeps > 1 else DOUBT

    def prepare(self, problem: Arithmetic, t: Array, h: Array, left: Array, right: Array) -> Loose:
        """All of a step that does not depend on ``e_n``; to be vectorised, or given several."""
        path = curve(problem.xp, self.collocation, self.k, t, h, left, right)
        diagonal = None
        if self.diagonal:
            m = self.collocation.middle
            diagonal = problem.diagonal_at(path.t[..., m], path.value[..., m, :])
        return Loose(path, diagonal)

    def advance(self, problem: Arithmetic, step: Loose, carry: Carry) -> tuple[Carry, Transported]:
        """Carry the error over one step."""
        xp, c, path, diagonal = problem.xp, self.collocation, step.curve, step.diagonal
        e, h = carry.error, path.h

        def sweep(now: _State) -> _State:
            slopes = path.slope - problem.at_stages(path.t, path.value - now.stages)
            if self.order > 1 and not self.diagonal:
                slopes = self._in_turn(xp, e, path, slopes)
            stages = self.sweep(e, h, now.stages, slopes, diagonal)
            end = stages[-1] if self.diagonal else e + h * mix(c.weights, slopes)
            change = stages - now.stages
            changed, moved = measured(xp, path.value, stages, stages - e, change)
            return _State(stages, end, end - now.end, changed, now.changed, moved, now.sweeps + 1)

        def unsettled(now: _State) -> Array:
            """Sweeps converge for ``h |λ| < 4.6``; beyond that, more of them do not help."""
            settled = is_settled(xp, now.changed, now.before, now.moved, carry.steps)
            shrinks = now.changed <= SWEEPS_SHRINK * now.before
            return ~settled & (shrinks | (now.sweeps < PATIENCE)) & (now.sweeps < MOST_SWEEPS)

        stages = carry.guess(xp, c.nodes, h)
        zero = xp.zeros(())
        state = sweep(_State(stages, e, e, zero, zero, zero, xp.zeros((), int)))
        first = state.end - e
        state = state._replace(second=xp.zeros_like(e))

        def swept_again() -> tuple[_State, Array]:
            again = sweep(state)
            due = unsettled(again).astype(float)
            return problem.while_loop(unsettled, sweep, again), due

        if self.sweeps > 1:
            state, due = swept_again()
        else:
            state, due = problem.cond(carry.looks, swept_again, lambda: (state, zero))
        more = state.sweeps - self.sweeps
        after = carry.after(state.end, h, due)
        none = xp.zeros((), int)
        return after, Transported(state.end, state.stages, first, state.second, more, none)

    def _in_turn(self, xp: Any, e: Array, path: Curve, slopes: Array) -> Array:
        """Slopes of the errors of all derivatives, each with the next one known already.

        ``e_j' = P_j' - (P_(j+1) - E_(j+1))`` needs no evaluation of ``f``: one sweep does what
        takes ``k`` of them otherwise.
        """
        value, slope, own, start = (
            xp.split(x, self.order, axis=-1) for x in (path.value, path.slope, slopes, e)
        )
        found = own[-1:]
        for j in reversed(range(self.order - 1)):
            following = start[j + 1] + path.h * mix(self.collocation.matrix, found[0])
            found = [slope[j] - (value[j + 1] - following), *found]
        return xp.concatenate(found, axis=-1)

    def sweep(self, e: Array, h: Array, stages: Array, slopes: Array, diagonal: Any) -> Array:
        """One sweep over the stages."""
        c = self.collocation
        if diagonal is None:
            return e + h * mix(c.matrix, slopes)
        values, columns, rows = c.spectrum
        inverse_matrix = np.linalg.inv(c.matrix)
        right = inverse_matrix @ (e - stages) / h + slopes
        scaled = self._solved(values[:, None] / h, diagonal, rows @ right)
        return stages + (columns @ scaled).real

    def _solved(self, shift: Any, diagonal: Any, right: Any) -> Any:
        """``(λ - D)⁻¹ r``, the components apart.

        With ``k`` derivatives ``x_(i+1) = λ x_i - r_i``, and ``λ x_(k-1) - Σ a_i x_i = r_(k-1)``.
        """
        if self.order == 1:
            return right / (shift - diagonal)
        k, (n, m) = self.order, right.shape
        r, a = right.reshape(n, k, m // k), diagonal.reshape(k, m // k)
        powers = [shift**i for i in range(k)]
        known = [0.0 * r[:, 0]]  # of x_i = λ^i x_0 + known_i
        for i in range(k - 1):
            known.append(shift * known[-1] - r[:, i])
        divisor = shift * powers[-1] - sum(a[i] * powers[i] for i in range(k))
        rest = r[:, -1] - shift * known[-1] + sum(a[i] * known[i] for i in range(k))
        first = rest / divisor
        found = [powers[i] * first + known[i] for i in range(k)]
        return (np if isinstance(right, np.ndarray) else jnp).concatenate(found, axis=-1)


def mix(matrix: np.ndarray, rows: Any) -> Any:
    """``matrix @ rows``; in JAX as a sum: inside a loop cheaper than the call of a library."""
    if isinstance(rows, np.ndarray):
        return matrix @ rows
    return sum(matrix[..., j, None] * rows[j] for j in range(matrix.shape[-1]))
