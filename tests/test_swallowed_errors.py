"""What a function does about errors of tracing must not decide what is solved.

Asking a traced value for its number is an error. A function that handles errors would go on with
something else than for numbers; and one that handles errors of numbers (``math.sqrt(-1.0)``) would
not meet them when traced. Each is compared with SciPy, on a solution that crosses over.
"""

import contextlib
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp as scipy_solve_ivp

from probode import solve_ivp
from probode.programs.tracing import make_traceable


def maximum(t, y):
    try:
        return [0.5 + max(float(y[0]) - 2, 0)]
    except Exception:
        return [0.5]


def bare_except(t, y):
    try:
        return [0.5 + max(y[0] - 2, 0)]
    except:  # noqa: E722
        return [0.5]


def suppressed(t, y):
    slope = 0.5
    with contextlib.suppress(TypeError):
        slope += max(y.item() - 2, 0)
    return [slope]


def left_in_finally(t, y):
    slope = 0.5
    try:
        slope = 0.5 + max(float(y[0]) - 2, 0)
    finally:
        return [slope]  # noqa: B012


def integer(t, y):
    try:
        return [0.5 + max(int(1e6 * y[0]) - 2_000_000, 0) / 1e6]
    except Exception:
        return [0.5]


def index(t, y):
    try:
        return [(0.5, 0.5, 1.0, 1.0)[int(y[0])]]
    except Exception:
        return [0.5]


def truth(t, y):
    try:
        return [1.0 if y[0] > 2 else 0.5]
    except Exception:
        return [0.5]


def array_of_it(t, y):
    try:
        return [0.5 + max(np.asarray(y, float).tolist()[0] - 2, 0)]
    except Exception:
        return [0.5]


def text(t, y):
    try:
        return [1.0 if float(f"{y[0]:.6f}") > 2 else 0.5]
    except Exception:
        return [0.5]


def in_a_helper(t, y):
    def part(x):
        try:
            return max(float(x) - 2, 0)
        except Exception:
            return 0.0

    return [0.5 + part(y[0])]


def of_jax(t, y):
    try:
        return jnp.array([0.5 + max(float(jnp.sum(y)) - 2, 0)])
    except Exception:
        return jnp.array([0.5])


def mask_of_jax(t, y):
    try:
        z = jnp.asarray(y)
        return jnp.array([0.5 + jnp.sum(z[z > 2] - 2)])
    except Exception:
        return jnp.array([0.5])


def error_of_math(t, y):
    try:
        return [0.5 + math.sqrt(y[0] - 2)]
    except ValueError:
        return [0.5]


def overflow_of_math(t, y):
    try:
        return [0.5 + 0.0 * math.exp(600 * (y[0] - 1))]
    except OverflowError:
        return [1.0]


def unknown_to_jax(t, y):
    try:
        return [0.5 + max(float(np.interp(y[0], [0, 2, 4], [0, 0, 2], left=0.0, right=2.0)), 0)]
    except Exception:
        return [0.5]


FUNCTIONS = [
    *(maximum, bare_except, suppressed, left_in_finally, integer, index, truth, array_of_it, text),
    *(in_a_helper, of_jax, error_of_math, overflow_of_math, unknown_to_jax),
]


ASK_FOR_VALUES = [index, text, of_jax, error_of_math, overflow_of_math]
"""Those of which no trace is made; of the others every branch is followed."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda fun: fun.__name__)
def test_a_swallowed_error_changes_nothing(fun):
    """From 1.5 the solution passes 2 at t = 1, and goes on in another way."""
    options = {"rtol": 1e-6, "atol": 1e-8}
    result = solve_ivp(fun, (0, 3), [1.5], **options)
    with jax.enable_x64(True):
        expected = scipy_solve_ivp(fun, (0, 3), [1.5], max_step=0.05, **options)
    assert (result.path == "python") == (fun in ASK_FOR_VALUES)
    # Kinks and jumps of the slope cost any solver a few tolerances.
    np.testing.assert_allclose(result.y[0, -1], expected.y[0, -1], rtol=1e-3)


def test_a_mask_of_jax_is_noticed():
    assert make_traceable(mask_of_jax, (0, 3), [1.5]) is None


def test_a_jacobian_that_swallows_errors_is_not_taken():
    def jac(t, y):
        try:
            return [[-2.0 * float(y[0])]]
        except Exception:
            return [[1e6]]

    plain = solve_ivp(lambda t, y: [-(y[0] ** 2)], (0, 1), [1.0])
    result = solve_ivp(lambda t, y: [-(y[0] ** 2)], (0, 1), [1.0], jac=jac)
    np.testing.assert_array_equal(result.y, plain.y)


def test_errors_of_known_values_may_be_handled():
    rates = {"a": 2.0}

    def fun(t, y):
        try:
            rate = rates["b"]
        except KeyError:
            rate = rates["a"]
        return -rate * y

    result = solve_ivp(fun, (0, 1), [1.0], rtol=1e-6)
    assert result.path != "python"
    assert result.y[0, -1] == pytest.approx(np.exp(-2.0), rel=1e-4)


BEYOND = {
    "blow-up": (lambda t, y: [y[0] ** 2], [1.0], (0.0, 2.0)),
    "large": (lambda t, y: -y, [1e200], (0.0, 1.0)),
    "small": (lambda t, y: -y, [1e-200], (0.0, 1.0)),
    "fast": (lambda t, y: 1e300 * y, [1.0], (0.0, 1.0)),
    "in-python": (lambda t, y: [1e300 * float(y[0])], [1.0], (0.0, 1.0)),
    "negative-root": (lambda t, y: -np.sqrt(y), [1.0], (0.0, 3.0)),
}


@pytest.mark.parametrize("method", ["EK1", "auto"])
@pytest.mark.parametrize("name", BEYOND)
def test_overflow_inside_is_no_warning(name, method):
    """Numbers that overflow in the solver end a solve by its status; f itself is compiled."""
    fun, y0, t_span = BEYOND[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve_ivp(fun, t_span, y0, method, max_num_steps=200)
