"""Fenrir: the likelihood of data under the solver's posterior, by one pass back in time.

The filter has not seen the data. Its posterior is a Markov chain back in time, whose kernels
``p(x_k | x_(k+1))`` from datum to datum the filter leaves behind (:mod:`probode.filter.saving`).
From the last datum to the first, with ``x`` the deviation from the smoothed mean ``m``::

    r_k = h(m_k) + H D_k E[x_k] - u_k         S_k = H D_k Cov(x_k) D_k Hᵀ + R_k
    l  += log N(r_k; 0, S_k)                  x_k given u_k, then x_(k-1) through its kernel

``D`` scales the model's standard deviations to those of the true error (one per component), or is
the square root of a fixed diffusion. (Tronarp, Bosch, Hennig: Fenrir, 2022.)
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from probode.filter.dense import dense, known_columns, widened
from probode.filter.saving import Saving, smooth_saved
from probode.filter.smooth import Kernel, rescaled
from probode.filter.step import Method, State
from probode.global_error.beside import Beside
from probode.global_error.schemes import scheme_for
from probode.inference.joint import (
    LikelihoodRows,
    contributions,
    from_joint_covariance,
    rows_of_joint_covariance,
    taken_off,
    tiled,
)
from probode.inference.means import filtered_means
from probode.inference.task import Plan, Task, solved, spread_of, succeeded
from probode.model import gaussian
from probode.model.observations import log_whitened


def fenrir(plan: Plan, task: Task) -> tuple[Array, Array]:
    """The log likelihood, and whether the solve succeeded."""
    found = from_joint_covariance(plan, task)
    return fenrir_rows(plan, task)[:2] if found is None else found


def fenrir_rows(plan: Plan, task: Task) -> LikelihoodRows:
    """The same, and what it is made of: ``w`` and ``log F`` of ``S = FᵀF``, ``r = Fᵀw``.

    ``log p = -½ Σ w² - Σ log F + ...``: the sum of the squares of the derivatives of both is an
    estimate of its negative Hessian without second derivatives.
    """
    at_once = rows_of_joint_covariance(plan, task)
    if at_once is not None:
        return at_once
    method, data = task.method, task.data
    calibrates = plan.calibration != "model"
    beside = Beside(scheme_for(method, False, plan.transport)) if calibrates else None
    kept = solved(plan, task, True, beside)
    marginals = smooth_saved(method, kept)
    equation, thick = method.equation, dense(method)
    mean = equation.controlled(marginals.mean)
    std = jax.vmap(
        lambda factor, h: gaussian.std_of(known_columns(thick, widened(method, factor), h))
    )(marginals.factor, kept.saved.h)
    scale = tiled(method, spread_of(task, kept.solve))
    own = jnp.zeros_like(std)
    if calibrates:
        made = kept.tracker.calibration(plan.transport, mean, std * scale)
        center, own, ratio = jax.lax.stop_gradient(
            taken_off(plan, mean, made.error, made.own, made.ratio)
        )
        scale = scale * ratio
        # Derivatives of the filter's means: those of the kernels are not needed.
        filtered = equation.controlled(kept.saved.mean)
        std, scale = jax.lax.stop_gradient((std, scale))
        mean = filtered + jax.lax.stop_gradient(center - filtered)
    scale = jnp.broadcast_to(scale, mean.shape)

    def body(right: State, k: Array) -> tuple[State, tuple[Array, Array]]:
        kernel = jax.tree.map(lambda x: x[k], kept.kernels)
        left = _through(method, kernel, right, kept, k)
        columns = known_columns(thick, left.factor, left.h)
        site = data.site(k, mean[k], scale[k] * std[k])
        seen = site.matrix * scale[k]
        deviation = equation.controlled(left.mean - method.constant(marginals.mean[k]))
        z = site.z + seen @ deviation
        noise = jnp.concatenate([site.noise, own[k][:, None] * site.matrix.T])
        update = gaussian.condition(left.factor, columns @ seen.T, z[:, None], noise)
        gain = method.prior.coordinates(left.h)[:, None]
        after = left.mean - gain * thick.structure.join(update.correction)
        term = site.offset + log_whitened(update.whitened[:, 0], update.pivots)
        if data.density is not None:
            rows = data.information(k, mean[k], scale[k] * std[k])
        else:
            rows = contributions(update.whitened[:, 0], update.pivots)
        return State(left.t, left.h, after, update.factor, left.drift), (rows, term)

    end = kept.solve.state
    last = replace(method.constant(end), factor=widened(method, method.constant(end.factor)))
    indices = jnp.arange(data.t.shape[0])
    _, (rows, terms) = jax.lax.scan(body, last, indices, reverse=True)
    return LikelihoodRows(jnp.sum(terms), succeeded(task, kept), rows, terms)


def _through(method: Method, kernel: Kernel, right: State, kept: Saving, k: Any) -> State:
    """The state at datum ``k``, given that at the one after it."""
    thick = dense(method)
    kernel = replace(
        kernel,
        gain_transposed=widened(method, kernel.gain_transposed),
        factor=widened(method, kernel.factor),
    )
    left = kernel.marginalize(thick, right, kept.saved.t[k])
    h = kept.saved.h[k]
    factor = rescaled(thick, left.factor, left.h, h)
    return State(left.t, h, left.mean, factor, right.drift)


def plain(plan: Plan, task: Task) -> tuple[Array, Array]:
    """``Σ log p(u_k | m_k)``: what everybody does, as if the solution were exact."""
    return plain_rows(plan, task)[:2]


def plain_rows(plan: Plan, task: Task) -> LikelihoodRows:
    """The same, and what it is made of, as in :func:`fenrir_rows`."""
    mean, succeeded = filtered_means(plan, task)
    indices = jnp.arange(mean.shape[0])
    terms = jax.vmap(task.data.plain)(indices, mean)

    def row(k: Array, y: Array) -> Array:
        if task.data.density is not None:
            return task.data.information(k, y, jnp.zeros_like(y))
        site = task.data.site(k, y, jnp.zeros_like(y))
        white = jax.scipy.linalg.solve_triangular(site.noise, site.z, trans=1)
        return contributions(white, jnp.diagonal(site.noise))

    return LikelihoodRows(jnp.sum(terms), succeeded, jax.vmap(row)(indices, mean), terms)
