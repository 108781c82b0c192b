"""SciPy's interpolators inside of fun: traced as the piecewise polynomials that they are."""

import logging

import jax
import numpy as np
import pytest
from only_python import number
from scipy import interpolate

from probode import solve_ivp
from probode.base.precision import double_precision
from probode.programs.identity import key_of
from probode.programs.interpolators import read
from probode.programs.tracing.arrays import TracedArray, unwrap
from probode.programs.tracing.splines import Spline

X = np.linspace(0.0, 3.0, 9)
Y = np.cos(2 * X) + X
ROUND = np.append(Y[:-1], Y[0])
AROUND = np.concatenate([X, np.linspace(-0.7, 3.8, 40)])
"""Breakpoints, where some of the polynomials do not join, and times inside and outside."""
MANY = np.linspace(0.0, 3.0, 100)

KINDS = {
    "cubic": interpolate.CubicSpline(X, Y),
    "many breakpoints": interpolate.CubicSpline(MANY, np.sin(MANY)),
    "periodic": interpolate.CubicSpline(X, ROUND, bc_type="periodic"),
    "not beyond": interpolate.CubicSpline(X, Y, extrapolate=False),
    "two values": interpolate.CubicSpline(X, np.stack([Y, Y**2], 1)),
    "last axis": interpolate.CubicSpline(X, np.stack([Y, Y**2]), axis=1),
    "pchip": interpolate.PchipInterpolator(X, Y),
    "akima": interpolate.Akima1DInterpolator(X, Y),
    "polynomials": interpolate.PPoly(np.arange(24.0).reshape(3, 8), X),
    "B-spline": interpolate.make_interp_spline(X, Y, 5),
    "derivative": interpolate.make_interp_spline(X, Y, 5).derivative(),
    "smoothing": interpolate.UnivariateSpline(X, Y, s=0.1),
    "zeros beyond": interpolate.UnivariateSpline(X, Y, ext=1),
    "constants beyond": interpolate.UnivariateSpline(X, Y, ext=3),
    "linear": interpolate.interp1d(X, Y, fill_value="extrapolate"),
    "filled": interpolate.interp1d(X, Y, bounds_error=False, fill_value=(1.0, 2.0)),
    "interp1d cubic": interpolate.interp1d(X, Y, kind="cubic", fill_value="extrapolate"),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@pytest.mark.parametrize("x", [AROUND.reshape(7, 7), np.float64(1.3)], ids=["many", "one"])
def test_the_traced_interpolator_gives_scipys_values(kind, x):
    """To the rounding of a few operations on numbers of this size; NaN where SciPy says NaN."""
    original = KINDS[kind]

    def traced(x):
        return unwrap(Spline(original, read(original))(TracedArray(x)), as_array=True)

    with double_precision():
        found = np.asarray(jax.jit(traced)(x))
    expected = original(x)
    assert found.shape == np.shape(expected)
    size = np.nanmax(np.abs(original(AROUND)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * size)


@pytest.mark.parametrize("kind", ["cubic", "pchip", "B-spline", "smoothing", "linear"])
def test_a_forced_equation_is_traced_and_its_solution_is_the_integral(kind):
    force = KINDS[kind]
    result = solve_ivp(lambda t, y: [force(t)], (0, 3), [0.0], rtol=1e-8, atol=1e-8, order=3)
    exact = interpolate.PPoly(read(force).coefficients, read(force).breaks).integrate(0, 3)
    assert result.path != "python"
    np.testing.assert_allclose(result.y[0, -1], exact, rtol=1e-6)


def test_other_coefficients_are_another_function():
    """Also where they were changed in place: they are compared by value."""
    force = interpolate.CubicSpline(X, Y)

    def end():
        return solve_ivp(lambda t, y: [force(t)], (0, 3), [0.0], order=2).y[0, -1]

    before = end()
    force.c *= 2.0
    np.testing.assert_allclose(end(), 2 * before, rtol=1e-2)


def test_equal_interpolators_are_the_same_function():
    """So that a fit which makes them anew does not trace anew."""

    def force(y):
        spline = interpolate.CubicSpline(X, y)
        return lambda t, y: [spline(t)]

    assert key_of(force(Y)) == key_of(force(Y.copy()))
    assert key_of(force(Y)) != key_of(force(2 * Y))


def test_each_of_several_interpolators_counts():
    def force(first, second):
        one, other = interpolate.CubicSpline(X, first), interpolate.CubicSpline(X, second)
        return lambda t, y: [one(t) + other(t)]

    keys = {key_of(force(a * Y, b * Y)) for a in (1.0, 2.0) for b in (1.0, 2.0)}
    assert len(keys) == 4


def test_derivatives_are_traced():
    spline = KINDS["cubic"]
    for fun in (lambda t, y: [spline(t, 1)], lambda t, y: [spline.derivative()(t)]):
        result = solve_ivp(fun, (0, 3), [Y[0]], rtol=1e-6, order=2)
        assert result.path != "python"
        np.testing.assert_allclose(result.y[0, -1], Y[-1], rtol=1e-4)


class Doubled(interpolate.CubicSpline):
    def __call__(self, x, nu=0, extrapolate=None):
        return 2 * super().__call__(x, nu, extrapolate)


def test_a_subclass_is_not_taken_for_what_it_inherits_from():
    force = Doubled(X, Y)
    result = solve_ivp(lambda t, y: [force(t)], (0, 3), [0.0], rtol=1e-6, order=2)
    np.testing.assert_allclose(result.y[0, -1], 2 * KINDS["cubic"].integrate(0, 3), rtol=1e-4)


def test_the_advice_for_functions_that_cannot_be_traced_is_given_once(caplog):
    """Closures that one line makes are one function to their author."""

    def closure(rate):
        return lambda t, y: [-rate * number(y[0])]

    with caplog.at_level(logging.WARNING, "probode"):
        for rate in (1.0, 2.0, 3.0):
            solve_ivp(closure(rate), (0, 0.1), [1.0], order=1, calibration="model")
    assert len(caplog.records) == 1
