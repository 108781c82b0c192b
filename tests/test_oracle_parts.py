"""The parts of the 50-digit oracle agree with closed forms: algebra, prior, exact starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf
from oracle import log_density, mp_array, process_noise, solve_psd, to_numpy, transition
from oracle_checks import assert_equal, inverse, kernel
from oracle_problems import LOGISTIC, PROBLEMS, Series, cos, exp, sin, taylor_start

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


def test_to_numpy_rounds_to_doubles() -> None:
    """The numbers become an array of doubles of the same shape."""
    actual = to_numpy([[mpf(1) / 3, mpf(2)]])
    assert actual.dtype == float and actual.tolist() == [[1 / 3, 2.0]]


# Prior


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
