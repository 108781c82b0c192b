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
    """Data as seen from the solution; all ``(K, m)``, ``nan`` where nothing was measured."""

    t: np.ndarray
    u: np.ndarray
    residuals: np.ndarray
    """What was measured minus what is expected."""
    noise: np.ndarray
    """Standard deviations of the data (of other densities: from their curvature)."""
    solver: np.ndarray
    """Standard deviations of the solver's error."""

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
    expected, noise, solver = (np.asarray(x) for x in found)
    if noise.shape != u.shape:  # the density is not of the components one by one
        noise = solver = np.full(u.shape, np.nan)
        expected = np.full(u.shape, np.nan) if expected.shape != u.shape else expected
    lost = np.isnan(u)
    hidden = [np.where(lost, np.nan, x) for x in (u - expected, noise, solver)]
    return Seen(np.asarray(data.t), u, *hidden)


@compiled()
def _sites(data: Data, mean: Array, cov: Array) -> tuple[Array, Array, Array]:
    """Expectations, standard deviations of the noise and of the solver's error."""

    def one(k: Array, y: Array, cov: Array) -> tuple[Array, Array, Array]:
        site = data.site(k, y, jnp.sqrt(jnp.diagonal(cov)))
        noise = jnp.sqrt(jnp.sum(site.noise**2, axis=0))
        spread = jnp.einsum("ij,jk,ik->i", site.matrix, cov, site.matrix)
        return data.seen(k, y), noise, jnp.sqrt(jnp.maximum(spread, 0.0))

    return jax.vmap(one)(jnp.arange(mean.shape[0]), mean, cov)
