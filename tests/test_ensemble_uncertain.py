"""Uncertain inputs: moments in closed form, and the split of the variance."""

import numpy as np
import pytest
from quick_ensembles import quick_reference_engine
from scipy import stats

import probode
from probode import EK0, Normal, Sweep
from probode.ensemble.uncertain import fifth_degree, third_degree

TIMES = np.array([0.5, 1.0])


@pytest.fixture(autouse=True, scope="module")
def _engine():
    with quick_reference_engine():
        yield


def decay(t, y, rate):
    return -rate * y


def solve(y0, rate, **options):
    return probode.solve_ensemble(
        decay, (0, 1), y0, (rate,), save_at=TIMES, solver=EK0(2), rtol=1e-6, **options
    )


def double_factorial(k):
    return float(np.prod(np.arange(k, 0, -2)))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize(("rule", "degree"), [(third_degree, 3), (fifth_degree, 5)])
def test_cubatures_are_exact_up_to_their_degree(rule, degree, n):
    points, weights = rule(n)
    assert np.all(weights >= 0)
    for powers in np.ndindex(*[degree + 1] * n):
        if sum(powers) > degree:
            continue
        exact = np.prod([0 if k % 2 else double_factorial(k - 1) for k in powers])
        np.testing.assert_allclose(weights @ np.prod(points**powers, axis=1), exact, atol=1e-12)


COVARIANCE = np.array([[0.04, 0.01], [0.01, 0.09]])


@pytest.mark.parametrize(
    "y0", [Normal([1.0, 2.0], COVARIANCE), stats.multivariate_normal([1.0, 2.0], COVARIANCE)]
)
def test_a_gaussian_start_of_a_linear_problem(y0):
    found = solve(y0, 1.0, cubature=3).moments()
    np.testing.assert_allclose(found.mean, np.exp(-TIMES)[:, None] * [1.0, 2.0], rtol=1e-5)
    exact = np.exp(-2 * TIMES)[:, None] * np.diag(COVARIANCE)
    np.testing.assert_allclose(found.input_variance, exact, rtol=1e-5)
    assert np.all(found.input_fraction > 0.999)


def lognormal(mean, std):
    """Mean and variance of ``exp(-rate t)`` for a Gaussian rate."""
    first = np.exp(-mean * TIMES + std**2 * TIMES**2 / 2)
    second = np.exp(-2 * mean * TIMES + 2 * std**2 * TIMES**2)
    return first, second - first**2


@pytest.mark.parametrize(
    ("rate", "options", "tolerance"),
    [
        (stats.norm(1.0, 0.2), {"cubature": 5}, 2e-3),
        (Normal(1.0, 0.04), {"draws": 2000, "seed": 3}, 4 * np.sqrt(2 / 2000)),
    ],
    ids=["cubature", "random draws"],
)
def test_an_uncertain_parameter(rate, options, tolerance):
    found = solve([1.0, 2.0], rate, **options).moments()
    mean, variance = lognormal(1.0, 0.2)
    np.testing.assert_allclose(found.mean[:, 0], mean, rtol=tolerance)
    np.testing.assert_allclose(found.input_variance[:, 0], variance, rtol=tolerance)


def test_the_parts_of_the_variance_add_up():
    """Without uncertainty in the inputs all of it is the solver's; with it, its mean is added."""
    ensemble = solve([stats.norm(1.0, 1e-7), 2.0], 1.0, cubature=3)
    found = ensemble.moments()
    np.testing.assert_allclose(found.solver_variance, np.mean(ensemble.std**2, axis=0))
    np.testing.assert_allclose(found.input_variance[:, 1], 0.0, atol=1e-24)
    np.testing.assert_allclose(found.input_variance[:, 0], 1e-14 * np.exp(-2 * TIMES), rtol=1e-3)
    np.testing.assert_allclose(found.variance, found.input_variance + found.solver_variance)
    assert np.all((found.input_fraction[:, 0] > 0.0) & (found.input_fraction[:, 0] < 1.0))


def test_uncertain_inputs_and_sweeps_combine():
    ensemble = solve(Normal([1.0, 2.0], [0.04, 0.09]), Sweep([0.5, 1.0, 2.0], "rate"), cubature=3)
    assert ensemble.dims == ("draw", "rate")
    found = ensemble.moments()
    assert found.dims == ("rate",) and found.mean.shape == (3, 2, 2)
    exact = np.exp(-np.outer([0.5, 1.0, 2.0], TIMES))
    np.testing.assert_allclose(found.mean[..., 0], exact, rtol=1e-5)
    np.testing.assert_allclose(found.std[..., 1], 0.3 * exact, rtol=1e-4)


def test_samples_are_taken_as_draws():
    samples = np.array([[1.0, 2.0], [3.0, 2.0], [2.0, 2.0]])
    found = solve(samples, 1.0).moments()
    np.testing.assert_allclose(found.input_variance[:, 0], np.exp(-2 * TIMES), rtol=1e-4)
    np.testing.assert_array_equal(found.used, 3)


@pytest.mark.parametrize(
    ("y0", "options", "words"),
    [
        (Normal([1.0, 2.0], np.eye(3)), {}, r"symmetric matrix \(2, 2\)"),
        (Normal([1.0, 2.0], [1.0, -1.0]), {}, "negative"),
        (Normal([1.0, 2.0], 1.0), {"cubature": 4}, "degree"),
        (Normal([1.0, 2.0], 1.0), {"draws": 1}, "at least 2"),
        (Normal(np.ones(5), 1.0), {"cubature": 5}, "cubature=3"),
        (Normal([1.0, np.nan], 1.0), {}, "must be finite"),
        (Normal([1.0, 2.0], 1.0), {"draws": 2.5}, "draws must be a whole number"),
        (Normal([1.0, 2.0], 1.0), {"seed": "a"}, "seed must be a whole number"),
        ([1.0, stats.lognorm], {}, r"scipy.stats.lognorm\(...\)"),
    ],
)
def test_bad_distributions_are_explained(y0, options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        solve(y0, 1.0, **options)


def test_a_negative_standard_deviation_is_refused():
    """It was squared."""
    with pytest.raises(ValueError, match="std must not be negative"):
        Normal(1.0, std=-0.5)
