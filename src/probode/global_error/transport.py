"""Carrying the defect of the posterior mean along the solution: a signed global error estimate.

The interpolant ``P`` of the mean misses the ODE between the nodes. With ``y`` the true solution,
its error ``e = P - y`` satisfies::

    e' = P'(t) - f(t, P(t) - e),      e(t0) = 0,

which collocation solves on the steps that the solver took: stage values ``E_i``, and at the end
``e_(n+1)``. Two ways of solving for the stages:

- ``newton``, for EK1: with the Jacobian ``J`` in the middle of the step and the defects
  ``δ_i = P'_i - f(t_i, P_i)``, both known for all steps at once, the linearised stages are an
  affine function of ``e_n``. A correction for what ``f`` does beyond ``J`` follows, and more of
  them while they are needed. In the rare steps where they do not shrink (a layer that the error has
  moved) the step is done again by Newton's method around ``P - e``.
- ``sweeps``, for EK0 and DiagonalEK1: fixed-point sweeps ``E <- e_n + h a G(E)`` without any
  Jacobian, or preconditioned with its diagonal; two, and more of them while they are needed.

How many are needed is a matter of all steps together. What an iteration leaves out has the same
sign in every step where the solution keeps coming back: along a Kepler orbit one correction leaves
out 2e-4 of the error a step, which acts like a friction and within 30 periods hides the drift of
the energy. And where errors grow in proportion to time (orbits of different energy drift apart),
what is left out in a step is multiplied by the steps that follow. So the part of the error that
step ``n`` may leave unsettled falls like ``1/n²``.

Only what depends on ``e_n`` is sequential; everything else is done for many steps at once.
"""

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from jaxtyping import Array, Float

from probode.global_error import interpolant
from probode.global_error.stages import Collocation

LEFT_OVER = 1e-2
"""Part of its change over a step that the iteration may leave unsettled in the error."""
EARLY = 20.0
"""Part of the error itself: ``1 / (EARLY + n)²`` in step ``n``, ``1 / EARLY`` in all together."""
SHRINKS, SWEEPS_SHRINK = 0.25, 0.8
"""Largest ratio of a correction, or sweep, to the one before it for the iteration to continue."""
PATIENCE = 6
"""Number of sweeps before their changes are expected to shrink: the ``n``-th changes the stages by
``(h J)^n / n!`` at first, and only later by a factor of ``0.22 h J`` each. Two sweeps alone
multiply an oscillation with ``h |λ| = 1.5``, where a step of EK0 is stable, by 1.4 in each step,
and damp one with ``h |λ| = 1`` by 0.94."""
LOOK = 16
"""Steps between two looks, in the fast mode, at whether corrections are needed."""

DOUBT = 1 / 3
"""Of an estimate without a correction, relative to the error nearby."""

MOST_ITERATIONS = 8
MOST_SWEEPS = 16
FIRST_CREDIT, CREDIT = 32.0, 0.05
"""Iterations with a Jacobian of their own: so many at once, and so many more for each step."""
REACH = 1e3
"""How many times as long as the last step the next one may be, to begin with its slope."""
ROUNDING = 4 * float(np.finfo(float).eps)
_TINY = 1e-300
COUNTS = 2
"""Numbers in a step's row that count: corrections, repeats."""


class Arithmetic(Protocol):
    """A vector field, and what is computed with: JAX or NumPy. The schemes are written in it."""

    xp: ClassVar[Any]
    """Arrays: ``jax.numpy`` or ``numpy``."""

    def cond(self, which: Any, yes: Any, no: Any) -> Any:
        """``yes()`` or ``no()``."""

    def while_loop(self, going: Any, body: Any, state: Any) -> Any:
        """``state = body(state)`` while ``going(state)``."""

    def at_stages(self, t: Any, y: Any) -> Any:
        """``f`` at all stages of a step."""

    def jacobian_at(self, t: Any, y: Any, f: Any) -> Any:
        """``J`` where ``f`` is known."""

    def diagonal_at(self, t: Any, y: Any) -> Any:
        """The diagonal of ``J``."""


class Carry(NamedTuple):
    """The error at a node, its mean slope over the step that led there, and what was spent."""

    error: Float[Array, " d"]
    slope: Float[Array, " d"]
    credit: Array
    """Iterations with a Jacobian of their own that may still be spent."""
    steps: Any = 0.0
    """Steps so far."""
    due: Any = 0.0
    """One if the first correction of the last step was not enough, else zero."""
    h: Any = 0.0
    """Length of the last step."""

    @staticmethod
    def start(xp: Any, d: int) -> "Carry":
        """The initial value has no error."""
        return Carry(xp.zeros(d), xp.zeros(d), xp.asarray(FIRST_CREDIT), *3 * [xp.asarray(0.0)])

    def after(self, end: Any, h: Any, due: Any, spent: Any = 0.0) -> "Carry":
        """At the end of a step of length ``h``, in which ``spent`` iterations had a Jacobian."""
        credit = self.credit + CREDIT - spent
        return Carry(end, (end - self.error) / h, credit, self.steps + 1.0, due, h)

    def guess(self, xp: Any, nodes: Any, h: Any) -> Any:
        """Stages of the next step, of length ``h``, if the error went on as over the last one.

        A step across a switch, shorter than any other, says nothing of the next one.
        """
        reach = xp.where(xp.abs(h) <= REACH * xp.abs(self.h), h, 0.0)
        return self.error + nodes[:, None] * (reach * self.slope)

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
    """The rest of the error's change over the step, at its end."""
    second: Float[Array, " d"]
    """What the first correction changed there (of sweeps, and of Newton's method, the last one).

    How large it is says how far from linear the equation is over the error.
    """
    corrections: Array
    """Corrections or sweeps beyond the ordinary ones (``s`` evaluations each)."""
    repeats: Array
    """Newton iterations (``s`` evaluations and a Jacobian each)."""

    @property
    def ends(self) -> tuple[Array, Array, Array]:
        """What is known at the end of the step."""
        return self.error, self.first, self.second


def empty(steps: int, s: int, d: int) -> Transported:
    """NumPy arrays for so many steps of ``s`` stages, all zero."""
    rows: list[Any] = [np.zeros((steps, d)) for _ in range(3)]
    stages: Any = np.zeros((steps, s, d))
    counts: list[Any] = [np.zeros(steps, int) for _ in range(COUNTS)]
    return Transported(rows[0], stages, rows[1], rows[2], *counts)


def from_rows(rows: Any) -> Transported:
    """The parts of rows ``(N, s+5, d)``: error, first, second, two counts, stages."""
    error, first, second, *counts = (rows[:, i] for i in range(3 + COUNTS))
    counts = [count[:, 0].astype(int) for count in counts]
    return Transported(error, rows[:, 3 + COUNTS :], first, second, *counts)


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


def measured(xp: Any, value: Any, stages: Any, moved: Any, change: Any) -> tuple[Any, Any]:
    """Largest parts of the stages that a change and the whole step moved, rounding left out."""
    noise = ROUNDING * abs(value).max()
    size = xp.maximum(abs(stages).max(axis=0), xp.maximum(noise, _TINY))
    changed = (xp.maximum(abs(change) - noise, 0.0) / size).max()
    return changed, (abs(moved) / size).max()


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
