"""The diffusion models, which say how wide the prior is.

================  ================================================================================
``"fixed"``       one ``σ²`` for the whole solve: quasi maximum likelihood over all steps,
                  ``σ̂² = 1/(N d) Σ zᵀ S⁻¹ z``
``"fixed-mv"``    one ``γ_i`` per component: ``γ̂_i = 1/N Σ z_i² / S_ii``
``"dynamic"``     one ``σ_n²`` per step, from that step's residual alone:
                  ``σ̂_n² = zᵀ (H Q Hᵀ)⁻¹ z / d``
``"dynamic-mv"``  one ``γ_{n,i}`` per step and component: ``z_i² / (H Q Hᵀ)_ii``
``"damped"``      dynamic, but the geometric mean of that estimate and of the step before;
``"damped-mv"``   the same per component
================  ================================================================================

A fixed model is run with unit diffusion (in units of its first step, so that nothing overflows) and
rescaled at the end; a dynamic one is calibrated within each step.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.errors import check_choice
from probode.base.precision import on_host
from probode.base.record import record, static
from probode.model.gaussian import norm, safe_sqrt
from probode.model.linearize import LocalNoise

_FURTHEST = 100.0
"""How far the past of a damped diffusion may be from the residual's own ``s``.

Beyond a jump of the vector field the past says nothing, and steps that believed it would never get
across.
"""


class Innovation(NamedTuple):
    """What an update tells the estimate of the diffusion, per component (after whitening)."""

    whitened: Float[Array, " d"]
    """``w`` with ``wᵀw = zᵀ S⁻¹ z``."""
    log_det: Float[Array, " d"]
    """Summands of ``log det S``; zero where the variance is exactly zero."""
    observed: Float[Array, " d"]
    """One where the innovation has a variance, zero where it has none."""


@record
class Evidence:
    """Running sums over the accepted steps, from which diffusion and evidence are estimated.

    ``squares`` (of the whitened innovations), ``log_det`` and ``terms`` (the number of observations
    with a nonzero variance) are scalars, or hold one number per component for a multivariate model.
    """

    steps: Array
    squares: Array
    log_det: Array
    terms: Array
    d: int = static()
    multivariate: bool = static()

    @staticmethod
    def empty(d: int, multivariate: bool) -> "Evidence":
        """No step yet."""
        zero = jnp.zeros((d,) if multivariate else ())
        return Evidence(jnp.zeros(()), zero, zero, zero, d, multivariate)

    def add(self, innovation: Innovation) -> "Evidence":
        """Account for one more step."""

        def total(per_component: Array) -> Array:
            return per_component if self.multivariate else jnp.sum(per_component)

        return Evidence(
            self.steps + 1.0,
            self.squares + total(innovation.whitened**2),
            self.log_det + total(innovation.log_det),
            self.terms + total(innovation.observed),
            self.d,
            self.multivariate,
        )

    @property
    def mean_square(self) -> Array:
        """Quasi maximum likelihood ``1/(N d) Σ wᵀw`` (per component: ``1/N Σ w_i²``)."""
        if self.multivariate:
            return self.squares / jnp.maximum(self.steps, 1.0)[..., None]
        return self.squares / jnp.maximum(self.d * self.steps, 1.0)

    def over_components(self, terms: Array) -> Array:
        """Sum over the components, where there is a number for each."""
        return jnp.sum(terms, axis=-1) if self.multivariate else terms


@dataclass(frozen=True)
class Diffusion:
    """Base of the diffusion models.

    Parameters
    ----------
    multivariate
        One diffusion per component instead of one for all.

    Examples
    --------
    >>> import probode
    >>> isinstance(probode.EK1(3, "damped").diffusion, probode.Diffusion)
    True
    """

    multivariate: bool = False

    fixed: ClassVar[bool]

    @property
    def name(self) -> str:
        """The name by which :func:`as_diffusion` knows the model."""
        kind = "fixed" if self.fixed else "damped" if self.remembers else "dynamic"
        return kind + ("-mv" if self.multivariate else "")

    @property
    def remembers(self) -> bool:
        """Whether the process noise of a step depends on that of the step before."""
        return False

    @property
    def varies_by_component(self) -> bool:
        """Whether the process noise of a step differs between components."""
        return self.multivariate and not self.fixed

    @property
    def needs_innovation(self) -> bool:
        """Whether the error estimate needs the innovation of a step before it is accepted."""
        return False

    def local_scale(self, local: LocalNoise) -> Array:
        """``s`` of the local quasi maximum likelihood: a scalar, or one per component."""
        if self.multivariate:
            return jnp.abs(local.whitened)
        return norm(local.whitened) / np.sqrt(local.whitened.shape[-1])

    def step_scale(self, local: Array, unit: Array, before: Array) -> Array:
        """The ``s`` with which the covariance moves on.

        ``unit`` is that of the reference diffusion, ``before`` that of the last step's (zero at the
        first step), both over the length of this step.
        """
        raise NotImplementedError

    def error_scale(
        self, local: Array, unit: Array, evidence: Evidence, innovation: Innovation | None
    ) -> Array:
        """The ``s`` of the local error estimate."""
        raise NotImplementedError

    def calibration(self, evidence: Evidence) -> Array:
        """Square of the factor by which all covariances are rescaled at the end."""
        raise NotImplementedError

    def log_evidence(self, evidence: Evidence) -> Array:
        """Logarithm of the (quasi) evidence of all observations."""
        raise NotImplementedError


@dataclass(frozen=True)
class DynamicDiffusion(Diffusion):
    """A diffusion per step, estimated from that step's residual ("dynamic", "dynamic-mv").

    The noise that is inferred from one residual decides how far the next prediction is off. From
    one step to the next that is a feedback, and with the residual's own estimate alone it is
    unstable even for constant steps and a constant ``y^(q+1)`` at orders 3, 7 and 9: large and
    small residuals then alternate. The mean with what was inferred before damps it ("damped",
    "damped-mv"), and makes errors smaller in as many steps.

    Parameters
    ----------
    multivariate
        One diffusion per component instead of one for all.
    damped
        Whether ``σ_n²`` is the geometric mean of what the residual says and of ``σ_{n-1}²`` (which
        counts as at most 1e4 times larger or smaller). If not, the residual alone decides, as in
        the paper. The error estimate is that of the paper in both cases.

    Examples
    --------
    >>> import probode
    >>> probode.EK1(3, "damped").diffusion
    DynamicDiffusion(multivariate=False, damped=True)
    """

    damped: bool = False

    fixed: ClassVar[bool] = False

    @property
    def remembers(self) -> bool:
        return self.damped

    def step_scale(self, local: Array, unit: Array, before: Array) -> Array:
        if not self.damped:
            return local
        bounded = jnp.clip(before, local / _FURTHEST, local * _FURTHEST)
        return jnp.where(before > 0.0, safe_sqrt(local) * safe_sqrt(bounded), local)

    def error_scale(
        self, local: Array, unit: Array, evidence: Evidence, innovation: Innovation | None
    ) -> Array:
        return local

    def calibration(self, evidence: Evidence) -> Any:
        """One: every step has its own estimate already."""
        xp: Any = np if on_host(evidence.steps) else jnp
        return xp.ones(evidence.squares.shape)

    def log_evidence(self, evidence: Evidence) -> Array:
        """``Σ_n log N(z_n; 0, S_n)``; components without any variance count nothing."""
        terms = evidence.terms * jnp.log(2 * jnp.pi) + evidence.log_det + evidence.squares
        return -0.5 * evidence.over_components(terms)


@dataclass(frozen=True)
class FixedDiffusion(Diffusion):
    """One diffusion for the whole solve, by quasi maximum likelihood ("fixed", "fixed-mv").

    One number has to explain every step. Across a jump of the vector field, or towards a blow-up,
    where steps shrink by many orders of magnitude, it cannot: neither the solution beyond nor the
    smoothed past is then to be trusted. Use a dynamic model there.

    Parameters
    ----------
    multivariate
        One diffusion per component instead of one for all.
    error
        Which diffusion scales the local error that the step size control sees. ``"safe"``: the
        larger of the estimate over the earlier steps and this step's own. ``"running"``: the
        running quasi maximum likelihood estimate including this step, as in the paper; it can get
        stuck, or lose the solution after a long smooth stretch.

    Examples
    --------
    >>> import probode
    >>> solver = probode.EK1(3, probode.FixedDiffusion())  # or "fixed"
    >>> probode.solve_ivp(lambda t, y: -y, (0, 1), [1.0], method=solver).success
    True
    """

    error: str = "safe"

    fixed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("error", self.error, ("safe", "running"))

    @property
    def needs_innovation(self) -> bool:
        return self.error == "running"

    def step_scale(self, local: Array, unit: Array, before: Array) -> Array:
        """Unit diffusion (for every component): the estimate comes at the end."""
        return unit

    def error_scale(
        self, local: Array, unit: Array, evidence: Evidence, innovation: Innovation | None
    ) -> Array:
        if innovation is not None:
            return unit * jnp.sqrt(evidence.add(innovation).mean_square)
        return jnp.maximum(local, unit * jnp.sqrt(evidence.mean_square))

    def calibration(self, evidence: Evidence) -> Array:
        """``σ̂²`` (or ``γ̂_i``) in units of the reference diffusion."""
        return evidence.mean_square

    def log_evidence(self, evidence: Evidence) -> Array:
        """``-½ [N d log 2π + N Σ log γ_i + Σ_n log det S_n + N d]``, with unit-diffusion ``S_n``.

        Components whose estimate is exactly zero (no residual at all) count nothing.
        """
        gamma = evidence.mean_square
        positive = gamma > 0.0
        log_gamma = jnp.log(jnp.where(positive, gamma, 1.0))
        terms = evidence.terms * (jnp.log(2 * jnp.pi) + 1.0 + log_gamma) + evidence.log_det
        return -0.5 * evidence.over_components(jnp.where(positive, terms, 0.0))


DIFFUSIONS: dict[str, Diffusion] = {
    model.name: model
    for multivariate in (False, True)
    for model in (
        FixedDiffusion(multivariate),
        DynamicDiffusion(multivariate),
        DynamicDiffusion(multivariate, damped=True),
    )
}


def as_diffusion(diffusion: "str | Diffusion") -> Diffusion:
    """Look a diffusion model up by its name; a model is returned as it is."""
    if isinstance(diffusion, Diffusion):
        return diffusion
    check_choice("diffusion", diffusion, tuple(DIFFUSIONS))
    return DIFFUSIONS[diffusion]
