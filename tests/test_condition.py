"""Posteriors given data: against Gaussian regression, Fenrir's likelihood, and themselves."""

import pickle
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, poisson

from probode import (
    EK0,
    EK1,
    DiagonalEK1,
    Implicit,
    Observations,
    PIControl,
    Posterior,
    SecondOrder,
    log_likelihood,
    solve,
    solve_ivp,
)
from tests.test_log_likelihood import RATES, START, TIMES, equation, predators, regression

ANYWHERE = np.linspace(0.05, 3.0, 40)
"""Nodes of steps of 0.1, and times between them."""
COSTLY = [
    pytest.param(solver, marks=pytest.mark.slow)
    for solver in (
        EK1(3, "fixed"),
        EK0(3, "fixed"),
        EK0(3, "fixed-mv"),
        EK0(3, "damped"),
        EK0(3, evaluations=2),
        DiagonalEK1(3, "fixed-mv"),
        DiagonalEK1(3, "dynamic-mv"),
    )
]
"""Whose claims a single datum shows at less cost."""
OTHERS = (EK0(3), DiagonalEK1(3))
EVERY = [EK1(3), EK0(3), *COSTLY]
DENSE = [EK1(3), pytest.param(EK0(3), marks=pytest.mark.slow), *COSTLY]


def label(value):
    return f"{value.name}-{value.diffusion.name}"


@cache
def solved(solver=EVERY[0], calibration="model"):
    span = (0.0, 3.0)
    return solve(predators, span, START, (RATES,), solver=solver, step=0.1, calibration=calibration)


def data_near(posterior, times=TIMES[1:], size=1.0):
    """Data whose noise is of the size of the posterior's own uncertainty."""
    at = posterior(times)
    noise = size * np.sqrt(np.mean(np.square(at.std)))
    draws = np.random.default_rng(0).normal(size=at.mean.shape)
    return Observations(times, at.mean + noise * draws, noise)


def assert_same(found, expected, unit, tolerance=1e-8, t=ANYWHERE):
    """Means and standard deviations, in units of standard deviations."""
    std = unit(t).std
    assert np.max(np.abs(found(t).mean - expected(t).mean) / std) < tolerance
    assert np.max(np.abs(found(t).std - expected(t).std) / std) < tolerance


class TestLinearEquation:
    """Where f is linear, everything is Gaussian regression: all of it has a closed form."""

    times = np.array([0.3, 0.5, 0.5, 1.0, 1.9, 2.0])
    """At nodes and between them, one of them twice."""
    values = np.array([0.9, 0.3, 0.8, 0.1, 0.2, 0.4])
    seen = np.array([0.0, 0.1, 0.5, 0.6, 1.0, 1.3, 1.7, 2.0])

    def posterior(self, order):
        return solve(equation, (0.0, 2.0), 1.0, solver=EK1(order, "fixed"), step=0.25)

    def exact(self, order, noise):
        """Means, covariance and log likelihood, of plain algebra."""
        every = np.concatenate([self.seen, self.times])
        sigma2 = float(self.posterior(order).diffusion)
        mean, cov = regression(order, sigma2, every)
        n = len(self.seen)
        spread = cov[n:, n:] + noise**2 * np.eye(len(self.times))
        gain = np.linalg.solve(spread, cov[n:, :n]).T
        given = mean[:n] + gain @ (self.values - mean[n:])
        likelihood = multivariate_normal.logpdf(self.values, mean[n:], spread)
        return given, cov[:n, :n] - gain @ cov[n:, :n], likelihood

    @pytest.mark.parametrize("order", [2, pytest.param(1, marks=pytest.mark.slow)])
    @pytest.mark.parametrize("noise", [0.3, 0.01])
    def test_means_and_error_bars_and_likelihood(self, order, noise):
        given = self.posterior(order).condition(Observations(self.times, self.values, noise))
        mean, cov, likelihood = self.exact(order, noise)
        np.testing.assert_allclose(given(self.seen).mean, mean, rtol=0, atol=1e-9)
        np.testing.assert_allclose(given(self.seen).std ** 2, np.diag(cov), rtol=0, atol=1e-9)
        assert abs(given.log_likelihood - likelihood) < 1e-8 * abs(likelihood)

    def test_samples_have_the_joint_covariance(self):
        """Of 4000 draws: within five standard deviations of what is expected of so many."""
        given = self.posterior(2).condition(Observations(self.times, self.values, 0.3))
        mean, cov, _ = self.exact(2, 0.3)
        drawn = given.sample(4000, t=self.seen)[:, 1:]
        std = np.sqrt(np.diag(cov)[1:])
        assert np.all(np.abs(drawn.mean(axis=0) - mean[1:]) < 5.0 * std / np.sqrt(4000))
        error = np.abs(np.cov(drawn.T) - cov[1:, 1:]) / np.outer(std, std)
        assert np.all(error < 5.0 * np.sqrt(2.0 / 4000))

    def test_derivatives_follow_the_equation_at_the_nodes_still(self):
        """y' = -y + cos 3t is known there exactly: data cannot change that."""
        given = self.posterior(2).condition(Observations(self.times, self.values, 0.01))
        nodes = np.linspace(0.25, 2.0, 8)
        slope = -given(nodes).mean + np.cos(3.0 * nodes)
        np.testing.assert_allclose(given.derivative(nodes, 1).mean, slope, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "solver",
    [EK1(3), *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS), *COSTLY],
    ids=label,
)
def test_the_likelihood_is_fenrirs_on_the_same_steps(solver):
    posterior = solved(solver)
    data = data_near(posterior)
    fenrir = log_likelihood(
        predators,
        (0.0, 3.0),
        START,
        (RATES,),
        data,
        solver=solver,
        control=PIControl(1e3, 1e3, first_step=0.1, max_step=0.1),
        calibration="model",
    )
    assert abs(posterior.condition(data).log_likelihood - fenrir) < 1e-7 * abs(fenrir)


@pytest.mark.parametrize("solver", DENSE, ids=label)
def test_one_datum_after_the_other_or_all_at_once(solver):
    posterior = solved(solver)
    data = data_near(posterior)
    some = [Observations(data.t[i::2], data.u[i::2], data.noise[i::2]) for i in (1, 0)]
    given, twice = posterior.condition(data), posterior.condition(some[0]).condition(some[1])
    assert_same(twice, given, posterior)
    assert abs(twice.log_likelihood - given.log_likelihood) < 1e-8 * abs(given.log_likelihood)
    np.testing.assert_array_equal(twice.given.t, data.t)
    np.testing.assert_array_equal(twice.given.u, data.u)


@pytest.mark.parametrize("solver", DENSE, ids=label)
def test_data_of_huge_noise_say_nothing(solver):
    """Off the nodes as well, where the datum makes two steps of one."""
    posterior = solved(solver)
    assert_same(posterior.condition(data_near(posterior, [1.1, 1.23], 1e9)), posterior, posterior)


@pytest.mark.parametrize("solver", [DiagonalEK1(3), *EVERY], ids=label)
@pytest.mark.parametrize("calibration", ["model", "defect"])
def test_a_single_datum_as_by_hand(solver, calibration):
    """``m + Σ S⁻¹ (u - m)`` and ``Σ - Σ S⁻¹ Σ`` at the time of the datum, ``S = Σ + R``."""
    posterior = solved(solver, calibration)
    for t in (1.5, 1.53):
        check_by_hand(posterior, t)


def check_by_hand(posterior, t, **options):
    at = posterior.state(t)
    mean, cov = np.ravel(at.mean), np.asarray(at.cov)
    std = np.sqrt(np.diag(cov))
    u, noise = mean + 2.0 * std, float(np.mean(std))
    given = posterior.condition(Observations([t], [u], noise, **options))
    spread = cov + noise**2 * np.eye(len(u))
    gain = np.linalg.solve(spread, cov).T
    found = given.state(t)
    np.testing.assert_allclose(np.ravel(found.mean), mean + gain @ (u - mean), atol=1e-8 * noise)
    np.testing.assert_allclose(found.cov, cov - gain @ cov, atol=1e-8 * noise**2)
    expected = multivariate_normal.logpdf(u, mean, spread)
    assert abs(given.log_likelihood - expected) < 1e-8 * abs(expected)


def test_exact_data_are_met():
    posterior = solved()
    data = data_near(posterior).replace(noise=1e-6 * posterior.std.max())
    found = posterior.condition(data)(TIMES[1:])
    assert np.max(np.abs(found.mean - data.u)) < 1e-3 * posterior.std.max()
    assert np.max(found.std) < 2e-6 * posterior.std.max()


def test_data_close_to_a_node_are_as_those_at_it():
    """Rounding of y over a short time is none of its derivatives: the chain holds together."""
    posterior = solved()
    node = float(posterior.t[15])
    at, close = (
        posterior.condition(Observations([t], posterior(t).mean[None] + 1e-5, 1e-5))
        for t in (node, node + 1e-9)
    )
    assert_same(close, at, posterior, 1e-6)
    assert len(close.t) == len(at.t) + 1
    rounded = posterior.condition(Observations([np.nextafter(node, 3.0)], [[1.0, 1.0]], 1e9))
    assert len(rounded.t) == len(posterior.t)


def test_samples_between_nodes_hold_together_close_to_one_too():
    """Correlations of 4000 draws across a node, within what so many tell."""
    posterior = solved()
    # As many times: one program.
    some = posterior.sample(4000, t=[1.45, 1.55, 2.0])[..., 0]
    more = posterior.sample(4000, t=[1.45, 1.5 + 1e-8, 1.55])[..., 0]
    expected, found = np.corrcoef(some[:, :2].T)[0, 1], np.corrcoef(more[:, [0, 2]].T)[0, 1]
    assert abs(found - expected) < 0.03


def test_an_exact_start_stays_and_its_data_count():
    posterior = solved()
    later = data_near(posterior)
    both = Observations([0.0, *later.t], [START + 0.1, *later.u], [[0.1], *later.noise[:, :1]])
    given, without = posterior.condition(both), posterior.condition(later)
    assert_same(given, without, posterior)
    np.testing.assert_array_equal(given.mean[0], START)
    density = multivariate_normal.logpdf([0.1, 0.1], cov=0.01 * np.eye(2))
    assert abs(given.log_likelihood - without.log_likelihood - density) < 1e-8


def test_missing_values():
    posterior = solved()
    data = data_near(posterior)
    gaps = np.array(data.u)
    gaps[2, 0] = gaps[4] = np.nan
    given = posterior.condition(Observations(data.t, gaps, data.noise))
    first = posterior.condition(Observations(data.t, gaps[:, 0], data.noise[:, 0], lambda y: y[0]))
    second = first.condition(Observations(data.t, gaps[:, 1], data.noise[:, 1], lambda y: y[1]))
    assert_same(second, given, posterior)


def test_calibrated_error_bars_are_those_before_the_data():
    """Samples, marginals and dense output agree; the size of the error enters with the data."""
    posterior = solved(calibration="defect")
    data = data_near(posterior)
    given = posterior.condition(data)
    assert np.all(given(ANYWHERE).std < posterior(ANYWHERE).std * (1.0 + 1e-12))
    drawn, at = given.sample(4000, t=[0.7, 1.5, 2.93]), given([0.7, 1.5, 2.93])
    assert np.all(np.abs(drawn.mean(axis=0) - at.mean) < 5.0 * at.std / np.sqrt(4000))
    assert np.all(np.abs(drawn.std(axis=0) / at.std - 1.0) < 5.0 / np.sqrt(2 * 4000))
    np.testing.assert_allclose(given.mean, given(given.t).mean, rtol=0, atol=1e-14)
    assert given.diagnose() == posterior.diagnose()


def test_backwards_in_time():
    end = solved().mean[-1]
    posterior = solve(predators, (3.0, 0.0), end, (RATES,), solver=EK1(3), step=0.1)
    check_by_hand(posterior, 1.53)
    given = posterior.condition(data_near(posterior, TIMES[:-1]))
    assert np.all(np.diff(given.t) < 0.0)
    # The same problem in the other direction of time.
    mirrored = solve(
        lambda t, y: -predators(t, y, RATES), (-3.0, 0.0), end, solver=EK1(3), step=0.1
    )
    data = data_near(posterior, TIMES[:-1])
    other = mirrored.condition(Observations(-data.t, data.u, data.noise))
    std = posterior(ANYWHERE[:-1]).std
    difference = np.abs(other(-ANYWHERE[:-1]).mean - given(ANYWHERE[:-1]).mean)
    assert np.max(difference / std) < 1e-6


def test_positions_and_velocities_of_second_order():
    def pendulum(t, y, v):
        return -jnp.sin(y)

    posterior = solve(SecondOrder(pendulum), (0.0, 3.0), (1.0, 0.2), solver=EK1(3), step=0.2)
    both = jnp.stack
    for one in (posterior, posterior.calibrate()):
        check_by_hand(one, 1.53, observe=lambda y, v: both([y, v]))


@pytest.mark.slow
def test_implicit_equations():
    def residual(t, y, slope):
        return slope + y**2

    check_by_hand(solve(Implicit(residual), (0.0, 2.0), 1.0, solver=EK1(2), step=0.2), 1.53)


def test_what_is_observed_may_be_any_function():
    """Linearised at the mean; iterated, at the mean given the data: the maximum a posteriori."""
    posterior = solved()
    t, std = 1.5, posterior(1.5).std
    mean, cov = posterior(t).mean, posterior(t).cov

    def seen(y):
        return jnp.stack([jnp.exp((y[0] - mean[0]) / std[0]), y[1]])

    u = np.array([2.5, mean[1]])
    data = Observations([t], u[None], [[0.5, std[1]]], seen)
    once, often = posterior.condition(data), posterior.condition(data, iterations=8)

    def loss(y):
        away = np.linalg.solve(cov, y - mean)
        return (y - mean) @ away + np.sum(((np.asarray(seen(y)) - u) / data.noise[0]) ** 2)

    found, tries = often(t).mean, np.random.default_rng(0).normal(size=(50, 2))
    with jax.enable_x64(True):
        best = loss(found)
        assert all(loss(found + 1e-2 * std * one) > best for one in tries)
        assert loss(once(t).mean) > best


def test_counts():
    """The solution is known far better than counts tell: they have the density at its mean."""
    posterior = solved()
    counts = np.random.default_rng(2).poisson(10.0 * posterior(TIMES).mean)

    def density(u, y):
        return u * jnp.log(10.0 * y) - 10.0 * y - jax.scipy.special.gammaln(u + 1.0)

    given = posterior.condition(Observations(TIMES, counts, log_density=density))
    expected = poisson.logpmf(counts, 10.0 * posterior(TIMES).mean).sum()
    assert abs(given.log_likelihood - expected) < 1e-3
    assert np.all(given(ANYWHERE).std < posterior(ANYWHERE).std * (1.0 + 1e-12))


@pytest.mark.parametrize("calibration", ["model", "defect"])
def test_files_and_pickles(calibration, tmp_path):
    posterior = solved(calibration=calibration)
    given = posterior.condition(data_near(posterior))
    given.save(tmp_path / "given.npz")
    loaded = Posterior.load(tmp_path / "given.npz")
    for again in (loaded, pickle.loads(pickle.dumps(given)), jax.tree.map(np.asarray, given)):
        np.testing.assert_array_equal(again(ANYWHERE).mean, given(ANYWHERE).mean)
        np.testing.assert_array_equal(again(ANYWHERE).std, given(ANYWHERE).std)
        assert again.log_likelihood == given.log_likelihood
    # A posterior from a file has no vector field: none is needed.
    posterior.save(tmp_path / "before.npz")
    data = data_near(posterior)
    found = Posterior.load(tmp_path / "before.npz").condition(data)
    np.testing.assert_array_equal(found.mean, given.mean)


def test_it_says_what_it_is_and_draws_the_data():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    posterior = solved(calibration="defect")
    given = posterior.condition(data_near(posterior))
    assert "given data at 6 times, log likelihood" in str(given)
    assert "given data at 6 times" in given._repr_html_()
    figure = given.plot()
    points = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    np.testing.assert_array_equal(points[0].get_ydata(), given.given.u[:, 0])
    matplotlib.pyplot.close(figure)


def test_steps_and_diffusions_of_parts_of_steps():
    """A datum cuts a step in two, which have the diffusion of the whole."""
    posterior = solved()
    given = posterior.condition(data_near(posterior, [1.53]))
    np.testing.assert_allclose(given.step_sizes, np.diff(given.t), rtol=1e-12)
    i = int(np.searchsorted(given.t, 1.53))
    np.testing.assert_allclose(given.diffusion[i - 1 : i + 1], posterior.diffusion[i - 1])


def test_numpy_functions_of_solve_ivp():
    def numpy_predators(t, y):
        a, b, c, d = RATES
        return np.array([(a - b * y[1]) * y[0], (d * y[0] - c) * y[1]])

    result = solve_ivp(numpy_predators, (0.0, 3.0), START, rtol=1e-3, order=3)
    assert result.posterior.calibration is not None
    check_by_hand(result.posterior, 1.53)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: solved().condition(TIMES), "data must be Observations"),
        (lambda: solved().condition(Observations([3.5], [[1.0, 1.0]], 0.1)), "outside .* at 3.5"),
        (lambda: solved().condition(Observations([1.5], [1.0], 0.1)), "observe="),
        (lambda: solved().condition(data_near(solved()), iterations=0), "iterations must be"),
        (lambda: solved().log_likelihood, "no data yet"),
        (lambda: solved().condition(data_near(solved())).calibrate(), "before condition"),
        (lambda: solved().condition(data_near(solved())).global_error(), "before condition"),
        (
            lambda: solved().condition(Observations([1.5], [1.0], 0.1, lambda y: jnp.log(-y[0]))),
            "not finite at the mean .* t = 1.5",
        ),
        (lambda: jax.jit(lambda: decay(grid=GRID).condition(ONE).mean)(), "needs a finished solve"),
        (lambda: decay(save_at=[1.0]).condition(ONE), "again without save_at"),
        (lambda: decay(smooth=False).condition(ONE), "smooth=True"),
        (lambda: decay(bounds=(0.0, np.inf)).condition(ONE), "without invariants= and bounds="),
        (lambda: decay(np.ones(400)).condition(ONE), "1600 rows .4 derivatives of 400 comp"),
    ],
)
def test_bad_input_is_named(make, says):
    with pytest.raises((TypeError, ValueError), match=says):
        make()


ONE = Observations([0.5], [0.6], 0.1)


GRID = np.linspace(0.0, 1.0, 5)


def decay(y0=1.0, grid=None, **options):
    steps = {"step": 0.25} if grid is None else {"grid": grid}
    return solve(lambda t, y: -y, (0.0, 1.0), y0, solver=EK0(3), **steps, **options)
