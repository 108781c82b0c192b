"""Posteriors of parameters by NUTS: against Gaussian ones, and those that Stan has drawn."""

import os
import signal
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from probode import EK0, EK1, HalfCauchy, LogNormal, Normal, Parameter, PIControl, fit

pytest.importorskip("blackjax")
pytest.importorskip("arviz")

TIMES = np.linspace(0.0, 3.0, 9)
VALUES = 0.7 * TIMES + 1.0 + 0.1 * np.random.default_rng(1).normal(size=9)


def line(t, y, p):
    return p.slope + 0.0 * y


@pytest.fixture(scope="module")
def found():
    """A straight line with Gaussian priors."""
    parameters = {
        "slope": Parameter(0.5, prior=Normal(0.3, std=0.1)),
        "level": Parameter(0.5, prior=Normal(0.5, std=0.2)),
    }
    return fit(
        line,
        (TIMES, VALUES),
        parameters,
        y0=lambda p: p.level,
        noise=0.1,
        method="plain",
        solver=EK0(1),
        control=PIControl(1e-2, 1e-2),
    )


@pytest.fixture(scope="module")
def drawn(found):
    return found.sample(400, warmup=100, chains=2, seed=3)


def test_a_gaussian_posterior(found, drawn):
    design = np.stack([TIMES, np.ones(9)], axis=1)
    precision = design.T @ design / 0.01 + np.diag([100.0, 25.0])
    cov = np.linalg.inv(precision)
    mean = cov @ (design.T @ VALUES / 0.01 + np.array([30.0, 12.5]))
    draws = np.stack([drawn.posterior[name].values.ravel() for name in ("slope", "level")])
    size = np.sqrt(np.diagonal(cov))
    # 800 draws of NUTS are worth about as many independent ones: four standard errors.
    assert np.all(np.abs(draws.mean(axis=1) - mean) < 4.0 * size / np.sqrt(400))
    assert np.all(np.abs(draws.std(axis=1) / size - 1.0) < 4.0 / np.sqrt(2 * 400))
    r = np.corrcoef(draws)[0, 1]
    assert abs(r - cov[0, 1] / size.prod()) < 0.15


def test_what_arviz_gets(drawn):
    assert drawn.posterior["slope"].dims == ("chain", "draw")
    assert drawn.posterior["slope"].shape == (2, 400)
    stats = drawn.sample_stats
    assert int(stats["diverging"].sum()) == 0
    assert 0.6 < float(stats["acceptance_rate"].mean()) <= 1.0
    slope, level = (drawn.posterior[name].values for name in ("slope", "level"))
    expected = norm.logpdf(VALUES, slope[..., None] * TIMES + level[..., None], 0.1).sum(axis=-1)
    np.testing.assert_allclose(stats["total_log_likelihood"], expected, atol=1e-6)
    each = drawn.log_likelihood["u"]
    assert each.shape == (2, 400, 9)
    np.testing.assert_allclose(each.sum("u_dim_0"), expected, atol=1e-6)
    assert {"lp", "n_steps", "tree_depth", "energy", "step_size"} <= set(stats)
    np.testing.assert_array_equal(drawn.observed_data["u"].values[:, 0], VALUES)


@pytest.mark.slow  # `test_fit.py` has the terms that are kept; this is the way there
def test_data_with_a_flag_are_sampled_too():
    """The flag says that a value is a limit; none of them is one."""

    def density(u, y):
        below = jax.scipy.stats.norm.logcdf(u[0], y, 0.1)
        return jnp.where(u[1] > 0.0, below, jax.scipy.stats.norm.logpdf(u[0], y, 0.1))

    made = fit(
        line,
        (TIMES, np.stack([VALUES, np.zeros(9)], axis=1)),
        {"slope": 0.5, "level": 0.5},
        y0=lambda p: p.level,
        log_density=density,
        method="plain",
        solver=EK0(1),
        control=PIControl(1e-2, 1e-2),
    )
    drawn = made.sample(25, warmup=25, chains=1)
    kept = drawn.log_likelihood["u"].values[0].sum(axis=-1)
    np.testing.assert_allclose(kept, drawn.sample_stats["total_log_likelihood"].values[0])


def test_the_same_seed_gives_the_same_draws(found, drawn):
    again = found.sample(10, warmup=100, chains=2, seed=3)
    np.testing.assert_array_equal(again.posterior["slope"], drawn.posterior["slope"][:, :10])


def test_ctrl_c_keeps_the_draws(found, ctrl_c, monkeypatch):
    from probode.inference import sampling

    run, made = sampling._Chains._run, []

    def pressed(self, adapting):
        made.append(run(self, adapting))
        if len(made) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return made[-1]

    monkeypatch.setattr(sampling._Chains, "_run", pressed)
    kept = found.sample(1000, warmup=25, chains=2)
    assert kept.posterior.sizes["draw"] == 50


def test_without_the_libraries(found, monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(ImportError, match=r"probode\[infer\]"):
        found.sample(10)


@pytest.mark.parametrize(
    ("options", "says"), [({"draws": 0}, "draws"), ({"chains": 1.5}, "chains")], ids=str
)
def test_bad_input_is_named(found, options, says):
    with pytest.raises(ValueError, match=says):
        found.sample(**options)


HARES = [
    *(30.0, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22.0, 25.4, 27.1),
    *(40.3, 57.0, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7),
]
LYNXES = [
    *(4.0, 6.1, 9.8, 35.2, 59.4, 41.7, 19.0, 13.0, 8.3, 9.1, 7.4),
    *(8.0, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6),
]
HARES_AND_LYNXES = {
    "a": (0.54686, 0.06305),
    "b": (0.027747, 0.004155),
    "c": (0.80010, 0.08937),
    "d": (0.024086, 0.003528),
    "z0": ((34.0352, 5.93590), (2.91690, 0.53055)),
    "sigma": ((0.248057, 0.251017), (0.043263, 0.043590)),
}
"""Means and standard deviations: hudson_lynx_hare-lotka_volterra of posteriordb, BSD-3."""


@pytest.mark.slow
def test_hares_and_lynxes():
    def f(t, y, p):
        return jnp.stack([(p.a - p.b * y[1]) * y[0], (p.d * y[0] - p.c) * y[1]])

    def positive(mean, std, start):
        return Parameter(start, lower=0.0, prior=Normal(mean, std=std))

    parameters = {
        "a": positive(1.0, 0.5, 0.55),
        "b": positive(0.05, 0.05, 0.028),
        "c": positive(1.0, 0.5, 0.8),
        "d": positive(0.05, 0.05, 0.024),
        "z0": Parameter([30.0, 5.0], prior=LogNormal(np.log(10.0), 1.0)),
        "sigma": Parameter([0.3, 0.3], prior=LogNormal(-1.0, 1.0)),
    }
    found = fit(
        f,
        (np.arange(21.0), np.log(np.stack([HARES, LYNXES], axis=1))),
        parameters,
        y0=lambda p: p.z0,
        noise="sigma",
        observe=lambda t, y: jnp.log(y),
        solver=EK1(3),
        control=PIControl(1e-3, 1e-3),
    )
    drawn = found.sample(400, warmup=250, chains=4)
    for name, (mean, std) in HARES_AND_LYNXES.items():
        values = drawn.posterior[name].values.reshape(1600, -1)
        assert np.all(np.abs(values.mean(axis=0) - mean) < 0.25 * np.asarray(std)), name
        assert np.all(np.abs(values.std(axis=0) / std - 1.0) < 0.15), name


CONCENTRATIONS = [
    *(5.70812264865215, 7.10126075072086, 8.38520678426651, 9.79008249883381, 13.4390409239245),
    *(11.4478987597702, 11.2124282696837, 11.4269217682577, 12.2432859438401, 13.8201804108938),
    *(13.8408670746042, 11.422291744251, 10.5031943081843, 11.9121452242965, 14.0849980781312),
    *(10.5505145523917, 10.1905539351877, 12.2232272590821, 11.7290653047821, 12.2719396535996),
]
ABSORPTION = {"k_a": (0.76101, 0.07790), "sigma": (0.12883, 0.02340)}
QUANTILES = {"K_m": (0.0859, 0.9795, 8.685), "V_m": (0.6490, 0.8973, 1.4751)}
"""Of 5, 50 and 95 %: one_comp_mm_elim_abs-one_comp_mm_elim_abs of posteriordb, BSD-3."""


@pytest.mark.slow
def test_elimination_of_a_drug():
    def f(t, y, p):
        dose, volume = 30.0, 2.0
        gain = p.k_a * dose * jnp.exp(-p.k_a * t) / volume
        return gain - p.V_m / volume * y / (p.K_m + y)

    unknown = {"k_a": 0.75, "K_m": 1.0, "V_m": 0.9, "sigma": 0.13}
    found = fit(
        f,
        (np.arange(0.5, 10.1, 0.5), np.log(CONCENTRATIONS)),
        {name: Parameter(start, prior=HalfCauchy(1.0)) for name, start in unknown.items()},
        y0=0.0,
        t_span=(0.0, 10.0),
        noise="sigma",
        observe=lambda t, y: jnp.log(y),
        solver=EK1(3),
        control=PIControl(1e-3, 1e-3),
    )
    drawn = found.sample(1000, warmup=500, chains=4)
    for name, (mean, std) in ABSORPTION.items():
        values = drawn.posterior[name].values
        assert abs(values.mean() - mean) < 0.25 * std, name
        assert abs(values.std() / std - 1.0) < 0.15, name
    for name, expected in QUANTILES.items():
        values = drawn.posterior[name].values.ravel()
        # Where the reference has 5, 50 and 95 % of its draws. For large K_m only V_m / K_m matters,
        # and the priors leave tails like x⁻³: neither has a variance to compare.
        shares = [np.mean(values < x) for x in expected]
        np.testing.assert_allclose(shares, [0.05, 0.5, 0.95], atol=0.05, err_msg=name)
