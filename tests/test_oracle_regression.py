"""Filter, smoother and evidence of the 50-digit oracle are those of exact Gaussian regression."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from mpmath import mp, mpf
from oracle import Array, OracleSolution, mp_array, solve, transition
from oracle_checks import COMBINATIONS, assert_equal, inverse, kernel
from oracle_problems import LOTKA_VOLTERRA, Problem


def affine(M: list[list[float]]) -> Problem:
    """Return y' = M y + (1 + t, t^2 - 1/2), y(0) = (1, -1/2)."""
    return Problem(
        f=lambda t, y: [
            M[0][0] * y[0] + M[0][1] * y[1] + 1 + t,
            M[1][0] * y[0] + M[1][1] * y[1] + t * t - 0.5,
        ],
        jac=lambda t, y: M,
        y0=(1.0, -0.5),
    )


EXACT: dict[str, list[list[float]]] = {  # the affine problems that are linearised without error
    "EK0": [[0, 0], [0, 0]],
    "EK1": [[-0.5, 1], [-2, 0.25]],
    "DiagonalEK1": [[-0.5, 0], [0, 0.75]],
}
GRIDS = {"forward": [0, 0.375, 0.5, 1.0], "backward": [0, -0.25, -0.75, -0.875]}
BETWEEN = {"forward": [0.125, 0.4375, 0.875], "backward": [-0.125, -0.5, -0.8125]}
STARTS = {
    "exact": np.zeros((6, 6)),
    "uncertain": np.kron([[2, 0.5, 0], [0.5, 1, 0.25], [0, 0.25, 3]], np.diag([1, 0.5])),
}
Q_ORDER, D_ODE = 2, 2

CASES = [
    ("affine", linearization, diffusion, direction, start)
    for linearization, diffusion in COMBINATIONS
    for direction, start in [("forward", "exact"), ("backward", "uncertain")]
] + [
    ("lotka-volterra", linearization, diffusion, "forward", "uncertain")
    for linearization, diffusion in COMBINATIONS
]
each_case = pytest.mark.parametrize("case", CASES, ids="-".join)


@dataclass
class Regression:
    """Joint normal distribution of the states at some times and of the data, C x = c."""

    solution: OracleSolution
    times: Array  # the nodes, then one time in each step
    mean: Array
    cov: Array
    C: Array
    c: Array


@cache
def unit_covariance(direction: str) -> Array:
    """Covariance of states started exactly, with unit diffusion in step n and none elsewhere.

    Cov(x_i(s), x_j(t)) = int (s-u)^(q-i) (t-u)^(q-j) du / ((q-i)! (q-j)!) over the part of step n
    before s and t, shape (N, times, q+1, times, q+1). Backwards in time odd derivatives change
    their sign.
    """
    q, knots = Q_ORDER, abs(mp_array(GRIDS[direction]))
    times = abs(mp_array(GRIDS[direction] + BETWEEN[direction]))
    sign = 1 if direction == "forward" else -1
    cov = mp_array(np.zeros((3, len(times), q + 1, len(times), q + 1)))
    for n, a, i, b, j in np.ndindex(cov.shape):
        s, t = times[a], times[b]
        stop = min(s, t, knots[n + 1])
        if stop > knots[n]:
            cov[n, a, i, b, j] = sign ** (i + j) * kernel(s, t, q - i, q - j, knots[n], stop)
    return cov


def prior_covariance(direction: str, gamma: Array) -> Array:
    """Covariance of states started exactly, component k with diffusion gamma[n, k] in step n."""
    unit = unit_covariance(direction)
    unit = unit.reshape(3, unit.shape[1] * unit.shape[2], -1)
    return np.sum([np.kron(unit[n], np.diag(gamma[n])) for n in range(3)], axis=0)


@cache
def regression(case: tuple[str, ...], unit: bool = False) -> Regression:
    """Solve a case, and set up its joint distribution with the diffusion found (or with 1).

    The data are those of the ODE where it is affine, (E1 - M E0) x(t_n) = b(t_n), and otherwise
    those of the linearised ODE, H_n x(t_n) = H_n m-_n - z_n.
    """
    name, linearization, diffusion, direction, start = case
    problem = LOTKA_VOLTERRA if name == "lotka-volterra" else affine(EXACT[linearization])
    q, d, D = Q_ORDER, D_ODE, (Q_ORDER + 1) * D_ODE
    nodes, m0, P0 = mp_array(GRIDS[direction]), problem.start(q), mp_array(STARTS[start])
    m0[2:] += mpf(0.25)  # not the exact derivatives, so that the residuals are not small
    sol = solve(problem.f, problem.jac, nodes, m0, q, linearization, diffusion, P0)

    gamma = mp_array(np.ones_like(sol.step_diffusion)) if unit else sol.step_diffusion
    if diffusion.startswith("fixed"):
        root = np.tile([mp.sqrt(g) for g in gamma[0]], q + 1)
        P0 = P0 * np.outer(root, root)
    times = mp_array(GRIDS[direction] + BETWEEN[direction])
    A = np.concatenate([transition(t - nodes[0], q, d) for t in times])
    cov = A @ P0 @ A.T + prior_covariance(direction, gamma)

    C, c = mp_array(np.zeros((3, d, len(times), D))), mp_array(np.zeros((3, d)))
    for n in range(3):
        if name == "affine":
            C[n, :, n + 1, :d] = -mp_array(EXACT[linearization])
            C[n, :, n + 1, d : 2 * d] = mp_array(np.eye(d))
            c[n] = mp_array(problem.f(nodes[n + 1], [mpf(0), mpf(0)]))
        else:
            C[n, :, n + 1] = sol.H[n]
            c[n] = sol.H[n] @ sol.predicted_mean[n] - sol.residual[n]
    return Regression(sol, times, A @ m0.ravel(), cov, C.reshape(3 * d, -1), c.ravel())


@cache
def posterior(case: tuple[str, ...], count: int) -> tuple[Array, Array]:
    """Return mean (times, D) and covariance (times, D, times, D) given the first measurements."""
    joint = regression(case)
    mean, cov, C, c = joint.mean, joint.cov, joint.C[: count * D_ODE], joint.c[: count * D_ODE]
    if count > 0:
        data_cov = C @ cov
        K = data_cov.T @ inverse(data_cov @ C.T)
        mean, cov = mean + K @ (c - C @ mean), cov - K @ data_cov
    size, D = len(joint.times), mean.size // len(joint.times)
    return mean.reshape(size, D), cov.reshape(size, D, size, D)


@each_case
def test_filter_is_regression_on_the_data_so_far(case: tuple[str, ...]) -> None:
    """The filtering mean and covariance at t_n condition on the first n measurements."""
    joint = regression(case)
    for n in range(4):
        mean, cov = posterior(case, n)
        assert_equal(joint.solution.filter_mean[n], mean[n])
        assert_equal(joint.solution.filter_cov[n], cov[n, :, n])


@each_case
def test_prediction_is_regression_on_the_data_before(case: tuple[str, ...]) -> None:
    """The predicted mean and covariance at t_n condition on the first n - 1 measurements."""
    joint = regression(case)
    for n in range(3):
        mean, cov = posterior(case, n)
        assert_equal(joint.solution.predicted_mean[n], mean[n + 1])
        assert_equal(joint.solution.predicted_cov[n], cov[n + 1, :, n + 1])


@each_case
def test_smoother_is_regression_on_all_data(case: tuple[str, ...]) -> None:
    """The smoothing mean and covariance condition on all measurements."""
    joint = regression(case)
    mean, cov = posterior(case, 3)
    assert_equal(joint.solution.smooth_mean, mean[:4])
    assert_equal(joint.solution.smooth_cov, [cov[n, :, n] for n in range(4)])


@each_case
def test_dense_output_is_regression_on_all_data(case: tuple[str, ...]) -> None:
    """Between the nodes the smoothed dense output conditions on all measurements."""
    joint = regression(case)
    mean, cov = posterior(case, 3)
    for n in range(4, 7):
        dense_mean, dense_cov = joint.solution.dense(joint.times[n])
        assert_equal(dense_mean, mean[n])
        assert_equal(dense_cov, cov[n, :, n])


@each_case
def test_filter_dense_output_is_regression_on_the_data_so_far(case: tuple[str, ...]) -> None:
    """Between the nodes the dense output of the filter conditions on the earlier measurements."""
    joint = regression(case)
    for n in range(3):
        mean, cov = posterior(case, n)
        dense_mean, dense_cov = joint.solution.dense(joint.times[n + 4], smoothed=False)
        assert_equal(dense_mean, mean[n + 4])
        assert_equal(dense_cov, cov[n + 4, :, n + 4])


@each_case
def test_cross_covariances_are_those_of_the_joint_distribution(case: tuple[str, ...]) -> None:
    """Cov(x(t_i), x(t_j)) is the block of the joint posterior, for all pairs of nodes."""
    joint = regression(case)
    cov = posterior(case, 3)[1][:4, :, :4]
    actual = [[joint.solution.cross_cov(i, j) for j in range(4)] for i in range(4)]
    assert_equal(actual, cov.transpose(0, 2, 1, 3))


@each_case
def test_log_evidence_is_the_joint_density_of_the_data(case: tuple[str, ...]) -> None:
    """The product of the innovation densities is the density of all data together."""
    joint = regression(case)
    S, r = joint.C @ joint.cov @ joint.C.T, joint.c - joint.C @ joint.mean
    log_det = mp.log(mp.det(mp.matrix(S.tolist())))
    expected = -(r.size * mp.log(2 * mp.pi) + log_det + r @ inverse(S) @ r) / 2
    assert_equal(joint.solution.log_evidence, expected)


@pytest.mark.parametrize("case", [case for case in CASES if case[2] == "fixed"], ids="-".join)
def test_fixed_diffusion_is_the_mean_square_of_the_whitened_data(case: tuple[str, ...]) -> None:
    """sigma^2 = r^T S^-1 r / (N d) with the joint unit-diffusion covariance S of all data."""
    joint = regression(case, unit=True)
    S, r = joint.C @ joint.cov @ joint.C.T, joint.c - joint.C @ joint.mean
    assert_equal(joint.solution.diffusion, [r @ inverse(S) @ r / 6] * D_ODE)


@pytest.mark.parametrize("case", [case for case in CASES if case[2] == "fixed-mv"], ids="-".join)
def test_multivariate_fixed_diffusion_whitens_each_component(case: tuple[str, ...]) -> None:
    """gamma_i = r_i^T S_ii^-1 r_i / N with the data of component i at all nodes."""
    joint = regression(case, unit=True)
    S, r = joint.C @ joint.cov @ joint.C.T, joint.c - joint.C @ joint.mean
    expected = [r[i::2] @ inverse(S[i::2, i::2]) @ r[i::2] / 3 for i in range(D_ODE)]
    assert_equal(joint.solution.diffusion, expected)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case[2].startswith("fixed")], ids="-".join
)
def test_evidence_of_fixed_diffusions_has_the_profile_form(case: tuple[str, ...]) -> None:
    """The log density is -1/2 [N d log 2 pi + N sum_i log gamma_i + sum_n log det S_n(1) + N d]."""
    joint = regression(case, unit=True)
    log_det = mp.log(mp.det(mp.matrix((joint.C @ joint.cov @ joint.C.T).tolist())))
    log_gamma = mp.fsum(mp.log(g) for g in joint.solution.diffusion)
    expected = -(6 * mp.log(2 * mp.pi) + 3 * log_gamma + log_det + 6) / 2
    assert_equal(joint.solution.log_evidence, expected)
