"""Square-root algebra against plain covariance algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probode.model import gaussian

pytestmark = pytest.mark.optimised


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def random_factor(seed, rows, columns):
    return np.random.default_rng(seed).standard_normal((rows, columns))


def assert_close(ours, exact, tolerance=1e-11):
    scale = max(1.0, np.max(np.abs(exact)))
    np.testing.assert_allclose(np.asarray(ours) / scale, exact / scale, atol=tolerance)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_conditioning_equals_the_kalman_update(seed):
    factor, h = random_factor(seed, 8, 4), random_factor(seed + 1, 2, 4)
    z = random_factor(seed + 2, 2, 1)
    cov = factor.T @ factor
    s = h @ cov @ h.T
    gain = cov @ h.T @ np.linalg.inv(s)
    update = gaussian.condition(jnp.asarray(factor), jnp.asarray(factor @ h.T), jnp.asarray(z))
    assert_close(update.correction, gain @ z, 1e-9)
    assert_close(update.factor.T @ update.factor, cov - gain @ s @ gain.T, 1e-9)
    assert_close(jnp.sum(update.whitened**2), (z.T @ np.linalg.solve(s, z)).item(), 1e-9)
    assert_close(2 * jnp.sum(jnp.log(jnp.abs(update.pivots))), np.linalg.slogdet(s)[1], 1e-9)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_reverting_a_transition_gives_the_smoothing_gain(seed):
    factor, noise = random_factor(seed, 3, 3), random_factor(seed + 1, 3, 3)
    a = random_factor(seed + 2, 3, 3)
    cov = factor.T @ factor
    predicted = a @ cov @ a.T + noise.T @ noise
    gain = cov @ a.T @ np.linalg.inv(predicted)
    kernel = gaussian.revert(
        jnp.asarray(np.concatenate([factor @ a.T, noise])), jnp.asarray(factor)
    )
    assert_close(kernel.gain_transposed.T, gain, 1e-7)
    assert_close(kernel.factor.T @ kernel.factor, cov - gain @ predicted @ gain.T, 1e-7)


def test_a_batch_is_the_same_as_one_by_one():
    factor, observed = random_factor(0, 15, 4).reshape(3, 5, 4), random_factor(1, 15, 1)
    z = random_factor(2, 3, 2).reshape(3, 1, 2)
    batch = gaussian.condition(factor, observed.reshape(3, 5, 1), z)
    for i in range(3):
        single = gaussian.condition(factor[i], observed.reshape(3, 5, 1)[i], z[i])
        assert_close(batch.correction[i], np.asarray(single.correction))
        assert_close(np.abs(batch.factor[i]), np.abs(single.factor))


def test_an_observation_without_variance_loses_no_covariance():
    """A column of exact zeros must not swallow a row of the factor."""
    factor = jnp.asarray([[3.0, 0.0], [0.0, 0.0]])
    update = gaussian.condition(factor, factor[:, 1:], jnp.zeros((1, 1)), jnp.ones(1))
    assert_close(update.factor.T @ update.factor, np.diag([9.0, 0.0]))


def test_a_zero_pivot_gives_a_zero_component():
    upper = jnp.asarray([[2.0, 1.0, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 4.0]])
    solution = gaussian.solve_transposed(upper, jnp.ones((3, 1)))
    assert solution[1, 0] == 0.0
    assert np.all(np.isfinite(solution))


@pytest.mark.parametrize("kind", ["forward", "reverse"])
def test_derivative_of_a_rank_deficient_stack(kind):
    """The stack [N Hᵀ, N] never has full column rank; its R must be differentiable all the same."""
    base, h = random_factor(3, 8, 4), random_factor(4, 2, 4)
    z = random_factor(5, 2, 1)

    def statistic(x):
        factor = jnp.asarray(base) * (1 + x * jnp.arange(4)) + x
        update = gaussian.condition(factor, factor @ (h + x).T, jnp.asarray(z) + x)
        std = gaussian.std_of(update.factor)
        return jnp.sum(std) + jnp.sum(update.correction) + jnp.sum(update.whitened**2)

    derivative = {
        "forward": lambda x: jax.jvp(statistic, (x,), (1.0,))[1],
        "reverse": jax.grad(statistic),
    }[kind]
    step, compiled = 1e-6, jax.jit(statistic)
    finite = (compiled(0.3 + step) - compiled(0.3 - step)) / (2 * step)
    assert jax.jit(derivative)(0.3) == pytest.approx(float(finite), rel=1e-6)


def test_second_derivatives_are_refused():
    stack = jnp.asarray(random_factor(6, 5, 3))
    with pytest.raises(NotImplementedError, match="second derivatives"):
        jax.hessian(lambda x: jnp.sum(gaussian.triangularize(x * stack, 1) ** 2))(1.0)


@pytest.mark.parametrize("xp", [np, jnp])
@pytest.mark.parametrize("size", [1, 2, 5, 12])
def test_a_packed_triangle_unpacks_to_the_same(xp, size):
    factor = np.triu(random_factor(0, 3 * size, size).reshape(3, size, size))
    packed = gaussian.pack(xp.asarray(factor))
    assert packed.shape == (3, size * (size + 1) // 2)
    np.testing.assert_array_equal(gaussian.unpack(packed), xp.asarray(factor))


def test_unpacked_columns_leave_out_the_rows_below_the_triangle():
    factor = np.triu(random_factor(1, 6, 6))
    some = gaussian.unpack(gaussian.pack(factor), slice(2, 4))
    np.testing.assert_array_equal(some, factor[:4, 2:4])
