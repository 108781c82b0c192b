"""The two-pole filter: stability, order, and the linear algebra it stands on."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array, csc_array, random_array

import probode
from probode import PIControl, SparseEK1
from probode.engines.native.library import available, disabled
from probode.engines.two_pole import sparse_lu
from probode.engines.two_pole.dense import coefficients, value
from probode.engines.two_pole.linear import Banded, Direct, Full
from probode.engines.two_pole.sparse_lu import Fronts, Singular, Sparse
from probode.model.two_pole import HIGHEST, gains

ORDERS = range(1, HIGHEST + 1)


def amplification(q, z):
    """The matrix of one step for ``y' = λ y`` with ``h λ = z``."""
    gain = gains(q)
    w = 1.0 / (1.0 - gain.gamma * z)
    observed = np.zeros(q + 1, complex)
    observed[:2] = -z, 1.0
    return (np.eye(q + 1) - np.outer(gain.alpha * w**2 + gain.beta * w, observed)) @ gain.predict


def radius(q, z):
    return max(abs(np.linalg.eigvals(amplification(q, z))))


@pytest.mark.parametrize(("q", "degrees"), [(1, 90), (2, 90), (3, 89.3), (4, 83.3), (5, 82.1)])
def test_steps_are_stable_in_a_sector(q, degrees):
    direction = np.exp(1j * np.deg2rad(180.0 - degrees))
    assert max(radius(q, r * direction) for r in np.logspace(-3, 6, 150)) <= 1.0 + 1e-9
    assert max(radius(q, -r) for r in np.logspace(-3, 6, 150)) <= 1.0 + 1e-9


@pytest.mark.parametrize("q", ORDERS)
def test_what_is_infinitely_stiff_is_forgotten(q):
    assert radius(q, -1e12) == pytest.approx([0.0, 0.4, 0.4, 0.3, 0.2][q - 1], abs=1e-6)


@pytest.mark.parametrize("q", ORDERS)
@pytest.mark.parametrize("z", [-0.1, -3.0, 2.0j, -50.0 + 10.0j])
def test_one_update_meets_a_linear_equation(q, z):
    x = amplification(q, z) @ np.linspace(1.0, 2.0, q + 1)
    assert abs(x[1] - z * x[0]) <= 1e-12 * (abs(x[1]) + abs(z * x[0]))


@pytest.mark.parametrize("q", ORDERS)
def test_the_order_is_one_more_than_the_prior_has(q):
    def error(n):
        posterior = probode.solve(
            lambda t, y: jnp.stack([y[1], -y[0]]) * (1.0 + 0.5 * jnp.sin(t)),
            (0.0, 6.0),
            np.array([1.0, 0.0]),
            solver=SparseEK1(q),
            step=6.0 / n,
        )
        angle = posterior.t + 0.5 * (1.0 - np.cos(posterior.t))
        return np.abs(posterior.mean[:, 0] - np.cos(angle)).max()

    # The start, of order one, leaves an error of second order in the step.
    assert np.log2(error(200) / error(400)) > min(q + 1, 3) - 0.4


# Linear algebra -----------------------------------------------------------------------------------


def band_matrix(seed, d, lower, upper):
    numbers = np.random.default_rng(seed)
    full = numbers.normal(size=(d, d))
    row, column = np.indices((d, d))
    return np.where((row - column <= lower) & (column - row <= upper), full, 0.0)


@given(
    seed=st.integers(0, 2**31),
    d=st.integers(1, 30),
    lower=st.integers(0, 5),
    upper=st.integers(0, 5),
    native=st.booleans(),
)
def test_bands_are_solved_as_full_matrices_are(seed, d, lower, upper, native):
    """Row exchanges included: the diagonal of these is no larger than the rest."""
    j = csc_array(band_matrix(seed, d, lower, upper))
    if native:
        solve = Banded(j).factorised(j, 0.7)
    else:
        with disabled():
            solve = Banded(j).factorised(j, 0.7)
    matrix = np.eye(d) - 0.7 * j.toarray()
    b = np.random.default_rng(seed + 1).normal(size=d)
    left = np.abs(matrix @ solve(b) - b).max()
    # Backward stable: the residual is one of rounding, in units of the solution.
    assert left <= 1e-12 * np.abs(matrix).sum(axis=1).max() * (1.0 + np.abs(solve(b)).max()) * d


@pytest.mark.parametrize("kind", [Sparse, Full, Direct])
@pytest.mark.parametrize("weighed", [False, True])
def test_every_factorisation_solves_the_same_system(kind, weighed):
    d = 200
    j = csc_array(random_array((d, d), density=0.02, rng=np.random.default_rng(1)))
    mass = csc_array(random_array((d, d), density=0.01, rng=np.random.default_rng(2)))
    mass = csc_array(mass + 4.0 * csc_array(np.eye(d))) if weighed else None
    matrix = (np.eye(d) if mass is None else mass.toarray()) - 0.3 * j.toarray()
    b = np.linspace(1.0, 2.0, d)
    solve = kind(d, mass).factorised(j, 0.3)
    np.testing.assert_allclose(solve(b), np.linalg.solve(matrix, b), rtol=1e-9)


def test_bands_hidden_by_the_numbering_are_found():
    d = 300
    shuffled = np.random.default_rng(0).permutation(d)
    j = csc_array(band_matrix(0, d, 1, 1)[np.ix_(shuffled, shuffled)])
    direct = Direct(d)
    solve = direct.factorised(j, 0.1)
    b = np.arange(d) + 1.0
    assert direct.name == "band LU"
    np.testing.assert_allclose(solve(b) - 0.1 * (j @ solve(b)), b, rtol=1e-10)


@pytest.mark.parametrize("kernels", [True, False])
def test_a_singular_matrix_is_refused(kernels):
    j = csc_array(np.diag(np.ones(100)))
    with pytest.raises(Singular):
        if kernels:
            Banded(j).factorised(j, 1.0)
        else:
            with disabled():
                Banded(j).factorised(j, 1.0)


# Dense output -------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1])
@pytest.mark.parametrize("q", [1, 3, 5])
def test_dense_output_goes_through_both_ends_with_their_slopes(q, k):
    numbers = np.random.default_rng(q)
    left, right = numbers.normal(size=(2, q + 1, 3))
    polynomial = coefficients(left, right, 0.3)
    np.testing.assert_allclose(value(polynomial, -1.0, 0.3, k), left[k], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(value(polynomial, 0.0, 0.3, k), right[k], rtol=1e-9, atol=1e-9)


def test_dense_output_is_as_exact_as_the_steps():
    posterior = probode.solve(
        lambda t, y: -y, (0.0, 3.0), np.ones(2), solver=SparseEK1(4), control=PIControl(1e-7, 1e-7)
    )
    t = np.linspace(0.0, 3.0, 301)
    error = np.abs(posterior(t).mean[:, 0] - np.exp(-t))
    assert error.max() <= 3.0 * np.abs(posterior.mean[:, 0] - np.exp(-posterior.t)).max()


# ------------------------------------------------------------------ sparse matrices by fronts


def sparse_matrix(seed, d, density, kind):
    """With a diagonal that is as large as the rest of its column, in patterns of several kinds."""
    rng = np.random.default_rng(seed)
    made = random_array((d, d), density=density, rng=rng, data_sampler=rng.standard_normal)
    matrix = made.toarray()
    if kind == "grid":
        side = int(np.sqrt(d))
        matrix = np.zeros((d, d))
        for step in (1, side):
            index = np.arange(d - step)
            matrix[index, index + step] = rng.normal(size=d - step)
            matrix[index + step, index] = rng.normal(size=d - step)
    if kind == "hub":
        matrix[d // 2] = rng.normal(size=d)
        matrix[:, d // 2] += rng.normal(size=d)
    if kind == "parts":
        matrix[: d // 2, d // 2 :] = matrix[d // 2 :, : d // 2] = 0.0
    np.fill_diagonal(matrix, np.abs(matrix).sum(axis=0) + 0.1)
    return matrix


@given(
    seed=st.integers(0, 2**31),
    d=st.integers(1, 300),
    density=st.sampled_from([0.0, 0.003, 0.02, 0.2]),
    kind=st.sampled_from(["any", "grid", "hub", "parts"]),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.skipif(not available(), reason="they are the kernels'")
def test_fronts_solve_what_full_matrices_do(seed, d, density, kind):
    matrix = sparse_matrix(seed, d, density, kind)
    b = np.random.default_rng(seed + 1).normal(size=d)
    pattern = csc_array(matrix)
    x = Fronts.of(pattern).factorised(pattern.data)(b)
    # Dominant columns: multipliers are below one, and elimination is backward stable.
    assert np.abs(matrix @ x - b).max() <= 1e-13 * d * np.abs(matrix).max() * np.abs(x).max()


@pytest.mark.skipif(not available(), reason="they are the kernels'")
def test_fronts_exchange_no_rows_and_something_else_does():
    d = 100
    matrix = np.eye(d)[::-1] + 1e-9 * np.eye(d) + np.diag(np.full(d - 1, 0.3), 1)
    fronts = Fronts.of(csc_array(matrix))
    assert fronts.factorised(csc_array(matrix).data) is None
    solve = Sparse(d).factorised(csc_array(np.eye(d) - matrix), 1.0)
    np.testing.assert_allclose(matrix @ solve(np.ones(d)), np.ones(d), atol=1e-10)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
@pytest.mark.skipif(not available(), reason="they are the kernels'")
def test_fronts_have_no_result_where_there_is_none(value):
    matrix = sparse_matrix(0, 80, 0.05, "any")
    matrix[40, matrix[40] != 0.0] = value
    pattern = csc_array(sparse_matrix(0, 80, 0.05, "any"))
    pattern.data = matrix[pattern.indices, np.repeat(np.arange(80), np.diff(pattern.indptr))]
    assert Fronts.of(pattern).factorised(pattern.data) is None


@pytest.mark.skipif(not available(), reason="they are the kernels'")
def test_factors_without_room_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr(sparse_lu, "_LARGE", 0.0)
    monkeypatch.setattr(sparse_lu, "free_memory", lambda: 1e5)
    j = csc_array(sparse_matrix(3, 300, 0.05, "any"))
    with pytest.raises(MemoryError, match=r"300 unknowns.* GB .*krylov"):
        Sparse(300).factorised(j, 0.1)


@pytest.mark.parametrize("dimensions, growth", [(2, 5.0), (3, 18.0)])
@pytest.mark.skipif(not available(), reason="they are the kernels'")
def test_factors_of_grids_grow_as_dissection_says(dimensions, growth):
    """Like ``n log n`` in the plane (here 4.75 times as many), ``n^(4/3)`` in space (16 times)."""
    sides = {2: (40, 80), 3: (12, 24)}[dimensions]
    numbers = []
    for side in sides:
        points = np.arange(side**dimensions).reshape((side,) * dimensions)
        pairs = [
            (np.take(points, range(1, side), k), np.take(points, range(side - 1), k))
            for k in range(dimensions)
        ]
        one, other = (np.concatenate([pair[i].ravel() for pair in pairs]) for i in (0, 1))
        size = points.size
        entries = coo_array((np.ones(len(one)), (one, other)), shape=(size, size))
        numbers.append(Fronts(csc_array(entries + entries.T)).numbers)
    assert numbers[1] / numbers[0] < growth
