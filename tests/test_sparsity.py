"""Patterns of Jacobians: no entry is missing, and where entries are combined one by one, none is
there that is zero. Judged by JAX's full Jacobians at random points."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental.sparse import BCOO, BCSR

import probode
from probode.base.jax_inside import Opaque
from probode.base.precision import double_precision
from probode.programs.field import Field, bind, trace_field
from probode.programs.program import Program
from probode.programs.sparsity import sparsity
from probode.programs.tracing import make_traceable

N = 12
RANDOM = np.random.default_rng(0)
SPARSE = RANDOM.normal(size=(N, N)) * (RANDOM.random((N, N)) < 0.2)
FULL = RANDOM.normal(size=(N, N))
T = 0.3


@pytest.fixture(autouse=True)
def _doubles():
    with double_precision():
        yield


def field_of(function, d=N, args=()):
    return trace_field(function, jnp.asarray(T), jnp.ones(d), args, None, diagonal=False)


def nonzeros(function, d=N, args=(), points=30):
    """Where the full Jacobian has a nonzero at one of many points, at times before and after 0."""
    t, y = RANDOM.normal(size=points), 1.5 * RANDOM.normal(size=(points, d))
    jacobian = jax.jacfwd(lambda t, y: jnp.asarray(function(t, y, *args)).reshape(-1), 1)
    return np.any(np.asarray(jax.jit(jax.vmap(jacobian))(t, y)) != 0.0, axis=0)


def found(function, d=N, args=()):
    pattern = sparsity(field_of(function, d, args))
    assert pattern.has_sorted_indices and pattern.dtype == bool
    return pattern.toarray()


def second_difference(z):
    return z[2:] - 2.0 * z[1:-1] + z[:-2]


def neighbours(u):
    """All along all axes, around the ends."""
    return sum(jnp.roll(u, by, axis) for by in (1, -1) for axis in range(u.ndim)) - u**2


def plane(y):
    return y.reshape(3, 4)


def with_ends(t, y):
    inside = second_difference(y)
    return jnp.zeros_like(y).at[1:-1].set(inside).at[0].set(y[3]).at[-1].add(y[2])


def two_species(t, y):
    u, v = y.reshape(2, -1)
    wide = jnp.pad(u, 1, mode="edge")
    du = 1.0 + u**2 * v - 4.0 * u + second_difference(wide)
    dv = 3.0 * u - u**2 * v + neighbours(v)
    return jnp.concatenate([du, dv])


def scanned(t, y):
    def body(carry, x):
        i, c = carry
        c = jnp.where(i < 4, c * 0.5 + x, x)
        return (i + 1, c), c * x

    return lax.scan(body, (0, 0.0), y)[1]


@jax.custom_jvp
def straight_through(x):
    return jnp.floor(x)


@straight_through.defjvp
def _(primals, tangents):
    return straight_through(*primals), tangents[0]


EXACT = {
    "line, roll": lambda t, y: jnp.roll(y, 1) - 2.0 * y + jnp.roll(y, -1),
    "line, pad": lambda t, y: second_difference(jnp.pad(y, 1)),
    "line, wrap": lambda t, y: second_difference(jnp.pad(y, 1, mode="wrap")) * t,
    "line, slices": lambda t, y: jnp.concatenate([y[:1] * t, y[2:] * y[:-2], y[-1:] ** 2]),
    "line, set": with_ends,
    "plane": lambda t, y: neighbours(plane(y)).reshape(-1),
    "plane, shape of its own": lambda t, y: neighbours(plane(y)).T.reshape(-1),
    "space": lambda t, y: neighbours(y.reshape(2, 3, 2)).reshape(-1),
    "two species": two_species,
    "add at places": lambda t, y: y.at[jnp.array([0, 0, 5])].add(y[jnp.array([7, 8, 9])]),
    "set at the same place": lambda t, y: y.at[jnp.array([0, 2])].set(y[3] * y[4]),
    "multiply at places": lambda t, y: y.at[jnp.array([0, 2])].multiply(
        y[3], unique_indices=True
    ),
    "out of bounds": lambda t, y: y.at[jnp.array([1, 40])].set(y[:2], mode="drop"),
    "slice put in": lambda t, y: lax.dynamic_update_slice(y, y[5:8] * y[:3], (2,)),
    "sparse matrix": lambda t, y: SPARSE @ y,
    "matrix on the right": lambda t, y: y @ SPARSE,
    "full matrix": lambda t, y: FULL @ y,
    "matrices of axes": lambda t, y: (
        SPARSE[:3, 4:7] @ plane(y) + plane(y) @ SPARSE[:4, :4]
    ).reshape(-1),
    "einsum": lambda t, y: jnp.einsum("ij,jk->ki", SPARSE[:3, 4:7], plane(y)).reshape(-1),
    "batches": lambda t, y: jnp.einsum("bij,bj->bi", SPARSE.reshape(4, 3, 12)[..., :3], y.reshape(4, 3)).reshape(-1),  # noqa: E501
    "products": lambda t, y: jnp.outer(y[:3], y[3:7]).reshape(-1),
    "matrix of unknowns": lambda t, y: jnp.tile(y[:9].reshape(3, 3) @ y[9:], 4),
    "where": lambda t, y: jnp.where(y > 0.0, y**2, jnp.roll(y, 1)),
    "where, known": lambda t, y: jnp.where(np.arange(N) > 5, y, jnp.roll(y, 1)),
    "above the mean": lambda t, y: jnp.where(y > y.mean(), y, 0.0),
    "mask": lambda t, y: np.r_[0.0, np.ones(N - 2), 0.0] * (jnp.roll(y, 1) + y),
    "places": lambda t, y: y[np.array([3, 1, 2, 0, 5, 4, 7, 6, 9, 8, 11, -1])] * y,
    "vmap": lambda t, y: jax.vmap(lambda i: y[i] * y[(i + 1) % N])(jnp.arange(N)),
    "cumsum": lambda t, y: jnp.cumsum(y),
    "cumsum of axes": lambda t, y: lax.cumsum(plane(y) ** 2, 1, reverse=True).reshape(-1),
    "sums of lines": lambda t, y: jnp.repeat(plane(y).sum(1), 4),
    "softmax": lambda t, y: jax.nn.softmax(plane(y), axis=0).reshape(-1),
    "special function": lambda t, y: jax.scipy.special.i0e(y) + jnp.roll(y, 1),
    "sum": lambda t, y: y * y.sum(),
    "maximum": lambda t, y: y.at[0].set(y[3:7].max()),
    "sort": lambda t, y: jnp.concatenate([jnp.sort(y[:4]), y[4:]]),
    "flat": lambda t, y: jnp.floor(y) * T + jnp.sign(jnp.roll(y, 1)) + y + jnp.round(y[::-1]),
    "no gradient": lambda t, y: y + lax.stop_gradient(jnp.roll(y, 3)),
    "rule of its own": lambda t, y: straight_through(y) + jax.nn.relu(jnp.roll(y, 2)),
    "checkpoint": lambda t, y: jax.checkpoint(lambda y: jnp.roll(jnp.sin(y), 1))(y),
    "convolution": lambda t, y: jnp.convolve(y, np.array([1.0, 0.0, 2.0]), mode="same"),
    "window": lambda t, y: lax.reduce_window(y, 0.0, lax.add, (3,), (1,), "SAME"),
    "segments": lambda t, y: jax.ops.segment_sum(y[:11] * y[1:], np.arange(11) // 2, N),
    "split": lambda t, y: jnp.concatenate(jnp.split(y, 3)[::-1]),
    "scalars": lambda t, y: jnp.array([y[(3 * i) % N] * y[i] + t for i in range(N)]),
    "scan": scanned,
    "map": lambda t, y: lax.map(lambda x: x[0] * x[1], (y, jnp.roll(y, 1))),
    "fori_loop": lambda t, y: lax.fori_loop(0, 3, lambda i, z: jnp.roll(z, 1) * y, y),
    "cond": lambda t, y: lax.cond(t > 0.0, lambda y: y**2, lambda y: jnp.roll(y, 1), y),
    "cond, known": lambda t, y: lax.cond(True, lambda y: y**2, lambda y: jnp.roll(y, 1), y),
    "complex": lambda t, y: jnp.real(jnp.exp(1j * y) * (1.0 + 1j * jnp.roll(y, 1))),
    "transform of axes": lambda t, y: jnp.repeat(jnp.fft.rfft(plane(y)).real[:, 0], 4),
    "nothing": lambda t, y: jnp.ones(N) * t,
}  # fmt: skip

WIDER = {
    "fft": lambda t, y: jnp.fft.ifft(1j * jnp.fft.fft(y)).real,
    "while": lambda t, y: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.roll(c[1], 1) * y), (0, y)
    )[1],
    "places by y": lambda t, y: y[jnp.clip(y.astype(int), 0, N - 1)],
    "places by t": lambda t, y: y + lax.dynamic_slice(y, (jnp.asarray(3 * t, int),), (1,)),
    "set by y": lambda t, y: y.at[jnp.clip(y[0].astype(int), 0, N - 1)].set(y[1]),
    "solve": lambda t, y: jnp.linalg.solve(np.eye(N) + 0.1 * FULL, y),
    "interpolation": lambda t, y: jnp.interp(y, np.linspace(-3.0, 3.0, 7), np.sin(np.arange(7.0))),
    "unknown operation": lambda t, y: lax.top_k(y, N)[0],
}


@pytest.mark.parametrize("name", EXACT)
def test_the_pattern_is_that_of_the_jacobian(name):
    np.testing.assert_array_equal(found(EXACT[name]), nonzeros(EXACT[name]))


@pytest.mark.parametrize("name", WIDER)
def test_no_entry_is_missing(name):
    assert not np.any(nonzeros(WIDER[name]) & ~found(WIDER[name]))


STEPS = {
    "roll": lambda x, y: jnp.roll(x, 1),
    "turn": lambda x, y: x.reshape(3, 2).T.reshape(-1),
    "times": lambda x, y: x * y,
    "head": lambda x, y: jnp.concatenate([x[:2], jnp.sin(y[2:])]),
    "where": lambda x, y: jnp.where(x > 0.0, x, y[::-1]),
    "matrix": lambda x, y: SPARSE[:6, :6] @ x,
    "cumsum": lambda x, y: jnp.cumsum(x),
    "sum": lambda x, y: x.at[1].add(x[3:].sum()),
    "set": lambda x, y: x.at[jnp.array([4, 0])].set(y[:2]),
    "lines": lambda x, y: jnp.repeat(x.reshape(2, 3).max(1), 3),
    "floor": lambda x, y: jnp.floor(x) + y,
    "mask": lambda x, y: np.array([0.0, 1.0, 0.0, 1.0, 1.0, 1.0]) * x,
}


@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6))
@settings(max_examples=15, deadline=None)
def test_no_entry_is_missing_after_any_steps(names):
    """Each step is compiled by itself, once for all examples."""

    def function(t, y):
        return functools.reduce(lambda x, name: STEPS[name](x, y), names, y)

    nonzero = np.zeros((6, 6), bool)
    for y in RANDOM.normal(size=(3, 6)):
        x, jacobian = y, np.eye(6)
        for name in names:
            x, by_x, by_y = step_of(name)(x, y)
            jacobian = by_x @ jacobian + by_y
        nonzero |= np.asarray(jacobian) != 0.0
    assert not np.any(nonzero & ~found(function, 6))


@functools.cache
def step_of(name):
    step = STEPS[name]
    return jax.jit(lambda x, y: (step(x, y), *jax.jacfwd(step, (0, 1))(x, y)))


@pytest.mark.parametrize("name", ["rober", "hires", "orego", "reaction-diffusion"])
def test_of_problems_with_components_written_out(name):
    problem = probode.problems.get(name)
    d, args = len(problem.y0), problem.args
    np.testing.assert_array_equal(
        found(problem.vector_field, d, args), nonzeros(problem.vector_field, d, args)
    )


def with_numpy(t, y):
    change = np.empty_like(y)
    change[1:-1] = y[2:] - 2.0 * y[1:-1] + y[:-2]
    change[0] = y[1] - y[0]
    change[-1] = y[-2] - y[-1]
    change[1:] += np.diff(y) * y[1:]
    return change + 0.1 * np.roll(y, 2)


def test_of_functions_written_with_numpy():
    traceable = make_traceable(with_numpy, (0.0, 1.0), np.linspace(1.0, 2.0, N))
    expected = nonzeros(traceable.function)
    np.testing.assert_array_equal(found(traceable.function), expected)
    assert expected.sum() < 5 * N


@pytest.mark.parametrize("kind", [BCOO, BCSR])
def test_of_products_with_sparse_matrices_of_jax(kind):
    small = kind.fromdense(jnp.asarray(SPARSE[:3, 4:7]))
    matrix = kind.fromdense(jnp.asarray(SPARSE))

    def function(t, y):
        return matrix @ y + (small @ plane(y)).reshape(-1)

    lines = np.kron(SPARSE[:3, 4:7], np.eye(4)) != 0.0
    np.testing.assert_array_equal(found(function), (SPARSE != 0.0) | lines)


def test_of_products_with_sparse_matrices_of_scipy():
    matrix = scipy.sparse.csr_array(SPARSE)
    traceable = make_traceable(lambda t, y: matrix @ y - y**3, (0.0, 1.0), np.ones(N))
    expected = (SPARSE != 0.0) | np.eye(N, dtype=bool)
    np.testing.assert_array_equal(found(traceable.function), expected)


def test_parameters_are_known_and_not_differentiated():
    def function(t, y, matrix, rate):
        return matrix @ y + rate * y

    args = (SPARSE, 2.0)
    np.testing.assert_array_equal(found(function, N, args), (SPARSE != 0.0) | np.eye(N, dtype=bool))


def test_constants_of_a_trace_around_are_not_known():
    @jax.jit
    def inside(matrix):
        pattern = sparsity(field_of(lambda t, y: matrix @ y + y))
        return jnp.asarray(pattern.toarray())

    assert np.all(inside(SPARSE))


def test_of_an_equation_of_second_order_by_both_arrays():
    def function(t, y, v):
        return jnp.roll(y, 1) - v

    start = jnp.ones((2, N))
    field = bind(function, jnp.asarray(T), start, (), None, diagonal=False, reads=2)
    expected = np.hstack([np.roll(np.eye(N), 1, axis=0), np.eye(N)]) != 0
    np.testing.assert_array_equal(sparsity(field).toarray(), expected)


def test_a_long_loop_is_followed_until_nothing_changes():
    """Lines of a plane that never mix, in a loop too long to be written out."""

    def function(t, y):
        def body(i, u):
            return jnp.roll(u, 1, axis=1) * u

        return lax.fori_loop(0, 100_000, body, plane(y)).reshape(-1)

    line = np.kron(np.eye(3), np.ones((4, 4))) != 0
    np.testing.assert_array_equal(found(function), line)


def test_what_is_as_good_as_full_is_not_written_out():
    """10⁸ entries: none; and none are needed where the mean is but compared with."""
    d = 10_000
    assert sparsity(field_of(lambda t, y: y * y.sum(), d)) is None
    pattern = sparsity(field_of(lambda t, y: jnp.where(y > y.mean() ** 2, y, 0.0), d))
    assert pattern.nnz == d


def test_of_a_million_unknowns():
    def function(t, y):
        u = y.reshape(1000, 1000)
        wide = jnp.pad(u, 1, mode="wrap")
        return (wide[2:, 1:-1] + wide[:-2, 1:-1] + neighbours(u)).reshape(-1)

    pattern = sparsity(field_of(function, 10**6))
    assert pattern.nnz == 5 * 10**6
    assert np.all(np.diff(pattern.indptr) == 5)


def test_of_a_program_that_cannot_be_read():
    field = field_of(lambda t, y: y)
    opaque = Program(Opaque(lambda t, y: y, "y"))
    assert sparsity(Field(opaque, None, field.d, (), (), [])) is None
