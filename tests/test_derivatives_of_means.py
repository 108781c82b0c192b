"""Derivatives of means are those of the solution: by parameters, initial values and times."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import jit_once as jit
from transformed import predator_prey

import probode
from probode import EK0, EK1, MassMatrix, PIControl
from probode.engines import native

pytestmark = pytest.mark.usefixtures("jax_as_it_comes")

TIGHT = PIControl(1e-6, 1e-9)


# --- Stiff solves ---------------------------------------------------------------------------------


def robertson(t, y, rates):
    slow, back, fast = rates[0] * y[0], rates[1] * y[1] * y[2], rates[2] * y[1] ** 2
    return jnp.stack([back - slow, slow - back - fast, fast])


ROBERTSON = np.log([0.04, 1e4, 3e7])
SLOPES = np.array(
    [
        [-2.37275695e-01, 2.31253420e-01, -1.15626552e-01],
        [-1.17604892e-07, 8.19840980e-08, -1.04784489e-06],
        [2.37275812e-01, -2.31253502e-01, 1.15627600e-01],
    ]
)
"""Of the state at t = 1000 by the logarithms of the rates: SciPy's Radau at 1e-10."""


def robertson_end(logarithms, solver, rtol, **options):
    args, control = (jnp.exp(logarithms),), PIControl(rtol, 1e-6 * rtol)
    start = np.array([1.0, 0.0, 0.0])
    options = {"solver": solver, "control": control, "save_at": 1e3, **options}
    return probode.solve(robertson, (0.0, 1e3), start, args, **options).mean[-1]


@pytest.mark.parametrize(
    ("order", "error", "rtol"),
    [
        (5, "residual", 1e-6),
        (5, "correction", 1e-6),
        pytest.param(3, "residual", 1e-4, marks=pytest.mark.slow),
        pytest.param(4, "residual", 1e-5, marks=pytest.mark.slow),
        pytest.param(8, "residual", 1e-8, marks=pytest.mark.slow),
    ],
)
def test_derivatives_through_robertsons_problem(order, error, rtol):
    """Those of gains grow by 38 orders of magnitude here."""
    solver = EK1(order, error=error)
    with jax.enable_x64(True):
        found = jit(jax.jacfwd(lambda x: robertson_end(x, solver, rtol)))(ROBERTSON)
    np.testing.assert_allclose(found, SLOPES, rtol=1e-6)


def follows_cosine(t, y, rate):
    return -rate * (y - jnp.cos(t))


def cosine(rate):
    """The solution at t = 1, where its start is forgotten."""
    return (rate**2 * jnp.cos(1.0) + rate * jnp.sin(1.0)) / (1.0 + rate**2)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda rate: (follows_cosine, rate), id="explicit"),
        pytest.param(
            lambda rate: (MassMatrix(follows_cosine, np.array([2.0])), 2.0 * rate), id="mass matrix"
        ),
    ],
)
def test_a_fast_rate_has_the_small_derivative_that_it_has(make):
    def end(rate):
        equation, given = make(rate)
        options = {"solver": EK1(6), "control": TIGHT, "save_at": 1.0}
        return probode.solve(equation, (0.0, 1.0), np.full(1, 0.5), (given,), **options).mean[0, 0]

    with jax.enable_x64(True):
        found, expected = jit(jax.jacfwd(end))(1e4), jax.grad(cosine)(1e4)
    assert found == pytest.approx(float(expected), rel=1e-4)


# --- Where solutions are known in closed form -----------------------------------------------------


def swinging(t, y, rate):
    return rate * y * jnp.cos(t)


def exact(y0, rate, t0, t1):
    return y0 * jnp.exp(rate * (jnp.sin(t1) - jnp.sin(t0)))


X = np.array([1.2, 0.7, 0.3, 2.1])
"""Initial value, rate, start and end."""


def end_of(x, **options):
    options = {"solver": EK1(4), "control": TIGHT, "save_at": x[3], **options}
    return probode.solve(swinging, (x[2], x[3]), x[0], (x[1],), **options).mean[-1]


def inside(x, **options):
    times = jnp.stack([x[3] - 1.0, x[3], 2.5])
    options = {"solver": EK1(4), "control": TIGHT, "save_at": times, **options}
    return probode.solve(swinging, (x[2], 3.0), x[0], (x[1],), **options).mean[1]


def on_grid(x):
    grid = x[2] + (x[3] - x[2]) * jnp.linspace(0.0, 1.0, 60)
    posterior = probode.solve(swinging, (x[2], x[3]), x[0], (x[1],), solver=EK1(4), grid=grid)
    return posterior.mean[-1], posterior(x[3] - 0.5).mean


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(end_of, id="end"),
        pytest.param(lambda x: end_of(x, solver=EK0(4, evaluations=2)), id="EK0-twice"),
        pytest.param(inside, id="between-steps"),
        pytest.param(lambda x: inside(x, smooth=False), id="filter-between-steps"),
        pytest.param(lambda x: on_grid(x)[0], id="grid"),
    ],
)
def test_derivatives_by_values_parameters_and_times(run):
    with jax.enable_x64(True):
        found, expected = jit(jax.jacfwd(run))(X), jax.jacfwd(lambda x: exact(*x))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_derivatives_of_dense_output_by_its_time():
    with jax.enable_x64(True):
        found = jit(jax.jacfwd(lambda x: on_grid(x)[1]))(X)
        expected = jax.jacfwd(lambda x: exact(*x[:3], x[3] - 0.5))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("backwards", [False, True])
def test_derivatives_by_a_breakpoint(backwards):
    """Of ``y' = u - y`` with ``u`` from 1 to 3 at a time ``s``: ``(1 - 3) exp(s - t)``."""
    span = (2.0, 0.0) if backwards else (0.0, 2.0)

    def end(switch):
        options = {"save_at": span[1], "breakpoints": switch[None], "control": TIGHT}
        field = lambda t, y, s: jnp.where(t < s, 1.0, 3.0) - y  # noqa: E731
        return probode.solve(field, span, 0.5, (switch,), **options).mean[-1]

    with jax.enable_x64(True):
        slope = jit(jax.jacfwd(end))(0.7)
    expected = 2.0 * np.exp(0.7) if backwards else -2.0 * np.exp(-1.3)
    assert slope == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_reverse_mode_is_the_transpose_of_forward_mode():
    def run(x):
        return end_of(x, max_steps=200)

    with jax.enable_x64(True):
        forward, reverse = jit(jax.jacfwd(run))(X), jit(jax.jacrev(run))(X)
    np.testing.assert_allclose(reverse, forward, rtol=1e-12)


@pytest.mark.slow
def test_derivatives_of_algebraic_components():
    def relation(t, y, rate):
        return jnp.stack([rate * y[0] * jnp.cos(t), y[1] - y[0] ** 2])

    def end(x):
        equation, start = MassMatrix(relation, np.array([1.0, 0.0])), jnp.stack([x[0], x[0] ** 2])
        options = {"solver": EK1(4), "control": TIGHT, "save_at": x[3]}
        return probode.solve(equation, (x[2], x[3]), start, (x[1],), **options).mean[-1]

    with jax.enable_x64(True):
        found = jit(jax.jacfwd(end))(X)
        expected = jax.jacfwd(lambda x: jnp.stack([exact(*x), exact(*x) ** 2]))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_derivatives_of_a_mean_on_a_circle_are_tangents():
    def turning(t, y, rate):
        return rate * jnp.stack([y[1], -y[0]])

    def end(x):
        start = jnp.stack([jnp.cos(x[0]), jnp.sin(x[0])])
        options = {"control": PIControl(1e-3, 1e-5), "save_at": x[3]}
        options["invariants"] = lambda t, y: y[0] ** 2 + y[1] ** 2 - 1.0
        return probode.solve(turning, (0.0, x[3]), start, (x[1],), **options).mean[-1]

    with jax.enable_x64(True):
        at, slopes = jit(lambda x: (end(x), jax.jacfwd(end)(x)))(X)
    np.testing.assert_allclose(at @ slopes, 0.0, atol=1e-13)
    np.testing.assert_allclose(slopes[0], -at[1] * np.array([1.0, -X[3], 0.0, -X[1]]), atol=1e-4)


def likelihood(rates, order, rtol):
    data = probode.Observations(np.linspace(1.0, 10.0, 10), np.zeros((10, 2)), noise=1.0)
    options = {"solver": EK1(order), "control": PIControl(rtol, 1e-3 * rtol), "method": "plain"}
    return probode.log_likelihood(predator_prey, (0.0, 10.0), np.ones(2), (rates,), data, **options)


@pytest.mark.parametrize("kernels", [True, False])
def test_the_derivative_of_a_likelihood_is_as_accurate_as_the_solution(kernels):
    """With Jacobians at the predictions its error is 5e-5, and 5e-6 with those at the means.

    The reference is a tight solve.
    """
    with nullcontext() if kernels else native.disabled(), jax.enable_x64(True):
        found, exactly = (
            jax.grad(likelihood)(jnp.array([1.5, 3.0]), *of) for of in ((3, 1e-4), (6, 1e-9))
        )
    assert np.max(np.abs(found - exactly)) < 2e-5 * np.max(np.abs(exactly))


# --- What is held fixed ---------------------------------------------------------------------------


def test_covariances_are_held_fixed_unless_all_is_differentiated():
    def std(x, differentiate):
        grid = np.linspace(0.3, 2.1, 20)
        options = {"solver": EK1(3), "grid": grid, "differentiate": differentiate}
        return probode.solve(swinging, (0.3, 2.1), x[0], (x[1],), **options).std[-1]

    with jax.enable_x64(True):
        none, some = (jit(jax.jacfwd(std), static_argnums=1)(X[:2], w) for w in ("mean", "all"))
    assert np.all(none == 0.0)
    assert np.all(np.abs(some) > 0.0)


def test_a_second_derivative_by_ek1_is_refused():
    def end(x):
        return end_of(jnp.concatenate([x, X[2:]]), max_steps=200)

    with jax.enable_x64(True), pytest.raises(NotImplementedError, match="second derivatives"):
        jit(jax.hessian(end))(X[:2])


def test_what_may_be_differentiated_is_one_of_two():
    with pytest.raises(ValueError, match="differentiate"):
        probode.solve(swinging, (0.0, 1.0), 1.0, (1.0,), differentiate="std")
