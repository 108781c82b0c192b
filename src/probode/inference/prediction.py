"""Predictions: the solution with the uncertainty of the parameters and of the solver."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.precision import double_precision
from probode.inference.objective import Objective
from probode.inference.space import Values
from probode.inference.stated import problem_at
from probode.inference.uncertainty import Spread
from probode.inference.written import of_all, traceable
from probode.posterior.posterior import Posterior
from probode.solve import solve

_STEP = 0.25
"""Of differences along the axes of the parameters' uncertainty, in standard deviations."""
_MOVES = 10.0
"""Change of a prediction, in standard deviations of the solver, that is no error of the solver."""


class Prediction(NamedTuple):
    """A solution, or what was observed of it, at some times."""

    t: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    """Of parameters and solver together."""
    parameter_std: np.ndarray
    solver_std: np.ndarray
    samples: np.ndarray | None
    """``(samples, *mean.shape)``; ``nan`` where the parameters drawn have no solution."""


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
    spread: Spread,
    s: int,
    posterior: Posterior,
    t: Any,
    observe: Any,
    samples: int,
    seed: int,
) -> Prediction:
    """Predict ``m = h(t, y(t; z); z)`` with ``Var = J Σ Jᵀ + H P Hᵀ``.

    ``J`` by central differences of the whole expression along the axes of ``Σ``, ``H`` the
    derivative of ``observe`` by ``y``. The variance is infinite where ``m`` changes along a
    direction that the data do not determine.
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
    function_at = _observed(objective, z, s, posterior, observe)

    def moved(step: np.ndarray) -> np.ndarray:
        """Return half the difference of the predictions at ``z ± step``."""
        ends = (
            _value(posterior_at(objective, one, s, end), flat, function_at(one))
            for one in (z + step, z - step)
        )
        return 0.5 * (next(ends) - next(ends))

    mean, solver_std = _with_solver_std(posterior, flat, function_at(z))
    if not posterior.success:
        _check_reached(posterior, flat)
    axes = _axes(spread.covariance)
    variance = np.zeros_like(mean)
    for axis in axes.T:
        variance += (moved(_STEP * axis) / _STEP) ** 2
    rounding = np.sqrt(np.finfo(float).eps) * np.abs(mean)
    for direction in spread.unknown.T:
        still = np.abs(moved(direction)) <= _MOVES * solver_std + rounding
        variance = np.where(still, variance, np.inf)
    variance = np.where(np.isnan(variance), np.inf, variance)  # without a solution nearby
    drawn = None
    if samples:
        if np.any(np.isinf(variance)) and np.any(spread.lost):
            names = [objective.space.names[i] for i in np.flatnonzero(spread.lost)]
            raise ValueError(
                "this prediction cannot be sampled: it depends on numbers that the data do not "
                f"determine ({', '.join(names)}). Fix some of these, or add a prior."
            )
        rng = np.random.default_rng(seed)
        drawn = np.empty((samples, *mean.shape))
        for i in range(samples):
            other = z + axes @ rng.standard_normal(axes.shape[1])
            one = posterior_at(objective, other, s, end)
            path = _paths(one, flat, int(rng.integers(2**31)))
            drawn[i] = _apply(function_at(other), flat, path, posterior.shape)
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


def _observed(
    objective: Objective, z: np.ndarray, s: int, posterior: Posterior, observe: Any
) -> Callable[[np.ndarray], Callable[..., Any] | None]:
    """Return ``observe`` with the parameters that belong to ``z``, as a function of ``z``.

    ``Fit.observe`` comes with the estimates bound to it, which are removed here.
    """
    if observe is None:
        return lambda z: None
    statement, order = objective.statement, posterior.method.equation.order
    if isinstance(observe, partial) and observe.func is statement.observe:
        observe = observe.func
    if not callable(observe):
        raise TypeError(f"observe must be a function, got {observe!r}.")

    def values(z: np.ndarray) -> Values:
        return statement.of_subject(objective.space.values(z, np), s)

    t = np.asarray(posterior.t)[:1]
    state = _states(posterior, t)[0].reshape(order, *posterior.shape)
    function = traceable("observe", of_all(observe, order), t[0], *state, values(z))

    def at(z: np.ndarray) -> Callable[..., Any]:
        p = values(z)
        return lambda t, *y: function(t, *y, p)

    return at


def _check_reached(posterior: Posterior, t: np.ndarray) -> None:
    """Raise if there is no solution at some of these times."""
    reached = float(np.asarray(posterior.t)[-1])
    if np.any(t > reached):
        raise ValueError(
            f"the estimated parameters have no solution beyond t = {reached:g}: the solver failed "
            "there, or reached max_steps. Pass earlier times only, or fit with a larger max_steps."
        )


def _axes(spread: np.ndarray) -> np.ndarray:
    """Return columns ``l`` with ``Σ = Σ l lᵀ``, without those of length zero."""
    if not np.all(np.isfinite(spread)):
        raise ValueError(
            "the covariance of the parameters is not known, so there is no prediction with its "
            "uncertainty: use fit.posterior, which has the solver's alone."
        )
    size = np.sqrt(np.diagonal(spread))  # large variances must not hide small ones
    size = np.where(size > 0.0, size, 1.0)
    values, vectors = np.linalg.eigh(spread / np.outer(size, size))
    some = values > np.finfo(float).eps * values.max(initial=0.0)
    return size[:, None] * vectors[:, some] * np.sqrt(values[some])


def _where_solved(posterior: Posterior, t: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Set states beyond the end of a failed solve to ``nan``."""
    if not posterior.success:
        states[t > float(np.asarray(posterior.t)[-1])] = np.nan
    return states


def _states(posterior: Posterior, t: np.ndarray) -> np.ndarray:
    """``(K, order, d)``."""
    order = posterior.method.equation.order
    mean = np.array(posterior.state(t).mean).reshape(len(t), order, -1)
    return _where_solved(posterior, t, mean)


def _paths(posterior: Posterior, t: np.ndarray, seed: int) -> np.ndarray:
    """Draw one sample ``(K, order, d)``; times before the start get the extrapolated mean."""
    order, steps = posterior.method.equation.order, np.asarray(posterior.t)
    inside = np.clip(t, steps[0], steps[-1])
    drawn = [np.asarray(posterior.sample(1, seed=seed, t=inside, k=k))[0] for k in range(order)]
    paths = np.stack([one.reshape(len(t), -1) for one in drawn], axis=1)
    early = t < steps[0]  # a start that is a parameter
    paths[early] = _states(posterior, t)[early]
    return _where_solved(posterior, t, paths)


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
