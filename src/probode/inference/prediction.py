"""Predictions: the solution with the uncertainty of the parameters and of the solver."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.precision import double_precision
from probode.inference.objective import Objective
from probode.inference.stated import problem_at
from probode.model.observations import as_function_of_time
from probode.posterior.posterior import Posterior
from probode.solve import solve

_STEP = 0.25
"""Of differences along the axes of the parameters' uncertainty, in standard deviations."""


class Prediction(NamedTuple):
    """A solution, or what was observed of it, at some times."""

    t: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    """Of parameters and solver together."""
    parameter_std: np.ndarray
    solver_std: np.ndarray
    samples: np.ndarray | None
    """``(samples, *mean.shape)``."""


def posterior_at(objective: Objective, z: np.ndarray, s: int, t1: float | None = None) -> Posterior:
    """The solution with the parameters ``z``, with error bars as in the likelihood."""
    values = objective.space.values(z, np)
    problem = problem_at(objective.statement, values, s)
    t0, end = problem["t_span"]
    posterior = solve(
        problem["vector_field"],
        (float(t0), float(end) if t1 is None else t1),
        problem["y0"],
        problem["args"],
        solver=objective.solver,
        control=objective.control,
        max_steps=objective.plan.max_steps,
        jac=problem["jac"],
    )
    given = objective.diffusion
    if given is None:
        given = objective.statement.diffusion_at(values, s)
    if given is not None:
        posterior = _with_diffusion(posterior, given)
    mode = objective.plan.transport
    if objective.plan.kind == "plain":  # which has none: of the size of the true error
        mode = "defect"
    return posterior if mode == "model" else posterior.calibrate(mode)


def _with_diffusion(posterior: Posterior, diffusion: Any) -> Posterior:
    """The same with another ``σ²`` than its estimate."""
    with double_precision():
        unit = posterior.method.prior.unit_noise(jnp.asarray(posterior.reference))
        evidence = posterior.evidence
        terms = evidence.steps * (1 if evidence.multivariate else evidence.d)
        squares = jnp.asarray(diffusion) * unit**2 * jnp.maximum(terms, 1.0)
        squares = jnp.broadcast_to(squares, evidence.squares.shape)
        return replace(posterior, evidence=replace(evidence, squares=squares))


def predict(
    objective: Objective,
    z: np.ndarray,
    spread: np.ndarray,
    s: int,
    posterior: Posterior,
    t: Any,
    observe: Any,
    samples: int,
    seed: int,
) -> Prediction:
    """``m = h(y(t; z))`` and ``Var = J Σ Jᵀ + H P Hᵀ``.

    ``J`` by central differences along the axes of ``Σ``, ``H`` the derivative of ``observe``.
    """
    times = np.asarray(t, float)
    if times.ndim > 1 or not np.all(np.isfinite(times)):
        raise ValueError(f"t must be a time or a list of times, got the shape {times.shape}.")
    flat = np.atleast_1d(times)
    begin = float(problem_at(objective.statement, objective.space.values(z, np), s)["t_span"][0])
    if np.any(flat < begin):
        raise ValueError(f"the solution begins at t0 = {begin:g}, got times before it.")
    end = max(float(objective.statement.t1), float(flat.max()))
    if end > float(objective.statement.t1):
        posterior = posterior_at(objective, z, s, end)
    order = posterior.method.equation.order
    function = None if observe is None else as_function_of_time(observe, order)

    def value(one: Posterior) -> np.ndarray:
        return _value(one, flat, function)

    mean, solver_std = _with_solver_std(posterior, flat, function)
    axes = _axes(spread)
    variance = np.zeros_like(mean)
    for axis in axes.T:
        pair = [
            value(posterior_at(objective, z + sign * _STEP * axis, s, end)) for sign in (1.0, -1.0)
        ]
        variance += ((pair[0] - pair[1]) / (2.0 * _STEP)) ** 2
    drawn = None
    if samples:
        rng = np.random.default_rng(seed)
        drawn = np.empty((samples, *mean.shape))
        for i in range(samples):
            other = posterior_at(objective, z + axes @ rng.standard_normal(axes.shape[1]), s, end)
            path = _paths(other, flat, int(rng.integers(2**31)))
            drawn[i] = _apply(function, flat, path, posterior.shape)
    shape = () if times.ndim == 0 else (len(flat),)

    def shaped(x: np.ndarray, *before: int) -> np.ndarray:
        return x.reshape((*before, *shape, *mean.shape[1:]))

    return Prediction(
        times,
        shaped(mean),
        shaped(np.sqrt(variance + solver_std**2)),
        shaped(np.sqrt(variance)),
        shaped(solver_std),
        None if drawn is None else shaped(drawn, samples),
    )


def _axes(spread: np.ndarray) -> np.ndarray:
    """Columns ``l`` with ``Σ = Σ l lᵀ``."""
    if not np.all(np.isfinite(spread)):
        raise ValueError(
            "the covariance of the parameters is not known, so there is no prediction with its "
            "uncertainty: use fit.posterior, which has the solver's alone."
        )
    values, vectors = np.linalg.eigh(spread)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def _states(posterior: Posterior, t: np.ndarray) -> np.ndarray:
    """``(K, order, d)``."""
    order = posterior.method.equation.order
    return np.asarray(posterior.state(t).mean).reshape(len(t), order, -1)


def _paths(posterior: Posterior, t: np.ndarray, seed: int) -> np.ndarray:
    order = posterior.method.equation.order
    drawn = [np.asarray(posterior.sample(1, seed=seed, t=t, k=k))[0] for k in range(order)]
    return np.stack([one.reshape(len(t), -1) for one in drawn], axis=1)


def _value(posterior: Posterior, t: np.ndarray, function: Any) -> np.ndarray:
    return _apply(function, t, _states(posterior, t), posterior.shape)


def _apply(function: Any, t: np.ndarray, states: np.ndarray, shape: Any) -> np.ndarray:
    """What is observed at each of the times."""
    if function is None:
        return states[:, 0].reshape(len(t), *shape)
    with double_precision():
        seen = jax.vmap(lambda t, y: jnp.asarray(function(t, *y)))
        parts = jnp.asarray(states).reshape(len(t), states.shape[1], *shape)
        return np.asarray(seen(jnp.asarray(t), parts))


def _with_solver_std(
    posterior: Posterior, t: np.ndarray, function: Any
) -> tuple[np.ndarray, np.ndarray]:
    if function is None:
        found = posterior(t)
        return np.asarray(found.mean), np.asarray(found.std)
    states, cov = _states(posterior, t), np.asarray(posterior.state(t).cov)
    mean = _apply(function, t, states, posterior.shape)
    order = states.shape[1]

    def observed(t: Any, flat: Any) -> Any:
        return jnp.asarray(function(t, *flat.reshape(order, *posterior.shape))).reshape(-1)

    with double_precision():
        flat = jnp.asarray(states.reshape(len(t), -1))
        slopes = np.asarray(jax.vmap(jax.jacfwd(observed, argnums=1))(jnp.asarray(t), flat))
    variance = np.einsum("kij,kjl,kil->ki", slopes, cov, slopes)
    return mean, np.sqrt(np.maximum(variance, 0.0)).reshape(mean.shape)
