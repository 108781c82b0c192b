"""Dense output by the native kernels, and wide blocks: what the JAX code computes.

The reference is compiled without LLVM's optimisations, which take most of its time: how it rounds
is no matter of these bounds.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_native import FIELDS, both, fall

from probode import EK0, EK1, DiagonalEK1, FixedDiffusion, solve
from probode.engines import native

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels were not built")

DENSE_OUTPUT = {
    "isotropic": EK0(3),
    "block-diagonal": DiagonalEK1(3, "dynamic-mv"),
    "dense": EK1(3),
    "a scale per component": EK0(2, "dynamic-mv", structure="dense"),
    "fixed": EK1(2, FixedDiffusion(error="running")),
}
STEPS = np.r_[0.0, np.cumsum([0.1, 0.3, 0.2, 0.4])]
BETWEEN = np.array([1e-17, 0.03, 0.1 + 1e-9, 0.25, 0.5, 0.61, 0.999])
OUTSIDE = np.array([-0.5, -1e-3, 1.2, 3.0])
EVERYWHERE = np.concatenate([STEPS, BETWEEN, OUTSIDE])


@cache
def on_a_grid(solver, name="lotka-volterra", smooth=True):
    field, y0 = FIELDS[name]
    return solve(field, (0.0, 1.0), y0, solver=DENSE_OUTPUT[solver], grid=STEPS, smooth=smooth)


def assert_same_dense_output(posterior, t, k=0):
    """Means up to rounding in units of y and the shortest step, covariances up to conditioning."""
    found = posterior.derivative(t, k)
    with native.disabled():
        expected = posterior.derivative(t, k)
    assert found.mean.shape == expected.mean.shape
    length = np.abs(np.diff(posterior.t)).min(initial=np.inf)
    rounding = 1e-13 * np.abs(posterior.mean).max() / length**k
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-11, atol=rounding)
    largest = np.abs(expected.cov).max(initial=0.0)
    np.testing.assert_allclose(found.cov, expected.cov, rtol=1e-7, atol=1e-10 * largest)


@pytest.mark.parametrize("smooth", [True, False], ids=["smoothed", "filter"])
@pytest.mark.parametrize("solver", DENSE_OUTPUT)
def test_dense_output(solver, smooth):
    assert_same_dense_output(on_a_grid(solver, smooth=smooth), EVERYWHERE)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("solver", ["isotropic", "block-diagonal", "dense"])
def test_dense_output_of_derivatives(solver, k):
    assert_same_dense_output(on_a_grid(solver), EVERYWHERE, k)


@pytest.mark.parametrize("name", FIELDS)
def test_dense_output_in_every_dimension(name):
    assert_same_dense_output(on_a_grid("dense", name), EVERYWHERE)


def in_units(t, y, unit):
    return -y / unit


@pytest.mark.parametrize("unit", [-1.0, 1e-6, 1e6])
def test_dense_output_in_any_direction_and_unit_of_time(unit):
    grid = STEPS * unit
    posterior = solve(in_units, grid[[0, -1]], [1.0, 2.0], (unit,), solver=EK1(3), grid=grid)
    assert_same_dense_output(posterior, EVERYWHERE * unit)


def test_dense_output_of_a_state_too_large_for_vectors_in_registers():
    field, y0 = FIELDS["five components"]
    posterior = solve(field, (0.0, 1.0), np.tile(y0, 2), solver=EK1(4), grid=STEPS)
    assert_same_dense_output(posterior, EVERYWHERE)


def test_dense_output_of_a_solve_without_a_step():
    posterior = solve(lambda t, y: -y, (0.0, 0.0), [1.0], solver=EK1(2))
    assert_same_dense_output(posterior, np.array([-1.0, 0.0, 1.0]))


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_dense_output_has_the_shape_of_the_times(shape):
    assert_same_dense_output(on_a_grid("dense"), np.full(shape, 0.77))


def test_dense_output_of_rows_that_lie_in_memory_in_another_way():
    """The arrays of a solve are views of the kernels' rows; these are transposed copies."""
    posterior = on_a_grid("dense")
    turned = jax.tree.map(np.asfortranarray, posterior.path)
    both_ways = (
        path.evaluate(posterior.method, EVERYWHERE, 0) for path in (posterior.path, turned)
    )
    for one, other in zip(*both_ways, strict=True):
        np.testing.assert_array_equal(one, other)


WIDE = {
    "not stiff": (np.array([0.5, 1.0, 2.0, 0.3, 1.5, 0.1, 3.0]), 1e-6),
    "digits lost on the way": (np.array([0.5, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3]), 1e-5),
    "too steep for squares": (np.array([1.0, 1e2, 1e4, 1e6, 1e8, 1.0, 10.0]), 1e-5),
}


def wide(t, y, rates):
    return rates * (jnp.cos(t) - y) + 0.1 * jnp.roll(y, 1)


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("order", [3, 5])
@pytest.mark.parametrize("name", WIDE)
def test_wide_blocks_keep_their_digits(name, order, smooth):
    """Updates by covariances, or by reflections where these would lose digits: every deviation."""
    rates, rtol = WIDE[name]
    one, other = both(
        wide,
        np.ones(7),
        args=(rates,),
        solver=EK1(order, "dynamic"),
        grid=np.linspace(0.0, 1.0, 31),
        smooth=smooth,
    )
    np.testing.assert_allclose(one.std[2:], other.std[2:], rtol=rtol)
    assert np.all(np.abs(one.mean - other.mean)[2:] <= 1e-6 * other.std[2:] + 1e-12)


@pytest.mark.parametrize("size", [0.0, 1e-170, 1e150])
def test_wide_blocks_with_squares_that_vanish_or_overflow(size):
    one, other = both(fall, np.arange(6) * size, solver=EK1(3), step=0.1)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9)
    np.testing.assert_allclose(one.std, other.std, rtol=1e-6, atol=1e-6 * size)
