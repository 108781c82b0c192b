"""The solution at the data: residuals, and how much of their variance is the solver's."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.compile import compiled
from probode.base.precision import double_precision
from probode.inference.objective import Objective
from probode.inference.stated import problem_at
from probode.model.observations import Data
from probode.posterior.posterior import Posterior


class Seen(NamedTuple):
    """Data as seen from the solution; all ``(K, m)``, ``nan`` where nothing was measured.

    ``m`` counts values: flags, weights and other columns that ``log_density`` reads are left out.
    """

    t: np.ndarray
    u: np.ndarray
    residuals: np.ndarray
    """What was measured minus what is expected."""
    noise: np.ndarray
    """Standard deviations of the data (of other densities: from their curvature)."""
    solver: np.ndarray
    """Standard deviations of the solver's error."""
    expected: np.ndarray
    """Components of what ``observe`` returns, one for each column."""

    @property
    def share(self) -> np.ndarray:
        """How much of the variance is the solver's."""
        found: np.ndarray = self.solver**2 / (self.solver**2 + self.noise**2)
        return found


def flat_state(posterior: Posterior, t: Any) -> tuple[np.ndarray, np.ndarray]:
    """Means ``(K, d)`` of the state at times, and covariances; of a variance, its root."""
    state = posterior.state(t)
    count = len(t)
    return np.asarray(state.mean).reshape(count, -1), np.asarray(state.cov)


def seen(objective: Objective, z: np.ndarray, s: int, posterior: Posterior) -> Seen:
    """One data set, from the solution at ``z``."""
    problem = problem_at(objective.statement, objective.space.values(z, np), s)
    data, y0 = problem["data"], problem["y0"]
    mean, cov = flat_state(posterior, np.asarray(data.t))
    with double_precision():
        y0 = tuple(jnp.asarray(y) for y in y0) if isinstance(y0, tuple) else jnp.asarray(y0)
        bound = data.bound(jnp.asarray(problem["t_span"][0], float), y0)
        found = _sites(bound, jnp.asarray(mean), jnp.asarray(cov))
    u = np.asarray(data.u)
    values = tuple(np.asarray(x) for x in found)
    if bound.density is None:
        columns = components = np.arange(u.shape[1])
    else:
        columns, components, joint = _pairs(bound, u, values[0])
        if joint:  # a datum without one of its columns is left out as a whole
            u = np.where(np.any(np.isnan(u), axis=1, keepdims=True), np.nan, u)
    u = u[:, columns]
    if len(components) == len(columns):
        expected, noise, solver = (x[:, components] for x in values)
    else:  # the density is not of the components one by one
        expected = noise = solver = np.full(u.shape, np.nan)
    lost = np.isnan(u)
    rest, noise, solver = (np.where(lost, np.nan, x) for x in (u - expected, noise, solver))
    return Seen(np.asarray(data.t), u, rest, noise, solver, components)


def _pairs(data: Data, u: np.ndarray, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the columns of ``u`` that are values, and the components of ``η`` measured by them.

    The third result: whether the density is one number for all columns. The components are then
    those on which it depends. As many columns are values: those by which it has a derivative (a
    flag is only compared with something) and which hold other numbers than 0 and 1.
    """
    density = data.density
    assert density is not None
    m = u.shape[1]
    with double_precision():
        size, by_u, by_eta = _slopes(data, jnp.asarray(eta))
    columns, components = np.arange(m), np.arange(eta.shape[1])
    if m > 1 and int(size) == m:
        return columns, components, False
    components = components[np.any(np.asarray(by_eta) != 0.0, axis=0)]
    if len(components) >= m:
        return columns, components, True
    flags = np.all(np.isin(u, (0.0, 1.0)) | np.isnan(u), axis=0)
    matters = np.any(np.asarray(by_u) != 0.0, axis=0)
    likely = np.argsort(2 * ~matters + flags, stable=True)
    return np.sort(likely[: len(components)]), components, True


@compiled()
def _slopes(data: Data, eta: Array) -> tuple[Array, Array, Array]:
    """Return the number of values of the density, and whether these depend on ``u`` and ``η``."""
    density = data.density
    assert density is not None
    program = density

    def one(u: Array, known: Array, eta: Array) -> tuple[Array, Array]:
        def value(u: Array, eta: Array) -> Array:
            return jnp.sum(program(data.constants, u, eta))

        slopes = jax.grad(value, argnums=(0, 1))
        # The slope vanishes at a maximum, the second derivative does not.
        bends = jax.jacfwd(lambda eta: slopes(u, eta)[1])(eta)
        by_u, by_eta = slopes(u, eta)
        whole = jnp.min(known) > 0.0
        return whole & (by_u != 0.0), whole & ((by_eta != 0.0) | jnp.any(bends != 0.0, axis=0))

    size = jnp.asarray(jax.eval_shape(lambda: program(data.constants, data.u[0], eta[0])).size)
    return size, *jax.vmap(one)(data.u, data.known, eta)


@compiled()
def _sites(data: Data, mean: Array, cov: Array) -> tuple[Array, Array, Array]:
    """Expectations, standard deviations of the noise and of the solver's error."""

    def one(k: Array, y: Array, cov: Array) -> tuple[Array, Array, Array]:
        site = data.site(k, y, jnp.sqrt(jnp.diagonal(cov)))
        noise = jnp.sqrt(jnp.sum(site.noise**2, axis=0))
        spread = jnp.einsum("ij,jk,ik->i", site.matrix, cov, site.matrix)
        return data.seen(k, y), noise, jnp.sqrt(jnp.maximum(spread, 0.0))

    return jax.vmap(one)(jnp.arange(mean.shape[0]), mean, cov)
