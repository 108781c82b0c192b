"""Likelihoods: against exact Gaussian regression, each other, finite differences."""

from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp as scipy_solve
from scipy.stats import lognorm, multivariate_normal, nbinom, norm, poisson

from probode import EK0, EK1, DiagonalEK1, Observations, PIControl, log_likelihood
from probode.engines.native.library import disabled

METHODS = ("fenrir", "dalton", "filter", "plain")
TIMES = np.linspace(0.0, 3.0, 7)
START = np.array([2.0, 1.0])
RATES = np.array([1.1, 0.7, 1.3, 0.6])


def predators(t, y, rates):
    a, b, c, d = rates
    return jnp.stack([(a - b * y[1]) * y[0], (d * y[0] - c) * y[1]])


def solution(t=TIMES, rates=RATES, start=START):
    def f(t, y):
        return [(rates[0] - rates[1] * y[1]) * y[0], (rates[3] * y[0] - rates[2]) * y[1]]

    found = scipy_solve(f, (0.0, max(t)), start, t_eval=t, rtol=1e-12, atol=1e-12, method="DOP853")
    return found.y.T


VALUES = solution() + 0.1 * np.random.default_rng(1).normal(size=(len(TIMES), 2))
DATA = Observations(TIMES, VALUES, noise=0.1)
FINE = PIControl(1e-9, 1e-9)


def likelihood(rates=RATES, data=DATA, **options):
    return log_likelihood(predators, (0.0, 3.0), START, (rates,), data, **options)


@pytest.mark.parametrize(
    ("solver", "method"),
    [
        *((EK1(3), method) for method in METHODS),
        *((EK0(3), method) for method in ("fenrir", "plain")),
        *(pytest.param(EK0(3), method, marks=pytest.mark.slow) for method in METHODS[1:3]),
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_all_methods_agree_at_small_steps_with_the_exact_solution(method, solver):
    exact = norm.logpdf(VALUES, solution(), 0.1).sum()
    assert abs(likelihood(method=method, solver=solver, control=FINE) - exact) < 1e-6


def test_every_datum_counts_the_first_at_t0_and_the_last_too():
    total = likelihood(control=FINE)
    for k in (0, 3, 6):
        rest = np.delete(np.arange(7), k)
        less = likelihood(data=Observations(TIMES[rest], VALUES[rest], 0.1), control=FINE)
        alone = norm.logpdf(VALUES[k], solution()[k], 0.1).sum()
        assert abs(total - less - alone) < 1e-6


def test_order_of_the_data_does_not_matter():
    order = np.random.default_rng(0).permutation(7)
    shuffled = Observations(TIMES[order], VALUES[order], 0.1)
    assert likelihood(data=shuffled) == likelihood()


def test_the_same_time_may_come_twice():
    some = [0, 0, 2, 3, 3, 6, 6]  # as many as elsewhere: one program
    twice = Observations(TIMES[some], VALUES[some], 0.1)
    exact = norm.logpdf(VALUES[some], solution()[some], 0.1).sum()
    for method in METHODS:
        found = likelihood(data=twice, method=method, solver=EK1(3), control=FINE)
        assert abs(found - exact) < 1e-6


def test_missing_values_are_left_out():
    gaps = VALUES.copy()
    gaps[2, 0] = gaps[6, 1] = gaps[4] = np.nan
    known = ~np.isnan(gaps)
    exact = norm.logpdf(VALUES, solution(), 0.1)[known].sum()
    assert abs(likelihood(data=Observations(TIMES, gaps, 0.1), control=FINE) - exact) < 1e-6


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(np.array([0.1, 0.3]), id="per component"),
        pytest.param(0.1 * (1.0 + np.arange(7.0))[:, None], id="per time"),
        pytest.param(np.array([[0.02, 0.01], [0.01, 0.03]]), id="covariance"),
    ],
)
def test_noise_in_all_its_forms(noise):
    gaps = VALUES.copy()
    gaps[3, 1] = np.nan
    total = 0.0
    for k, (u, y) in enumerate(zip(gaps, solution(), strict=True)):
        spread = noise if noise.shape == (2, 2) else np.diag(np.broadcast_to(noise, (7, 2))[k] ** 2)
        on = ~np.isnan(u)
        total += multivariate_normal.logpdf(u[on], y[on], spread[np.ix_(on, on)])
    assert abs(likelihood(data=Observations(TIMES, gaps, noise), control=FINE) - total) < 1e-6


def test_what_is_observed_may_be_any_function_of_time_and_state():
    def seen(t, y):
        return jnp.log(y[0] * y[1]) + t

    exact = solution()
    values = np.log(exact[:, 0] * exact[:, 1]) + TIMES + 0.05
    found = likelihood(data=Observations(TIMES, values, 0.1, seen), control=FINE)
    assert abs(found - 7 * norm.logpdf(0.05, 0.0, 0.1)) < 1e-6


def equation(t, y):
    return -y + jnp.cos(3.0 * t)


class TestLinearEquation:
    """Where f is linear, the posterior is Gaussian regression: all of it has a closed form."""

    times = np.array([0.5, 0.5, 1.0, 2.0])
    values = np.array([0.3, 0.8, 0.1, 0.4])
    grid = PIControl(1e3, 1e3, first_step=0.25, max_step=0.25)
    """Steps that leave an uncertainty as large as the noise."""

    @pytest.mark.parametrize(
        "solver",
        [EK1(2, "fixed"), pytest.param(EK1(1, "fixed"), marks=pytest.mark.slow)],
        ids=lambda s: s.name,
    )
    def test_fenrir_is_the_density_of_the_data_under_the_posterior(self, solver):
        data = Observations(self.times, self.values, 0.05)
        found = log_likelihood(
            equation,
            (0.0, 2.0),
            1.0,
            (),
            data,
            solver=solver,
            control=self.grid,
            calibration="model",
            diffusion=2.0,
        )
        mean, covariance = regression(solver.order, 2.0, self.times)
        exact = multivariate_normal.logpdf(self.values, mean, covariance + 0.05**2 * np.eye(4))
        assert abs(found - exact) < 1e-8 * abs(exact)

    @pytest.mark.parametrize("order", [2, pytest.param(1, marks=pytest.mark.slow)])
    def test_dalton_is_the_same(self, order):
        data = Observations(self.times, self.values, 0.05)
        options = {"solver": EK1(order, "fixed"), "control": self.grid, "diffusion": 2.0}
        fenrir, dalton = (
            log_likelihood(
                equation,
                (0.0, 2.0),
                1.0,
                (),
                data,
                method=method,
                calibration="model",
                **options,
            )
            for method in ("fenrir", "dalton")
        )
        assert abs(fenrir - dalton) < 1e-8 * abs(fenrir)


def regression(order, diffusion, times):
    """y' = -y + cos 3t, y(0) = 1, under IWP(order) with exact derivatives at 0, by plain algebra.

    The prior of (y, y') at the nodes of the grid is a Gaussian process with known start; it is
    conditioned on y' + y - cos 3t = 0 there. Covariances from the integral of the kernel.
    """
    grid = np.linspace(0.0, 2.0, 9)[1:]
    start = [1.0]
    f = [1.0, 0.0, -9.0, 0.0]  # derivatives of cos 3t
    for k in range(order):
        start.append(-start[k] + f[k])

    def mean(i, t):
        return sum(start[j] * t ** (j - i) / factorial(j - i) for j in range(i, order + 1))

    nodes, weights = np.polynomial.legendre.leggauss(2 * order + 2)

    def cov(i, s, j, t):
        end = min(s, t)
        x, w = end * (nodes + 1) / 2, end * weights / 2
        a = (s - x) ** (order - i) / factorial(order - i)
        b = (t - x) ** (order - j) / factorial(order - j)
        return diffusion * np.sum(w * a * b)

    def block(f):
        return np.array([[f(s, t) for t in grid] for s in grid])

    zz = block(lambda s, t: cov(1, s, 1, t) + cov(1, s, 0, t) + cov(0, s, 1, t) + cov(0, s, 0, t))
    z = np.array([mean(1, t) + mean(0, t) - np.cos(3 * t) for t in grid])
    yz = np.array([[cov(0, s, 1, t) + cov(0, s, 0, t) for t in grid] for s in times])
    yy = np.array([[cov(0, s, 0, t) for t in times] for s in times])
    gain = np.linalg.solve(zz, yz.T).T
    return np.array([mean(0, t) for t in times]) - gain @ z, yy - gain @ yz.T


class TestLooseTolerances:
    """The estimated error is taken off: what is left is far smaller than what the solver does."""

    exact = norm.logpdf(VALUES, solution(), 0.1).sum()

    @pytest.mark.parametrize("solver", [EK0(2), EK1(2)], ids=lambda s: s.name)
    def test_corrected_likelihoods_are_nearly_exact(self, solver):
        loose = {"solver": solver, "control": PIControl(1e-2, 1e-2)}
        wrong = abs(likelihood(method="plain", **loose) - self.exact)
        assert abs(likelihood(**loose) - self.exact) < 0.2 * wrong

    @pytest.mark.parametrize("calibration", ["corrected", "defect"])
    @pytest.mark.parametrize("solver", [EK0(2), EK1(2)], ids=lambda s: s.name)
    def test_kernels_and_jax_agree(self, solver, calibration):
        loose = {"solver": solver, "control": PIControl(1e-2, 1e-2), "calibration": calibration}
        by_kernels = likelihood(**loose)
        with disabled():
            in_jax = likelihood(**loose)
        assert abs(by_kernels - in_jax) < 1e-9 * abs(in_jax)

    def test_steps_held_fixed_leave_it_smooth(self):
        """Second differences over a millionth of the parameters show no jumps."""
        grid = np.linspace(0.0, 3.0, 20)
        rates = RATES * (1.0 + 1e-6 * np.arange(5)[:, None])
        values = [likelihood(r, grid=grid, solver=EK1(2)) for r in rates]
        assert np.max(np.abs(np.diff(values, 2))) < 1e-7


class TestDerivatives:
    @pytest.mark.parametrize(
        ("method", "options"),
        [
            pytest.param("fenrir", {"calibration": "model"}, marks=pytest.mark.slow),
            pytest.param(
                "fenrir",
                {"calibration": "model", "diffusion": 50.0},
                marks=pytest.mark.slow,
            ),
            ("dalton", {}),
            pytest.param("filter", {}, marks=pytest.mark.slow),
        ],
    )
    def test_those_of_the_model_are_those_of_the_number(self, method, options):
        """On steps of given length, which do not move with the parameters."""
        kind = "fixed" if "diffusion" in options else "dynamic"
        control = PIControl(1e3, 1e3, first_step=0.1, max_step=0.1)

        def value(p):
            return log_likelihood(
                predators,
                (0.0, 3.0),
                p[4:6],
                (p[:4],),
                DATA.replace(noise=p[6]),
                method=method,
                solver=EK1(2, kind),
                control=control,
                **options,
            )

        p = np.concatenate([RATES, START, [0.1]])
        check_gradient(value, p)

    @pytest.mark.parametrize(
        ("method", "solver"),
        [
            ("plain", EK0(5, evaluations=2)),
            pytest.param("plain", EK1(5), marks=pytest.mark.slow),
            ("fenrir", EK1(5)),
            ("fenrir", EK0(3)),
            pytest.param("fenrir", DiagonalEK1(3), marks=pytest.mark.slow),
        ],
        ids=str,
    )
    def test_those_of_the_solution(self, method, solver):
        def value(p):
            return log_likelihood(
                predators,
                (0.0, 3.0),
                p[4:6],
                (p[:4],),
                DATA.replace(noise=p[6]),
                method=method,
                solver=solver,
                control=FINE,
            )

        check_gradient(value, np.concatenate([RATES, START, [0.1]]))

    @pytest.mark.slow
    def test_by_the_time_of_the_start(self):
        def value(t0):
            return log_likelihood(
                predators, (t0, 3.0), START, (RATES,), later, method="plain", control=FINE
            )

        later = Observations(TIMES[1:], VALUES[1:], 0.1)
        check_gradient(lambda p: value(p[0]), np.array([0.1]))

    def test_single_precision_users_need_no_switch(self):
        assert not jax.config.jax_enable_x64
        slope = jax.jit(jax.grad(lambda rates: likelihood(rates)))(jnp.asarray(RATES))
        with jax.enable_x64(True):
            exact = jax.grad(lambda rates: likelihood(rates))(jnp.asarray(RATES))
        assert slope.dtype == jnp.float32
        np.testing.assert_allclose(slope, exact, rtol=1e-4)

    def test_many_parameters_at_once_under_vmap(self):
        every = RATES * np.array([[1.0], [1.1], [0.9]])
        found = jax.vmap(lambda rates: likelihood(rates, method="plain"))(jnp.asarray(every))
        one_by_one = [likelihood(rates.astype(np.float32), method="plain") for rates in every]
        np.testing.assert_allclose(found, one_by_one, rtol=1e-5)


def check_gradient(value, p):
    """Against central differences of fourth order, all in double precision."""
    with jax.enable_x64(True):
        slope = np.asarray(jax.grad(value)(jnp.asarray(p)))
        forward = np.asarray(jax.jacfwd(value)(jnp.asarray(p)))
    for i in range(len(p)):
        h = 1e-3 * abs(p[i])
        e = h * np.eye(len(p))[i]
        near = value(p + e) - value(p - e)
        far = value(p + 2 * e) - value(p - 2 * e)
        differences = (8 * near - far) / (12 * h)
        size = np.max(np.abs(slope))
        assert abs(slope[i] - differences) < 1e-6 * size + 1e-6 * abs(differences), i
    np.testing.assert_allclose(slope, forward, rtol=1e-12)


class TestOtherDensities:
    exact = solution()

    def check(self, u, density, reference, tolerance=1e-6):
        data = Observations(TIMES, u, log_density=density)
        for method in METHODS:
            found = likelihood(data=data, method=method, control=FINE, solver=EK1(3))
            assert abs(found - reference) < tolerance, method

    def test_counts(self):
        counts = np.random.default_rng(2).poisson(10.0 * self.exact)
        counts[1, 0] = 0

        def density(u, y):
            return u * jnp.log(10.0 * y) - 10.0 * y - jax.scipy.special.gammaln(u + 1.0)

        self.check(counts, density, poisson.logpmf(counts, 10.0 * self.exact).sum(), 1e-5)

    @pytest.mark.slow
    def test_overdispersed_counts(self):
        counts = np.random.default_rng(2).poisson(10.0 * self.exact)

        def density(u, y):
            mean, r = 10.0 * y, 5.0
            gammaln = jax.scipy.special.gammaln
            return (
                gammaln(u + r)
                - gammaln(r)
                - gammaln(u + 1.0)
                + r * jnp.log(r / (r + mean))
                + u * jnp.log(mean / (r + mean))
            )

        p = 5.0 / (5.0 + 10.0 * self.exact)
        self.check(counts, density, nbinom.logpmf(counts, 5.0, p).sum(), 1e-5)

    def test_values_with_relative_errors(self):
        u = self.exact * np.exp(0.1 * np.random.default_rng(3).normal(size=self.exact.shape))

        def density(u, y):
            return jax.scipy.stats.norm.logpdf(jnp.log(u), jnp.log(y), 0.1) - jnp.log(u)

        self.check(u, density, lognorm.logpdf(u, 0.1, scale=self.exact).sum())


class TestFailures:
    def test_no_solution_is_minus_infinity_with_derivatives_of_zero(self):
        def blows_up(t, y, rate):
            return rate * y**2

        data = Observations([1.0, 3.0], [1.0, 1.0], 0.1)

        def value(rate):
            return log_likelihood(blows_up, (0.0, 3.0), 1.0, (rate,), data, max_steps=500)

        assert value(1.0) == -np.inf
        assert np.isfinite(value(0.1))
        found, slope = jax.value_and_grad(value)(1.0)
        assert found == -np.inf and slope == 0.0

    @pytest.mark.parametrize(
        "method",
        ["fenrir", "plain", *(pytest.param(m, marks=pytest.mark.slow) for m in METHODS[1:3])],
    )
    def test_parameters_that_are_not_finite(self, method):
        rates = jnp.asarray(RATES).at[1].set(jnp.nan)
        found, slope = jax.value_and_grad(lambda r: likelihood(r, method=method))(rates)
        assert found == -np.inf and np.all(slope == 0.0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Observations([0.0, 1.0], [1.0], 0.1), "one row for each of the 2 times"),
        (lambda: Observations([0.0], [1.0], -0.1), "noise must be positive"),
        (lambda: Observations([0.0], [1.0]), "noise is missing"),
        (lambda: Observations([np.nan], [1.0], 0.1), "t must be finite"),
        (lambda: Observations([0.0], [np.inf], 0.1), "u must be finite"),
        (lambda: Observations([0.0, 1.0], np.ones((2, 2)), np.eye(2)), "covariance"),
        (lambda: likelihood(data=Observations([-1.0], [[1.0, 1.0]], 0.1)), "outside"),
        (lambda: likelihood(data=Observations([3.5], [[1.0, 1.0]], 0.1)), "outside"),
        (lambda: likelihood(data=Observations([1.0], [1.0], 0.1)), "observe="),
        (lambda: likelihood(method="plain", calibration="defect"), "no uncertainty"),
        (lambda: likelihood(diffusion=1.0), "fixed diffusion"),
        (lambda: likelihood(data=VALUES), "data must be Observations"),
    ],
)
def test_bad_input_is_named(make, says):
    with pytest.raises((TypeError, ValueError), match=says):
        make()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("flip", [1, -1], ids=["in order", "not in order"])
def test_reverse_mode_by_the_noise_needs_no_switch(flip):
    """Of the model ``y = exp(-t)``, with the noise ``s (1, 2, 3)``: by differences in 64 bits."""
    t, u, sizes = np.array([0.5, 1.0, 2.0]), np.array([0.6, 0.4, 0.1]), np.array([1.0, 2.0, 3.0])

    def value(s):
        data = Observations(t[::flip], u[::flip], s * sizes[::flip])
        control = PIControl(1e-6, 1e-6)
        return log_likelihood(
            lambda t, y: -y, (0.0, 2.0), 1.0, (), data, solver=EK0(2), control=control
        )

    h = 1e-4
    slope = (float(value(0.1 + h)) - float(value(0.1 - h))) / (2.0 * h)
    # Single precision, and a difference whose error is of the order h².
    assert abs(float(jax.grad(value)(0.1)) / slope - 1.0) < 1e-4


@pytest.mark.parametrize("method", ["fenrir", "plain"])
def test_a_function_without_any_numbers_of_its_own(method):
    data = Observations([0.5, 1.0], [0.6, 0.4], 0.1)
    found = log_likelihood(
        lambda t, y: -y,
        (0.0, 1.0),
        1.0,
        data=data,
        method=method,
        solver=EK0(2),
        control=PIControl(1e-6, 1e-6),
    )
    expected = norm.logpdf([0.6, 0.4], np.exp([-0.5, -1.0]), 0.1).sum()
    assert abs(float(found) - expected) < 1e-4  # an error of 1e-6 in units of the noise
