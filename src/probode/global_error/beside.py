"""The transport beside a filter that keeps chosen times only: forward, in bounded memory.

Between save points no smoothed means are kept, so the error is that of the *filter's* mean, on
cubic interpolants of its values and slopes. What is written down at a save point is the solution
with that error taken off; the error of the smoothed mean there is its distance from it. Windows are
causal: a running mean whose length is a fifth (for ``c`` a twenty-fifth) of the steps so far, as
many as the two-sided windows of :mod:`probode.global_error.scales` have.
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
from probode.global_error.result import Calibration
from probode.global_error.schemes import Scheme
from probode.global_error.transport import Carry
from probode.model.linearize import VectorField

_SQUARE_WINDOW, _MISFIT_WINDOW = 0.2, 0.04
_LEAST_SQUARE, _LEAST_MISFIT = 3.0, 5.0


@record
class Step:
    """The step that was transported last, to look inside it."""

    t: Array
    h: Array
    ends: Float[Array, "2 2 d"]
    """Values and slopes of the mean at both ends."""
    errors: Float[Array, "s2 d"]
    """``e_n``, the stages, ``e_(n+1)``."""


@dataclass(frozen=True)
class Beside:
    """A scheme to be run beside the filter, for :func:`probode.filter.saving.begin_saving`."""

    scheme: Scheme

    def start(self, t: Array, mean: Float[Array, "n d"], size: int) -> "Tracker":
        """Before the first step, with room for ``size`` save points."""
        return Tracker.start(self.scheme, t, mean, size)


@record
class Tracker:
    """A transport in progress, and what it has written down."""

    scheme: Scheme = static()
    carry: Carry
    step: Step
    misfit: Array
    """Running mean of ``c``."""
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

    @staticmethod
    def start(scheme: Scheme, t: Array, mean: Float[Array, "n d"], size: int) -> "Tracker":
        """Before the first step, with room for ``size`` save points."""
        d = mean.shape[-1]
        zero = jnp.zeros(d)
        ends = jnp.stack([mean[:2], mean[:2]])
        step = Step(t, jnp.ones(()), ends, jnp.zeros((scheme.collocation.s + 2, d)))
        return Tracker(
            scheme,
            Carry.start(jnp, d),
            step,
            jnp.zeros(()),
            zero,
            Tally.start(jnp, mean[0]),
            jnp.zeros((), int),
            jnp.full((size, d), jnp.nan),
            jnp.full((size,), jnp.nan),
            jnp.full((size, d), jnp.nan),
            jnp.zeros((), int),
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
        """Over an accepted step, between the filter's means; ``std`` is that at its end."""
        ends = jnp.stack([left[:2], right[:2]])
        problem = InJax(field)
        prepared: Any = self.scheme.prepare(problem, t, h, ends[0], ends[1])
        carry, moved = self.scheme.advance(problem, prepared, self.carry)
        n = self.tally.steps + 1.0
        c = scales.misfit(jnp, carry.error, std)
        misfit = self.misfit + (c - self.misfit) / _length(n, _LEAST_MISFIT, _MISFIT_WINDOW)
        part = 1.0 / _length(n, _LEAST_SQUARE, _SQUARE_WINDOW)
        square = jnp.hypot(jnp.sqrt(1.0 - part) * self.square, jnp.sqrt(part) * carry.error)
        errors = jnp.concatenate([self.carry.error[None], moved.stages, carry.error[None]])
        return Tracker(
            self.scheme,
            carry,
            Step(t, h, ends, errors),
            misfit,
            square,
            self.tally.add(jnp, right[0], moved),
            self.repeats + moved.repeats,
            self.corrected,
            self.misfits,
            self.squares,
            self.corrections + moved.corrections,
        )

    def save(self, k: Array, t: Array) -> "Tracker":
        """Write down save point ``k``, which lies in the last step."""
        step, tau = self.step, (t - self.step.t) / self.step.h
        w = interpolant.data(jnp, 1, step.ends[0], step.ends[1], step.h)
        value = step.ends[0, 0] + interpolant.value_rows(jnp, 1, tau) @ w
        error = self.scheme.collocation.dense_rows(jnp, tau) @ step.errors
        return replace(
            self,
            corrected=self.corrected.at[k].set(value - error),
            misfits=self.misfits.at[k].set(self.misfit),
            squares=self.squares.at[k].set(self.square),
        )

    def calibration(self, mode: str, mean: Array, std: Array) -> Calibration:
        """What it makes of the marginals at the save points."""
        host = on_host(mean)
        xp: Any = np if host else jnp
        mine = jax.tree.map(np.asarray, self) if host else self
        reached = mean.shape[0]
        error = mean - mine.corrected[:reached]
        values = scales.Values(mean, mine.tally.high - mine.tally.low)
        means = mine.misfits[:reached], mine.squares[:reached]
        scaled = scales.combine(xp, error, std, *means, values, self.scheme.doubt)
        signs = mine.tally.signs(xp, self.scheme.harmless)
        return Calibration.of(
            *(self.scheme, mode, error, None, scaled, signs),
            *(mine.tally.steps.astype(int), mine.corrections, mine.repeats),
        )


def _length(n: Array, least: float, part: float) -> Array:
    """Steps in a running mean: all of the first few, then a part of them."""
    return jnp.minimum(n, jnp.maximum(least, part * n))
