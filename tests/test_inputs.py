"""Inputs from data: what they are, in NumPy and in JAX, and what solvers make of them."""

import pickle
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from only_python import number
from scipy.interpolate import CubicSpline

import probode
from probode import inputs, solve_ivp
from probode.base.precision import double_precision

TIMES = np.array([0.0, 1.0, 2.5, 4.0, 7.0])
VALUES = np.array([1.0, 3.0, 0.5, 2.0, 0.0])
RATE = 0.7
KINDS = ("constant", "linear", "cubic")
MANY = np.linspace(0.0, 7.0, 57)


def made(kind, values=VALUES, **options):
    return getattr(inputs, kind)(TIMES, values, **options)


def reference(kind, t):
    if kind == "constant":
        return VALUES[np.searchsorted(TIMES, t, side="right") - 1]
    return np.interp(t, TIMES, VALUES) if kind == "linear" else CubicSpline(TIMES, VALUES)(t)


def driven(t, y, u):
    return [u(t) - RATE * y[0]]


def driven_in_jax(t, y, u):
    return jnp.stack([u(t) - RATE * y[0]])


def response(kind, t):
    """The closed form of ``y' = u - RATE y``, ``y(0) = 0``, from piece to piece.

    On a piece ``u`` is a polynomial ``p``, and ``Σ (-1)^k p^(k) / RATE^(k+1)`` a solution.
    """
    y, out = 0.0, np.zeros(len(t))
    for left, right in pairwise(TIMES):
        inside = np.linspace(left, right, 5)[:-1] + 1e-9 * (right - left)
        p = np.polynomial.Polynomial.fit(inside, reference(kind, inside), 3)
        particular, term = 0.0 * p, p
        for k in range(4):
            particular, term = particular + (-1.0) ** k / RATE ** (k + 1) * term, term.deriv()
        free = y - particular(left)

        def piece(s, particular=particular, free=free, left=left):
            return particular(s) + free * np.exp(-RATE * (s - left))

        here = (t >= left) & (t <= right)
        out[here] = piece(t[here])
        y = piece(right)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_values_in_numpy_and_in_jax(kind):
    u = made(kind)
    assert u(MANY) == pytest.approx(reference(kind, MANY), abs=1e-13)
    assert float(u(2.5)) == pytest.approx(VALUES[2], abs=1e-15)
    with double_precision():
        assert np.asarray(jax.jit(jax.vmap(u))(MANY)) == pytest.approx(u(MANY), abs=1e-13)
        assert np.asarray(jax.jit(lambda u, t: u(t))(u, MANY)) == pytest.approx(u(MANY), abs=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_ends_are_held_or_refused(kind):
    assert made(kind)(np.array([-5.0, 9.0])) == pytest.approx([VALUES[0], VALUES[-1]])
    strict = made(kind, outside="refuse")
    assert np.isnan(strict(np.array([-5.0, 9.0]))).all()
    assert strict(MANY) == pytest.approx(reference(kind, MANY), abs=1e-13)
    with pytest.raises(ValueError, match="not known outside"):
        solve_ivp(driven, (0, 8), [0.0], args=(strict,))


@pytest.mark.parametrize("kind", KINDS)
def test_values_may_be_vectors(kind):
    both = made(kind, np.stack([VALUES, -2.0 * VALUES], axis=1))
    assert both(1.7) == pytest.approx(np.array([1.0, -2.0]) * made(kind)(1.7))
    assert both(MANY).shape == (57, 2)


@pytest.mark.parametrize("boundary", ["not-a-knot", "natural"])
def test_the_spline_is_scipys_for_traced_values_too(boundary):
    expected = CubicSpline(TIMES, VALUES, bc_type=boundary)(MANY)
    with double_precision():
        found = jax.jit(lambda v: inputs.cubic(TIMES, v, boundary=boundary)(MANY))(VALUES)
    assert np.asarray(found) == pytest.approx(expected, abs=1e-13)


def test_breakpoints_are_where_something_jumps():
    assert made("constant").breakpoints.tolist() == [1.0, 2.5, 4.0, 7.0]
    assert made("linear").breakpoints.tolist() == TIMES.tolist()
    assert made("cubic").breakpoints.tolist() == [0.0, 7.0]


@pytest.mark.parametrize("kind", KINDS)
def test_among_the_arguments_their_breakpoints_are_known(kind):
    result = solve_ivp(driven, (0, 7), [0.0], args=(made(kind),), rtol=1e-6, atol=1e-9)
    error, later = result.y[0] - response(kind, result.t), result.t > 0.1
    assert np.max(np.abs(error)) < 1e-5
    assert np.max(np.abs(error[later]) / result.y_std[0, later]) < 4.0
    for jump in made(kind).breakpoints:
        assert np.min(np.abs(result.t - jump)) < 1e-12


def test_finer_ones_than_programs_are_stopped_at():
    times = np.linspace(0.0, 7.0, 301)
    u = inputs.constant(times, np.sin(times))
    result = solve_ivp(driven, (0, 7), [0.0], args=({"inflow": u}["inflow"],))
    near = np.min(np.abs(result.t[:, None] - u.breakpoints[:-1]), axis=0)
    assert np.max(near) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_closed_over_or_given_as_breakpoints(kind):
    u = made(kind)
    passed = solve_ivp(driven, (0, 7), [0.0], args=(u,), rtol=1e-6)
    for options in ({}, {"breakpoints": u}, {"breakpoints": u.breakpoints}):
        closed = solve_ivp(lambda t, y: [u(t) - RATE * y[0]], (0, 7), [0.0], rtol=1e-6, **options)
        assert closed.y[0, -1] == pytest.approx(passed.y[0, -1], abs=1e-6)
        assert len(closed.t) == len(passed.t)


@pytest.mark.parametrize("closed_over", [False, True])
def test_functions_that_make_numpy_arrays_are_compiled(closed_over):
    u = inputs.linear([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 0.5, 2.0])

    def pushed(t, y, *args):
        force = u if closed_over else args[0]
        return np.array([y[1], force(t) - y[0]])

    result = solve_ivp(pushed, (0, 3), [0.0, 0.0], args=None if closed_over else (u,), rtol=1e-8)
    listed = solve_ivp(
        lambda t, y, u: [y[1], u(t) - y[0]], (0, 3), [0.0, 0.0], args=(u,), rtol=1e-8
    )
    assert result.path == "numpy"
    assert result.y[:, -1] == pytest.approx(listed.y[:, -1], abs=1e-8)


def test_in_a_function_that_only_python_runs():
    u = made("constant")

    def branching(t, y):
        return [u(t) - RATE * y[0] if number(y[0]) < 1e9 else 0.0]

    result = solve_ivp(branching, (0, 7), [0.0], rtol=1e-6, atol=1e-9)
    assert result.path == "python"
    assert np.max(np.abs(result.y[0] - response("constant", result.t))) < 1e-5


def test_beyond_the_interval_breakpoints_are_left_out():
    u = made("linear")
    result = solve_ivp(driven, (0.5, 3.0), [0.0], args=(u,), breakpoints=[u, 2.0], rtol=1e-6)
    assert result.success
    assert np.min(np.abs(result.t - 2.0)) < 1e-12
    with pytest.raises(ValueError, match="breakpoints=u"):
        solve_ivp(driven, (0.5, 3.0), [0.0], args=(u,), breakpoints=u.breakpoints)


def test_derivatives_by_the_values():
    """``y(7)`` is linear in the values: its derivative along them is itself."""

    def at_end(values):
        posterior = probode.solve(
            *(driven_in_jax, (0.0, 7.0), np.zeros(1), (inputs.linear(TIMES, values),)),
            grid=np.linspace(0.0, 7.0, 8),
            solver=probode.EK0(1),
            smooth=False,
        )
        return posterior.mean[-1, 0]

    with double_precision():
        value, along = jax.jvp(at_end, (VALUES,), (VALUES,))
        slopes = jax.grad(lambda v: inputs.cubic(TIMES, v)(1.3))(VALUES)
    assert float(along) == pytest.approx(float(value), rel=1e-12)
    units = [inputs.cubic(TIMES, row)(1.3) for row in np.eye(5)]
    assert np.asarray(slopes) == pytest.approx(np.array(units), abs=1e-14)


def test_pickles_and_pytrees():
    u = made("cubic", outside="refuse")
    again = pickle.loads(pickle.dumps(u))
    mapped = jax.tree.map(lambda x: x, u)
    for other in (again, mapped):
        assert other(1.3) == u(1.3)
        assert other.outside == "refuse"
    assert "from 0 to 7" in repr(u)
    import probode.inputs as same  # a module of this name

    assert same.cubic is inputs.cubic


@pytest.mark.parametrize(
    ("times", "values", "words"),
    [
        ([0.0, 2.0, 1.0], [1.0, 2.0, 3.0], "increasing"),
        ([0.0, 1.0, 1.0], [1.0, 2.0, 3.0], "increasing"),
        ([0.0, np.nan, 1.0], [1.0, 2.0, 3.0], "finite"),
        ([0.0, 1.0, 2.0], [1.0, np.inf, 3.0], "finite"),
        ([0.0, 1.0, 2.0], [1.0, 3.0], "one value"),
        ([0.0], [1.0], "at least 2 times"),
        ([[0.0, 1.0]], [[1.0, 2.0]], "shape"),
    ],
)
def test_data_that_cannot_be_meant_are_refused(times, values, words):
    with pytest.raises(ValueError, match=words):
        inputs.linear(times, values)


def test_choices_and_kinds_are_named():
    with pytest.raises(ValueError, match="refuse"):
        made("linear", outside="extrapolate")
    with pytest.raises(ValueError, match="natural"):
        made("cubic", boundary="clamped")
    with pytest.raises(TypeError, match="real numbers"):
        inputs.linear(["a", "b"], [1.0, 2.0])
