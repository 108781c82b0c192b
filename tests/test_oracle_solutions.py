"""Solutions of the 50-digit oracle have the properties that the method claims."""

from __future__ import annotations

import numpy as np
import pytest
from mpmath import mp, mpf
from oracle import DIFFUSIONS, LINEARIZATIONS, OracleSolution, mp_array, solve
from oracle_checks import COMBINATIONS, assert_equal, inverse
from oracle_problems import LOGISTIC, LOTKA_VOLTERRA, PROBLEMS, Problem

# Local calibration and local error


def lotka_volterra(linearization: str, diffusion: str, grid: list[float]) -> OracleSolution:
    """Solve the Lotka-Volterra problem with order 3 from its exact start."""
    problem = LOTKA_VOLTERRA
    return solve(problem.f, problem.jac, grid, problem.start(3), 3, linearization, diffusion)


@pytest.mark.parametrize("linearization", LINEARIZATIONS)
def test_dynamic_diffusion_whitens_the_first_residual(linearization: str) -> None:
    """From an exact start z^T S^-1 z = d in the first step."""
    sol = lotka_volterra(linearization, "dynamic", [0, 0.25])
    z = sol.residual[0]
    assert_equal(z @ inverse(sol.innovation_cov[0]) @ z, 2)


@pytest.mark.parametrize("linearization", ["EK0", "DiagonalEK1"])
def test_multivariate_dynamic_diffusion_matches_each_first_residual(linearization: str) -> None:
    """From an exact start S_ii = z_i^2 in the first step."""
    sol = lotka_volterra(linearization, "dynamic-mv", [0, 0.25])
    assert_equal(sol.innovation_cov[0].diagonal(), sol.residual[0] ** 2)


@pytest.mark.parametrize("grid", [[0, 0.25, 0.75], [0, -0.25, -0.75]])
def test_dynamic_diffusion_of_ek0_divides_by_one_entry_of_the_noise(grid: list[float]) -> None:
    """sigma_n^2 = |z|^2 / (d Qbreve_11), Qbreve_11 = |h|^(2q-1) / ((2q-1) (q-1)!^2)."""
    sol = lotka_volterra("EK0", "dynamic", grid)
    noise = abs(np.diff(mp_array(grid))) ** 5 / mpf(5 * 2**2)
    expected = (sol.residual**2).sum(axis=1) / (2 * noise)
    assert_equal(sol.diffusion, np.stack([expected, expected], axis=1))


@pytest.mark.parametrize("linearization", ["EK0", "DiagonalEK1"])
@pytest.mark.parametrize("grid", [[0, 0.25, 0.75], [0, -0.25, -0.75]])
def test_multivariate_local_error_is_step_times_residual(
    linearization: str, grid: list[float]
) -> None:
    """With one dynamic diffusion per component the local error is |h| |z_i|."""
    sol = lotka_volterra(linearization, "dynamic-mv", grid)
    assert_equal(sol.local_error, abs(sol.residual) * abs(np.diff(mp_array(grid)))[:, None])


@pytest.mark.parametrize(("linearization", "diffusion"), COMBINATIONS)
def test_local_error_is_the_std_of_the_first_residual(linearization: str, diffusion: str) -> None:
    """From an exact start the local error is |h| sqrt(S_ii) in the first step."""
    sol = lotka_volterra(linearization, diffusion, [0, 0.25, 0.75])
    variances = sol.innovation_cov[0].diagonal()
    assert_equal(sol.local_error[0], [mp.sqrt(v) / 4 for v in variances])


@pytest.mark.parametrize("diffusion", DIFFUSIONS)
def test_diffusion_has_one_entry_per_model_or_per_step(diffusion: str) -> None:
    """Fixed diffusions have shape (d,), dynamic ones (N, d)."""
    sol = lotka_volterra("EK0", diffusion, [0, 0.25, 0.75])
    assert sol.diffusion.shape == ((2,) if diffusion.startswith("fixed") else (2, 2))


# Structure of the solutions


@pytest.mark.parametrize("linearization", LINEARIZATIONS)
def test_measurement_matrices_linearise_at_the_predicted_state_and_time(linearization: str) -> None:
    """H_n = [-J, I, 0, ...], J taken at t_n and the predicted y; its diagonal, or zero for EK0."""
    problem, q = PROBLEMS["nonautonomous"], 2
    sol = solve(problem.f, problem.jac, [0, 0.25, 0.75], problem.start(q), q, linearization)
    mask = {"EK0": np.zeros((2, 2)), "EK1": np.ones((2, 2)), "DiagonalEK1": np.eye(2)}
    identity, zero = mp_array(np.eye(2)), mp_array(np.zeros((2, 2)))
    for n in range(2):
        J = mp_array(problem.jac(sol.t[n + 1], list(sol.predicted_mean[n][:2])))
        expected = np.hstack([-J * mp_array(mask[linearization]), identity, zero])
        assert_equal(sol.H[n], expected)


@pytest.mark.parametrize("linearization", LINEARIZATIONS)
def test_residuals_are_those_of_the_predicted_state_and_time(linearization: str) -> None:
    """The residual z_n is the predicted y' minus f at t_n and the predicted y."""
    problem, q = PROBLEMS["nonautonomous"], 2
    sol = solve(problem.f, problem.jac, [0, 0.25, 0.75], problem.start(q), q, linearization)
    expected = [
        x[2:4] - mp_array(problem.f(t, list(x[:2])))
        for t, x in zip(sol.t[1:], sol.predicted_mean, strict=True)
    ]
    assert_equal(sol.residual, expected)


@pytest.mark.parametrize("linearization", ["EK0", "DiagonalEK1"])
@pytest.mark.parametrize("kind", ["fixed", "dynamic"])
def test_multivariate_diffusion_solves_decoupled_components_apart(
    linearization: str, kind: str
) -> None:
    """Two uncoupled equations give the smoothing marginals of two scalar solves."""
    grid, q = [0, 0.25, 0.625, 1], 2

    def scalar(rate: float) -> Problem:
        return Problem(
            lambda t, y: [rate * y[0] * (1 - y[0]) + t],
            lambda t, y: [[rate - 2 * rate * y[0]]],
            (0.25,),
        )

    parts = [scalar(2), scalar(-3)]
    both = solve(
        lambda t, y: [parts[i].f(t, [y[i]])[0] for i in range(2)],
        lambda t, y: [[parts[i].jac(t, [y[i]])[0][0] * (i == j) for j in (0, 1)] for i in (0, 1)],
        grid,
        np.hstack([part.start(q) for part in parts]),
        q,
        linearization,
        f"{kind}-mv",
    )
    apart = [solve(p.f, p.jac, grid, p.start(q), q, linearization, kind) for p in parts]
    cov = both.smooth_cov.reshape(4, q + 1, 2, q + 1, 2)
    actual = [cov[:, :, i, :, i] for i in range(2)]
    assert_equal(actual, [part.smooth_cov for part in apart])


@pytest.mark.parametrize(("linearization", "diffusion"), COMBINATIONS)
def test_backward_integration_is_the_time_reversed_problem(
    linearization: str, diffusion: str
) -> None:
    """Solving y' = f(t, y) to the left is y' = -f(-t, y) to the right, with signs (-1)^i."""
    problem, q, grid = PROBLEMS["nonautonomous"], 3, mp_array([0, 0.25, 0.75, 1])
    left = solve(problem.f, problem.jac, -grid, problem.start(q), q, linearization, diffusion)
    reverse = Problem(
        lambda t, y: [-v for v in problem.f(-t, y)],
        lambda t, y: [[-v for v in row] for row in problem.jac(-t, y)],
        problem.y0,
    )
    right = solve(reverse.f, reverse.jac, grid, reverse.start(q), q, linearization, diffusion)
    signs = np.kron([(-1) ** i for i in range(q + 1)], [1, 1])
    assert_equal(left.smooth_cov, right.smooth_cov * np.outer(signs, signs))


@pytest.mark.parametrize("linearization", ["EK0", "EK1"])
@pytest.mark.parametrize("diffusion", ["fixed", "dynamic"])
def test_results_do_not_depend_on_the_working_precision(linearization: str, diffusion: str) -> None:
    """At order 8 and with step sizes from 1e-3 to 0.3 more than 50 digits are correct."""
    problem, grid = LOTKA_VOLTERRA, [0, 1e-3, 0.3, 0.301]
    sol = solve(problem.f, problem.jac, grid, problem.start(8), 8, linearization, diffusion)
    with mp.workdps(300):
        ref = solve(problem.f, problem.jac, grid, problem.start(8), 8, linearization, diffusion)
    variances = [np.diagonal(s.smooth_cov, axis1=1, axis2=2)[1:] for s in (sol, ref)]
    positive = variances[1] != 0
    ratio = variances[0][positive] / variances[1][positive]
    assert_equal(ratio, mp_array(np.ones(ratio.shape)), tol=1e-50)


@pytest.mark.parametrize("q", [2, 4])
def test_mean_converges_to_the_solution_with_order_q(q: int) -> None:
    """Halving the steps of EK1 divides the final error of the logistic problem by 2^q or more."""
    errors = []
    for N in (16, 32):
        grid = np.linspace(0, 1, N + 1)
        sol = solve(LOGISTIC.f, LOGISTIC.jac, grid, LOGISTIC.start(q), q, "EK1", "fixed")
        growth = mpf(0.1) * mp.exp(3)
        errors.append(abs(sol.filter_mean[-1][0] - growth / (1 - mpf(0.1) + growth)))
    assert errors[0] > 2**q * errors[1]


@pytest.mark.parametrize("smoothed", [True, False])
def test_dense_output_at_the_nodes_is_the_stored_marginal(smoothed: bool) -> None:
    """At a node the stored mean is returned, of the smoother or of the filter."""
    sol = lotka_volterra("EK1", "dynamic", [0, 0.25, 0.75])
    stored = sol.smooth_mean if smoothed else sol.filter_mean
    assert_equal([sol.dense(t, smoothed)[0] for t in sol.t], stored, tol=0)


@pytest.mark.parametrize("t", [-0.125, 0.875])
def test_dense_output_outside_of_the_grid_is_refused(t: float) -> None:
    """The oracle does not extrapolate."""
    sol = lotka_volterra("EK1", "dynamic", [0, 0.25, 0.75])
    with pytest.raises(ValueError, match="outside"):
        sol.dense(t)


@pytest.mark.parametrize("diffusion", ["fixed-mv", "dynamic-mv"])
def test_multivariate_diffusion_with_coupled_components_is_refused(diffusion: str) -> None:
    """EK1 couples the components, so that one diffusion for each has no closed form."""
    with pytest.raises(ValueError, match="component"):
        lotka_volterra("EK1", diffusion, [0, 0.25])
