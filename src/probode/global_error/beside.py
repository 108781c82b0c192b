"""The transport beside a filter that keeps chosen times only: forward, in bounded memory.

Between save points no smoothed means are kept, so the error is that of the *filter's* mean, on
cubic interpolants of its values and slopes. What is written down at a save point is the solution
with that error taken off; the error of the smoothed mean there is its distance from it. How large
errors are around, those at the save points say. Where there is only one, a running mean does, over
a twentieth (for ``c`` a twenty-fifth) of the steps so far: it looks back only, to where errors that
grow were smaller and errors that decay were larger. It counts no more than ``c`` and the model say
of the step itself, which is cut to the end, and the more accurate for it. On twelve problems
(``benchmarks.ensemble_bars``) 81 % of the ends have a chi²/d in [1/3, 3], where normal numbers
would give 67 to 88 % with two to five components. (Without the second 73 %, and 56 % over a fifth
of the steps, on similar ones.)
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.precision import on_host
from probode.base.record import record, static
from probode.global_error import interpolant, scales
from probode.global_error.diagnosis import Tally
from probode.global_error.in_jax import InJax
from probode.global_error.newton import Newton
from probode.global_error.result import Calibration
from probode.global_error.schemes import Scheme
from probode.global_error.transport import Carry
from probode.model.equation import FIRST_ORDER, Equation
from probode.model.linearize import VectorField

_SQUARE_WINDOW, _MISFIT_WINDOW = 0.05, 0.04
_LEAST_SQUARE, _LEAST_MISFIT = 3.0, 5.0
WINDOWS = (_SQUARE_WINDOW, _LEAST_SQUARE, _MISFIT_WINDOW, _LEAST_MISFIT)
"""As ``struct Windows`` of ``src/posterior_at_times.hpp`` reads them."""
_ENOUGH = 2
"""Save points whose own errors say how large errors are around. A single one is mostly the end,
where what is saved is the filter's."""


@record
class Step:
    """The step that was transported last, to look inside it."""

    t: Array
    h: Array
    ends: Float[Array, "2 2 d"]
    """Values and slopes of the mean at both ends."""
    errors: Float[Array, "s2 d"]
    """``e_n``, the stages, ``e_(n+1)``."""
    slope: Any = None
    """Of the error at the left end, as the step before had it at its right one."""

    def errors_at(self, xp: Any, scheme: Scheme, tau: Any) -> Any:
        """The error at ``τ``: the polynomial through the stages; of :class:`Newton`, bent.

        The stages are off by ``h^(s+1)`` inside of a step, which for orders from 5 on is up to a
        tenth of the filter's error, and more than that of the smoothed mean. The slope at the left
        end is known, too (that of the filter has no jump there)::

            e(τ) = p(τ) + (h e'_n - p'(0)) B(τ)
        """
        rows = scheme.collocation.dense_rows(xp, tau)
        if type(scheme) is not Newton or self.slope is None:
            return rows @ self.errors
        missing = self.h * self.slope - scheme.collocation.start_slope @ self.errors
        return rows @ self.errors + scheme.collocation.bend(xp, tau) * missing


@dataclass(frozen=True)
class Beside:
    """A scheme to be run beside the filter, for :func:`probode.filter.saving.begin_saving`."""

    scheme: Scheme

    def start(
        self, equation: Equation, t: Array, mean: Float[Array, "n d"], size: int
    ) -> "Tracker":
        """Before the first step, with room for ``size`` save points."""
        return Tracker.start(self.scheme, equation, t, mean, size)


@record
class Tracker:
    """A transport in progress, and what it has written down."""

    scheme: Scheme = static()
    carry: Carry
    step: Step
    misfit: Array
    """Running mean of ``c``; one for each derivative in ``u``, if there are several."""
    square: Float[Array, " d"]
    """Running root mean square of ``e``."""
    tally: Tally
    repeats: Array
    corrected: Float[Array, "K d"]
    """At the save points: the solution with the error taken off."""
    misfits: Float[Array, " K"]
    squares: Float[Array, "K d"]
    corrections: Any = 0
    """Beyond the ordinary ones; not known of those that older versions have written."""
    equation: Equation = FIRST_ORDER
    """Of order ``k``: errors are those of ``u = (y, ..., y^(k-1))``."""

    @staticmethod
    def start(
        scheme: Scheme, equation: Equation, t: Array, mean: Float[Array, "n d"], size: int
    ) -> "Tracker":
        """Before the first step, with room for ``size`` save points."""
        mean = equation.stacked(mean)
        d = mean.shape[-1]
        zero, each = jnp.zeros(d), (equation.order,) * (equation.order > 1)
        ends = jnp.stack([mean[:2], mean[:2]])
        step = Step(t, jnp.ones(()), ends, jnp.zeros((scheme.collocation.s + 2, d)), zero)
        return Tracker(
            scheme,
            Carry.start(jnp, d),
            step,
            jnp.zeros(each),
            zero,
            Tally.start(jnp, mean[0]),
            jnp.zeros((), int),
            jnp.full((size, d), jnp.nan),
            jnp.full((size, *each), jnp.nan),
            jnp.full((size, d), jnp.nan),
            jnp.zeros((), int),
            equation,
        )

    def advance(
        self,
        field: VectorField,
        t: Array,
        h: Array,
        left: Array,
        right: Array,
        std: Array,
    ) -> "Tracker":
        """Over an accepted step, between the filter's means; ``std`` is that of u at its end."""
        left, right = (self.equation.stacked(mean)[:2] for mean in (left, right))
        ends = jnp.stack([left, right])
        problem = InJax(self.equation.first_order(field))
        prepared: Any = self.scheme.prepare(problem, t, h, ends[0], ends[1])
        carry, moved = self.scheme.advance(problem, prepared, self.carry)
        n = self.tally.steps + 1.0
        pair = (x.reshape(*self.misfit.shape, -1) for x in (carry.error, std))
        c = scales.misfit(jnp, *pair)
        misfit = self.misfit + (c - self.misfit) / _length(n, _LEAST_MISFIT, _MISFIT_WINDOW)
        part = 1.0 / _length(n, _LEAST_SQUARE, _SQUARE_WINDOW)
        square = jnp.hypot(jnp.sqrt(1.0 - part) * self.square, jnp.sqrt(part) * carry.error)
        errors = jnp.concatenate([self.carry.error[None], moved.stages, carry.error[None]])
        slope = self.scheme.collocation.end_slope @ self.step.errors / self.step.h
        return Tracker(
            self.scheme,
            carry,
            Step(t, h, ends, errors, slope),
            misfit,
            square,
            self.tally.add(jnp, right[0], moved),
            self.repeats + moved.repeats,
            self.corrected,
            self.misfits,
            self.squares,
            self.corrections + moved.corrections,
            self.equation,
        )

    def save(self, field: VectorField, k: Array, t: Array) -> "Tracker":
        """Write down save point ``k``, which lies in the last step."""
        step, tau = self.step, (t - self.step.t) / self.step.h
        w = interpolant.data(jnp, 1, step.ends[0], step.ends[1], step.h)
        value = step.ends[0, 0] + interpolant.value_rows(jnp, 1, tau) @ w
        tracker, error = self, step.errors_at(jnp, self.scheme, tau)
        if self.equation.order > 1:
            slope = interpolant.slope_rows(jnp, 1, tau) @ w / step.h
            tracker, inside = self._part_of_step(field, t, jnp.stack([value, slope]))
            error = jnp.where((tau > 0.0) & (tau < 1.0), inside, error)
        return replace(
            tracker,
            corrected=self.corrected.at[k].set(value - error),
            misfits=self.misfits.at[k].set(self.misfit),
            squares=self.squares.at[k].set(self.square),
        )

    def _part_of_step(self, field: VectorField, t: Array, right: Array) -> tuple["Tracker", Array]:
        """The error at ``t``, carried there over a part of the last step, and its cost noted.

        Values of an equation of higher order are known better than the stages of its system, which
        are exact for polynomials of a low degree only, say inside a step: at its end they are.
        """
        step, problem = self.step, InJax(self.equation.first_order(field))
        h = jnp.where(t == step.t, 1.0, t - step.t)
        prepared: Any = self.scheme.prepare(problem, step.t, h, step.ends[0], right)
        begun = self.carry._replace(error=step.errors[0])
        _, moved = self.scheme.advance(problem, prepared, begun)
        sweeps, jacobians = self.scheme.f_per_step, self.scheme.jacobians_per_step
        more = sweeps // self.scheme.collocation.s - jacobians
        return replace(
            self,
            corrections=self.corrections + moved.corrections + more,
            repeats=self.repeats + moved.repeats + jacobians,
        ), moved.error

    def calibration(self, mode: str, mean: Array, std: Array) -> Calibration:
        """What it makes of the marginals of u at the save points."""
        host = on_host(mean)
        xp: Any = np if host else jnp
        mine = jax.tree.map(np.asarray, self) if host else self
        reached = mean.shape[0]
        error = mean - mine.corrected[:reached]
        extent = xp.broadcast_to(mine.tally.high - mine.tally.low, mean.shape)
        several, misfits = self.equation.order > 1, mine.misfits[:reached]

        def scaled(error: Array, std: Array, square: Array, *of: Array) -> scales.Scales:
            if reached >= _ENOUGH:
                c, local, near = scales.around_saved(xp, error, std, mine.corrected.shape[0])
            else:
                c, local, near = misfits, scales.around_end(xp, std, misfits, square), None
            values, doubt = scales.Values(*of), self.scheme.doubt
            return scales.combine(xp, error, std, c, local, values, doubt, several, near)

        rows = error, std, mine.squares[:reached], mean, extent
        found = scales.by_parts(scaled, self.equation.order, *rows)
        signs = mine.tally.signs(xp, self.scheme.harmless)
        return Calibration.of(
            *(self.scheme, mode, error, None, found, signs),
            *(mine.tally.steps.astype(int), mine.corrections, mine.repeats),
        )


def _length(n: Array, least: float, part: float) -> Array:
    """Steps in a running mean: all of the first few, then a part of them."""
    return jnp.minimum(n, jnp.maximum(least, part * n))
