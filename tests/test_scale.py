"""Solutions of any size: what is squared on the way must not overflow where the values do not."""

import jax.numpy as jnp
import numpy as np
import pytest

from probode import EK0, EK1, DiagonalEK1, PIControl, solve, solve_ivp
from probode.engines import native

SOLVERS = [EK1(5), EK1(2), EK0(3), EK0(3, evaluations=2), DiagonalEK1(3)]
NAMES = [solver.name for solver in SOLVERS]


def linear(t, y):
    return jnp.stack([-y[0] + 0.5 * y[1], -2.0 * y[1]])


def solved(k, solver, kernels=True, **options):
    scale = 10.0**k
    control = PIControl(1e-5, 1e-7 * scale)
    problem = (linear, (0.0, 3.0), np.array([1.0, 0.3]) * scale)
    if kernels:
        return solve(*problem, solver=solver, control=control, **options)
    with native.disabled():
        return solve(*problem, solver=solver, control=control, **options)


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "jax"])
@pytest.mark.parametrize("k", [-150, -60, 60, 200, 300])
@pytest.mark.parametrize("solver", SOLVERS, ids=NAMES)
def test_a_solution_scales_with_its_initial_value(solver, k, kernels):
    """A linear equation, tolerances in proportion: the same steps, everything in proportion.

    Bounds: the scale is no power of two, so rounding differs; smoothers have several ways.
    """
    one = solved(0, solver, kernels, calibration="defect")
    other = solved(k, solver, kernels, calibration="defect")
    scale = 10.0**k
    assert len(one.t) == len(other.t)
    np.testing.assert_allclose(other.t, one.t, rtol=1e-5)
    np.testing.assert_allclose(other.mean[-1] / scale, one.mean[-1], rtol=1e-8)
    np.testing.assert_allclose(other.std[-1] / scale, one.std[-1], rtol=1e-2)
    assert other.diagnose().flags == one.diagnose().flags


@pytest.mark.parametrize("method", ["EK1", "EK0", "DiagonalEK1"])
@pytest.mark.parametrize("n", [1, 6])
def test_growth_is_followed_to_the_largest_numbers(method, n):
    """exp(50 t) up to 1e290: beyond that the derivatives are no numbers any more."""
    end = 290 * np.log(10.0) / 50.0
    result = solve_ivp(lambda t, y: 50.0 * y, (0.0, end), np.ones(n), method=method, rtol=1e-6)
    assert result.success
    np.testing.assert_allclose(result.y[:, -1], np.exp(50.0 * end), rtol=1e-3)
    error = np.abs(result.y[0, -1] / np.exp(50.0 * end) - 1.0) * np.exp(50.0 * end)
    assert 0.1 * error < result.y_std[0, -1] < 100.0 * error


def test_beyond_the_largest_numbers_it_ends_with_what_it_has():
    result = solve_ivp(lambda t, y: 50.0 * y, (0.0, 20.0), [1.0])
    assert result.status == -1
    assert result.y[0, -1] > 1e290
    early = result.t < 13.0
    np.testing.assert_allclose(result.y[0, early], np.exp(50.0 * result.t[early]), rtol=1e-2)
    assert np.all(np.isfinite(result.y_std[:, early]))


def test_a_covariance_beyond_squares_is_infinite_and_its_standard_deviation_is_not():
    result = solve_ivp(lambda t, y: -y, (0.0, 1.0), [1e300], atol=1e290)
    assert np.isinf(result.y_cov[-1, 0, 0])
    assert np.isfinite(result.y_std[0, -1])


def test_where_derivatives_overflow_before_the_end_the_solve_does_not_claim_to_have_reached_it():
    result = solve_ivp(lambda t, y: 50 * y, (0, 13.8), [1.0])
    assert result.success == (result.t[-1] == 13.8)
    if not result.success:
        assert "too large" in result.message


def test_a_solve_that_kept_no_step_is_not_trusted():
    result = solve_ivp(lambda t, y: [y[1], -y[0]], (0, 10), [1e250, 0.0])
    assert result.success or not result.posterior.diagnose().trusted
