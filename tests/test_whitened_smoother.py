"""The smoother in units of the filter's uncertainty, several steps at a time: what JAX computes.

The reference is compiled without LLVM's optimisations, which take most of its time: how it rounds
is no matter of these bounds.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from probode import EK0, EK1, DiagonalEK1, solve
from probode.engines import native
from probode.model.gaussian import unpack

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels were not built")

GRID = np.r_[0.0, np.cumsum(np.tile([0.02, 0.05, 0.03], 8))]


def ring(t, y):
    """Neighbours that act on each other."""
    return jnp.roll(y, 1) * jnp.roll(y, -1) - y + jnp.sin(t)


def slow_but(quick, others):
    """Parameters, of which the others are left to ``make slow``."""
    others = (one if isinstance(one, tuple) else (one,) for one in others)
    return [*quick, *(pytest.param(*one, marks=pytest.mark.slow) for one in others)]


def both(field, y0, order, grid=GRID, **options):
    """Smoothed with native kernels, and without."""
    solver = EK1(order, **options)
    one = solve(field, (0.0, grid[-1]), y0, solver=solver, grid=grid)
    with native.disabled():
        return one, solve(field, (0.0, grid[-1]), y0, solver=solver, grid=grid)


def factors(posterior):
    """Smoothed factors at the nodes, in coordinates."""
    return np.asarray(unpack(posterior.path.smoothed.factor))


def deviations(posterior):
    """Standard deviations of all derivatives at the nodes, in coordinates."""
    return np.sqrt(np.sum(factors(posterior) ** 2, axis=-2))


def without_reflections(posterior, d):
    """Nodes whose factor has no rows for y', like the filter's: reflections leave rounding."""
    return ~np.any(factors(posterior)[:, d : 2 * d], axis=(1, 2))


# A dynamic diffusion is a residual: it has fewer digits than the state.
@pytest.mark.parametrize(
    ("d", "order", "diffusion", "rtol"),
    [
        (2, 2, "dynamic", 1e-6),
        pytest.param(3, 5, "fixed", 1e-8, marks=pytest.mark.slow),
        (4, 3, "fixed", 1e-8),
        (5, 1, "fixed", 1e-8),
        pytest.param(6, 3, "fixed", 1e-8, marks=pytest.mark.slow),
        (7, 5, "fixed", 1e-8),
        pytest.param(8, 2, "dynamic", 1e-6, marks=pytest.mark.slow),
        (9, 5, "dynamic", 1e-6),
    ],
)
def test_equals_jax(d, order, diffusion, rtol):
    one, other = both(ring, np.linspace(0.1, 0.5, d), order, diffusion=diffusion)
    assert np.all(without_reflections(one, d))
    np.testing.assert_allclose(deviations(one), deviations(other), rtol=rtol)
    assert np.all(np.abs(one.mean - other.mean) <= 1e-6 * other.std + 1e-14)
    np.testing.assert_array_equal(factors(one)[0], 0.0)  # known exactly


@pytest.mark.parametrize(
    ("order", "fastest", "diffusion"), [(3, 1e4, "dynamic"), (8, 1.0, "fixed")]
)
def test_reflections_where_smoothing_leaves_little(order, fastest, diffusion):
    """Stiff or of high order: smoothed deviations are a small part of the filter's."""
    rates = jnp.geomspace(0.5, fastest, 6)

    def field(t, y):
        return rates * (jnp.cos(t) - y) + 0.1 * jnp.roll(y, 1)

    # Residuals of order 8 are of the size of rounding: their diffusion would be, too.
    one, other = both(field, np.ones(6), order, diffusion=diffusion)
    one, other = (dataclasses.replace(p, evidence=other.evidence) for p in (one, other))
    assert not np.all(without_reflections(one, 6))
    np.testing.assert_allclose(one.std[2:], other.std[2:], rtol=1e-5)


# Steps that are smoothed together need not fill a lane.
@pytest.mark.parametrize("steps", slow_but((1, 4, 7), (2, 3, 5)))
def test_few_steps(steps):
    one, other = both(ring, np.array([0.1, 0.5]), 3, grid=GRID[: steps + 1])
    np.testing.assert_allclose(deviations(one), deviations(other), rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "order"),
    slow_but(
        ((EK0, 3), (EK0, 6), (DiagonalEK1, 1), (DiagonalEK1, 4), (DiagonalEK1, 5)),
        ((EK0, 1), (EK0, 4), (EK0, 5), (DiagonalEK1, 3), (DiagonalEK1, 6)),
    ),
)
def test_blocks_of_one_component(method, order):
    """One that all components share, and one for each."""
    solver, y0 = method(order, diffusion="fixed"), np.linspace(0.1, 0.5, 6)
    one = solve(ring, (0.0, GRID[-1]), y0, solver=solver, grid=GRID)
    with native.disabled():
        other = solve(ring, (0.0, GRID[-1]), y0, solver=solver, grid=GRID)
    np.testing.assert_allclose(deviations(one), deviations(other), rtol=1e-6)
    assert np.all(np.abs(one.mean - other.mean) <= 1e-5 * other.std + 1e-12)


@pytest.mark.parametrize("order", slow_but((3, 8), (5,)))
def test_narrow_blocks_with_steps_left_to_single_reflections(order):
    """A component that is stiff for a while: what is left out is done, and what follows goes on."""

    def field(t, y):
        rate = jnp.where(jnp.abs(t - 0.4) < 0.15, 1e5, 1.0)
        return jnp.stack([rate * (jnp.cos(t) - y[0]), y[0] - y[1]])

    one, other = both(field, np.ones(2), order)
    np.testing.assert_allclose(one.std[2:], other.std[2:], rtol=1e-5)


def test_an_uncertain_start():
    """A first node whose factor has other rows than the ones after it."""
    one, other = both(ring, np.linspace(0.1, 0.5, 6), 3, initialization="diffuse")
    np.testing.assert_allclose(deviations(one), deviations(other), rtol=1e-6)


def test_several_chunks():
    """Smoothed one after the other, each from the first node of the one behind it."""
    rates = jnp.linspace(0.5, 2.0, 5)
    one, other = both(lambda t, y: -rates * y, np.ones(5), 2, grid=np.linspace(0.0, 1.0, 1500))
    np.testing.assert_allclose(deviations(one), deviations(other), rtol=1e-6)


def test_nan_stays_nan():
    """A solution that ends in NaN has no numbers made up before it."""
    one, other = both(lambda t, y: jnp.where(t < 0.4, -y, jnp.nan), np.ones(5), 2)
    assert one.status == other.status
    np.testing.assert_allclose(one.std, other.std, rtol=1e-6)
