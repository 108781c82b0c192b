"""Isotropic, block-diagonal and dense covariances describe the same model where they can."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probode import EK0, EK1, DiagonalEK1, PIControl, solve

pytestmark = pytest.mark.optimised


def field(t, y):
    return jnp.stack([-y[0] * y[1] + jnp.sin(t), y[0] - 0.5 * y[1]])


def run(solver, **options):
    return solve(field, (0.0, 3.0), np.array([1.0, 0.5]), solver=solver, **options)


SETTINGS = [
    (EK0, "dynamic", ("isotropic", "block-diagonal", "dense")),
    (EK0, "fixed", ("isotropic", "block-diagonal", "dense")),
    (EK0, "fixed-mv", ("isotropic", "block-diagonal", "dense")),
    (EK0, "dynamic-mv", ("block-diagonal", "dense")),
    (DiagonalEK1, "dynamic", ("block-diagonal", "dense")),
    (DiagonalEK1, "fixed", ("block-diagonal", "dense")),
    (DiagonalEK1, "fixed-mv", ("block-diagonal", "dense")),
    (DiagonalEK1, "dynamic-mv", ("block-diagonal", "dense")),
]
PAIRS = [
    pytest.param(method, diffusion, first, other, id=f"{method.__name__}-{diffusion}-{other}")
    for method, diffusion, (first, *others) in SETTINGS
    for other in others
]


@pytest.mark.parametrize(("method", "diffusion", "first", "other"), PAIRS)
def test_structures_agree_to_rounding(method, diffusion, first, other):
    grid = np.linspace(0.0, 3.0, 16)
    a = run(method(3, diffusion, structure=first), grid=grid)
    b = run(method(3, diffusion, structure=other), grid=grid)
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-12)
    np.testing.assert_allclose(a.std, b.std, rtol=1e-9)
    np.testing.assert_allclose(a.cov, b.cov, rtol=1e-8, atol=1e-12 * np.max(np.abs(a.cov)))
    np.testing.assert_allclose(a.diffusion, b.diffusion, rtol=1e-9)
    assert a.log_evidence == pytest.approx(b.log_evidence, rel=1e-10)


@pytest.mark.parametrize("other", ["block-diagonal", "dense"])
def test_structures_take_the_same_adaptive_steps(other):
    control = PIControl(rtol=1e-5, atol=1e-7)
    a = run(EK0(3), control=control)
    b = run(EK0(3, structure=other), control=control)
    np.testing.assert_allclose(a.t, b.t, rtol=1e-9)


@pytest.mark.parametrize(
    ("solver", "structure"),
    [(EK0(3), "Isotropic"), (EK0(3, "fixed-mv"), "Isotropic"), (EK0(3, "dynamic-mv"), "BlockDiag")],
)
def test_the_smallest_structure_is_chosen(solver, structure):
    assert type(solver.method(2).structure).__name__.startswith(structure)


def test_covariance_of_an_isotropic_solve_is_not_stored_dense():
    """A hundred thousand components: a factor is a triangle of order + 1 rows."""
    posterior = solve(lambda t, y: -y, (0.0, 1.0), np.ones(100_000), solver=EK0(2), step=0.25)
    assert posterior.path.rows.factor.shape == (5, 6)
    np.testing.assert_allclose(posterior.mean[-1], np.exp(-1.0), atol=1e-2)


@pytest.mark.parametrize("solver", [EK0(4), EK1(4), DiagonalEK1(4)])
def test_a_stored_step_is_its_mean_and_one_triangle(solver):
    """Besides time, step size and diffusion, at most ``D + D (D + 1) / 2`` numbers for D states."""
    d = 3
    posterior = solve(lambda t, y: -y, (0.0, 1.0), np.ones(d), solver=solver, smooth=False)
    states = 5 * d
    kept = sum(leaf[0].size for leaf in jax.tree.leaves(posterior.path))
    assert kept <= 2 + d + states + states * (states + 1) // 2
