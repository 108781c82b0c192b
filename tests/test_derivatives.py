"""With ``differentiate="all"`` derivatives are those of differences, forward and in reverse."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import jit_once as jit
from transformed import GRID, LOOSE, QUICK, RATES, SAVE_AT, Y0, solve

import probode
from probode import EK0, EK1

pytestmark = pytest.mark.usefixtures("jax_as_it_comes")

SOLVERS = [EK0(2), EK1(2), EK0(2, "fixed"), EK1(2, "fixed")]


def quick(solver):
    """One of them, the others are left to ``make slow``."""
    slow = [pytest.param(x, marks=[pytest.mark.slow] * (x != solver)) for x in SOLVERS]
    return pytest.mark.parametrize("solver", slow, ids=lambda s: f"{s.name}-{s.diffusion.name}")


X0 = np.concatenate([Y0, RATES])
DIRECTION = np.array([0.5, -1.0, 0.25, 0.75])


def values(x, **options):
    """Means and standard deviations as a function of ``y0`` and ``args``."""
    posterior = solve(x[:2], x[2:], differentiate="all", **options)
    # Standard deviations at the start are zero, whatever the parameters are.
    return posterior.mean[1:], posterior.std[1:]


def differences(function, x, h=2.0**-20):
    """Central differences along the coordinates, stacked on the last axis."""
    columns = [
        jax.tree.map(lambda a, b: (a - b) / (2 * h), function(x + h * e), function(x - h * e))
        for e in np.eye(len(x))
    ]
    return jax.tree.map(lambda *xs: np.stack(xs, axis=-1), *columns)


def assert_close(actual, expected, tolerance=1e-6):
    """Each array up to ``tolerance`` times its largest entry."""
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.max(np.abs(b)))


def weights(shape):
    return np.cos(np.arange(np.prod(shape))).reshape(shape)


def weighted(x, **options):
    """One number in which every mean counts, and one for the standard deviations."""
    return tuple(jnp.sum(weights(value.shape) * value) for value in values(x, **options))


def weighted_differences(differences):
    return [np.tensordot(weights(d.shape[:-1]), d, axes=d.ndim - 1) for d in differences]


@functools.cache
def _grid_differences(solver):
    """Of solves outside a trace."""
    return differences(lambda x: values(x, solver=solver, grid=GRID), X0)


@quick(EK0(2, "fixed"))  # EK1's are transposed below
def test_forward_derivatives_on_a_grid_are_those_of_differences(solver):
    with jax.enable_x64(True):
        run = functools.partial(values, solver=solver, grid=GRID)
        tangent = jit(lambda x: jax.jvp(run, (x,), (DIRECTION,))[1])(X0)
    assert_close(tangent, jax.tree.map(lambda d: d @ DIRECTION, _grid_differences(solver)))


@quick(EK1(2))
def test_reverse_derivatives_on_a_grid_are_those_of_differences(solver):
    with jax.enable_x64(True):
        gradients = jit(jax.jacrev(lambda x: weighted(x, solver=solver, grid=GRID)))(X0)
    assert_close(gradients, weighted_differences(_grid_differences(solver)))


ADAPTIVE = {"tolerance": 2.0**-5, "save_at": np.array([0.5, 1.25, 2.0])}
MAX_STEPS = 12


@functools.cache
def _frozen_differences():
    """Central differences of a solve that takes the steps of the adaptive one, whatever ``x``.

    Derivatives of an adaptive solve are those of its result at the steps taken: the choice of the
    steps is not differentiated.
    """
    steps = solve(tolerance=ADAPTIVE["tolerance"])
    assert steps.stats.steps <= MAX_STEPS
    return differences(lambda x: values(x, grid=steps.t, **ADAPTIVE), X0)


@pytest.mark.slow
def test_forward_derivatives_of_an_adaptive_solve_at_the_steps_taken():
    with jax.enable_x64(True):
        run = functools.partial(values, **ADAPTIVE)
        tangent = jit(lambda x: jax.jvp(run, (x,), (DIRECTION,))[1])(X0)
    assert_close(tangent, jax.tree.map(lambda d: d @ DIRECTION, _frozen_differences()))


@pytest.mark.slow
def test_reverse_derivatives_of_an_adaptive_solve_with_max_steps():
    with jax.enable_x64(True):
        gradients = jit(jax.jacrev(lambda x: weighted(x, max_steps=MAX_STEPS, **ADAPTIVE)))(X0)
    assert_close(gradients, weighted_differences(_frozen_differences()))


@pytest.mark.slow
def test_derivatives_of_an_adaptive_mean_are_right_up_to_the_tolerance():
    """Against differences of the adaptive solve itself, whose steps follow the parameters."""
    expected = differences(lambda x: values(x, save_at=SAVE_AT), X0)[0] @ DIRECTION
    with jax.enable_x64(True):
        run = functools.partial(values, save_at=SAVE_AT)
        actual = jit(lambda x: jax.jvp(run, (x,), (DIRECTION,))[1][0])(X0)
    assert_close(actual, expected, tolerance=20 * LOOSE)


def test_parameters_in_a_closure_have_derivatives():
    def final(rate):
        grid = np.linspace(0.0, 1.0, 33)
        return probode.solve(
            lambda t, y: -rate * y, (0.0, 1.0), 1.0, solver=QUICK, grid=grid, smooth=False
        ).mean[-1]

    with jax.enable_x64(True):
        assert jit(jax.grad(final))(0.5) == pytest.approx(-np.exp(-0.5), rel=1e-4)


def test_reverse_mode_works_in_scoped_double_precision():
    """The backward pass runs after ``solve``: JAX must be in double precision around ``grad``."""
    with jax.enable_x64(True):
        gradient = jit(jax.grad(lambda x: weighted(x, grid=GRID)[0]))(jnp.asarray(X0))
    expected = weighted_differences(_grid_differences(QUICK))[0]
    np.testing.assert_allclose(gradient, expected, rtol=1e-4)


def test_forward_mode_works_with_the_switch_off():
    x, direction = jnp.asarray(X0), jnp.asarray(DIRECTION)
    run = functools.partial(values, grid=GRID)
    tangent = jit(lambda x: jax.jvp(run, (x,), (direction,))[1])(x)
    expected = jax.tree.map(lambda d: d @ DIRECTION, _grid_differences(QUICK))
    assert_close(tangent, expected, tolerance=1e-5)


@pytest.mark.parametrize("name", ["mean", pytest.param("std", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "second",
    [
        pytest.param(lambda f: jax.jacfwd(jax.jacrev(f)), id="forward-over-reverse"),
        pytest.param(lambda f: jax.jacfwd(jax.jacfwd(f)), id="forward-over-forward"),
    ],
)
def test_second_derivatives_are_refused_rather_than_wrong(name, second):
    def final(x):
        return getattr(solve(x[:2], x[2:], grid=GRID, differentiate="all"), name)[-1].sum()

    with (
        jax.enable_x64(True),
        pytest.raises(NotImplementedError, match="second derivatives"),
    ):
        jit(second(final))(X0)


@pytest.mark.slow
@pytest.mark.parametrize("derivative", [jax.grad, jax.jacfwd])
def test_where_the_end_was_not_reached_the_derivative_is_not_known_either(derivative):
    def end(rate):
        field = lambda t, y: -rate * y  # noqa: E731
        options = {"solver": EK1(2), "save_at": 5.0, "max_steps": 3}
        return probode.solve(field, (0.0, 5.0), jnp.ones(1), **options).mean[0, 0]

    with jax.enable_x64(True):
        assert np.isnan(jit(derivative(end))(1.0))
