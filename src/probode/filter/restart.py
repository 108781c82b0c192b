"""Restarts where the right-hand side switches: ``y`` is continuous, its derivatives are not.

Steps end right before a switch, and :mod:`probode.filter.crossing` computes the state after the
step across it. Backwards in time, that step is like any other: smoothing, dense output, samples and
the transport of the error treat it as such.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from probode.base.status import Status
from probode.filter import crossing
from probode.filter.loop import Rows, Solve
from probode.filter.step import Method
from probode.model.prior import IWP, times, transition_over
from probode.programs.switches import NONE, Switches, margin_of, stops_before


class Restarts(NamedTuple):
    """Steps across: where they begin and end, in the order of integration."""

    before: np.ndarray = NONE
    after: np.ndarray = NONE
    share: np.ndarray = NONE
    """Part of each that lies after the switch."""

    @staticmethod
    def around(
        found: Switches,
        t0: float,
        t1: float,
        value: Callable[[float], np.ndarray],
        begins: bool = False,
    ) -> "Restarts":
        """Steps from right before the switches to right after them.

        One at the end goes right up to it; one at the start is taken if ``value``, f at the initial
        value, is another one right after it, or where a solve ``begins`` with one.
        """
        if len(found.times) == 0 and not any(found.at_ends) and not begins:
            return NO_RESTARTS
        before, direction = stops_before(found.times, t0, t1), 1.0 if t1 >= t0 else -1.0
        known = found.times if np.isinf(t1) else np.append(found.times, t1)
        length = 2.0 * direction * margin_of(known, t0)
        after, share = before + length, np.full(len(before), 0.5)
        at_start, at_end = found.at_ends[:: int(direction)]
        jumps = at_start and not np.array_equal(value(t0), value(t0 + length))
        if begins or jumps:
            before, after = np.append(t0, before), np.append(t0 + length, after)
            share = np.append(1.0, share)
        if at_end:
            before, after = np.append(before, t1 - length), np.append(after, t1)
            share = np.append(share, 0.0)
        return Restarts(before, after, share)

    @property
    def _forward(self) -> bool:
        return len(self.after) == 0 or bool(self.after[0] > self.before[0])

    def until(self, t: Any, t1: Any) -> np.ndarray:
        """Where the next step across begins after ``t``; or the end ``t1``."""
        later = self.before[self.before > float(t) if self._forward else self.before < float(t)]
        return np.asarray(later[0] if len(later) else t1)

    def beyond(self, t: Any) -> tuple[float, float] | None:
        """Where the step across from ``t`` ends, and its share; ``None``: there is none."""
        at = np.nonzero(self.before == float(t))[0]
        return (float(self.after[at[0]]), float(self.share[at[0]])) if len(at) else None

    def passed(self, t: Any) -> int:
        """How many steps across were taken on the way to ``t``."""
        return int(np.sum(self.after <= float(t) if self._forward else self.after >= float(t)))


NO_RESTARTS = Restarts()


def uncertain(method: Method, solve: Solve, columns: list[np.ndarray]) -> Solve:
    """A solve that has begun, from values that are not exact.

    ``columns`` are those of a factor of their covariance, for each derivative that is given, in
    plain units. What the others owe to them is found in the step across that follows.
    """
    structure, prior = method.structure, method.prior
    left, n = jax.tree.map(np.asarray, solve.state), prior.size
    coords = prior.weights * left.h ** (1.0 - np.arange(n))
    known = [column / coords[j] for j, column in enumerate(columns)]
    none = [np.zeros_like(known[0])] * (n - len(known))
    factor = structure.from_columns([*known, *none])
    missing = max(factor.shape[-1] - factor.shape[-2], 0)
    rest = np.zeros((*factor.shape[:-2], missing, factor.shape[-1]))
    factor = np.linalg.qr(np.concatenate([factor, rest], axis=-2), mode="r")
    return replace(solve, state=replace(left, factor=factor))


Linearised = Callable[[float, np.ndarray], tuple[np.ndarray, np.ndarray | None]]
"""``(t, y)`` to ``f`` and what the method uses of its Jacobian."""


def landing(
    method: Method, solve: Solve, t: float, share: float, linearised: Linearised
) -> tuple[np.ndarray, Any]:
    """``y`` after the step across to ``t``, and the Jacobian there.

    Of an equation of order ``k``: ``u = (y, ..., y^(k-1))``, all of which go on.
    """
    state, k = jax.tree.map(np.asarray, solve.state), method.equation.order
    f, jacobian = linearised(t, state.mean[:k].reshape(-1))
    return crossing.landing(state, k, t, share, f), jacobian


@np.errstate(all="ignore")  # what overflows is left out
def across(method: Method, solve: Solve, begun: Solve, jacobian: Any) -> tuple[Rows, Solve]:
    """The two rows of a step across to where a solve has ``begun`` anew, and the solve after it.

    It goes on without a memory of the noise of the step, which says nothing of the next one's.
    Where f is not finite on the other side the solve ends, with a single row: no step.
    """
    if int(begun.status) == Status.START_NOT_FINITE:
        ended: Any = np.full_like(begun.status, Status.NOT_FINITE.value)
        rows: Any = jax.tree.map(lambda x: np.asarray(x)[None], Rows.of(solve))
        return rows, replace(solve, status=ended)
    prior = method.prior
    # In NumPy: as operations of JAX's, each would be compiled.
    left, right = jax.tree.map(np.asarray, (solve.state, begun.state))
    h: Any = np.asarray(right.t - left.t)
    coords = prior.weights * h ** (1.0 - np.arange(prior.size))
    same = type(prior) is IWP
    transition = prior.transition(h) if same else np.asarray(transition_over(prior, h, left.drift))
    increment = times(transition - np.eye(transition.shape[-1]), left.mean / coords[:, None])
    predicted = left.mean + coords[:, None] * np.asarray(increment)
    state, scale = crossing.across(method, left, right, jacobian, predicted, h)

    counts: Any = solve.counts
    following = replace(
        begun,
        state=state,
        scale=0.0 * scale,
        evidence=solve.evidence,
        counts=counts._replace(attempted=counts.attempted + 1, accepted=counts.accepted + 1),
        reference=solve.reference,
    )
    ends = Rows.of(solve), Rows.of(replace(following, scale=scale))
    return jax.tree.map(lambda *pair: np.stack(pair), *ends), following
