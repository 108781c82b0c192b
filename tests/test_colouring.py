"""Colours of columns, the sparse Jacobians made with them, and patterns that leave entries out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import probode
from probode.base.precision import double_precision
from probode.programs.colouring import as_pattern, bands, colouring
from probode.programs.field import trace_field
from probode.programs.finite_differences import finite_difference_jacobian
from probode.programs.layout import layout
from probode.programs.pattern_check import check_field, check_function
from probode.programs.sparse_jacobian import (
    GivenJacobian,
    differenced,
    jacobian_product,
    traced_jacobian,
)
from probode.programs.sparsity import sparsity

pytestmark = pytest.mark.optimised

T = 0.3


@pytest.fixture(autouse=True)
def _doubles():
    with double_precision():
        yield


def field_of(function, y, args=()):
    return trace_field(function, jnp.asarray(T), jnp.asarray(y), args, None, diagonal=False)


def random_pattern(seed, n, m, per_column):
    random = np.random.default_rng(seed)
    return random.random((n, m)) < per_column / n


def line(n, around):
    """The pattern of second differences."""
    matrix = sp.lil_array(np.eye(n) + np.eye(n, k=1) + np.eye(n, k=-1))
    if around:
        matrix[0, n - 1] = matrix[n - 1, 0] = 1.0
    return sp.csr_array(matrix)


def grid(sizes, around=False, species=1):
    """The pattern of second differences along all axes, of species that react at every point."""
    pattern = sp.csr_array((1, 1))
    for n in sizes:
        one = sp.eye_array(pattern.shape[0])
        pattern = sp.kron(pattern, sp.eye_array(n)) + sp.kron(one, line(n, around))
    points = sp.eye_array(pattern.shape[0])
    every = sp.csr_array(np.ones((species, species)))
    return sp.kron(sp.eye_array(species), pattern) + sp.kron(every, points)


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 40),
    m=st.integers(1, 40),
    per_column=st.floats(0.0, 5.0),
)
@settings(max_examples=60, deadline=None)
def test_columns_of_a_colour_share_no_row(seed, n, m, per_column):
    pattern = random_pattern(seed, n, m, per_column)
    coloured = colouring(pattern)
    assert coloured.colours.shape == (m,)
    assert coloured.count == coloured.colours.max() + 1 >= pattern.sum(1).max()
    for colour in range(coloured.count):
        assert np.all(pattern[:, coloured.colours == colour].sum(1) <= 1)


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 30), m=st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_products_with_colours_have_all_entries(seed, n, m):
    pattern = random_pattern(seed, n, m, 3.0)
    matrix = pattern * np.random.default_rng(seed).normal(size=(n, m))
    coloured = colouring(sp.csr_array(pattern))
    products = [matrix @ (coloured.colours == colour) for colour in range(coloured.count)]
    found = coloured.matrix(coloured.data(np.array(products)))
    np.testing.assert_array_equal(found.toarray(), matrix)
    assert found.has_sorted_indices


@pytest.mark.parametrize("below, above", [(0, 0), (1, 1), (3, 0), (2, 5)])
def test_bands_take_as_many_colours_as_diagonals(below, above):
    pattern = bands(200, below, above)
    full = np.tril(np.triu(np.ones((200, 200)), -below), above)
    np.testing.assert_array_equal(pattern.toarray(), full != 0)
    assert colouring(pattern).count == below + above + 1


GRIDS = {
    "line": (grid([300]), 3),
    "ring": (grid([300], around=True), 3),
    "plane": (grid([31, 23]), 5),
    "torus": (grid([30, 25], around=True), 5),
    "space": (grid([7, 8, 9]), 7),
    "two species": (grid([31, 23], species=2), 6),
    "two species, side by side": (sp.kron(grid([23]), np.ones((2, 2))), 6),
}


@pytest.mark.parametrize("name", GRIDS)
def test_grids_take_the_least_number_of_colours(name):
    pattern, least = GRIDS[name]
    assert np.diff(sp.csr_array(pattern).indptr).max() == least
    assert colouring(pattern).count == least


@pytest.mark.parametrize("sizes", [[101], [29, 31], [11, 13]])
def test_odd_grids_around_take_at_most_twice_as_many(sizes):
    pattern = grid(sizes, around=True, species=2)
    assert colouring(pattern).count <= 2 * (2 * len(sizes) + 2)


def test_a_million_columns():
    coloured = colouring(bands(10**6, 1, 1))
    assert coloured.count == 3


def brusselator(n, wrap=True):
    """In the plane, with periodic ends or insulated ones."""
    mode = "wrap" if wrap else "edge"

    def function(t, y):
        u, v = y.reshape(2, n, n)

        def diffused(x):
            wide = jnp.pad(x, 1, mode=mode)
            around = wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2]
            return 0.1 * n**2 * (around - 4.0 * x)

        du = 1.0 + u**2 * v - 4.4 * u + diffused(u)
        dv = 3.4 * u - u**2 * v + diffused(v)
        return jnp.concatenate([du.reshape(-1), dv.reshape(-1)])

    return function


def rod(t, y):
    """The Brusselator on a line, its species side by side, in NumPy as users write it."""
    u, v = np.pad(y.reshape(-1, 2), ((1, 1), (0, 0)), constant_values=1.0).T
    u[[0, -1]], v[[0, -1]] = 1.0, 3.0
    here, there = u[1:-1], v[1:-1]
    du = 1.0 + here**2 * there - 4.0 * here + 20.0 * (u[2:] - 2.0 * here + u[:-2])
    dv = 3.0 * here - here**2 * there + 20.0 * (v[2:] - 2.0 * there + v[:-2])
    return np.stack([du, dv], axis=1).reshape(-1)


def heat(t, y):
    wide = np.concatenate([[0.0], y, [0.0]])
    return 1e4 * (wide[2:] - 2.0 * y + wide[:-2])


N = 6
STATE = 1.0 + np.random.default_rng(1).random(2 * N * N)


@pytest.mark.parametrize("wrap", [True, False])
def test_of_a_traced_field_to_rounding(wrap):
    field = field_of(brusselator(N, wrap), STATE)
    found = traced_jacobian(field)(T, STATE)
    expected = np.asarray(jax.jacfwd(lambda y: field(T, y))(STATE))
    # Sums of five terms and of some products: a few roundings of the largest entry.
    bound = 8 * np.finfo(float).eps * np.abs(expected).max()
    np.testing.assert_allclose(found.toarray(), expected, rtol=0, atol=bound)
    assert found.dtype == np.float64 and isinstance(found, sp.csc_array)


COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: COMPILED.append(event) if "backend_compile" in event else None
)


def test_new_values_have_the_same_pattern_and_compile_nothing():
    def function(t, y, k):
        return k * y**2 + t * jnp.roll(y, 1)

    field = field_of(function, np.ones(5), (2.0,)).with_arguments((2.0,))
    jacobian = traced_jacobian(field)
    first, count = jacobian(0.0, np.ones(5)), len(COMPILED)
    second = jacobian.of(field.with_arguments((3.0,)))(1.5, np.arange(5.0))
    assert len(COMPILED) == count
    assert np.shares_memory(second.indices, first.indices)
    expected = np.diag(6.0 * np.arange(5.0)) + 1.5 * np.roll(np.eye(5), 1, axis=0)
    np.testing.assert_allclose(second.toarray(), expected, rtol=1e-15)


def test_a_guarded_field_has_zeros_for_what_is_not_finite():
    field = field_of(lambda t, y: jnp.sqrt(y), np.ones(3)).guard()
    found = traced_jacobian(field)(0.0, np.array([0.0, 1.0, 4.0]))
    np.testing.assert_array_equal(found.toarray(), np.diag([0.0, 0.5, 0.25]))


def test_a_full_one_is_none():
    assert traced_jacobian(field_of(lambda t, y: y * y.sum(), np.ones(8000))) is None


def test_of_many_colours_in_blocks():
    """More directions than are pushed at once: 11 of 30 000 unknowns, two at a time."""
    d = 30_000

    def function(t, y):
        return sum((k + 30.0) * jnp.roll(y, k) for k in range(11))

    field = field_of(function, np.ones(d))
    found = traced_jacobian(field)(0.0, np.ones(d))
    v = np.random.default_rng(0).normal(size=d)
    expected = function(0.0, jnp.asarray(v))
    assert found.nnz == 11 * d
    np.testing.assert_allclose(found @ v, expected, atol=1e-10)
    np.testing.assert_allclose(jacobian_product(field, 0.0, np.ones(d), v), expected, atol=1e-10)


CASES = {
    "heat": (heat, np.sin(np.linspace(0.1, 3.0, 80)), {"below": 1, "above": 1}),
    "rod": (rod, 1.0 + np.random.default_rng(2).random(80), {"below": 2, "above": 2}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("as_columns", [False, True])
def test_differences_of_a_python_function(name, as_columns):
    function, y, widths = CASES[name]
    columns = lambda t, states: np.stack([function(t, x) for x in states.T], axis=1)  # noqa: E731
    jacobian = differenced(function, len(y), columns=columns if as_columns else None, **widths)
    found = jacobian(0.0, y).toarray()
    full = finite_difference_jacobian(function)(0.0, y, function(0.0, y))
    size = np.abs(full).max()
    np.testing.assert_allclose(found, full, atol=1e-6 * size)
    assert jacobian.coloured.count == sum(widths.values()) + 1
    known = finite_difference_jacobian(function, None, jacobian.pattern)(0.0, y, function(0.0, y))
    np.testing.assert_allclose(known, found, atol=1e-12 * size)


def test_differences_of_a_field_are_its_jacobian():
    field = field_of(brusselator(N), STATE)
    exact = traced_jacobian(field)(T, STATE)
    function = lambda t, y: np.asarray(field(t, y))  # noqa: E731
    found = differenced(function, len(STATE), sparsity(field))(T, STATE)
    assert abs(found - exact).max() <= 1e-6 * abs(exact).max()


def test_differences_need_a_pattern():
    with pytest.raises(ValueError, match="jac_sparsity"):
        differenced(heat, 5)


TRIDIAGONAL = np.diag(np.arange(1.0, 6.0)) + np.diag(np.arange(1.0, 5.0), 1) - np.eye(5, k=-1)
PACKED = np.stack([np.r_[0.0, np.diag(TRIDIAGONAL, 1)], np.diag(TRIDIAGONAL), [*-np.ones(4), 0.0]])


@pytest.mark.parametrize(
    "jac, bands_of_it",
    [
        (TRIDIAGONAL, {}),
        (sp.coo_array(TRIDIAGONAL), {}),
        (sp.csr_matrix(TRIDIAGONAL), {}),
        (PACKED, {"below": 1, "above": 1}),
        (TRIDIAGONAL, {"below": 1, "above": 1}),
    ],
)
@pytest.mark.parametrize("constant", [True, False])
def test_the_users_own_in_any_form(jac, bands_of_it, constant):
    jacobian = GivenJacobian(jac if constant else lambda t, y: t * jac, 5, **bands_of_it)
    factor = 1.0 if constant else 2.0
    found = jacobian(2.0, np.ones(5))
    assert isinstance(found, sp.csc_array) and found.dtype == np.float64
    np.testing.assert_array_equal(found.toarray(), factor * TRIDIAGONAL)


def test_the_users_own_pattern_only_grows():
    diagonal, above = np.eye(3), np.eye(3, k=1)
    jacobian = GivenJacobian(lambda t, y: sp.csr_array(diagonal if t < 1.0 else above), 3)
    before = jacobian(0.0, np.ones(3))
    found = jacobian(1.0, np.ones(3))
    again = jacobian(0.0, np.ones(3))
    np.testing.assert_array_equal(found.toarray(), above)
    np.testing.assert_array_equal(again.toarray(), before.toarray())
    assert found.nnz == again.nnz == jacobian.pattern.nnz == 5


@pytest.mark.parametrize(
    "jac, options, error, message",
    [
        (np.eye(4), {}, ValueError, r"shape \(3, 3\), got \(4, 4\)"),
        (np.eye(4), {"below": 1}, ValueError, r"\(2, 3\) \(packed: lband=1, uband=0\) or \(3, 3\)"),
        (lambda t, y: None, {}, TypeError, "return statement"),
        ([["a"]], {}, TypeError, "matrix of numbers"),
        (1j * np.eye(3), {}, ValueError, "real numbers"),
        (np.ones((3, 3)), {"sparsity": np.tril(np.ones((3, 3)))}, ValueError, r"\(0, 1\), outside"),
        (np.eye(3), {"sparsity": np.eye(4)}, ValueError, r"`jac_sparsity` must have the shape"),
    ],
)
def test_what_the_users_own_may_not_be(jac, options, error, message):
    with pytest.raises(error, match=message):
        GivenJacobian(jac, 3, **options)(0.0, np.ones(3))


def problem(name):
    given = probode.problems.get(name)
    return field_of(given.vector_field, given.y0, given.args), given.y0


def in_python(field):
    evaluate = jax.jit(lambda t, y: field(t, y))
    return lambda t, y: np.asarray(evaluate(t, y))


FIELDS = {
    "rober": lambda: problem("rober"),
    "hires": lambda: problem("hires"),
    "orego": lambda: problem("orego"),
    "reaction-diffusion": lambda: problem("reaction-diffusion"),
    "plane": lambda: (field_of(brusselator(N), STATE), STATE),
    "insulated": lambda: (field_of(brusselator(N, False), STATE), STATE),
}


@pytest.mark.parametrize("name", FIELDS)
def test_true_patterns_are_not_doubted(name):
    """At the start, and where components differ by many orders of magnitude."""
    field, start = FIELDS[name]()
    function, jacobian = in_python(field), traced_jacobian(field)
    random = np.random.default_rng(0)
    for y in (
        start,
        start + 1e-3 * random.random(len(start)),
        10.0 ** random.uniform(-9, 3, len(start)),
    ):
        matrix = jacobian(T, y)
        check_field(field, T, y, matrix)
        check_function(function, T, y, matrix)
        check_function(function, T, y, differenced(function, len(y), jacobian.pattern)(T, y))


@pytest.mark.parametrize("name", CASES)
def test_true_bands_are_not_doubted(name):
    function, y, widths = CASES[name]
    check_function(function, 0.0, y, differenced(function, len(y), **widths)(0.0, y))


def without(pattern, k):
    """A pattern that lacks one entry, and which."""
    entries = sp.coo_array(pattern)
    kept = np.arange(entries.nnz) != k
    i, j = entries.coords
    lacking = sp.csc_array((np.ones(entries.nnz - 1), (i[kept], j[kept])), shape=pattern.shape)
    return lacking, (int(i[k]), int(j[k]))


@pytest.mark.parametrize("name", ["rober", "hires", "plane"])
def test_a_missing_entry_of_a_stiff_problem_is_named(name):
    field, start = FIELDS[name]()
    y = start + 1e-3 * (1.0 + np.random.default_rng(0).random(len(start)))
    function, pattern = in_python(field), sparsity(field)
    missing = np.random.default_rng(1).choice(pattern.nnz, min(pattern.nnz, 8), replace=False)
    for k in missing:
        lacking, (i, j) = without(pattern, int(k))
        with pytest.raises(ValueError, match=rf"\({i}, {j}\).*outside of `jac_sparsity`"):
            check_field(field, T, y, traced_jacobian(field, lacking)(T, y))
        with pytest.raises(ValueError, match=rf"\({i}, {j}\).*outside of `jac_sparsity`"):
            check_function(function, T, y, differenced(function, len(y), lacking)(T, y))


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 200))
@settings(max_examples=40, deadline=None)
def test_a_missing_entry_anywhere_is_named(seed, n):
    """Of random functions with components of sizes from 10⁻⁴ to 10⁴."""
    random = np.random.default_rng(seed)
    weights = random.uniform(0.1, 2.0, (n, n)) * random.choice([-1.0, 1.0], (n, n))
    matrix = sp.csr_array(random_pattern(seed, n, n, 4.0) * weights)
    if matrix.nnz == 0:
        return
    scale = 10.0 ** random.uniform(-4.0, 4.0, n)
    y = scale * random.uniform(0.5, 2.0, n) * random.choice([-1.0, 1.0], n)

    def function(t, y):
        return scale * (matrix @ np.sinh(y / scale))

    lacking, (i, j) = without(matrix, int(random.integers(matrix.nnz)))
    found = differenced(function, n, lacking)(0.0, y)
    with pytest.raises(ValueError, match=rf"\({i}, {j}\).*outside of the pattern"):
        check_function(function, 0.0, y, found, "the pattern")
    check_function(function, 0.0, y, differenced(function, n, matrix)(0.0, y))


def test_bands_that_are_too_narrow():
    y = np.linspace(1.0, 2.0, 100)
    found = differenced(heat, 100, None, 1, 0)(0.0, y)
    with pytest.raises(ValueError, match=r"f\[\d+\] changes with y\[\d+\].*lband=1, uband=0, or"):
        check_function(heat, 0.0, y, found, "lband=1, uband=0")


def test_a_function_that_fails_nearby_is_not_judged():
    def function(t, y):
        if np.any(y > 1.0):
            raise FloatingPointError("too large")
        return y[::-1]

    check_function(function, 0.0, np.ones(3), sp.csc_array(np.eye(3)))


def test_layouts():
    shuffle = np.random.default_rng(0).permutation(60)
    found = layout(as_pattern(bands(60, 2, 1)))
    assert found[:2] == (2, 1) and found.fullest_row == 4
    mixed = bands(60, 2, 1)[shuffle][:, shuffle]
    found = layout(mixed)
    assert max(found[:2]) > 20 and max(found[2:4]) <= 4
    ordered = layout(mixed[found.order][:, found.order])
    assert ordered[:2] == found[2:4]
    assert found.per_row == pytest.approx(mixed.nnz / 60)
