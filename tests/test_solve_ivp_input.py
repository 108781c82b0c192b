"""What solve_ivp takes: shapes that SciPy takes, Jacobians in all their forms, no times at all."""

import warnings

import jax
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import scipy.sparse
from only_python import number

import probode
from probode import solve_ivp

PACKED = np.array([[0.0, 1.0, 0.5, 2.0], [-2.0, -3.0, -4.0, -5.0], [0.2, 0.1, 0.3, 0.0]])
MATRIX = np.diag(PACKED[0, 1:], 1) + np.diag(PACKED[1]) + np.diag(PACKED[2, :-1], -1)
BANDS = {"lband": 1, "uband": 1}
START = np.array([1.0, 2.0, 3.0, 4.0])


def linear(t, y):
    return MATRIX @ y


def linear_in_python(t, y):
    """The same for no tracer: it asks for a value."""
    return MATRIX @ y if number(y[0]) < 1e9 else y


FUNCTIONS = pytest.mark.parametrize("fun", [linear, linear_in_python], ids=["traced", "python"])


def solve(fun, **options):
    return solve_ivp(fun, (0, 0.5), START, order=2, calibration="model", **options)


# One component -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize(
    "output", [lambda x: x, lambda x: np.array(x), lambda x: [x], lambda x: [[x]]], ids=range(4)
)
def test_one_component_may_be_returned_in_any_shape(output, kind):
    result = solve_ivp(lambda t, y: output(-y[0]), (0, 1), np.ones(1, kind), rtol=1e-6, order=2)
    np.testing.assert_allclose(result.y[:, -1], [np.exp(-1)], rtol=1e-5)


def test_one_component_of_a_function_that_only_python_can_evaluate():
    result = solve_ivp(lambda t, y: -number(y[0]), (0, 1), [1.0], rtol=1e-6, order=2)
    np.testing.assert_allclose(result.y[:, -1], [np.exp(-1)], rtol=1e-5)


@FUNCTIONS
def test_a_wrong_number_of_values_is_refused_under_the_name_that_the_user_knows(fun):
    with pytest.raises(ValueError, match=r"fun.* must return an array of shape \(4,\)"):
        solve(lambda t, y: fun(t, y)[:2])


# Jacobians -----------------------------------------------------------------------------------


@FUNCTIONS
@pytest.mark.parametrize("callable_", [False, True], ids=["matrix", "function"])
@pytest.mark.parametrize(
    ("jac", "options"),
    [(MATRIX, {}), (scipy.sparse.csr_array(MATRIX), {}), (PACKED, BANDS), (MATRIX[:2, :2], {})],
    ids=["dense", "sparse", "packed", "too small"],
)
def test_the_forms_of_a_jacobian(fun, jac, options, callable_):
    """Right ones give the same solution, without a warning; others are refused with their shape."""
    given = (lambda t, y: jac) if callable_ else jac
    if jac.shape == (2, 2):
        with pytest.raises(ValueError, match=r"jac.* shape \(4, 4\), got \(2, 2\)"):
            solve(fun, jac=given)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = solve(fun, jac=given, **options)
    np.testing.assert_allclose(result.y[:, -1], scipy.linalg.expm(0.5 * MATRIX) @ START, rtol=1e-3)


@FUNCTIONS
def test_a_packed_jacobian_of_the_wrong_shape_says_both_that_would_do(fun):
    with pytest.raises(ValueError, match=r"\(2, 4\) \(packed: lband=1, uband=0\) or \(4, 4\)"):
        solve(fun, jac=PACKED, lband=1)


@FUNCTIONS
@pytest.mark.parametrize("jac", [lambda y: MATRIX, lambda t, y, rate: MATRIX], ids=["(y)", "args"])
def test_a_jacobian_of_another_signature_is_refused(fun, jac):
    with pytest.raises(TypeError, match=r"called as jac\(t, y\)"):
        solve(fun, jac=jac)


WRONG = {
    "transposed": MATRIX.T,
    "sign": -MATRIX,
    "factor": lambda t, y: 2 * MATRIX,
    "nonsense": np.full((4, 4), 50.0),
    "later on": lambda t, y: MATRIX if t < 0.2 else -MATRIX,
    "sparse": scipy.sparse.csr_array(3 * MATRIX),
}


@FUNCTIONS
@pytest.mark.parametrize("jac", WRONG.values(), ids=WRONG)
def test_a_jacobian_that_is_not_the_derivative_is_left_out(fun, jac):
    with pytest.warns(UserWarning, match=r"`jac` is not the derivative.*(is|are) used instead"):
        result = solve(fun, jac=jac)
    assert "`jac` is not the derivative" in result.message
    np.testing.assert_array_equal(result.y, solve(fun).y)


@FUNCTIONS
def test_a_term_of_a_jacobian_that_vanishes_at_the_start_is_compared_too(fun):
    """A forgotten factor of two in the derivative of a square that begins at zero."""

    def with_square(t, y):
        return fun(t, y) + np.array([0.0, 0.0, -100.0, 0.0]) * y[3] ** 2

    def jac(t, y):
        return MATRIX + np.array([[0.0] * 4, [0.0] * 4, [0.0, 0.0, 0.0, -100.0 * y[3]], [0.0] * 4])

    options = {"order": 2, "calibration": "model"}
    start = np.array([1.0, 2.0, 3.0, 0.0])
    with pytest.warns(UserWarning, match="row 2 and column 3"):
        result = solve_ivp(with_square, (0, 0.5), start, jac=jac, **options)
    np.testing.assert_array_equal(result.y, solve_ivp(with_square, (0, 0.5), start, **options).y)


@pytest.mark.parametrize("fun", [linear, linear_in_python], ids=["traced", "python"])
def test_a_wrong_jacobian_of_a_large_system_is_left_out(fun):
    with pytest.warns(UserWarning, match="(is|are) used instead"):
        result = solve_ivp(fun, (0, 0.5), START, "SparseEK1", jac=-MATRIX)
    np.testing.assert_array_equal(result.y, solve_ivp(fun, (0, 0.5), START, "SparseEK1").y)


def test_a_wrong_jacobian_of_the_classes_for_scipy_is_left_out():
    def run(**options):
        return scipy.integrate.solve_ivp(linear, (0, 0.5), START, probode.scipy.EK1, **options)

    with pytest.warns(UserWarning, match="(is|are) used instead"):
        result = run(jac=-MATRIX)
    np.testing.assert_array_equal(result.y, run().y)


def test_solve_leaves_out_a_wrong_jacobian():
    def fun(t, y):
        return jax.numpy.asarray(MATRIX) @ y

    right, wrong = (lambda t, y: fun(t, jax.numpy.eye(4))), (lambda t, y: 2.0 * jax.numpy.eye(4))
    options = {"solver": probode.EK1(2)}
    with pytest.warns(UserWarning, match="`jac` is not the derivative of vector_field"):
        found = probode.solve(fun, (0.0, 0.5), START, jac=wrong, **options)
    np.testing.assert_array_equal(found.mean, probode.solve(fun, (0.0, 0.5), START, **options).mean)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probode.solve(fun, (0.0, 0.5), START, jac=right, **options)


def test_a_jacobian_is_not_judged_where_differences_do_not_settle():
    """The square root has no derivative at the start, where any number will do."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve_ivp(
            lambda t, y: 1 + np.sqrt(np.abs(y)),
            (0, 0.1),
            [0.0],
            order=2,
            calibration="model",
            initialization="runge-kutta",
            jac=lambda t, y: [[0.5 / np.sqrt(y[0]) if y[0] > 0 else 1.0]],
        )


# No times ------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [(0, 1), (1, 0), (0, 0)], ids=str)
def test_no_times_give_no_values_as_in_scipy(interval):
    ours, theirs = (
        solver(linear, interval, START, t_eval=[])
        for solver in (solve_ivp, scipy.integrate.solve_ivp)
    )
    assert ours.success and len(ours.t) == len(theirs.t) == 0
    assert np.size(ours.y) == np.size(theirs.y) == np.size(ours.y_std) == 0
    assert ours.y_cov.shape == (0, 4, 4)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (lambda t, y: -y, {}),
        (lambda t, y: [-number(y[0]), 1.0], {}),
        (lambda t, y: -y, {"method": "auto", "first_step": 0.1}),
        (lambda t, y: -y, {"method": "EK0", "grid": [2.0, 2.0]}),
        (lambda t, y: -y, {"global_rtol": 1e-3}),
    ],
    ids=["traced", "python", "auto", "grid", "a tolerance on the answer"],
)
def test_an_interval_of_length_zero_is_one_point(function, options):
    """Times and values are SciPy's; the posterior is the initial value, with certainty."""
    result = solve_ivp(function, (2, 2), [1.0, 3.0], dense_output=True, **options)
    theirs = scipy.integrate.solve_ivp(function, (2, 2), [1.0, 3.0], dense_output=True)
    assert result.success and result.message == theirs.message
    np.testing.assert_array_equal(result.t, theirs.t)
    np.testing.assert_array_equal(result.y, theirs.y)
    np.testing.assert_array_equal(result.sol(2.0), theirs.sol(2.0))
    np.testing.assert_array_equal(result.y_std, 0.0)
    posterior = result.posterior
    np.testing.assert_array_equal(posterior.t, [2.0])
    np.testing.assert_array_equal(posterior(2.0).mean, [1.0, 3.0])
    np.testing.assert_array_equal(posterior.std, [[0.0, 0.0]])
    assert "no step was taken" in str(posterior.diagnose())


def test_an_empty_state_has_no_posterior():
    result = solve_ivp(lambda t, y: y, (0, 1), [])
    assert result.success and result.posterior is None


def test_dense_output_at_no_times_is_empty():
    solution = solve(linear, dense_output=True).sol
    assert solution([]).shape == solution.std([]).shape == (4, 0)


# Names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*probode.__all__, "plotting", "problems", "scipy"])
def test_every_public_name_is_completed(name):
    assert name in dir(probode)


def test_the_methods_of_scipy_are_refused_with_what_to_take_instead():
    with pytest.raises(ValueError, match=r"'RK45' is SciPy's\. Leave it out for EK1"):
        solve(linear, method="RK45")


def test_a_function_of_numpy_in_solve_is_told_what_to_do():
    with pytest.raises(jax.errors.TracerArrayConversionError) as caught:
        probode.solve(lambda t, y: np.sin(y), (0, 1), 1.0)
    assert any("solve_ivp takes NumPy functions" in note for note in caught.value.__notes__)


EMPTY = {
    "real": ([1.0, 2.0], {}),
    "complex": ([1.0 + 0j, 2.0], {}),
    "invariant": ([1.0, 2.0], {"invariants": lambda t, y: y[1] - 2 * y[0]}),
    "bounds": ([1.0, 2.0], {"bounds": (0, np.inf)}),
    "large": ([1.0, 2.0], {"method": "SparseEK1"}),
    "large and complex": ([1.0 + 0j, 2.0], {"method": "SparseEK1"}),
    "jump": ([1.0, 2.0], {"jumps": [(0.5, lambda t, y: 2 * y)]}),
}


@pytest.mark.parametrize(("y0", "options"), EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("dense_output", [True, False])
def test_no_times_have_no_values(y0, options, dense_output):
    result = solve_ivp(lambda t, y: -y, (0, 1), y0, t_eval=[], dense_output=dense_output, **options)
    assert np.size(result.y) == np.size(result.y_std) == 0
    assert result.y_cov.shape == (0, 2, 2)
    if dense_output:
        none = np.array([])
        assert result.sol(none).shape == result.sol.std(none).shape == (2, 0)
        assert result.sol.cov(none).shape == (0, 2, 2)
        if options.get("method") != "SparseEK1":
            assert result.sol.sample(3, t=none).shape == (3, 2, 0)
