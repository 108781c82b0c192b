"""Functions of scipy.special and tables on grids, traced: values, derivatives, what is outside."""

import jax
import numpy as np
import pytest
import scipy.special as sc
from scipy.interpolate import RegularGridInterpolator

from probode import solve_ivp
from probode.base.precision import double_precision
from probode.programs.tracing import Reason, make_traceable, traceable_or_why
from probode.programs.tracing.special import special

POSITIVE = np.concatenate([10.0 ** np.linspace(-11, 2.6, 40), [1.0, 2.0, 29.9, 30.1]])
REAL = np.concatenate([POSITIVE, -POSITIVE])
UNIT = np.concatenate([np.linspace(0.01, 0.99, 15), 10.0 ** np.linspace(-9, -2, 5)])

# Name, arguments before x, where, derivative by SciPy (by x).
CASES = [
    *(("kv", (v,), POSITIVE, lambda x, v=v: sc.kvp(v, x)) for v in (0, 2.5, 20)),
    *(("iv", (v,), REAL, lambda x, v=v: sc.ivp(v, x)) for v in (0, 5, -3)),
    *(("iv", (v,), POSITIVE, lambda x, v=v: sc.ivp(v, x)) for v in (0.5,)),
    ("ive", (1,), REAL, None),
    ("kve", (2,), POSITIVE, None),
    ("k0", (), POSITIVE, lambda x: -sc.k1(x)),
    ("k1", (), POSITIVE, None),
    ("kn", (3,), POSITIVE, None),
    ("digamma", (), UNIT + 1.5, lambda x: sc.polygamma(1, x)),
    ("psi", (), UNIT + 1.5, None),
    ("log1p", (), POSITIVE, lambda x: 1 / (1 + x)),
    ("expm1", (), UNIT, np.exp),
    ("ellipk", (), UNIT, None),
    ("ellipk", (), -POSITIVE, None),
    ("ellipkm1", (), UNIT, None),
    ("ellipe", (), np.concatenate([UNIT, -POSITIVE]), None),
    ("lambertw", (), np.concatenate([POSITIVE, -0.36 * UNIT]), None),
    ("erfcinv", (), UNIT, None),
    ("rgamma", (), UNIT + 0.5, None),
    ("log_expit", (), REAL, lambda x: sc.expit(-x)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}{list(case[1])}")
def test_values_and_derivatives_are_scipys(case):
    """To a few hundred roundings: sums of a hundred terms, and powers up to the twentieth."""
    name, before, x, slope = case
    with double_precision():
        function = lambda x: special(name)(*before, x).real  # noqa: E731
        value, derivative = jax.jit(jax.vmap(jax.value_and_grad(function)))(x)
    expected = getattr(sc, name)(*before, x).real
    known = np.isfinite(expected) & (np.abs(expected) > 1e-280)
    np.testing.assert_allclose(value[known], expected[known], rtol=3e-13)
    if slope is not None:
        known &= np.isfinite(slope(x))
        np.testing.assert_allclose(derivative[known], slope(x)[known], rtol=3e-13, atol=1e-280)


def test_the_lower_branch_of_lambertw_solves_its_equation():
    # SciPy's own value is off by 4e-5 at the last one.
    x = -np.array([1e-5, 0.1, 0.3, (1 - 1e-9) / np.e])
    with double_precision():
        w = np.asarray(jax.jit(lambda x: special("lambertw")(x, -1).real)(x))
    assert np.all(w < -1.0)
    np.testing.assert_allclose(w * np.exp(w), x, rtol=1e-14)


@pytest.mark.parametrize(
    "name, x",
    [("kv", -1.0), ("kv", 1e-13), ("iv", -1.0), ("ellipk", 1.5), ("ellipe", 2.0)],
)
def test_outside_of_its_domain_a_function_is_nan(name, x):
    with double_precision():
        assert np.isnan(special(name)(*((0.5,) if name in ("kv", "iv") else ()), x))


@pytest.mark.parametrize("name", ["hyp2f1", "exp1", "jv", "mathieu_a"])
def test_functions_without_a_form_here_are_left_to_python(name):
    before = {"hyp2f1": (1.0, 2.0, 3.0), "jv": (1.5,), "mathieu_a": (1,)}.get(name, ())

    def fun(t, y):
        return [-0.1 * getattr(sc, name)(*before, 0.1 + 0.1 * y[0] ** 2)]

    found = traceable_or_why(fun, (0, 1), [0.5])
    assert isinstance(found, Reason)
    assert f"scipy.special.{name} is not known here" in found.what and "getattr" in found.place


def test_an_order_that_is_not_known_is_left_to_python():
    found = traceable_or_why(lambda t, y: [sc.kv(y[0], 1.0)], (0, 1), [0.5])
    assert isinstance(found, Reason) and "order" in found.what


AXES = np.array([-3.0, -1, 0, 0.5, 2, 4]), np.array([5.0, 2, 1, -2, -4]), np.arange(-6.0, 6, 2)
VALUES = np.sin(AXES[0])[:, None, None] * np.cos(AXES[1])[:, None] + 0.1 * AXES[2] ** 2


@pytest.mark.parametrize("method", ["linear", "nearest", "slinear", "cubic"])
@pytest.mark.parametrize("dimension", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("outside", [{}, {"fill_value": 7.0}, {"fill_value": None}], ids=str)
def test_tables_on_grids_are_scipys(method, dimension, outside):
    """At 60 points, half of them outside; without a value there SciPy's is NaN."""
    axes, values = AXES[:dimension], VALUES[(..., 0, 0)[: 4 - dimension]]
    table = RegularGridInterpolator(axes, values, method=method, bounds_error=False, **outside)
    found = make_traceable(
        lambda t, y: table(y) * np.ones(dimension), (0, 1), np.full(dimension, 0.3)
    )
    assert found is not None and found.path == "numpy"
    points = np.random.default_rng(1).uniform(-6, 6, (60, dimension))
    points[:6] = 0.5  # a node
    with double_precision():
        value = jax.jit(jax.vmap(lambda y: found.function(0.0, y)))(points)
    np.testing.assert_allclose(value[:, 0], table(points), rtol=1e-11, atol=1e-12)


def test_values_of_a_table_may_be_arrays_and_points_tuples():
    table = RegularGridInterpolator(AXES[:2], np.stack([VALUES[..., 0], VALUES[..., 1]], -1))
    fun = lambda t, y: table((y[0], t))  # noqa: E731
    found = make_traceable(fun, (0, 1), np.array([0.3, 0.2]))
    with double_precision():
        value = found.function(0.7, np.array([0.1, 0.2]))
    np.testing.assert_allclose(value, fun(0.7, [0.1, 0.2]), rtol=1e-13)


def test_a_table_of_time_stops_at_its_nodes_and_ends_where_scipy_raises():
    times = np.array([0.0, 1.0, 1.5, 4.0])
    table = RegularGridInterpolator((times,), np.array([0.0, 2.0, -1.0, 0.0]))
    result = solve_ivp(lambda t, y: [table([t])[0]], (0, 4), [0.0], rtol=1e-9, atol=1e-12)
    assert result.path == "numpy" and len(result.t) < 40
    assert result.y[0, -1] == pytest.approx(1.0 + 0.25 - 1.25, abs=1e-9)
    beyond = solve_ivp(lambda t, y: [table([t])[0]], (0, 5), [0.0])
    assert beyond.status == -1 and beyond.t[-1] == pytest.approx(4.0)


def test_another_table_of_the_same_form_is_another_function():
    def solved(scale):
        table = RegularGridInterpolator((np.array([0.0, 1.0]),), scale * np.ones(2))
        return solve_ivp(lambda t, y: [table([t])[0]], (0, 1), [0.0]).y[0, -1]

    assert solved(1.0) == pytest.approx(1.0)
    assert solved(3.0) == pytest.approx(3.0)
