"""What a calibration adds to a posterior."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.jax_inside import is_tracer
from probode.base.precision import on_host
from probode.base.record import record, static
from probode.global_error import interpolant
from probode.global_error.scales import Scales
from probode.global_error.schemes import Scheme
from probode.global_error.stages import Collocation

_FARTHEST = 2.0 * 2.0**0.5
"""Standard deviations that an estimate may be at a node (:mod:`probode.global_error.scales`)."""


@record
class Calibration:
    """A signed estimate of the global error, the scales made of it, and how far to trust it.

    Leading axes are those of the posterior it belongs to: ``N`` nodes (or save points), ``d``
    components (of an equation of order ``k``, all of ``y, ..., y^(k-1)``).
    """

    mode: str = static()
    contact: int = static()
    """``k`` of the interpolant."""
    kind: str = static()
    """Collocation method: "radau" or "gauss"."""
    error: Float[Array, "*N d"]
    """``mean - solution``, estimated."""
    stages: Array | None
    """Errors at the stages of the steps, ``(N-1, s, d)``; ``None`` with ``save_at``."""
    ratio: Float[Array, "*N d"]
    """Factors of the model's standard deviations."""
    own: Float[Array, "*N d"]
    """Standard deviations where the model has none."""
    signs: Array
    """What :mod:`probode.global_error.diagnosis` judges by, a vector of numbers."""
    f_evaluations: Array | int
    jacobian_evaluations: Array | int
    looked: Array | None = None
    """What was looked at between the steps: a :class:`probode.global_error.diagnosis.Looked`, as
    numbers; ``None``: nothing is known of that."""

    @staticmethod
    def of(
        scheme: Scheme,
        mode: str,
        error: Array,
        stages: Array | None,
        scales: Scales,
        signs: Array,
        steps: Any,
        corrections: Any,
        repeats: Any,
    ) -> "Calibration":
        """What a transport over so many steps has found, and what it has cost."""
        collocation = scheme.collocation
        f = steps * scheme.f_per_step + collocation.s * (corrections + repeats)
        jacobians = steps * scheme.jacobians_per_step + repeats
        found = (error, stages, scales.ratio, scales.own, signs)
        return Calibration(mode, scheme.k, collocation.kind, *found, f, jacobians)

    @property
    def scales(self) -> Scales:
        """At the nodes."""
        return Scales(self.ratio, self.own)

    def part(self, j: int, d: int) -> "Calibration":
        """Of ``u = (y, y', ...)`` what belongs to derivative ``j``, of ``d`` components."""
        mine = (..., slice(j * d, (j + 1) * d))
        return replace(
            self,
            error=self.error[mine],
            stages=None if self.stages is None else self.stages[mine],
            ratio=self.ratio[mine],
            own=self.own[mine],
        )

    def scales_at(self, nodes: Array, t: Any) -> Scales:
        """Scales at any time: ``log(s/sqrt(Σ))`` is linear in time between two nodes.

        In the first step, whose left end is exact, the right end's; outside, those of the end.
        """
        xp, i, tau = locate(nodes, t)
        inside = xp.clip(tau, 0.0, 1.0)[..., None]
        j = xp.minimum(i + 1, nodes.shape[0] - 1)
        log = (1.0 - inside) * xp.log(self.ratio[i]) + inside * xp.log(self.ratio[j])
        own = (1.0 - inside) * self.own[i] + inside * self.own[j]
        return Scales(xp.exp(log), own)

    def error_at(self, nodes: Array, t: Any) -> Any:
        """The error between two nodes, linear in time; outside, that of the end."""
        xp, i, tau = locate(nodes, t)
        inside = xp.clip(tau, 0.0, 1.0)[..., None]
        j = xp.minimum(i + 1, nodes.shape[0] - 1)
        return (1.0 - inside) * self.error[i] + inside * self.error[j]

    def own_between(
        self, nodes: Array, means: Array, t: Any, mean: Array, own: Any, std: Any
    ) -> Array:
        """``own`` with what the mean is off by between two nodes and not at them.

        There the curve of the mean may be off by far more than its nodes, of which the model knows
        nothing. With ``e(t)`` the estimate at ``t``, and ``s`` what the scales of the nodes give::

            excess = max(0, |e(t)| - min(2 sqrt(2) s, max(|e_n|, |e_(n+1)|)))

        is zero at the nodes, where ``|e| <= 2 sqrt(2) s``. Outside the interval nothing is known.
        """
        if self.stages is None or nodes.shape[0] < 2:
            return own
        xp, i, tau = locate(nodes, t)
        size = xp.abs(mean - self.corrected_at(nodes, means, t))
        at_ends = xp.maximum(xp.abs(self.error[i]), xp.abs(self.error[i + 1]))
        excess = size - xp.minimum(_FARTHEST * std, at_ends)
        inside = ((tau > 0.0) & (tau < 1.0))[..., None]
        return xp.hypot(own, xp.where(inside & (excess > 0.0), excess, 0.0))

    def corrected_at(self, nodes: Array, means: Array, t: Any) -> Array:
        """``P(t) - e(t)``: the interpolant with the estimated error taken off.

        Outside the interval ``e`` is that of the end, on the interpolant of the step there.
        """
        assert self.stages is not None
        xp, i, tau = locate(nodes, t)
        if nodes.shape[0] == 1:
            return xp.broadcast_to(means[0, 0] - self.error[0], (*xp.shape(tau), means.shape[-1]))
        h = nodes[i + 1] - nodes[i]
        w = interpolant.data(xp, self.contact, means[i], means[i + 1], h)
        inside = xp.clip(tau, 0.0, 1.0)
        value = interpolant.value_rows(xp, self.contact, inside)
        curve = means[i, 0] + xp.einsum("...w,...wd->...d", value, w)
        collocation = Collocation(self.kind, self.stages.shape[-2])
        rows = collocation.dense_rows(xp, inside)
        known = xp.concatenate(
            [self.error[i][..., None, :], self.stages[i], self.error[i + 1][..., None, :]], axis=-2
        )
        return curve - xp.einsum("...w,...wd->...d", rows, known)


def locate(nodes: Array, t: Any) -> tuple[Any, Any, Any]:
    """The step that a time falls into, and the part of it that has passed: ``(xp, i, τ)``."""
    host = on_host(nodes) and not is_tracer(t)
    xp: Any = np if host else jnp
    t = xp.asarray(t, float)
    if nodes.shape[0] == 1:
        return xp, xp.zeros(t.shape, int), xp.zeros(t.shape)
    sign = xp.where(nodes[-1] < nodes[0], -1.0, 1.0)
    i = xp.searchsorted(sign * nodes, sign * t, side="left") - 1
    i = xp.clip(i, 0, nodes.shape[0] - 2)
    h = nodes[i + 1] - nodes[i]
    return xp, i, (t - nodes[i]) / xp.where(h == 0.0, 1.0, h)
