"""Ensembles whose members keep to invariants and bounds."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest

from probode import EK0, EK1, MassMatrix, PIControl, SecondOrder, solve_ensemble

TIMES = np.linspace(0.5, 3.0, 4)
OPTIONS = {
    "calibration": "model",
    "solver": EK1(3),
    "control": PIControl(1e-3, 1e-4),
    "save_at": TIMES,
}
RADII = np.array([0.5, 1.0, 2.0])
STARTS = RADII[:, None] * np.array([1.0, 0.0])


def turn(t, y, r):
    return jnp.stack([-y[1], y[0]])


def circle(t, y, r):
    """A NumPy function, of each member's own radius."""
    return np.sum(y**2) - r**2


def turns(**options):
    return solve_ensemble(turn, (0.0, 3.0), STARTS, (RADII,), **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def held():
    return turns(invariants=circle, covariance=True)


def test_each_member_keeps_its_own_invariant(held):
    assert held.engine == "vmapped" and held.success.all()
    radii = np.linalg.norm(held.mean, axis=-1)
    np.testing.assert_allclose(radii, np.broadcast_to(RADII[:, None], radii.shape), rtol=1e-14)


def test_the_error_does_not_grow(held):
    exact = RADII[:, None, None] * np.stack([np.cos(TIMES), np.sin(TIMES)], axis=1)
    before = np.linalg.norm(turns().mean - exact, axis=-1)
    assert np.all(np.linalg.norm(held.mean - exact, axis=-1) <= 1.01 * before)


def test_the_variance_across_is_taken_out(held):
    across = np.einsum("btij,bti,btj->bt", held.cov, held.mean, held.mean)
    largest = np.trace(held.cov, axis1=-2, axis2=-1) * np.sum(held.mean**2, axis=-1)
    assert np.all(across <= 1e-12 * largest)


@pytest.mark.slow
def test_a_member_alone_is_the_same_also_after_pickling(held):
    alone = pickle.loads(pickle.dumps(held)).member(2)
    np.testing.assert_allclose(alone.mean, held.mean[2], rtol=1e-9)
    np.testing.assert_allclose(alone.std, held.std[2], rtol=1e-6, atol=1e-12)
    np.testing.assert_array_equal(held.rerun([1]).mean[0], held.mean[1])


@pytest.mark.slow
def test_samples_keep_it_too(held):
    drawn = np.linalg.norm(held.sample(10), axis=-1)
    np.testing.assert_allclose(drawn, np.broadcast_to(RADII[:, None, None], drawn.shape), rtol=1e-9)


@pytest.mark.slow
def test_bounds_hold_and_nothing_is_evaluated_outside():
    """A tank runs empty: without bounds the square root ends it."""
    starts = np.array([[1.0], [0.25], [4.0]])
    tanks = solve_ensemble(
        lambda t, y: -np.sqrt(y), (0.0, 3.0), starts, bounds=(0.0, np.inf), **OPTIONS
    )
    assert tanks.success.all() and np.all(tanks.mean >= 0.0)
    level = np.maximum(np.sqrt(starts) - TIMES / 2.0, 0.0) ** 2
    np.testing.assert_allclose(tanks.mean[..., 0], level, atol=5e-3)


@pytest.mark.slow
def test_equations_of_second_order():
    springs = solve_ensemble(
        *(SecondOrder(lambda t, y, v, e: -y), (0.0, 3.0), (RADII[:, None], [0.0])),
        (RADII**2 / 2.0,),
        invariants=lambda t, y, v, e: (y[0] ** 2 + v[0] ** 2) / 2.0 - e,
        **{**OPTIONS, "solver": EK0(3)},
    )
    energy = np.sum(springs.mean**2, axis=(-2, -1)) / 2.0
    np.testing.assert_allclose(energy, np.broadcast_to(RADII[:, None] ** 2 / 2, energy.shape))


@pytest.mark.slow
def test_differential_algebraic_equations():
    equation = MassMatrix(lambda t, y, k: jnp.stack([-k * y[0], y[0] + y[1] - 1.0]), [1.0, 0.0])
    some = solve_ensemble(
        *(equation, (0.0, 3.0), np.array([1.0, 0.5]), (RADII,)),
        **OPTIONS, invariants=lambda y: y[0] + y[1] - 1.0, bounds=(0.0, 1.0),
    )  # fmt: skip
    assert np.max(abs(some.mean.sum(axis=-1) - 1.0)) < 1e-15
    assert np.all((some.mean >= 0.0) & (some.mean <= 1.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"invariants": lambda y: y[0] ** 2 + y[1] ** 2 - 0.25}, "at the start of member 1"),
        ({"invariants": lambda y: y[1]}, "changes at the rate"),
        ({"invariants": 3.0}, "must be a function"),
        ({"bounds": (-1.0, 1.5)}, "component 0 of member 2 is 2"),
        ({"bounds": (0.0, np.ones(3))}, "must be a number or have the shape"),
        ({"invariants": circle, "engine": "lanes"}, "neither invariants nor bounds"),
    ],
)
def test_what_does_not_fit_is_said(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        turns(**options)


def test_a_store_knows_them(tmp_path):
    pytest.importorskip("zarr")
    store = tmp_path / "turns"
    written = turns(invariants=circle, covariance=True, store=store)
    np.testing.assert_array_equal(
        written.mean, turns(invariants=circle, covariance=True, store=store).mean
    )
    with pytest.raises(ValueError, match="invariants"):
        turns(invariants=lambda t, y, r: y @ y / r - r, covariance=True, store=store)
