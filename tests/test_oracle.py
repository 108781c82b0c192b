"""The 50-digit oracle agrees with closed forms and with exact Gaussian regression."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf
from oracle import (
    DIFFUSIONS,
    LINEARIZATIONS,
    Array,
    OracleSolution,
    log_density,
    mp_array,
    process_noise,
    solve,
    solve_psd,
    to_numpy,
    transition,
)
from oracle_problems import (
    LOGISTIC,
    LOTKA_VOLTERRA,
    PROBLEMS,
    Problem,
    Series,
    cos,
    exp,
    sin,
    taylor_start,
)

COMBINATIONS = [
    (linearization, diffusion)
    for linearization in LINEARIZATIONS
    for diffusion in DIFFUSIONS
    if linearization != "EK1" or not diffusion.endswith("-mv")
]


def assert_equal(actual: Any, expected: Any, tol: float = 1e-60) -> None:
    """Assert that two arrays agree up to tol times the largest expected entry."""
    actual, expected = np.atleast_1d(mp_array(actual)), np.atleast_1d(mp_array(expected))
    assert actual.shape == expected.shape
    difference = max(abs(actual - expected).ravel())
    assert difference <= tol * max(abs(expected).ravel()), mp.nstr(difference, 5)


def inverse(M: Array) -> Array:
    """Invert by the LU decomposition of mpmath."""
    return mp_array(mp.inverse(mp.matrix(M.tolist())).tolist())


# Linear algebra


POSITIVE = mp_array([[4, 1, 2], [1, 3, 0.5], [2, 0.5, 2]])


def test_solve_psd_of_a_regular_matrix_is_the_inverse() -> None:
    """For a positive definite matrix the solution is unique."""
    assert_equal(solve_psd(POSITIVE, mp_array(np.eye(3))), inverse(POSITIVE))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_solve_psd_of_a_singular_matrix_solves_the_equations(order: tuple[int, ...]) -> None:
    """For a singular matrix and a right-hand side in its range the equations hold."""
    factor = mp_array([[1, 2], [mpf(1) / 3, 1], [-1, mpf(1) / 7]])[list(order)]
    M = factor @ factor.T
    assert_equal(M @ solve_psd(M, M), M)


def test_log_density_is_that_of_the_normal_distribution() -> None:
    """The chain rule gives -1/2 (d log 2 pi + log det S + z^T S^-1 z)."""
    z = mp_array([1, -2, 0.5])
    log_det = mp.log(mp.det(mp.matrix(POSITIVE.tolist())))
    expected = -(3 * mp.log(2 * mp.pi) + log_det + z @ inverse(POSITIVE) @ z) / 2
    assert_equal(log_density(z, POSITIVE), expected)


def test_log_density_ignores_components_without_variance() -> None:
    """A component with variance zero contributes 0."""
    z, S = mp_array([0, 2]), mp_array([[0, 0], [0, 3]])
    assert_equal(log_density(z, S), log_density(z[1:], S[1:, 1:]))


# Prior


def kernel(s: Any, t: Any, a: int, b: int, start: Any, stop: Any) -> Any:
    """Integrate (s-u)^a (t-u)^b / (a! b!) over u from start to stop, by binomial expansion."""
    total = mpf(0)
    for k in range(a + 1):
        for n in range(b + 1):
            factor = mp.binomial(a, k) * mp.binomial(b, n) * s ** (a - k) * t ** (b - n)
            power = k + n + 1
            total += factor * (-1) ** (k + n) * (stop**power - start**power) / power
    return total / (mp.factorial(a) * mp.factorial(b))


@pytest.mark.parametrize("h", [0.75, -0.75])
@pytest.mark.parametrize("q", [1, 4, 8])
def test_transition_is_the_matrix_exponential(q: int, h: float) -> None:
    """A(h) = exp(F h), where F maps each derivative to the next."""
    F = mp_array(np.kron(np.eye(q + 1, k=1), np.eye(2)))
    power, expected = mp_array(np.eye(2 * (q + 1))), mp_array(np.eye(2 * (q + 1)))
    for k in range(1, q + 1):
        power = power @ F * mpf(h) / k
        expected = expected + power
    assert_equal(transition(h, q, 2), expected)


@pytest.mark.parametrize("h", [0.75, -0.75])
@pytest.mark.parametrize("q", [1, 3, 8])
def test_process_noise_is_the_variance_of_an_integrated_wiener_process(q: int, h: float) -> None:
    """Q_ij(|h|) = int_0^|h| (|h|-u)^(q-i) (|h|-u)^(q-j) du / ((q-i)! (q-j)!), signs for h < 0."""
    size = abs(mpf(h))
    expected = mp_array(np.zeros((q + 1, q + 1)))
    for i, j in np.ndindex(expected.shape):
        expected[i, j] = mp.sign(h) ** (i + j) * kernel(size, size, q - i, q - j, mpf(0), size)
    assert_equal(process_noise(h, q, [1]), expected)


def test_process_noise_scales_each_component_with_its_diffusion() -> None:
    """The block of component i is gamma_i times that of unit diffusion, other blocks vanish."""
    Q = process_noise(0.5, 2, [3, 5]).reshape(3, 2, 3, 2)
    unit = process_noise(0.5, 2, [1])
    zero = mp_array(np.zeros((3, 3)))
    blocks = [[Q[:, i, :, j] for j in range(2)] for i in range(2)]
    assert_equal(blocks, [[unit * 3, zero], [zero, unit * 5]])


STEPS = [(0.25, 0.5), (1.5, 0.125), (-0.25, -0.5)]


@pytest.mark.parametrize(("h1", "h2"), STEPS)
@pytest.mark.parametrize("q", [1, 3, 8])
def test_transitions_compose(q: int, h1: float, h2: float) -> None:
    """A(h1 + h2) = A(h2) A(h1)."""
    assert_equal(transition(h2, q, 2) @ transition(h1, q, 2), transition(h1 + h2, q, 2))


@pytest.mark.parametrize(("h1", "h2"), STEPS)
@pytest.mark.parametrize("q", [1, 3, 8])
def test_process_noises_compose(q: int, h1: float, h2: float) -> None:
    """Q(h1 + h2) = A(h2) Q(h1) A(h2)^T + Q(h2)."""
    gamma, A = [2, 3], transition(h2, q, 2)
    composed = A @ process_noise(h1, q, gamma) @ A.T + process_noise(h2, q, gamma)
    assert_equal(composed, process_noise(h1 + h2, q, gamma))


# Exact initial derivatives, problems


def test_series_functions_have_the_coefficients_of_taylor() -> None:
    """Arithmetic, division, exp, sin and cos agree with numerical Taylor coefficients."""

    def function(x: Any) -> Any:
        return (1 - exp(sin(x) * x)) / (2 + cos(x)) - 3 / (x + 1) - (-x)

    with mp.workdps(60):
        series = function(Series([mpf(0.5), mpf(1)] + [mpf(0)] * 6))
        assert_equal(series.c, mp.taylor(function, 0.5, 7), tol=1e-30)


def test_taylor_start_of_the_logistic_equation_is_exact() -> None:
    """The derivatives up to order 11 are those of y0 e^(3t) / (1 + y0 (e^(3t) - 1))."""
    y0 = mpf(LOGISTIC.y0[0])

    def solution(t: Any) -> Any:
        return y0 * mp.exp(3 * t) / (1 + y0 * (mp.exp(3 * t) - 1))

    expected = [[c * mp.factorial(k)] for k, c in enumerate(mp.taylor(solution, 0, 11))]
    assert_equal(LOGISTIC.start(11), expected, tol=1e-40)


@pytest.mark.parametrize("name", PROBLEMS)
def test_taylor_start_continues_the_solution(name: str) -> None:
    """The Taylor polynomial of order 11 meets a numerical solution after a small time."""
    problem = PROBLEMS[name]
    h, start = mpf(2) ** -12, problem.start(11)
    with mp.workdps(50):
        expected = mp.odefun(problem.f, problem.t0, [mpf(v) for v in problem.y0])(problem.t0 + h)
    polynomial = sum(start[k] * h**k / mp.factorial(k) for k in range(12))
    assert_equal(polynomial, list(expected), tol=1e-36)


def test_taylor_start_accepts_constant_components() -> None:
    """A vector field may return plain numbers."""
    start = taylor_start(lambda t, y: [2, t * y[0]], 1, [3, 5], 2)
    assert_equal(start, [[3, 5], [2, 3], [0, 5]])


@pytest.mark.parametrize("name", PROBLEMS)
def test_jacobians_are_the_derivatives_of_the_vector_fields(name: str) -> None:
    """Column j of the Jacobian is the numerical derivative with respect to y_j."""
    problem = PROBLEMS[name]
    d, t, y = len(problem.y0), mpf(0.75), [mpf(v) + mpf(0.3) for v in problem.y0]

    def component(i: int, j: int, v: Any) -> Any:
        return problem.f(t, [v if k == j else y[k] for k in range(d)])[i]

    with mp.workdps(50):
        expected = [
            [mp.diff(lambda v, i=i, j=j: component(i, j, v), y[j]) for j in range(d)]
            for i in range(d)
        ]
        assert_equal(problem.jac(t, y), expected, tol=1e-20)


# Exact Gaussian regression


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


def test_to_numpy_rounds_to_doubles() -> None:
    """The numbers become an array of doubles of the same shape."""
    actual = to_numpy([[mpf(1) / 3, mpf(2)]])
    assert actual.dtype == float and actual.tolist() == [[1 / 3, 2.0]]


# Exactly zero diffusion


@pytest.mark.parametrize(("linearization", "diffusion"), COMBINATIONS)
def test_exact_prediction_leaves_no_uncertainty(linearization: str, diffusion: str) -> None:
    """A constant vector field has residual zero, hence covariance zero everywhere."""
    sol = constant_field(linearization, diffusion)
    assert not sol.filter_cov.any() and not sol.smooth_cov.any()


@pytest.mark.parametrize(("linearization", "diffusion"), COMBINATIONS)
def test_exact_prediction_has_log_evidence_zero(linearization: str, diffusion: str) -> None:
    """A step whose innovation variance is exactly zero contributes nothing."""
    assert constant_field(linearization, diffusion).log_evidence == 0


def constant_field(linearization: str, diffusion: str) -> OracleSolution:
    """Solve y' = (1, -2), which the prior predicts without error."""
    return solve(
        lambda t, y: [1, -2],
        lambda t, y: [[0, 0], [0, 0]],
        [0, 0.25, 0.75],
        [[0, 1], [1, -2], [0, 0]],
        2,
        linearization,
        diffusion,
    )


@pytest.mark.parametrize("kind", ["fixed", "dynamic"])
def test_exactly_predicted_component_does_not_change_the_evidence(kind: str) -> None:
    """With a diffusion per component a constant component contributes nothing."""
    f, jac, grid, start = LOGISTIC.f, LOGISTIC.jac, [0, 0.25, 0.75], LOGISTIC.start(2)
    alone = solve(f, jac, grid, start, 2, "EK0", kind)
    both = solve(
        lambda t, y: [f(t, y[:1])[0], 1],
        lambda t, y: [[0, 0], [0, 0]],
        grid,
        np.hstack([start, [[0], [1], [0]]]),
        2,
        "EK0",
        f"{kind}-mv",
    )
    assert_equal(both.log_evidence, alone.log_evidence)


def zero_residual_at(node: int, q: int) -> OracleSolution:
    """Solve y' = f(t) by EK0 on five nodes, f(t_node) being exactly the predicted derivative."""
    grid, values = [0, 0.25, 0.75, 1, 1.5], [0.0, 1.0, 2.5, -1.0, 0.5]
    m0 = np.zeros((q + 1, 1))

    def run(values: list[Any]) -> OracleSolution:
        return solve(lambda t, y: [values[grid.index(t)]], lambda t, y: [[0]], grid, m0, q, "EK0")

    values[node] = run(values).predicted_mean[node - 1][1]
    return run(values)


@pytest.mark.parametrize("q", [1, 2, 4])
def test_zero_residual_gives_zero_diffusion(q: int) -> None:
    """The diffusion vanishes in the one step whose residual vanishes, and only there."""
    assert [g != 0 for g in zero_residual_at(2, q).diffusion[:, 0]] == [True, False, True, True]


def test_zero_residual_keeps_the_variance_of_order_one() -> None:
    """With q = 1, y' known and no diffusion in the step the variance of y stays as it is."""
    sol = zero_residual_at(2, 1)
    assert_equal(sol.filter_cov[2], sol.filter_cov[1])


def test_zero_residual_contributes_no_evidence_at_order_one() -> None:
    """With q = 1 the innovation variance of that step is exactly zero."""
    sol = zero_residual_at(2, 1)
    used = [0, 2, 3]
    expected = sum(log_density(sol.residual[n], sol.innovation_cov[n]) for n in used)
    assert_equal(sol.log_evidence, expected)


@pytest.mark.parametrize("q", [1, 2, 4])
def test_smoother_transports_the_state_through_a_step_without_diffusion(q: int) -> None:
    """Without diffusion x(t_2) = A x(t_1), so the smoothed covariances satisfy P_2 = A P_1 A^T."""
    sol = zero_residual_at(2, q)
    A = transition(0.5, q, 1)
    assert_equal(sol.smooth_cov[2], A @ sol.smooth_cov[1] @ A.T)
