"""Fits: against closed forms, SciPy's curve_fit on exact solutions, and each other."""

import math
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp as scipy_solve
from scipy.linalg import expm
from scipy.optimize import curve_fit, minimize
from scipy.stats import chi2, nbinom, norm
from test_compiled_once import compilations

import probode
from probode import (
    EK0,
    EK1,
    HalfCauchy,
    HalfNormal,
    LogNormal,
    Normal,
    Observations,
    Parameter,
    PIControl,
    SecondOrder,
    Uniform,
    fit,
)
from probode.inference.objective import Look, Objective
from probode.inference.optimise import search

TIMES = np.linspace(0.0, 3.0, 9)
RATE, START, NOISE = 0.8, 2.0, 0.05
VALUES = START * np.exp(-RATE * TIMES) + NOISE * np.random.default_rng(4).normal(size=9)
CONTROL = PIControl(1e-8, 1e-8)
OPTIONS = {"solver": EK0(3), "control": CONTROL, "method": "plain"}
"""With the likelihood that is compiled soonest, where any will do."""


def decay(t, y, p):
    return -p.rate * y


def exact(t, rate, start):
    return start * np.exp(-rate * t)


def start_of(p):
    return p.start


def fitted(parameters=None, data=(TIMES, VALUES), noise=NOISE, **options):
    parameters = parameters or {"rate": (0.5, 0.0), "start": 1.5}
    return fit(decay, data, parameters, y0=start_of, noise=noise, **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def found():
    return fitted(method="fenrir")


class TestAgainstCurveFit:
    """The same least squares, on the exact solution."""

    best, cov = curve_fit(exact, TIMES, VALUES, [0.5, 1.5], sigma=np.full(9, NOISE))

    def test_estimates(self, found):
        assert found.success
        error = np.array([found.estimates["rate"], found.estimates["start"]]) - self.best
        # A step would gain less than 1e-6: within 0.0015 standard errors.
        assert np.all(np.abs(error) < 2e-3 * np.sqrt(np.diagonal(found.covariance)))

    def test_log_likelihood_and_criteria(self, found):
        expected = norm.logpdf(VALUES, exact(TIMES, *self.best), NOISE).sum()
        assert abs(found.log_likelihood - expected) < 1e-5
        assert found.n_data == 9
        assert abs(found.aic - (4.0 - 2.0 * expected)) < 1e-4
        assert abs(found.bic - (2.0 * np.log(9.0) - 2.0 * expected)) < 1e-4

    def test_residuals(self, found):
        expected = VALUES - exact(TIMES, *self.best)
        np.testing.assert_allclose(found.residuals[:, 0], expected, atol=1e-3 * NOISE)

    def test_standard_errors_are_those_of_the_hessian(self, found):
        def value(rate, start):
            return norm.logpdf(VALUES, exact(TIMES, rate, start), NOISE).sum()

        h, (a, b) = 1e-3, self.best
        aa = (value(a + h, b) - 2 * value(a, b) + value(a - h, b)) / h**2
        bb = (value(a, b + h) - 2 * value(a, b) + value(a, b - h)) / h**2
        ab = value(a + h, b + h) - value(a + h, b - h) - value(a - h, b + h) + value(a - h, b - h)
        matrix = -np.array([[aa, ab / (4 * h**2)], [ab / (4 * h**2), bb]])
        np.testing.assert_allclose(found.covariance, np.linalg.inv(matrix), rtol=2e-3)
        errors = found.standard_errors
        np.testing.assert_allclose(
            [errors["rate"], errors["start"]], np.sqrt(np.diagonal(found.covariance))
        )
        r = found.covariance[0, 1] / (errors["rate"] * errors["start"])
        assert abs(found.correlations[0, 1] - r) < 1e-12


class TestLinearModel:
    """``y' = p``: a straight line, of which ordinary least squares knows everything."""

    design = np.stack([TIMES, np.ones(9)], axis=1)
    values = 0.7 * TIMES + 1.0 + 0.1 * np.random.default_rng(1).normal(size=9)
    best, squares = np.linalg.lstsq(design, values, rcond=None)[:2]
    cov = 0.01 * np.linalg.inv(design.T @ design)

    def line(self, parameters, **options):
        def f(t, y, p):
            return p["slope"] + 0.0 * y

        options = {"noise": 0.1, **OPTIONS, **options}
        return fit(f, (TIMES, self.values), parameters, y0=lambda p: p["level"], **options)

    def test_estimates_and_covariance(self):
        found = self.line({"slope": 0.0, "level": 0.0})
        errors = np.sqrt(np.diagonal(self.cov))
        values = np.array(list(found.estimates.values()))
        assert np.all(np.abs(values - self.best) < 2e-3 * errors)
        np.testing.assert_allclose(found.covariance, self.cov, rtol=1e-6)

    def test_gaussian_priors_give_the_gaussian_posterior(self):
        prior = np.array([0.3, 0.05])
        parameters = {
            "slope": Parameter(0.0, prior=Normal(0.3, std=0.1)),
            "level": Parameter(0.0, prior=Normal(0.05, 0.04)),
        }
        found = self.line(parameters)
        precision = np.diag([100.0, 25.0])
        cov = np.linalg.inv(np.linalg.inv(self.cov) + precision)
        mean = cov @ (np.linalg.inv(self.cov) @ self.best + precision @ prior)
        values = np.array(list(found.estimates.values()))
        assert np.all(np.abs(values - mean) < 2e-3 * np.sqrt(np.diagonal(cov)))
        np.testing.assert_allclose(found.covariance, cov, rtol=1e-6)
        log_prior = norm.logpdf(values, prior, [0.1, 0.2]).sum()
        assert abs(found.log_prior - log_prior) < 1e-9

    def test_the_noise_may_be_fitted(self):
        """Its maximum is the root of the mean square of the residuals."""
        found = self.line({"slope": 0.0, "level": 0.0, "s": (0.3, 0.0)}, noise="s")
        expected = np.sqrt(self.squares[0] / 9.0)
        assert abs(found.estimates["s"] / expected - 1.0) < 1e-3
        # Of the maximum likelihood estimate: s / sqrt(2 n).
        assert abs(found.standard_errors["s"] / (expected / np.sqrt(18.0)) - 1.0) < 1e-2

    def test_the_profile_is_a_parabola(self):
        found = self.line({"slope": 0.0, "level": 0.0})
        profile = found.profile("slope", points=5)
        std = np.sqrt(self.cov[0, 0])
        below = -0.5 * ((profile.values - self.best[0]) / std) ** 2
        np.testing.assert_allclose(profile.log_likelihoods - found.log_likelihood, below, atol=1e-4)
        ends = self.best[0] + np.array([-1.0, 1.0]) * std * np.sqrt(chi2.ppf(0.95, 1))
        np.testing.assert_allclose(profile.interval, ends, atol=2e-3 * std)

    def test_predictions_have_the_uncertainty_of_the_parameters(self):
        found = self.line({"slope": 0.0, "level": 0.0})
        prediction = found.predict([1.0, 4.0], samples=3)  # beyond the data, too
        rows = np.array([[1.0, 1.0], [4.0, 1.0]])
        expected = np.sqrt(np.diagonal(rows @ self.cov @ rows.T))
        np.testing.assert_allclose(prediction.std, expected, rtol=1e-4)
        np.testing.assert_allclose(prediction.mean, rows @ self.best, atol=1e-3)
        assert prediction.samples.shape == (3, 2)
        assert found.predict(1.0).mean.shape == ()


@pytest.fixture(scope="module")
def both():
    """``y' = p, y(0) = 1``, measured with an unknown shift in each of two data sets."""
    rng = np.random.default_rng(2)
    sets = [0.7 * TIMES + 1.0 + shift + 0.1 * rng.normal(size=9) for shift in (0.3, -0.5)]
    return fit(
        lambda t, y, p: p.slope + 0.0 * y,
        [(TIMES, u) for u in sets],
        {"slope": 0.5, "shift": Parameter(0.1, own=True)},
        y0=1.0,
        noise=0.1,
        observe=lambda t, y, p: y + p.shift,
        **OPTIONS,
    )


class TestPredictionsOfWhatIsObserved:
    """Variances of a linear model, exact by hand."""

    times = np.array([0.0, 1.0, 5.0])

    def rows(self, s):
        """Derivatives of ``1 + slope t + shift[s]`` by slope, shift[0] and shift[1]."""
        return np.stack([self.times, np.full(3, s == 0), np.full(3, s == 1)], axis=1)

    @pytest.mark.parametrize("own", [True, False], ids=["as measured", "the function itself"])
    def test_its_parameters_are_as_uncertain_there(self, both, own):
        observe = both.observe if own else lambda t, y, p: y + p.shift
        for s, prediction in enumerate(both.predict(self.times, observe=observe)):
            expected = np.sqrt(np.diagonal(self.rows(s) @ both.covariance @ self.rows(s).T))
            np.testing.assert_allclose(prediction.std, expected, rtol=1e-6)
            mean = 1.0 + both.estimates["slope"] * self.times + both.estimates["shift"][s]
            np.testing.assert_allclose(prediction.mean, mean, rtol=1e-9)

    def test_samples_draw_them(self, both):
        prediction = both.predict(self.times, observe=both.observe, samples=80)[1]
        # The standard deviation of 80 draws is known to 8 %: bounds at four times that.
        np.testing.assert_allclose(prediction.samples.std(axis=0), prediction.std, rtol=0.32)

    def test_figures_draw_them(self, both):
        pytest.importorskip("matplotlib").use("Agg")
        band = both.plot().axes[0].collections[0].get_paths()[0].vertices
        at_start = band[np.isclose(band[:, 0], 0.0), 1]
        error = np.sqrt(both.covariance[1, 1])
        np.testing.assert_allclose(np.ptp(at_start), 2.0 * 1.96 * error, rtol=1e-3)

    def test_scales_and_logarithms_by_the_delta_method(self, both):
        s, slope, shift = 0, both.estimates["slope"], both.estimates["shift"]

        def observe(t, y, p):
            return p.slope * jnp.log(y + p.shift)

        found = both.predict(self.times, observe=observe)[s]
        level = 1.0 + slope * self.times + shift[s]
        rows = slope / level[:, None] * self.rows(s)
        rows[:, 0] += np.log(level)
        expected = np.sqrt(np.diagonal(rows @ both.covariance @ rows.T))
        # Differences over half a standard error: to the square of its relative size.
        np.testing.assert_allclose(found.parameter_std, expected, rtol=1e-3)


def test_predictions_know_what_the_data_do_not_tell():
    """The second component was not measured: its parameters are unknown, and so is it."""

    def f(t, y, p):
        return jnp.stack([-p.rate * y[0], p.gain * y[0] - y[1]])

    parameters = {"rate": (0.5, 0.0), "gain": 1.0}
    options = {"y0": [2.0, 0.0], "noise": 0.05, "observe": lambda y: y[0], **OPTIONS}
    found = fit(f, (TIMES, VALUES), parameters, **options)
    assert found.estimates["gain"] == 1.0
    std = found.predict([1.0, 2.0]).std
    assert np.all(np.isinf(std[:, 1])) and np.all(std[:, 0] < 0.05)
    with pytest.raises(ValueError, match=r"that the data do not determine \(gain"):
        found.predict([1.0], samples=2)
    assert np.all(np.isfinite(found.predict([1.0], samples=2, observe=found.observe).samples))


def test_there_is_no_prediction_beyond_a_solution():
    """``y' = r y²`` is infinite at ``2 / r``."""
    u = 1.0 / (2.0 - 0.6 * TIMES[:5])
    options = {**OPTIONS, "max_steps": 300}
    found = fit(blows_up, (TIMES[:5], u), {"rate": 0.5}, y0=0.5, noise=0.02, **options)
    with pytest.raises(ValueError, match="no solution beyond t"):
        found.predict([1.0, 3.4])


def test_a_fixed_parameter_stays():
    found = fitted({"rate": (0.5, 0.0), "start": Parameter(2.0, fixed=True)})
    assert found.estimates["start"] == 2.0
    assert found.names == ["rate"] and found.covariance.shape == (1, 1)
    best, _ = curve_fit(lambda t, k: exact(t, k, 2.0), TIMES, VALUES, [0.5])
    assert abs(found.estimates["rate"] - best[0]) < 2e-3 * found.standard_errors["rate"]


def test_a_parameter_at_its_bound_is_said_to_be_there():
    found = fitted({"rate": (0.5, 0.0, 0.7), "start": 1.5})
    assert abs(found.estimates["rate"] - 0.7) < 1e-3
    assert found.success
    assert any("rate is at its upper bound" in warning for warning in found.warnings)
    # The other one is as certain as if this one were held there.
    assert np.isnan(found.standard_errors["rate"])
    alone = NOISE / np.sqrt(np.sum(exact(TIMES, 0.7, 1.0) ** 2))
    assert abs(found.standard_errors["start"] / alone - 1.0) < 1e-2


class TestUndetermined:
    """Numbers of which the data tell nothing stay at their starts and are named."""

    def parts(self, f, parameters, values=VALUES, **options):
        return fit(f, (TIMES, values), parameters, noise=NOISE, **{"y0": 2.0, **OPTIONS, **options})

    @pytest.mark.parametrize("idle", [1.0, (1.0, 0.0), (1.0, 0.5, 8.0)])
    def test_one_that_is_never_read(self, idle):
        found = fitted({"rate": (0.5, 0.0), "start": 1.5, "idle": idle})
        assert abs(found.estimates["idle"] - 1.0) < 1e-12 and found.success
        (warning,) = found.warnings
        assert "these data: idle." in warning
        assert np.isinf(found.standard_errors["idle"])

    @pytest.mark.parametrize("control", [CONTROL, PIControl(1e-3, 1e-3)])
    def test_those_of_a_component_that_was_not_measured(self, control):
        """EK1 carries a trace of them, of the size of its error, into the one that was."""

        def f(t, y, p):
            return jnp.stack([-p.a * y[0], p.b * y[0] - p.c * y[1]])

        options = {"y0": [2.0, 0.0], "observe": lambda y: y[0], "solver": EK1(3)}
        parameters = {"a": 1.0, "b": (1.0, 0.0), "c": (1.0, 0.0)}
        found = self.parts(f, parameters, control=control, **options)
        assert found.success
        assert (found.estimates["b"], found.estimates["c"]) == (1.0, 1.0)
        assert any("these data: b, c." in one for one in found.warnings)

    def test_factors_of_a_product(self):
        """The product is known as well as if it were one number, and so are predictions."""
        found = self.parts(lambda t, y, p: -p.a * p.b * y, {"a": 1.0, "b": 0.2})
        alone = self.parts(decay, {"rate": 0.2})
        assert any("these data: a, b." in one for one in found.warnings)
        product = found.estimates["a"] * found.estimates["b"]
        error = alone.standard_errors["rate"]
        assert abs(product - alone.estimates["rate"]) < 2e-3 * error
        both = (one.predict([1.0]).std for one in (found, alone))
        np.testing.assert_allclose(next(both), next(both), rtol=1e-2)

    def test_one_without_a_finite_best_value(self):
        """The decay is that of ``K = ∞``; the other number is as certain as if that were known."""
        values = exact(TIMES, RATE, START)
        parameters = {"v": 1.0, "K": (1.0, 0.0)}
        found = self.parts(lambda t, y, p: -p.v * y / (1.0 + y / p.K), parameters, values)
        alone = self.parts(decay, {"rate": 0.5}, values)
        assert found.success and any("these data: K." in one for one in found.warnings)
        error = found.standard_errors["v"] / alone.standard_errors["rate"]
        assert abs(error - 1.0) < 2e-2

    def test_a_plateau_is_left(self):
        """At its start the solution is over before the second datum, whatever is changed."""
        found = self.parts(lambda t, y, p: -1e5 * p.k * y, {"k": (1.0, 0.0)}, solver=EK1(3))
        assert abs(found.estimates["k"] * 1e5 - RATE) < 0.1


class TestBounds:
    """A maximum on a bound, or near to one."""

    @pytest.mark.parametrize(
        "bounds", [(0.5, 0.0, 0.7), (0.5, None, 0.7), (0.699999, 0.0, 0.7), (0.5, 1e-6, 0.7)]
    )
    def test_the_others_are_best_there(self, bounds):
        """The noise is a tenth of the misfit: a step across would gain very much."""
        found = fitted({"rate": bounds, "start": (1.5, 0.0)}, noise=NOISE / 10.0)
        shape = exact(TIMES, 0.7, 1.0)
        best = (shape @ VALUES) / (shape @ shape)
        assert found.success and found.message == "converged"
        assert found.estimates["rate"] == 0.7
        assert abs(found.estimates["start"] - best) < 2e-3 * found.standard_errors["start"]
        assert found.warnings == ["rate is at its upper bound"]

    def test_one_near_to_it_is_let_go(self):
        found = fitted({"rate": (0.7000001, 0.7, 3.0), "start": (1.5, 0.0)})
        alone = fitted()
        assert abs(found.estimates["rate"] / alone.estimates["rate"] - 1.0) < 1e-3
        assert found.warnings == []

    def test_a_small_number_is_not_at_its_bound(self):
        """A rate of 8e-6, whose bound is zero and whose start is 1."""
        found = fitted({"rate": (1.0, 0.0), "start": 1.5}, (TIMES * 1e5, VALUES), solver=EK1(3))
        assert found.warnings == []
        assert abs(found.estimates["rate"] * 1e5 - fitted().estimates["rate"]) < 1e-4

    def test_two_bounds_of_correlated_numbers(self):
        """One is on its bound, the other is not, whichever the search meets first."""

        def f(t, y, p):
            flow = p.k1 * y[0] - p.k2 * y[1]
            return jnp.stack([-flow, flow - p.k3 * y[1]])

        # The exact solution with k3 < 0: the second component grows from nothing.
        rates = np.array([[-0.8, 0.3], [0.8, -0.25]])
        u = np.stack([expm(rates * t) @ [2.0, 0.0] for t in TIMES])
        parameters = dict.fromkeys(("k1", "k2", "k3"), (0.5, 0.0, 10.0))
        found = fit(f, (TIMES, u), parameters, y0=[2.0, 0.0], noise=NOISE, **OPTIONS)
        best = fit(
            f,
            (TIMES, u),
            {**parameters, "k3": Parameter(0.0, fixed=True)},
            y0=[2.0, 0.0],
            noise=NOISE,
            **OPTIONS,
        )
        assert found.success and found.warnings == ["k3 is at its lower bound"]
        assert abs(found.log_likelihood - best.log_likelihood) < 1e-5


def test_what_the_data_do_not_tell_is_named():
    def f(t, y, p):
        return -(p.a + p.b) * y

    found = fit(f, (TIMES, VALUES), {"a": 0.5, "b": 0.2}, y0=2.0, noise=0.05, **OPTIONS)
    assert any("not identified by these data: a, b" in warning for warning in found.warnings)
    assert np.isinf(found.standard_errors["a"])
    assert "∞" in str(found)


def test_a_solver_as_wrong_as_the_noise_is_said_to_be():
    options = {"solver": EK0(1), "control": PIControl(1e-1, 1e-1)}
    found = fitted(noise=1e-4, **options)
    assert found.solver_share > 0.1
    assert any("smaller tolerance" in warning for warning in found.warnings)


def test_several_starts_find_the_best_of_several_maxima():
    """The frequency of a sine: from a bad start the nearest maximum is a wrong one."""

    def f(t, y, p):
        return p.w * jnp.cos(p.w * t) + 0.0 * y

    t = np.linspace(0.0, 6.0, 25)
    u = np.sin(3.0 * t)
    start = {"w": (7.0, 0.5, 8.0)}
    options = {**OPTIONS, "control": PIControl(1e-4, 1e-4)}
    many = fit(f, (t, u), start, y0=0.0, noise=0.2, starts=6, seed=1, **options)
    first = many.starts[0]["estimates"]
    assert abs(first["w"] - 3.0) > 1.0
    assert abs(many.estimates["w"] - 3.0) < 0.05
    assert len(many.starts) == 6 and many.starts[0]["start"]["w"] == pytest.approx(7.0)
    assert max(one["value"] for one in many.starts) == many.log_likelihood


def test_a_start_without_a_solution_is_passed_over():
    u = 1.0 / (0.3 + 0.2 * np.exp(TIMES))  # the solution for rate = 0.3
    options = {**OPTIONS, "max_steps": 300, "noise": NOISE, "y0": 2.0}
    many = fit(
        lambda t, y, p: p.rate * y**2 - y,
        (TIMES, u),
        {"rate": (5.0, 0.0, 10.0)},
        starts=3,
        **options,
    )
    assert abs(many.estimates["rate"] - 0.3) < 1e-3
    assert len(many.starts) == 3 and many.starts[0]["value"] == -np.inf
    assert "no solution at the start" in many.starts[0]["message"]


def test_starts_may_be_given():
    """One without a solution is passed over, unless it is the only one."""
    starts = [{"rate": 0.5}, {"rate": 5.0}]

    def grows(t, y, p):
        return p.rate * y**2 - y

    # 1 / y = rate + (1/2 - rate) exp(t): infinite before t = 3 if rate > 1/2 / (1 - exp(-3)).
    t, y0 = TIMES, 2.0
    options = {**OPTIONS, "max_steps": 300, "noise": NOISE}
    u = 1.0 / (0.3 + 0.2 * np.exp(t))  # the solution for rate = 0.3
    many = fit(grows, (t, u), {"rate": 0.4}, y0=y0, starts=starts, **options)
    assert [one["start"]["rate"] for one in many.starts] == pytest.approx([0.5, 5.0])
    assert many.starts[0]["success"] and not many.starts[1]["success"]
    assert "no solution at the start" in many.starts[1]["message"]
    assert many.starts[1]["value"] == -np.inf
    assert abs(many.estimates["rate"] - 0.3) < 2e-3 * many.standard_errors["rate"]
    with pytest.raises(ValueError, match=r"no solution at the start \(rate = 5"):
        fit(grows, (t, u), {"rate": 0.4}, y0=y0, starts=starts[1:], **options)


COARSE = {"method": "fenrir", "solver": EK1(1, "fixed"), "control": PIControl(1e-1, 1e-1)}


class TestDiffusion:
    """``y' = -y`` by a solver so coarse that its model's uncertainty is most of what there is."""

    def fitted(self, parameters, **options):
        parameters = {"rate": (0.5, 0.0), "start": 1.5, **parameters}
        return fitted(parameters, noise=0.01, **{**COARSE, **options})

    @pytest.mark.slow
    def test_a_parameter(self):
        """At its maximum: as likely as when held there, and no less than when held elsewhere."""
        found = self.fitted({"size": (1.0, 0.0)}, diffusion="size")
        best = found.estimates["size"]
        assert found.success
        np.testing.assert_allclose(found.posterior.diffusion, best, rtol=1e-9)
        held = [self.fitted({}, diffusion=factor * best) for factor in (1.0, 0.5, 2.0)]
        assert abs(held[0].log_likelihood - found.log_likelihood) < 1e-5
        assert max(one.log_likelihood for one in held[1:]) < found.log_likelihood
        for one in (found, held[0]):
            bars = probode.log_likelihood(
                lambda t, y, rate: -rate * y,
                (0.0, 3.0),
                one.estimates["start"],
                (one.estimates["rate"],),
                Observations(TIMES, VALUES, 0.01),
                diffusion=best,
                **COARSE,
            )
            assert abs(float(bars) - one.log_likelihood) < 1e-8

    def test_what_is_wrong_with_it_is_named(self):
        with pytest.raises(ValueError, match="names no parameter"):
            self.fitted({}, diffusion="size")
        with pytest.raises(ValueError, match="solvers with a fixed diffusion"):
            self.fitted({}, diffusion=1.0, solver=EK1(1))
        with pytest.raises(ValueError, match="pass one of them"):
            self.fitted({}, diffusion=1.0, calibration="defect")


def test_new_values_data_and_functions_do_not_compile_again(found):
    assert found.solver_share < 0.1
    with compilations() as compiled:
        again = fit(
            lambda t, y, p: -p.rate * y,
            (TIMES + 0.0, VALUES + 0.1),
            {"rate": (0.9, 0.0), "start": 1.7},
            y0=lambda p: p.start,
            noise=2.0 * NOISE,
            **{**OPTIONS, "method": "fenrir"},
        )
        assert again.success and again.solver_share < 0.1
    assert not compiled


class TestSeveralDataSets:
    def test_shared_and_own_parameters(self, found):
        """Data that are twice those of another set: the same rate, twice the start."""
        sets = {"one": (TIMES, VALUES), "other": (TIMES[:6], 2.0 * VALUES[:6])}
        parameters = {"rate": (0.5, 0.0), "start": Parameter(1.5, own=True)}
        both = fitted(parameters, sets)
        t = np.concatenate([TIMES, TIMES[:6]])
        which = np.repeat([0, 1], [9, 6])

        def model(t, rate, a, b):
            return np.where(which == 0, a, b) * np.exp(-rate * t)

        best, _ = curve_fit(model, t, np.concatenate([VALUES, 2.0 * VALUES[:6]]), [0.5, 1.5, 1.5])
        values = np.array([both.estimates["rate"], *both.estimates["start"]])
        assert np.all(np.abs(values - best) < 2e-3 * np.sqrt(np.diagonal(both.covariance)))
        assert both.names == ["rate", "start[0]", "start[1]"]
        assert both.n_data == 15
        assert len(both.posterior) == 2
        assert "2 data sets" in str(both)

    def test_own_needs_several(self):
        with pytest.raises(ValueError, match="several data sets"):
            fitted({"rate": 0.5, "start": Parameter(1.5, own=True)})


def test_what_is_observed_may_depend_on_parameters(found):
    """A scale of the measurement, known from a prior, and one of the start cannot be told apart."""
    parameters = {"rate": (0.5, 0.0), "start": Parameter(2.0, fixed=True), "scale": 0.5}
    other = fitted(parameters, observe=lambda t, y, p: p.scale * y)
    expected = found.estimates["start"] / 2.0
    assert abs(other.estimates["scale"] - expected) < 1e-3
    assert abs(other.estimates["rate"] - found.estimates["rate"]) < 1e-3


def test_counts():
    """Poisson data: with ``y = start exp(-rate t)`` a generalised linear model."""
    counts = np.random.default_rng(0).poisson(50.0 * np.exp(-RATE * TIMES))

    def density(u, y):
        return u * jnp.log(y) - y - jax.scipy.special.gammaln(u + 1.0)

    parameters = {"rate": (0.5, 0.0), "start": (40.0, 0.0)}
    found = fitted(parameters, (TIMES, counts), None, log_density=density)
    rate, start = found.estimates["rate"], found.estimates["start"]
    mean = exact(TIMES, rate, start)
    slopes = np.stack([-TIMES, np.ones(9)])  # of log mean
    score = slopes @ (counts - mean)
    information = (slopes * mean) @ slopes.T
    assert score @ np.linalg.solve(information, score) < 1e-5
    # Canonical link: the Hessian is the information. Parameters: rate and log start.
    cov = np.linalg.inv(information) * np.outer([1.0, start], [1.0, start])
    np.testing.assert_allclose(found.covariance, cov, rtol=5e-3)


class TestCensored:
    """Values below .6 are known to be there only: two columns, a value and a flag."""

    flags = VALUES < 0.6
    table = np.stack([np.maximum(VALUES, 0.6), flags], axis=1)

    @staticmethod
    def log_density(u, y):
        below = jax.scipy.stats.norm.logcdf(u[0], y, NOISE)
        return jnp.where(u[1] > 0.0, below, jax.scipy.stats.norm.logpdf(u[0], y, NOISE))

    @pytest.fixture(scope="class")
    @classmethod
    def censored(cls):
        return fitted(data=(TIMES, cls.table), noise=None, log_density=cls.log_density)

    def terms(self, rate, start):
        mean, limit = exact(TIMES, rate, start), self.table[:, 0]
        return np.where(
            self.flags, norm.logcdf(limit, mean, NOISE), norm.logpdf(limit, mean, NOISE)
        )

    def test_estimates(self, censored):
        best = minimize(lambda x: -self.terms(*x).sum(), [RATE, START], tol=1e-10)
        found = np.array([censored.estimates["rate"], censored.estimates["start"]])
        assert np.all(np.abs(found - best.x) < 2e-3 * np.sqrt(np.diagonal(censored.covariance)))

    def test_a_value_with_its_flag_is_one_datum(self, censored):
        assert censored.n_data == 9
        assert abs(censored.bic - (2.0 * np.log(9.0) - 2.0 * censored.log_likelihood)) < 1e-9

    def test_residuals_are_those_of_the_values(self, censored):
        expected = self.table[:, :1] - exact(TIMES, *censored.estimates.values())[:, None]
        np.testing.assert_allclose(censored.residuals, expected, atol=1e-6)
        swapped = fitted(
            data=(TIMES, self.table[:, ::-1]),
            noise=None,
            log_density=lambda u, y: self.log_density(u[::-1], y),
        )
        np.testing.assert_allclose(swapped.residuals, censored.residuals, atol=1e-6)

    def test_the_log_likelihood_time_by_time(self, censored):
        terms = censored.objective.terms(censored.z[None])[0, 0]
        expected = self.terms(*censored.estimates.values())
        np.testing.assert_allclose(terms, expected, atol=1e-5)

    def test_its_figure(self, censored):
        pytest.importorskip("matplotlib").use("Agg")
        assert len(censored.plot().axes[0].lines) >= 2


def test_functions_may_be_written_with_numpy():
    """All of them, with what JAX has no word for: assignment, ``math``, arrays of parameters."""

    def f(t, y, p):
        dy = np.zeros(1)
        dy[0] = -math.exp(p.log_rate) * y[0]
        return dy

    written = fit(
        f,
        (TIMES, np.log(np.abs(VALUES))),
        {"log_rate": Parameter(-0.5, prior=lambda x: -0.5 * np.square(x)), "start": 1.5, "s": -2.0},
        y0=lambda p: np.array([p.start]),
        noise=lambda p: np.exp(p.s),
        observe=lambda t, y, p: np.log(y) * np.cos(0.0 * p.s),
        **OPTIONS,
    )
    same = fit(
        lambda t, y, p: -jnp.exp(p.log_rate) * y,
        (TIMES, np.log(np.abs(VALUES))),
        {"log_rate": Parameter(-0.5, prior=Normal(0.0, 1.0)), "start": 1.5, "s": -2.0},
        y0=lambda p: p.start,
        noise=lambda p: jnp.exp(p.s),
        observe=lambda y: jnp.log(y),
        **OPTIONS,
    )
    for name, value in same.estimates.items():
        assert abs(written.estimates[name] - value) < 1e-6
    predictions = (one.predict([1.0], observe=lambda y: np.log(y)) for one in (written, same))
    first, second = (one.std.ravel() for one in predictions)
    np.testing.assert_allclose(first, second, rtol=1e-6)


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("f", {"f": lambda t, y, p: -p.rate * y * len(range(int(p.rate) + 1))}),
        ("y0", {"y0": lambda p: [1.0, 2.0][int(p.rate)]}),
        ("observe", {"observe": lambda t, y, p: y + [1.0, 2.0][int(p.rate)]}),
        ("noise", {"noise": lambda p: [0.1, 0.2][int(p.rate)]}),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_function_that_asks_for_a_value_is_named_with_its_line(what, options):
    options = {"f": decay, "y0": 2.0, "noise": NOISE, **OPTIONS, **options}
    with pytest.raises(TypeError, match=rf"{what} needs a number .*test_fit.py, .*jnp\.where"):
        fit(options.pop("f"), (TIMES, VALUES), {"rate": 0.5}, **options)


@pytest.mark.parametrize("method", ["plain", pytest.param("fenrir", marks=pytest.mark.slow)])
def test_counts_whose_scatter_is_fitted(method):
    """Negative binomial data, from far away: as SciPy's maximum on the exact solution.

    Where a log density is hardly curved, the slope of its curvature is no information: taken for
    some, it made steps so short that the search did not arrive.
    """
    rng = np.random.default_rng(3)
    t = np.linspace(0.0, 3.0, 30)
    counts = rng.poisson(rng.gamma(8.0, 200.0 * np.exp(-RATE * t) / 8.0))

    def density(u, y, p):
        k, gammaln = p.k, jax.scipy.special.gammaln
        factor = gammaln(u + k) - gammaln(k) - gammaln(u + 1.0)
        return factor + k * jnp.log(k / (k + y)) + u * jnp.log(y / (k + y))

    def loss(z):
        rate, start, k = np.exp(z)
        mean = exact(t, rate, start)
        return -nbinom.logpmf(counts, k, k / (k + mean)).sum()

    parameters = {"rate": (2.0, 0.0), "start": (30.0, 0.0), "k": (1.0, 0.0)}
    found = fitted(parameters, (t, counts), None, log_density=density, method=method)
    best = minimize(loss, np.log([RATE, 200.0, 8.0]), method="Nelder-Mead", tol=1e-10)
    assert found.success and found.iterations < 50
    # A step would gain less than 1e-3 even where the search calls it rough.
    assert abs(found.log_likelihood + best.fun) < 1e-3
    values = np.log([found.estimates[name] for name in parameters])
    errors = np.array([found.standard_errors[name] / found.estimates[name] for name in parameters])
    assert np.all(np.abs(values - best.x) < 0.05 * errors)


@pytest.mark.parametrize("method", ["plain", pytest.param("dalton", marks=pytest.mark.slow)])
def test_other_likelihoods_give_the_same_at_small_steps(found, method):
    other = fitted(method=method)
    error = found.standard_errors["rate"]
    assert abs(other.estimates["rate"] - found.estimates["rate"]) < 5e-3 * error
    assert abs(other.standard_errors["rate"] / error - 1.0) < 1e-2


class TestPendulum:
    """``y'' = -g/L sin y``: an equation of second order, of which the velocity is measured."""

    times = np.linspace(0.0, 3.0, 31)
    exact = scipy_solve(
        lambda t, y: [y[1], -9.81 * np.sin(y[0])],
        (0.0, 3.0),
        [1.0, 0.0],
        t_eval=times,
        rtol=1e-10,
        atol=1e-10,
    ).y[1]
    values = exact + 0.1 * np.random.default_rng(0).normal(size=31)

    def fitted(self, length, **options):
        def f(t, y, v, p, g):
            return -g / p.length * jnp.sin(y)

        options = {"method": "plain", "solver": EK1(3), **options}
        return fit(
            SecondOrder(f),
            (self.times, self.values),
            {"length": length},
            y0=(1.0, 0.0),
            noise=0.1,
            observe=lambda t, y, v: v,
            args=(9.81,),
            **options,
        )

    def test_its_length(self):
        found = self.fitted((1.3, 0.0))
        assert abs(found.estimates["length"] - 1.0) < 3.0 * found.standard_errors["length"]
        assert found.standard_errors["length"] < 0.01
        seen = found.predict(self.times, observe=found.observe).mean
        np.testing.assert_allclose(self.values - seen, found.residuals[:, 0], atol=1e-9)

    @pytest.mark.slow
    def test_tempering_finds_it_from_afar(self):
        """From 3, where the nearest maximum is a wrong one."""
        start = (3.0, 0.1, 10.0)
        lost = self.fitted(start, method="fenrir")
        found = self.fitted(start, method="fenrir", temper=10.0 ** np.arange(12, -1, -3))
        assert abs(lost.estimates["length"] - 1.0) > 1.0
        assert abs(found.estimates["length"] - 1.0) < 0.02


def test_stages_of_tempering_that_are_left_out_are_said():
    """With a diffusion for which the equation has no solution within the steps."""
    stages = [(_NoSolution(), 1e3), (_NoSolution(), 1.0)]
    objective = fitted().objective
    start = objective.space.start()
    with pytest.warns(RuntimeWarning, match="left out the diffusions 1000, 1"):
        search([*stages, (objective, None)], start, pressed=lambda: False, max_iterations=50)


class _NoSolution:
    def temper(self, diffusion):
        pass

    def look(self, z):
        return Look(-np.inf, 0.0, np.zeros(len(z)), None)


def test_the_time_of_the_start_may_be_fitted():
    t = np.linspace(1.0, 4.0, 9)
    found = fit(
        decay,
        (t, exact(t - 0.5, RATE, START)),
        {"rate": (1.0, 0.0), "t0": (0.2, -1.0, 1.0)},
        y0=START,
        t_span=(lambda p: p.t0, 4.0),
        noise=NOISE,
        **OPTIONS,
    )
    assert abs(found.estimates["t0"] - 0.5) < 2e-3 * found.standard_errors["t0"]


def test_the_report(found):
    lines = str(found).splitlines()
    assert lines[0] == "Fit of 2 parameters to 9 values"
    row = next(line for line in lines if line.strip().startswith("rate "))
    assert "±" in row and "> 0" in row and "0.5" in row
    assert any("rate, start" in line for line in lines)
    assert "AIC" in str(found) and "BIC" in str(found)
    assert max(map(len, lines)) <= 100


def test_the_report_in_a_notebook(found):
    """The numbers of the text, in cells; names are escaped."""
    shown = found._repr_html_()
    row = next(line for line in str(found).splitlines() if line.strip().startswith("rate"))
    for cell in row.strip().split("  "):
        assert cell.strip().replace(">", "&gt;") in shown
    assert "converged" in shown
    assert shown.count("<tr>") == 3


def test_terms_sum_up_to_the_log_likelihood(found):
    """Of the default likelihood, all data at once."""
    terms = found.objective.terms(found.z[None])
    assert terms.shape == (1, 1, 9)
    assert abs(terms.sum() - found.log_likelihood) < 1e-9


def test_figures(found):
    plt = pytest.importorskip("matplotlib.pyplot")
    drawing = found.plot(names=["u"], title="decay")
    assert len(drawing.axes) == 2
    axes = found.profile("start", points=3).plot()
    assert axes.get_xlabel() == "start"
    plt.close("all")


def test_the_solution_at_the_estimates(found):
    assert isinstance(found.posterior, probode.Posterior)
    start = found.posterior(0.0).mean
    assert abs(float(start) - found.estimates["start"]) < 1e-12


def test_ctrl_c_keeps_what_was_found(ctrl_c, monkeypatch):
    """Pressed while the fourth values are looked at."""
    look, seen = Objective.look, []

    def pressed(self, z):
        seen.append(look(self, z))
        if len(seen) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return seen[-1]

    monkeypatch.setattr(Objective, "look", pressed)
    with pytest.warns(RuntimeWarning, match="interrupted"):
        found = fitted({"rate": (0.1, 0.0), "start": 0.5})
    assert not found.success
    assert "interrupted" in found.message
    assert found.log_likelihood >= max(one.value for one in seen[:4])


PRIORS = [
    (Normal(1.0, std=0.5), lambda x: norm.logpdf(x, 1.0, 0.5)),
    (LogNormal(0.3, 0.5), lambda x: norm.logpdf(np.log(x), 0.3, 0.5) - np.log(x)),
    (HalfNormal(2.0), lambda x: np.log(2.0) + norm.logpdf(x, 0.0, 2.0)),
    (HalfCauchy(2.0), lambda x: np.log(2.0 / (np.pi * 2.0 * (1.0 + (x / 2.0) ** 2)))),
    (Uniform(0.5, 3.0), lambda x: np.full_like(x, -np.log(2.5))),
]


@pytest.mark.parametrize(("prior", "density"), PRIORS, ids=lambda x: type(x).__name__)
def test_priors(prior, density):
    x = np.array([0.6, 1.0, 2.5])
    np.testing.assert_allclose(prior.log_prob(x), density(x), rtol=1e-6)
    drawn = prior.sample(np.random.default_rng(0), (2000,))
    assert np.all(np.isfinite(prior.log_prob(drawn)))


def test_priors_of_other_libraries_and_functions(found):
    numpyro = pytest.importorskip("numpyro.distributions")
    for prior in (numpyro.Normal(0.8, 0.1), lambda x: -50.0 * (x - 0.8) ** 2):
        parameters = {"rate": Parameter(0.5, lower=0.0, prior=prior), "start": 1.5}
        other = fitted(parameters)
        ours = fitted({"rate": Parameter(0.5, lower=0.0, prior=Normal(0.8, 0.01)), "start": 1.5})
        assert abs(other.estimates["rate"] - ours.estimates["rate"]) < 1e-5


def blows_up(t, y, p):
    return p.rate * y**2


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: fitted({"rate": (0.5, 0.6, 1.0), "start": 1.5}), "'rate': the start 0.5 must lie"),
        (lambda: fitted({"rate": Parameter(-1.0, prior=LogNormal(0, 1)), "start": 1}), "'rate'"),
        (
            lambda: fitted({"rate": Parameter(1.0, prior=lambda x: -jnp.inf), "start": 1}),
            "'rate': its prior gives the start 1. no probability",
        ),
        (lambda: fitted({"rate": np.nan, "start": 1.5}), "'rate': start must be finite"),
        (lambda: fitted({"rate": "fast", "start": 1.5}), "'rate': start must be a number"),
        (lambda: fitted({"rate": (1, 2, 3, 4), "start": 1.5}), r"\(start, lower, upper\)"),
        (lambda: fitted({"rate": (0.5, 1.0, 0.0), "start": 1.5}), "lower must be below upper"),
        (lambda: fitted([0.5]), "parameters must be a dict"),
        (lambda: fitted({"rate": Parameter(1.0, fixed=True), "start": Parameter(1.0, fixed=True)}),
         "nothing to fit"),
        (lambda: fitted(noise="sigma"), "names no parameter"),
        (lambda: fitted(noise=None), "noise is missing"),
        (lambda: fitted(noise=-1.0), "noise must be positive"),
        (lambda: fitted(noise=lambda p: -p.rate), "noise must be positive"),
        (lambda: fitted(data=Observations(TIMES, VALUES, 0.1)), "noise is given twice"),
        (lambda: fitted(data=VALUES), "data must be Observations"),
        (lambda: fitted(data=(TIMES, VALUES * np.nan)), "all values u are nan"),
        (lambda: fitted(data=(TIMES + 1.0, VALUES)), "at which time is the solution y0"),
        (lambda: fitted(t_span=(0.5, 3.0)), "before the solution does"),
        (lambda: fitted(t_span=(0.0, 2.0)), "data end at t = 3"),
        (lambda: fitted(starts=0), "starts must be a positive integer"),
        (lambda: fitted(starts=[]), "starts must be a positive integer, or a list"),
        (lambda: fitted(starts=[{"speed": 1.0}]), "starts: 'speed' is not fitted"),
        (lambda: fitted(starts=[{"rate": -1.0}]), "'rate': the start -1"),
        (lambda: fitted(starts=[{"rate": [1.0, 2.0]}]), "'rate': the start must be of the shape"),
        (lambda: fitted(method="guess"), "method must be one of"),
        (lambda: fitted(method="fenrir", temper=[1.0, 10.0]), "temper must go down"),
        (lambda: fitted(method="plain", temper=[1.0]), "temper is for method='fenrir'"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make, says):
    with pytest.raises((TypeError, ValueError), match=says):
        make()


def test_a_start_without_a_solution_is_named():
    with pytest.raises(ValueError, match=r"no solution at the start \(rate = 5"):
        fit(blows_up, (TIMES, VALUES), {"rate": 5.0}, y0=2.0, noise=0.1, max_steps=300, **OPTIONS)


def test_names_that_are_not_there(found):
    with pytest.raises(ValueError, match="'speed' was not fitted"):
        found.profile("speed")
    with pytest.raises(KeyError, match=r"no parameter 0\. Parameters are read by name"):
        fit(lambda t, y, p: -p[0] * y, (TIMES, VALUES), {"rate": 1.0}, y0=1.0, noise=0.1)
    with pytest.raises(AttributeError, match="no parameter 'speed'"):
        fit(lambda t, y, p: -p.speed * y, (TIMES, VALUES), {"rate": 1.0}, y0=1.0, noise=0.1)
