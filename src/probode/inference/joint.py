"""Fenrir with calibrated uncertainty, all data at once: a Gaussian of known covariance.

The kernels give the solver's joint covariance ``V`` of the solution at all data in one pass back in
time. With the scales ``D`` of the true error, ``H`` of the data and their noise::

    l = log N(h(m) - u; 0, H D V D Hᵀ + R)

It is what the pass from datum to datum of :mod:`probode.inference.backward` gives, for as many data
as one decomposition can take.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from probode.base.compile import compiled
from probode.base.jax_inside import new_operation
from probode.base.precision import double_precision
from probode.engines.native.layout import layout_of
from probode.engines.native.library import available
from probode.engines.native.to_times import Parts
from probode.filter.step import Method
from probode.global_error import beside, native, scales
from probode.global_error.schemes import Scheme, scheme_for
from probode.global_error.sweeps import Sweeps
from probode.global_error.transport import DOUBT
from probode.inference.means import posterior_at_data
from probode.inference.task import Plan, Task, spread_of
from probode.model.observations import log_whitened

_MOST = 300
"""Numbers in the data that are taken at once: beyond, the pass from datum to datum is faster."""


def tiled(method: Method, per_component: Array) -> Array:
    """A number, or one per component, for all of ``(y, ..., y^(k-1))``."""
    each = jnp.broadcast_to(per_component, (method.structure.d,))
    return jnp.tile(each, method.equation.order)


@dataclass(frozen=True)
class Transport:
    """A scheme as the kernels read it, with the windows of :mod:`probode.global_error.beside`."""

    scheme: Scheme

    @property
    def jacobian(self) -> str:
        """The kind of Jacobian that it needs."""
        return native.jacobian_kind(self.scheme)

    def table(self, d: int) -> np.ndarray:
        """Numbers of the scheme, and four of the windows."""
        return np.concatenate([native.table(self.scheme, d), beside.WINDOWS])


class Joint(NamedTuple):
    """All data as one Gaussian vector."""

    z: Float[Array, " m"]
    covariance: Float[Array, "m m"]
    offset: Float[Array, " K"]
    succeeded: Array
    information: Array | None
    """Of data that are not Gaussian: see :meth:`probode.model.observations.Data.information`."""


def from_joint_covariance(plan: Plan, task: Task) -> tuple[Array, Array] | None:
    """The log likelihood, and whether the solve succeeded; ``None``: not this way."""
    joint = _joint(plan, task)
    if joint is None:
        return None
    return jnp.sum(joint.offset) + log_normal(joint.z, joint.covariance), joint.succeeded


class LikelihoodRows(NamedTuple):
    """A log likelihood and its parts."""

    total: Array
    succeeded: Array
    rows: Array
    """Derivatives of these give an estimate of the negative Hessian of the total."""
    terms: Float[Array, " K"]
    """Log likelihood of each time, given the later (or earlier) ones: their sum is the total."""


def rows_of_joint_covariance(plan: Plan, task: Task) -> LikelihoodRows | None:
    """The same, and what it is made of: see :func:`probode.inference.backward.fenrir_rows`."""
    joint = _joint(plan, task)
    if joint is None:
        return None
    factor = jnp.linalg.cholesky(joint.covariance)
    white = jax.scipy.linalg.solve_triangular(factor, joint.z, lower=True)
    pivots = jnp.diagonal(factor)
    total = jnp.sum(joint.offset) + log_whitened(white, pivots)
    each = (x.reshape(joint.offset.shape[0], -1) for x in (white, pivots))
    terms = joint.offset + jax.vmap(log_whitened)(*each)
    rows = contributions(white, pivots) if joint.information is None else joint.information
    return LikelihoodRows(total, joint.succeeded, rows, terms)


def contributions(white: Array, pivots: Array) -> Array:
    """What Gaussian data contribute; of others :meth:`Data.information` tells."""
    return jnp.concatenate([white, jnp.log(jnp.abs(pivots))])


def _joint(plan: Plan, task: Task) -> Joint | None:
    method, data = task.method, task.data
    count, d = data.t.shape[0], method.structure.d
    few = count * max(d, data.width) <= _MOST
    if plan.calibration == "model" or method.equation.order > 1 or not few or _gaussian is None:
        return None
    scheme = scheme_for(method, False, plan.transport)
    if isinstance(scheme, Sweeps) and scheme.order > 1:
        return None
    found = posterior_at_data(plan, task, Transport(scheme))
    if found is None:
        return None
    covariance = _expanded(method, found.joint, count)
    spread = tiled(method, spread_of(task, layout_of(method).solve(found.state)))
    std = jnp.sqrt(jnp.diagonal(covariance.reshape(count * d, -1)).reshape(count, d)) * spread
    smoothed, error, made = _scales(scheme, found, std)
    center, own, scale = taken_off(plan, smoothed, error, made.own, made.ratio)
    mean = found.means + jax.lax.stop_gradient(center - found.means)
    scale, std, own = jax.lax.stop_gradient((scale * spread, std, own))
    sites = jax.vmap(data.site)(jnp.arange(count), mean, scale / spread * std)
    seen = sites.matrix * scale[:, None]
    joint = jnp.einsum("kma,kalb,lnb->kmln", seen, covariance, seen)
    rows = jnp.concatenate([sites.noise, own[..., None] * jnp.swapaxes(sites.matrix, 1, 2)], axis=1)
    noise = jnp.einsum("krm,krn->kmn", rows, rows)
    joint = joint + noise[:, :, None] * np.eye(count)[:, None, :, None]
    size = count * data.width
    succeeded = task.inside & (found.reached == count)
    information = None
    if data.density is not None:
        information = jax.vmap(data.information)(jnp.arange(count), mean, scale / spread * std)
    covariance = joint.reshape(size, size)
    return Joint(sites.z.reshape(-1), covariance, sites.offset, succeeded, information)


def _expanded(method: Method, blocks: Array, count: int) -> Float[Array, "K d K d"]:
    """The joint covariance of all components, from what the structure keeps of it."""
    d = method.structure.d
    if method.structure.name == "dense":
        return blocks[0].reshape(count, d, count, d)
    each = jnp.broadcast_to(blocks, (d, count, count))
    return jnp.einsum("dkl,de->kdle", each, np.eye(d))


def taken_off(
    plan: Plan, mean: Array, error: Array, own: Array, ratio: Array
) -> tuple[Array, Array, Array]:
    """Where the data are looked at from, and how uncertain that is.

    With ``"corrected"`` the mean with its estimated error taken off; of the uncertainty, what the
    estimate itself may be wrong by is then left.
    """
    if plan.calibration != "corrected":
        return mean, own, ratio
    known = jnp.isfinite(error)
    left = jnp.where(known, DOUBT, 1.0)
    return mean - jnp.where(known, error, 0.0), left * own, left * ratio


def _scales(scheme: Scheme, found: Parts, std: Array) -> tuple[Array, Array, scales.Scales]:
    """The smoothed means, their estimated errors, and what these make of the uncertainty."""
    d = std.shape[-1]
    smoothed, error, misfit, square = jnp.split(found.scales, [d, 2 * d, 2 * d + 1], axis=-1)
    corrected = jax.lax.stop_gradient(found.means) - error
    values = scales.Values(smoothed, jnp.broadcast_to(found.extent, smoothed.shape))
    error = smoothed - corrected
    made = scales.combine(jnp, error, std, misfit[:, 0], square, values, scheme.doubt)
    return smoothed, error, made


@jax.custom_jvp
def log_normal(z: Float[Array, " m"], covariance: Float[Array, "m m"]) -> Array:
    """``log N(z; 0, C)``, by the kernels."""
    found = _solved(z, covariance, inverse=False)
    return _density(z, found)


def _rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """``dl = -αᵀ dz + ½ tr((α αᵀ - C⁻¹) dC)`` with ``α = C⁻¹ z``."""
    (z, covariance), (dz, dc) = primals, tangents
    still = isinstance(dc, SymbolicZero)
    found = _solved(z, covariance, inverse=not still)
    m = z.shape[0]
    alpha, slope = found[1 : 1 + m], jnp.zeros(())
    if not isinstance(dz, SymbolicZero):
        slope = slope - alpha @ dz
    if not still:
        inverse = found[1 + m :].reshape(m, m)
        slope = slope + 0.5 * jnp.sum((alpha[:, None] * alpha - inverse) * dc)
    return _density(z, found), slope


log_normal.defjvp(_rule, symbolic_zeros=True)


def _density(z: Array, found: Array) -> Array:
    m = z.shape[0]
    return -0.5 * (z @ found[1 : 1 + m] + found[0] + m * np.log(2.0 * np.pi))


def _solved(z: Array, covariance: Array, inverse: bool) -> Array:
    """``(log det C, C⁻¹ z)``, and ``C⁻¹`` if that is wanted."""
    assert _gaussian is not None
    return _gaussian(z, covariance, inverse=inverse)


def _shape(z: Any, covariance: Any, *, inverse: bool) -> Any:
    m = z.shape[0]
    return jax.ShapeDtypeStruct((1 + m + inverse * m * m,), jnp.float64)


def _natively(z: Array, covariance: Array, *, inverse: bool) -> Array:
    with double_precision():
        if not available():
            return _in_jax(z, covariance, inverse=inverse)
        call = jax.ffi.ffi_call("probode_xla_gaussian", _shape(z, covariance, inverse=inverse))
        return call(covariance.reshape(-1), z)


def _in_jax(z: Array, covariance: Array, *, inverse: bool) -> Array:
    with double_precision():
        factor = jnp.linalg.cholesky(covariance)
        rhs = jnp.concatenate([z[:, None], jnp.eye(z.shape[0])[:, : inverse * z.shape[0]]], axis=1)
        solved = jax.scipy.linalg.cho_solve((factor, True), rhs)
        log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(factor)))
        return jnp.concatenate([log_det[None], solved.T.reshape(-1)])


def _batched(leaves: Any, axes: Any, *, inverse: bool) -> Any:
    size = next(x.shape[a] for x, a in zip(leaves, axes, strict=True) if a is not None)
    full = [
        jnp.broadcast_to(x, (size, *x.shape)) if a is None else jnp.moveaxis(x, a, 0)
        for x, a in zip(leaves, axes, strict=True)
    ]
    assert _gaussian is not None
    bind = _gaussian
    with double_precision():
        return jax.lax.map(lambda pair: bind(*pair, inverse=inverse), tuple(full)), 0


_compiled = compiled(0)(lambda inverse, *leaves: _natively(*leaves, inverse=inverse))

_gaussian = new_operation(
    "probode_log_normal",
    shape=_shape,
    evaluate=lambda *leaves, inverse: _compiled(inverse, *leaves),
    batched=_batched,
    on_cpu=_natively,
    elsewhere=_in_jax,
)
