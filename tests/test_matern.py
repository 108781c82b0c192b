"""The Matérn prior: its matrices against closed forms, solves against exact solutions and IWP."""

from functools import partial
from math import gamma

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from compiling import jit_once
from scipy.linalg import solve_continuous_lyapunov
from scipy.special import kv

import probode
from probode import EK0, EK1, IWP, Matern
from probode.base.precision import double_precision


def drift(q: int, lengthscale: float) -> np.ndarray:
    """The companion matrix of ``(d/dt + λ)^(q+1)``."""
    rate = np.sqrt(2 * q + 1) / lengthscale
    matrix = np.diag(np.ones(q), 1)
    matrix[-1] = [-float(mpmath.binomial(q + 1, j)) * rate ** (q + 1 - j) for j in range(q + 1)]
    return matrix


@partial(jit_once, static_argnums=0)
def _made(q: int, lengthscale: jax.Array, h: jax.Array) -> tuple[jax.Array, ...]:
    """All matrices of an order in one program."""
    prior = Matern(q, lengthscale)
    return prior.coordinates(h), prior.unit_noise(h), prior.transition(h), prior.noise_factor(h)


def made(prior: Matern, h: float) -> tuple[np.ndarray, ...]:
    with double_precision():
        given = jnp.asarray(prior.lengthscale, float), jnp.asarray(h, float)
        return tuple(map(np.asarray, _made(prior.order, *given)))


def in_plain_units(prior: Matern, h: float) -> tuple[np.ndarray, np.ndarray]:
    """Transition and noise covariance of unit diffusion."""
    coords, s, transition, factor = made(prior, h)
    factor = factor * coords * s
    return coords[:, None] * transition / coords, factor.T @ factor


@pytest.mark.parametrize("q", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("h", [1e-3, 0.3, 2.0])
def test_transition_is_the_exponential_of_the_drift(q: int, h: float) -> None:
    transition, _ = in_plain_units(Matern(q, 1.3), h)
    with mpmath.workdps(50):
        exact = mpmath.expm(mpmath.matrix(drift(q, 1.3).tolist()) * h)
    exact = np.array(exact.tolist(), float)
    # The polynomial's terms cancel by at most θ^q e^-θ / q! < 1, in units of the coordinates.
    assert np.all(
        abs(transition - exact)
        <= 1e-12 * abs(exact)
        + 1e-13 * h ** -np.add.outer(-np.arange(q + 1.0), np.arange(q + 1.0)) * 10.0**q
    )


@pytest.mark.parametrize("q", [1, 2, 3, 5])
@pytest.mark.parametrize("h", [0.01, 0.5, 3.0])
def test_noise_and_transition_keep_the_stationary_covariance(q: int, h: float) -> None:
    """``A P Aᵀ + Q = P`` for the covariance ``P`` that the process has in the long run."""
    transition, noise = in_plain_units(Matern(q, 0.7), h)
    source = np.zeros((q + 1, q + 1))
    source[-1, -1] = 1.0
    stationary = solve_continuous_lyapunov(drift(q, 0.7), -source)
    error = transition @ stationary @ transition.T + noise - stationary
    scale = np.sqrt(np.diag(stationary))
    np.testing.assert_allclose(error / np.outer(scale, scale), 0.0, atol=1e-9)


@pytest.mark.parametrize("q", [1, 2, 4])
def test_covariance_over_time_is_that_of_matern(q: int) -> None:
    """``Cov(y(t), y(0))`` in the long run is proportional to ``(λt)^ν K_ν(λt)``."""
    lengthscale, nu = 0.9, q + 0.5
    source = np.zeros((q + 1, q + 1))
    source[-1, -1] = 1.0
    stationary = solve_continuous_lyapunov(drift(q, lengthscale), -source)
    for h in (0.1, 0.8, 2.5):
        transition, _ = in_plain_units(Matern(q, lengthscale), h)
        x = np.sqrt(2 * nu) * h / lengthscale
        kernel = 2 ** (1 - nu) / gamma(nu) * x**nu * kv(nu, x)
        assert (transition @ stationary)[0, 0] / stationary[0, 0] == pytest.approx(kernel, rel=1e-9)


@pytest.mark.parametrize("q", [1, 3, 5, 8])
def test_a_long_length_scale_is_an_integrated_wiener_process(q: int) -> None:
    *_, transition, factor = made(Matern(q, 1e12), 0.01)
    for matern, iwp in ((transition, IWP(q).transition()), (factor, IWP(q).noise_factor())):
        # Factors up to signs of their rows; the last pivot is known to ε times the condition.
        np.testing.assert_allclose(abs(matern), abs(iwp), rtol=1e-8, atol=1e-12)


def test_steps_a_million_length_scales_long_have_the_stationary_covariance() -> None:
    """That of a length scale of one, in other units of time."""
    _, noise = in_plain_units(Matern(2, 1e-6), 1.0)
    source = np.zeros((3, 3))
    source[-1, -1] = 1.0
    stationary = solve_continuous_lyapunov(drift(2, 1.0), -source)
    units = 1e-6 ** (2.5 - np.arange(3.0))
    noise = noise / units[:, None] / units
    np.testing.assert_allclose(noise, stationary, rtol=1e-8, atol=1e-8)


SOLVERS = [
    EK0(Matern(3, 2.0)),
    EK1(Matern(4, 1.0), "fixed"),
    *(pytest.param(EK1(Matern(*p)), marks=pytest.mark.slow) for p in ((3, 2.0), (5, 0.5))),
]


def decay(t: float, y: jax.Array) -> jax.Array:
    return -y


def swinging(t: float, y: jax.Array) -> jax.Array:
    return y * jnp.cos(t)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name + s.diffusion.name)
@pytest.mark.parametrize("span", [(0.0, 4.0), (4.0, 0.0)])
def test_solutions_are_right_in_both_directions(solver: probode.EK1, span: tuple) -> None:
    def exact(t: float) -> float:
        return np.exp(np.sin(t))

    posterior = probode.solve(swinging, span, exact(span[0]), solver=solver)
    assert posterior.success
    np.testing.assert_allclose(posterior.mean[-1], exact(span[1]), rtol=3e-5)
    np.testing.assert_allclose(posterior(1.234).mean, exact(1.234), rtol=3e-5)


@pytest.mark.slow
def test_dense_output_is_the_posterior_at_a_node_put_there() -> None:
    """The smoother uses each step's own transition: another node in between changes nothing."""
    solver = EK1(Matern(3, 0.8), "fixed")
    grid = np.linspace(0.0, 2.0, 21)
    posterior = probode.solve(decay, (0.0, 2.0), 1.0, solver=solver, grid=grid)
    saved = probode.solve(
        decay, (0.0, 2.0), 1.0, solver=solver, grid=grid, save_at=[0.33, 1.27, 2.0]
    )
    np.testing.assert_allclose(posterior([0.33, 1.27]).mean, saved.mean[:2], rtol=1e-12)
    np.testing.assert_allclose(posterior([0.33, 1.27]).std, saved.std[:2], rtol=1e-6)


@pytest.mark.slow
def test_samples_have_the_mean_and_deviation_of_the_posterior() -> None:
    posterior = probode.solve(decay, (0.0, 2.0), 1.0, solver=EK1(Matern(2, 0.5)), step=0.2)
    drawn = posterior.sample(4000, t=[0.5, 1.5])
    at = posterior([0.5, 1.5])
    np.testing.assert_allclose((drawn.mean(0) - at.mean) / at.std, 0.0, atol=5 / np.sqrt(4000))
    np.testing.assert_allclose(drawn.std(0) / at.std, 1.0, atol=5 / np.sqrt(8000))


@pytest.mark.slow
def test_derivatives_by_the_length_scale() -> None:
    """Reverse mode against a difference: two solves on one grid."""
    grid = np.linspace(0.0, 2.0, 9)

    def end(lengthscale):
        solver = EK1(Matern(2, lengthscale))
        options = {"solver": solver, "grid": grid, "differentiate": "all"}
        return probode.solve(lambda t, y: -(y**2), (0.0, 2.0), 1.0, **options).mean[-1]

    step = 1e-5
    with jax.enable_x64(True):
        both = jax.jit(jax.value_and_grad(end))
        slope = both(1.0)[1]
        difference = both(1.0 + step)[0] - both(1.0 - step)[0]
    assert slope == pytest.approx(float(difference) / (2 * step), rel=1e-5)


@pytest.mark.parametrize("lengthscale", [1e-2, 0.1])
def test_no_step_is_longer_than_a_length_scale(lengthscale: float) -> None:
    """Beyond it a prediction is zero, and where ``f(0) = 0`` nothing speaks against it."""
    solver = EK1(Matern(3, lengthscale))
    posterior = probode.solve(lambda t, y: -y, (0.0, 1.0), 1.0, solver=solver)
    assert np.max(np.diff(posterior.t)) <= lengthscale * (1 + 1e-9)
    np.testing.assert_allclose(posterior.mean[-1], np.exp(-1.0), rtol=1e-4)


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan])
def test_a_length_scale_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="lengthscale must be positive and finite"):
        Matern(3, value)


def test_a_length_scale_that_is_no_number_is_refused() -> None:
    with pytest.raises(TypeError, match="lengthscale must be a positive number"):
        Matern(3, "long")
