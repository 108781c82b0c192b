"""A search led by the data: against dense linear algebra, direct searches, exact solutions."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp as scipy_solve

import probode
from probode import EK0, PIControl, SecondOrder, fit
from probode.inference.shooting import Shooting, _equations, _Place, led

TIMES = np.linspace(0.0, 10.0, 26)
OPTIONS = {"solver": EK0(3), "control": PIControl(1e-6, 1e-6), "method": "plain"}
TRUE = {"growth": 1.5, "death": 3.0}


def predators(t, y, p):
    return jnp.stack([(p["growth"] - y[1]) * y[0], (y[0] - p["death"]) * y[1]])


EXACT = scipy_solve(
    lambda t, y: np.asarray(predators(t, y, TRUE)),
    (0.0, 10.0),
    [1.0, 1.0],
    t_eval=TIMES,
    rtol=1e-9,
    atol=1e-9,
).y[0]
PREY = EXACT + 0.05 * np.random.default_rng(0).normal(size=26)


def fitted(start=(1.4, 3.2), u=PREY, **options):
    parameters = {"growth": (start[0], 0.0), "death": (start[1], 0.0)}
    given = {"y0": np.ones(2), "noise": 0.05, "observe": lambda t, y: y[:1]}
    return fit(predators, (TIMES, u), parameters, **given, **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def shooting():
    return Shooting(fitted().objective)


def test_a_step_is_that_of_dense_least_squares(shooting):
    """Of all residuals, their derivatives by differences."""
    rng = np.random.default_rng(1)
    z, states = np.array([0.1, 0.9]), 1.0 + 0.3 * rng.random((1, 26, 2))
    width = 0.1 + rng.random((1, 26, 2))

    def residuals(x):
        found = shooting.pieces(x[:2], x[2:].reshape(states.shape))
        assert found.reached
        return np.concatenate([(found.link / width).ravel(), found.datum.ravel()])

    x = np.concatenate([z, states.ravel()])
    steps = 1e-5 * np.eye(len(x))
    jacobian = np.array([(residuals(x + h) - residuals(x - h)) / 2e-5 for h in steps]).T
    expected = np.linalg.lstsq(jacobian, -residuals(x), rcond=None)[0]
    place = _Place(z, states, shooting.pieces(z, states), width)
    dz, ds = _equations(place).step(0.0)
    # Adaptive steps change with the parameters, and the solution by their tolerance of 1e-6.
    found = np.concatenate([dz, ds.ravel()])
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02 * np.abs(expected).max())


def test_rigid_links_lead_to_the_maximum_of_the_likelihood(shooting):
    """To a fifth of a standard error: the last links give way by a hundredth of the noise."""
    best = fitted()
    z, _ = led(shooting, np.log([0.4, 5.0]))
    off = shooting.space.flat(z) - shooting.space.flat(best.z)
    assert np.all(np.abs(off) < 0.2 * np.sqrt(np.diagonal(best.covariance)))


def test_it_finds_what_a_direct_search_does_not():
    """From a start whose swings are others; only the prey is seen."""
    far = (4.0, 0.3)
    best, lost, found = fitted(), fitted(far), fitted(far, search="shooting")
    assert lost.log_likelihood < best.log_likelihood - 100.0
    assert abs(found.log_likelihood - best.log_likelihood) < 1e-3
    assert found.starts[0]["start"]["growth"] == pytest.approx(4.0)


def test_values_may_be_missing():
    u = np.where(np.arange(26) % 4 == 1, np.nan, PREY)
    found = fitted((4.0, 0.3), u=u, search="shooting")
    for name, error in found.standard_errors.items():
        assert abs(found.estimates[name] - TRUE[name]) < 4.0 * error


def blows_up(t, y, p):
    return p.rate * y**2


def test_a_solution_over_the_whole_interval_is_not_needed():
    """At the start ``2 / (1 - 1.2 t)`` ends at 0.83; the data are ``2 / (1 + 1.6 t)``."""
    u = 2.0 / (1.0 + 1.6 * TIMES) + 0.01 * np.sin(9.0 * TIMES)
    given = {"y0": 2.0, "noise": 0.01, "max_steps": 300, **OPTIONS}
    with pytest.raises(ValueError, match="no solution at the start"):
        fit(blows_up, (TIMES, u), {"rate": 0.6}, **given)
    found = fit(blows_up, (TIMES, u), {"rate": 0.6}, search="shooting", **given)
    assert abs(found.estimates["rate"] + 0.8) < 4.0 * found.standard_errors["rate"]
    with pytest.raises(ValueError, match="no solution at the start"):  # nor from datum to datum
        fit(blows_up, (TIMES, u), {"rate": 50.0}, search="shooting", **given)


@pytest.mark.slow
def test_many_subjects():
    def decay(t, y, p):
        return -p.rate * y

    subjects = {"Ann": (TIMES, 2.0 * np.exp(-TIMES)), "Bob": (TIMES[:5], 3.0 * np.exp(-TIMES[:5]))}
    parameters = {"rate": (9.0, 0.0), "start": probode.Parameter(0.1, own=True)}
    given = {"y0": lambda p: p.start, "noise": 0.05, "search": "shooting", **OPTIONS}
    found = fit(decay, subjects, parameters, **given)
    assert abs(found.estimates["rate"] - 1.0) < 1e-5
    np.testing.assert_allclose(found.estimates["start"], [2.0, 3.0], rtol=1e-5)


@pytest.mark.slow
def test_equations_of_second_order():
    """A pendulum of 1 m, guessed at 3 m; only the velocity is seen."""
    times = np.linspace(0.0, 3.0, 31)
    exact = scipy_solve(
        lambda t, y: [y[1], -9.81 * np.sin(y[0])],
        (0.0, 3.0),
        [1.0, 0.0],
        t_eval=times,
        rtol=1e-9,
        atol=1e-9,
    ).y[1]
    found = fit(
        SecondOrder(lambda t, y, v, p: -9.81 / p.length * jnp.sin(y)),
        (times, exact + 0.1 * np.random.default_rng(0).normal(size=31)),
        {"length": (3.0, 0.1, 10.0)},
        y0=(1.0, 0.0),
        noise=0.1,
        observe=lambda t, y, v: v,
        search="shooting",
        **OPTIONS,
    )
    assert abs(found.estimates["length"] - 1.0) < 4.0 * found.standard_errors["length"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"search": "guess"}, "search must be one of"),
        ({"search": "shooting", "method": "fenrir", "temper": [1.0]}, "pass one"),
        (
            {"search": "shooting", "noise": None, "log_density": lambda u, y: -((u - y) ** 2)},
            "for Gaussian data",
        ),
    ],
)
def test_bad_input_is_named(options, says):
    given = {"y0": np.ones(2), "noise": 0.1, "observe": lambda t, y: y[:1], **OPTIONS, **options}
    with pytest.raises(ValueError, match=says):
        fit(predators, (TIMES, PREY), {"growth": 1.0, "death": 2.0}, **given)
