"""Smoother, dense output and samples describe one and the same Gaussian process."""

from functools import cache

import jax.numpy as jnp
import numpy as np
import oracle
import oracle_problems
import pytest
from oracle import to_numpy

from probode import EK0, EK1, DiagonalEK1, PIControl, solve

pytestmark = pytest.mark.optimised

Y0 = np.array([1.0, 1.0])


def field(t, y):
    return jnp.stack([1.5 * y[0] - y[0] * y[1], -3 * y[1] + y[0] * y[1]])


CONTROL = PIControl(rtol=1e-4, atol=1e-6)
SOLVERS = {
    "isotropic": EK0(3),
    "isotropic-fixed-mv": EK0(3, "fixed-mv"),
    "block-diagonal": DiagonalEK1(3, "dynamic-mv"),
    "block-diagonal-fixed": DiagonalEK1(3, "fixed"),
    "dense": EK1(3),
    "dense-fixed": EK1(3, "fixed"),
}
SLOW = ("isotropic", "block-diagonal-fixed", "dense-fixed")
"""Left to ``make slow``: each structure and each kind of diffusion is among the others."""

each_solver = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in SOLVERS],
)


def run(name, t_span=(0.0, 3.0), **options):
    return solve(field, t_span, Y0, solver=SOLVERS[name], control=CONTROL, **options)


@cache
def rounding(name, smooth=True):
    """What two ways to compute the same may differ by, relatively: of means, of deviations.

    Step sizes follow from residuals, which are differences; with a diffusion for each component
    those near a change of sign hang by their last digits. How far rounding moves the result is
    measured: from a start moved by 2⁻⁴⁰. A step rounds as if it moved ``y`` by 200 units in the
    last place at most (it makes some hundreds of operations).
    """
    times, moved = np.array([0.4, 1.7, 2.5, 3.0]), 2.0**-40
    exact, *others = (
        solve(
            field,
            (0.0, 3.0),
            Y0 * (1 + factor),
            solver=SOLVERS[name],
            control=CONTROL,
            smooth=smooth,
        )
        for factor in moved * np.array([[0, 0], [1, 0], [0, 1]])
    )
    units = 200 * len(exact.t) * np.finfo(float).eps / moved
    return tuple(
        units * max(np.max(np.abs(value(other) / value(exact) - 1)) for other in others)
        for value in (lambda p: p(times).mean, lambda p: p(times).std)
    )


@each_solver
def test_filter_and_smoother_agree_at_the_end(name):
    smoother, filter_ = run(name), run(name, smooth=False)
    np.testing.assert_array_equal(smoother.mean[-1], filter_.mean[-1])
    np.testing.assert_array_equal(smoother.std[-1], filter_.std[-1])


@each_solver
def test_dense_output_at_the_nodes_is_what_is_stored_there(name):
    posterior = run(name)
    at_nodes = posterior(posterior.t)
    np.testing.assert_array_equal(at_nodes.mean, posterior.mean)
    np.testing.assert_array_equal(at_nodes.std, posterior.std)


@each_solver
@pytest.mark.parametrize("smooth", [True, False])
def test_dense_output_is_continuous_towards_the_right_node(name, smooth):
    """Just before a node the smoother has what it has at the node (a filter only predicts)."""
    posterior = run(name, smooth=smooth)
    before = posterior(posterior.t[1:] - 1e-9 * np.diff(posterior.t))
    assert np.all(np.isfinite(before.std))
    if smooth:
        np.testing.assert_allclose(before.mean, posterior.mean[1:], rtol=1e-7)
        np.testing.assert_allclose(before.std, posterior.std[1:], rtol=1e-4)


@each_solver
def test_derivative_of_the_mean_is_the_mean_of_the_derivative(name):
    posterior = run(name)
    t, step = (posterior.t[1:] + posterior.t[:-1]) / 2, 1e-5
    slope = (posterior(t + step).mean - posterior(t - step).mean) / (2 * step)
    np.testing.assert_allclose(posterior.derivative(t, 1).mean, slope, rtol=1e-6)


@each_solver
def test_save_at_gives_what_dense_output_gives(name):
    """Fixed-point smoothing changes nothing but the memory."""
    times = np.array([0.0, 0.4, 0.41, 1.7, 2.5])
    dense, saved = run(name)(times), run(name, save_at=times)
    of_mean, of_std = rounding(name)
    np.testing.assert_allclose(saved.mean, dense.mean, rtol=of_mean)
    np.testing.assert_allclose(saved.std, dense.std, rtol=of_std)
    np.testing.assert_allclose(saved.cov, dense.cov, atol=2 * of_std * dense.cov.max())


@each_solver
def test_save_at_without_smoothing_gives_the_filter(name):
    times = np.array([0.4, 1.7, 3.0])
    dense, saved = run(name, smooth=False)(times), run(name, save_at=times, smooth=False)
    of_mean, of_std = rounding(name, smooth=False)
    np.testing.assert_allclose(saved.mean, dense.mean, rtol=of_mean)
    np.testing.assert_allclose(saved.std, dense.std, rtol=of_std)


@each_solver
def test_the_final_state_alone_is_calibrated(name):
    full, final = run(name), run(name, save_at=3.0)
    of_mean, of_std = rounding(name)
    np.testing.assert_allclose(final.mean[0], full.mean[-1], rtol=of_mean)
    np.testing.assert_allclose(final.std[0], full.std[-1], rtol=of_std)


@each_solver
@pytest.mark.parametrize("where", ["nodes", "dense", "save_at"])
def test_samples_have_the_moments_of_the_posterior(name, where):
    """Means, variances, and covariance between two times, within Monte-Carlo error."""
    number = 4000
    times = np.array([0.5, 1.0, 1.1, 2.0, 2.9])  # as many as above: one program
    if where == "save_at":
        posterior = run(name, save_at=times)
        drawn, mean, std = posterior.sample(number), posterior.mean, posterior.std
    elif where == "dense":
        posterior = run(name)
        drawn, dense = posterior.sample(number, t=times), posterior(times)
        mean, std = dense.mean, dense.std
    else:
        posterior = run(name)
        drawn, mean, std = posterior.sample(number)[:, 1:], posterior.mean[1:], posterior.std[1:]
    normalised = (drawn - mean) / std
    assert np.max(np.abs(normalised.mean(axis=0))) < 5 / np.sqrt(number)
    np.testing.assert_allclose(normalised.std(axis=0), 1.0, atol=5 / np.sqrt(2 * number))


@each_solver
def test_samples_are_correlated_in_time_as_the_oracle_says(name):
    solver = SOLVERS[name]
    grid = np.linspace(0.0, 1.0, 11)
    exact = oracle_problems.LOTKA_VOLTERRA
    judge = oracle.solve(
        exact.f,
        exact.jac,
        grid,
        exact.start(3),
        3,
        type(solver).__name__,
        solver.diffusion.name,
    )
    posterior = solve(field, (0.0, 1.0), Y0, solver=solver, grid=grid)
    drawn = posterior.sample(20_000, seed=3)
    for i, j in [(4, 5), (3, 10)]:
        a, b = drawn[:, i], drawn[:, j]
        observed = np.cov(a.T, b.T)[:2, 2:]
        scale = np.outer(a.std(axis=0), b.std(axis=0))
        expected = to_numpy(judge.cross_cov(i, j))[:2, :2]
        np.testing.assert_allclose(observed / scale, expected / scale, atol=0.04)


def test_seeds_repeat_and_differ():
    posterior, number = run("dense"), 4000  # as many as above: one program
    drawn = posterior.sample(number, seed=1)
    np.testing.assert_array_equal(drawn, posterior.sample(number, seed=1))
    assert np.any(drawn != posterior.sample(number, seed=2))


@pytest.mark.parametrize("t_span", [(0.0, 3.0), (3.0, 0.0)])
def test_outside_the_interval_the_standard_deviation_grows(t_span):
    posterior = run("dense", t_span=t_span)
    first, last = t_span
    outward = np.sign(last - first)
    for end, direction in ((last, outward), (first, -outward)):
        std = posterior(end + direction * np.array([0.01, 0.1, 1.0])).std
        assert np.all(np.diff(std, axis=0) > 0)
        assert np.all(np.isfinite(std))


def test_integrating_backwards_is_the_time_reversed_problem():
    grid = np.linspace(0.0, 1.0, 9)
    forward = solve(lambda t, y: field(t, y), (0.0, 1.0), Y0, solver=EK1(4), grid=grid)
    backward = solve(lambda t, y: -field(t, y), (0.0, -1.0), Y0, solver=EK1(4), grid=-grid)
    np.testing.assert_allclose(backward.mean, forward.mean, rtol=1e-13)
    np.testing.assert_allclose(backward.std, forward.std, rtol=1e-10)


@pytest.mark.parametrize("shape", [(), (1,), (1, 2)])
def test_results_have_the_shape_of_the_initial_value(shape):
    y0 = np.ones(shape)
    posterior = solve(lambda t, y: -y, (0.0, 1.0), y0, solver=EK1(2), step=0.25)
    assert posterior.mean.shape == (5, *shape)
    assert posterior.std.shape == (5, *shape)
    assert posterior.cov.shape == (5, y0.size, y0.size)
    assert posterior(0.3).mean.shape == shape
    assert posterior([0.3, 0.4]).std.shape == (2, *shape)
    assert posterior.sample(3).shape == (3, 5, *shape)
    assert posterior.derivative(0.3, 2).mean.shape == shape


def test_a_linear_ode_gives_exact_gaussian_process_regression():
    """EK1 on y' = M y: condition the joint Gaussian of all states on all residuals at once."""
    q, d, number, h = 2, 2, 5, 0.2
    matrix = np.array([[-0.5, 1.0], [-1.0, -0.3]])
    y0 = np.array([1.0, 0.5])
    start = np.concatenate([np.linalg.matrix_power(matrix, k) @ y0 for k in range(q + 1)])
    a = to_numpy(oracle.transition(h, q, d))
    noise = to_numpy(oracle.process_noise(h, q, np.ones(d)))
    size = (q + 1) * d
    mean, cov = np.zeros((number, size)), np.zeros((number, size, number, size))
    previous, marginal = start, np.zeros((size, size))
    for n in range(number):
        previous = a @ previous
        marginal = a @ marginal @ a.T + noise
        mean[n], cov[n, :, n] = previous, marginal
        block = marginal
        for m in range(n + 1, number):
            block = block @ a.T
            cov[n, :, m], cov[m, :, n] = block, block.T
    observe = np.concatenate([-matrix, np.eye(d), np.zeros((d, size - 2 * d))], axis=1)
    big = np.kron(np.eye(number), observe)
    flat_mean, flat_cov = mean.reshape(-1), cov.reshape(number * size, number * size)
    innovation = big @ flat_cov @ big.T
    residual = big @ flat_mean
    sigma2 = residual @ np.linalg.solve(innovation, residual) / (number * d)
    gain = flat_cov @ big.T @ np.linalg.inv(innovation)
    posterior_mean = (flat_mean - gain @ residual).reshape(number, size)
    posterior_cov = sigma2 * (flat_cov - gain @ big @ flat_cov).reshape(number, size, number, size)

    ours = solve(
        lambda t, y: jnp.asarray(matrix) @ y,
        (0.0, h * number),
        y0,
        solver=EK1(q, "fixed"),
        grid=h * np.arange(number + 1),
    )
    np.testing.assert_allclose(ours.mean[1:], posterior_mean[:, :d], rtol=1e-11)
    exact = np.stack([posterior_cov[n, :d, n, :d] for n in range(number)])
    np.testing.assert_allclose(ours.cov[1:], exact, rtol=1e-7, atol=1e-9 * exact.max())
    assert ours.diffusion == pytest.approx(sigma2, rel=1e-9)
