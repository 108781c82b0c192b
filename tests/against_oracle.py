"""The engine against the multiprecision oracle, on fixed grids.

Agreement is relative: means by the largest value of a component, covariances by the standard
deviations (1 is as large as the variance itself). Double precision leaves a relative error of about
eps |f| / |z| in a diffusion that is estimated from a residual z (a difference), so each bound is
``1e-9 + 20 eps max|f| / min|z|``; the grids are chosen such that the second term stays small.
"""

from dataclasses import dataclass
from functools import cache, cached_property, partial

import jax.numpy as jnp
import numpy as np
import oracle
import oracle_problems
import pytest
from oracle import to_numpy

import probode

FIELDS = {
    "lotka-volterra": lambda t, y: jnp.stack([1.5 * y[0] - y[0] * y[1], -3 * y[1] + y[0] * y[1]]),
    "logistic": lambda t, y: 3 * y * (1 - y),
    "nonautonomous": lambda t, y: jnp.stack(
        [-y[0] * y[1] + jnp.sin(t), y[0] - 0.5 * y[1] * jnp.cos(t)]
    ),
}

SOLVERS = {
    "EK0": probode.EK0,
    "EK0x2": partial(probode.EK0, evaluations=2),
    "EK1": probode.EK1,
    "DiagonalEK1": probode.DiagonalEK1,
}

STEPS = {1: (0.05, 8), 2: (0.05, 8), 3: (0.1, 8), 5: (0.2, 8), 8: (0.3, 4)}
"""Order: typical step size and number of steps. High orders need large steps (see above)."""

SLOW = (2, 3)
"""Orders left to ``make slow``, where lower and higher ones are checked: each has its programs."""


def cases(problem: str, alone: bool = False):
    """Every combination of method, diffusion and order, for one problem.

    One test file per dimension: a file runs in one process, in which programs are shared.
    A component ``alone`` makes some methods and diffusions others under another name: slow.
    """
    return [
        pytest.param(
            *(problem, linearization, diffusion, order),
            id=f"{problem}-{linearization}-{diffusion}-{order}",
            marks=pytest.mark.slow if repeats or (order in SLOW and len(orders) > 1) else (),
        )
        for linearization in SOLVERS
        for diffusion in (*oracle.DIFFUSIONS, "damped", "damped-mv")
        if not (linearization == "EK1" and diffusion.endswith("-mv"))
        for orders in [_orders(linearization, diffusion)]
        for repeats in [alone and (linearization == "DiagonalEK1" or diffusion.endswith("-mv"))]
        for order in orders
    ]


def _orders(linearization: str, diffusion: str) -> tuple[int, ...]:
    """All orders for what the paper has; what goes beyond it acts on any order alike."""
    if diffusion.startswith("damped"):
        return (3,) if linearization in ("EK0", "EK1") else ()
    return {"DiagonalEK1": (1, 3, 5), "EK0x2": (3,)}.get(linearization, tuple(STEPS))


@dataclass
class Pair:
    oracle: oracle.OracleSolution
    posterior: probode.Posterior
    bound: float

    @property
    def d(self):
        return self.oracle.d

    @cached_property
    def between(self):
        """Times between the steps, and the oracle's means and covariances there."""
        times = np.array([0.03, 0.31, 0.5, 0.97]) * float(self.oracle.t[-1])
        return times, *map(np.array, zip(*map(self.oracle.dense, times), strict=True))


@cache
def solve_both(problem: str, linearization: str, diffusion: str, order: int) -> Pair:
    size, number = STEPS[order]
    steps = size * np.random.default_rng(order).uniform(0.7, 1.3, number)
    grid = np.concatenate([[0.0], np.cumsum(steps)])
    exact = oracle_problems.PROBLEMS[problem]
    judge = oracle.solve(
        exact.f, exact.jac, grid, exact.start(order), order, linearization, diffusion
    )
    solver = SOLVERS[linearization](order, diffusion)
    posterior = probode.solve(
        FIELDS[problem], (grid[0], grid[-1]), np.array(exact.y0), solver=solver, grid=grid
    )
    slopes = np.abs(to_numpy(judge.predicted_mean)[:, judge.d : 2 * judge.d]).max()
    residuals = np.abs(to_numpy(judge.residual))
    by_component = diffusion in ("dynamic-mv", "damped-mv")
    smallest = residuals.min() if by_component else residuals.max(axis=1).min()
    return Pair(judge, posterior, 1e-9 + 20 * np.finfo(float).eps * slopes / smallest)


def mean_distance(ours, exact):
    exact = to_numpy(exact)
    return np.max(np.abs(ours - exact) / np.max(np.abs(exact), axis=0))


def covariance_distance(ours, exact):
    exact = to_numpy(exact)
    std = np.sqrt(np.einsum("nii->ni", exact))
    std = np.where(std == 0.0, 1.0, std)
    return np.max(np.abs(ours - exact) / (std[:, :, None] * std[:, None, :]))


def filtered(posterior):
    """The same posterior without the smoother."""
    path = probode.posterior.paths.NodePath(posterior.path.rows, None)
    return probode.Posterior(
        path,
        posterior.solver,
        posterior.method,
        posterior.shape,
        posterior.evidence,
        posterior.reference,
        posterior.stats,
        posterior.status_code,
    )


NAMES = ("problem", "linearization", "diffusion", "order")


class AgainstOracle:
    """Claims to be checked on every case; a test file makes them tests of its problems."""

    def test_filtering_means_agree(self, problem, linearization, diffusion, order):
        pair = solve_both(problem, linearization, diffusion, order)
        ours = filtered(pair.posterior).mean
        assert mean_distance(ours, pair.oracle.filter_mean[:, : pair.d]) < pair.bound

    def test_filtering_covariances_agree(self, problem, linearization, diffusion, order):
        pair = solve_both(problem, linearization, diffusion, order)
        exact = pair.oracle.filter_cov[:, : pair.d, : pair.d]
        assert covariance_distance(filtered(pair.posterior).cov, exact) < pair.bound

    def test_smoothed_means_agree(self, problem, linearization, diffusion, order):
        pair = solve_both(problem, linearization, diffusion, order)
        exact = pair.oracle.smooth_mean[:, : pair.d]
        assert mean_distance(pair.posterior.mean, exact) < pair.bound

    def test_smoothed_covariances_agree(self, problem, linearization, diffusion, order):
        pair = solve_both(problem, linearization, diffusion, order)
        exact = pair.oracle.smooth_cov[:, : pair.d, : pair.d]
        assert covariance_distance(pair.posterior.cov, exact) < pair.bound

    def test_diffusions_agree(self, problem, linearization, diffusion, order):
        pair = solve_both(problem, linearization, diffusion, order)
        exact = to_numpy(pair.oracle.diffusion)
        if not diffusion.endswith("-mv"):
            exact = exact[..., 0]
        np.testing.assert_allclose(pair.posterior.diffusion, exact, rtol=2 * pair.bound)

    def test_evidence_agrees(self, problem, linearization, diffusion, order):
        pair = solve_both(problem, linearization, diffusion, order)
        exact = float(pair.oracle.log_evidence)
        assert abs(pair.posterior.log_evidence - exact) < pair.bound * max(abs(exact), 1.0)

    def test_dense_output_agrees(self, problem, linearization, diffusion, order):
        pair = solve_both(problem, linearization, diffusion, order)
        times, means, covariances = pair.between
        ours = pair.posterior(times)
        assert mean_distance(ours.mean, means[:, : pair.d]) < pair.bound
        assert covariance_distance(ours.cov, covariances[:, : pair.d, : pair.d]) < pair.bound

    def test_highest_derivatives_agree(self, problem, linearization, diffusion, order):
        pair = solve_both(problem, linearization, diffusion, order)
        times, means, covariances = (found[1:] for found in pair.between)
        part = slice(order * pair.d, (order + 1) * pair.d)
        ours = pair.posterior.derivative(times, order)
        assert mean_distance(ours.mean, means[:, part]) < 10 * pair.bound
        assert covariance_distance(ours.cov, covariances[:, part, part]) < 10 * pair.bound
