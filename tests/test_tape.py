"""Vector fields as lists of operations: the kernels evaluate what JAX does."""

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from probode import EK0, EK1, PIControl, loop, native, problems, solve
from probode.native import library
from probode.native.layout import pack
from probode.native.lists import lists_of
from probode.native.tape import OPERATIONS, evaluate, tape_of
from probode.precision import double_precision
from probode.problem import bind

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels were not built")

Y = np.array([0.3, -0.7, 0.45])

OPERATION_OF = {
    "add": lambda a, b, c: a + b,
    "sub": lambda a, b, c: a - b,
    "mul": lambda a, b, c: a * b,
    "div": lambda a, b, c: a / b,
    "multiply_add": lambda a, b, c: a * b + c,
    "multiply_subtract": lambda a, b, c: a * b - c,
    "subtract_product": lambda a, b, c: c - a * b,
    "neg": lambda a, b, c: -a,
    "square": lambda a, b, c: b**2,
    "sqrt": lambda a, b, c: jnp.sqrt(a),
    "rsqrt": lambda a, b, c: lax.rsqrt(a),
    "abs": lambda a, b, c: abs(b),
    "max": lambda a, b, c: jnp.maximum(a, b),
    "min": lambda a, b, c: jnp.minimum(a, b),
    "select": lambda a, b, c: jnp.where(a > b, b, c),
    "clamp": lambda a, b, c: lax.clamp(b, a, c),
    "lt": lambda a, b, c: (a < b) * c,
    "le": lambda a, b, c: (a <= a) * c,
    "gt": lambda a, b, c: (a > b) * c,
    "ge": lambda a, b, c: (a >= b) * c,
    "eq": lambda a, b, c: (a == b) * c,
    "ne": lambda a, b, c: (a != b) * c,
    "and": lambda a, b, c: ((a > b) & (a < c)) * c,
    "or": lambda a, b, c: ((a < b) | (a < c)) * c,
    "xor": lambda a, b, c: ((a > b) ^ (a < c)) * c,
    "not": lambda a, b, c: (~(a < b)) * c,
    "exp": lambda a, b, c: jnp.exp(a),
    "exp2": lambda a, b, c: jnp.exp2(a),
    "expm1": lambda a, b, c: jnp.expm1(a),
    "log": lambda a, b, c: jnp.log(a),
    "log1p": lambda a, b, c: jnp.log1p(a),
    "pow": lambda a, b, c: a**b,
    "logistic": lambda a, b, c: jax.nn.sigmoid(a),
    "tanh": lambda a, b, c: jnp.tanh(a),
    "sin": lambda a, b, c: jnp.sin(b),
    "cos": lambda a, b, c: jnp.cos(b),
    "tan": lambda a, b, c: jnp.tan(b),
    "sinh": lambda a, b, c: jnp.sinh(a),
    "cosh": lambda a, b, c: jnp.cosh(a),
    "asin": lambda a, b, c: jnp.arcsin(a),
    "acos": lambda a, b, c: jnp.arccos(a),
    "atan": lambda a, b, c: jnp.arctan(b),
    "atan2": lambda a, b, c: jnp.arctan2(a, b),
    "asinh": lambda a, b, c: lax.asinh(b),
    "acosh": lambda a, b, c: lax.acosh(1.0 + a),
    "atanh": lambda a, b, c: lax.atanh(b),
    "cbrt": lambda a, b, c: jnp.cbrt(a),
    "erf": lambda a, b, c: jax.scipy.special.erf(a),
    "erfc": lambda a, b, c: jax.scipy.special.erfc(a),
    "floor": lambda a, b, c: jnp.floor(10.0 * b),
    "ceil": lambda a, b, c: jnp.ceil(10.0 * b),
    "round": lambda a, b, c: lax.round(10.0 * c),
    "round_even": lambda a, b, c: jnp.round(10.0 * c),
    "sign": lambda a, b, c: jnp.sign(b),
    "rem": lambda a, b, c: lax.rem(10.0 * b, a),
}


def traced(function, y=Y, args=()):
    with double_precision():
        return bind(function, np.asarray(0.5), np.asarray(y), args, None, diagonal=False)


def tape(function, y=Y, args=(), jacobian="none"):
    """The list of operations of a function, or ``None``."""
    return tape_of(jacobian, traced(function, y, args))


def by_kernels(function, y=Y, args=(), jacobian="none", t=0.5):
    """``f`` and the Jacobian, as the kernels evaluate them."""
    listed = tape(function, y, args, jacobian)
    assert listed is not None
    numbers = listed.numbers(traced(function, y, args))
    at, out = np.array([t, *y]), np.empty(listed.code[2])
    library.load().probode_evaluate(
        ctypes.c_void_p(listed.code.ctypes.data),
        ctypes.c_void_p(numbers.ctypes.data),
        ctypes.c_long(len(numbers)),
        ctypes.c_int(len(y)),
        ctypes.c_void_p(at.ctypes.data),
        ctypes.c_void_p(out.ctypes.data),
    )
    return out[: len(y)], out[len(y) :].reshape(len(y) if jacobian == "full" else 0, len(y))


def by_jax(function, y=Y, args=(), jacobian="none", t=0.5):
    """The same, as JAX does."""
    with double_precision():
        field = traced(function, y, args)
        return [np.asarray(x) for x in evaluate(jacobian, field, jnp.asarray(t), jnp.asarray(y))]


def on_scalars(name):
    def field(t, y):
        return jnp.stack([OPERATION_OF[name](*y), *y[1:]])

    return field


@pytest.mark.parametrize("name", OPERATION_OF)
def test_an_operation_gives_what_jax_gives(name):
    one, other = by_kernels(on_scalars(name))[0], by_jax(on_scalars(name))[0]
    np.testing.assert_allclose(one, other, rtol=4e-16)


@pytest.mark.parametrize("name", OPERATION_OF)
def test_an_operation_is_listed_under_its_name(name):
    code = tape(on_scalars(name)).code
    listed = [OPERATIONS[i] for i in code[3 : 3 + 4 * code[1] : 4]]
    assert name in listed


def test_every_operation_is_tested():
    assert set(OPERATION_OF) == set(OPERATIONS)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -0.0])
@pytest.mark.parametrize("name", ["max", "min", "clamp", "sign", "abs", "select", "ge", "ne"])
def test_an_operation_on_an_unusual_number(name, value):
    y = np.array([0.2, value, 0.4])
    np.testing.assert_array_equal(
        by_kernels(on_scalars(name), y)[0], by_jax(on_scalars(name), y)[0]
    )


FIELDS = {
    "time and parameters": (lambda t, y, a, n: a * y * jnp.sin(t) + n, (np.array([1.0, 2, 3]), 2)),
    "a matrix": (lambda t, y, a: a @ y - y**3, (np.arange(9.0).reshape(3, 3),)),
    "a choice": (lambda t, y: lax.cond(y[0] > 0.1, jnp.sin, jnp.cos, y), ()),
    "a loop": (lambda t, y: lax.fori_loop(0, 3, lambda i, x: x * y + i, y), ()),
    "single precision parameter": (lambda t, y, a: a * y, (np.float32(0.1),)),
    "whole powers": (lambda t, y: y**5 + y**-2 + y**0, ()),
}


@pytest.mark.parametrize("what", [0, 1], ids=["f", "jacobian"])
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_evaluated_as_by_jax(name, what):
    field, args = FIELDS[name]
    one, other = (ask(field, Y, args, "full")[what] for ask in (by_kernels, by_jax))
    np.testing.assert_allclose(one, other, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(lambda t, y: lax.lgamma(y), id="not on the list"),
        pytest.param(lambda t, y: y.astype(np.float32) * 2.0, id="single precision"),
        pytest.param(lambda t, y: jnp.sort(y), id="not written out"),
        pytest.param(lambda t, y: y * jnp.sum(jnp.arange(5000) * y[0]), id="too long"),
        pytest.param(
            lambda t, y: lax.while_loop(lambda x: x[0] < 1.0, lambda x: x + 1.0, y), id="a loop"
        ),
    ],
)
def test_what_has_no_list_is_left_to_jax(field):
    assert tape(field, jacobian="none") is None


def test_known_zeros_and_repeated_operations_are_not_listed():
    problem = problems.get("lotka-volterra")
    code = tape(problem.vector_field, problem.y0, problem.args, "full").code
    assert code[1] <= 14  # six for f, and b y0, b y1, d y0, d y1 and two sums for its Jacobian


def test_a_product_that_others_need_is_not_repeated():
    code = tape(lambda t, y: jnp.stack([y[0] * y[1] + y[2], y[0] * y[1] - y[2], y[2]])).code
    assert code[1] == 3


@pytest.mark.parametrize("solver", [EK0, EK1])
def test_other_values_are_data_not_a_new_list(solver):
    def end(rate):
        posterior = solve(lambda t, y, a: -a * y, (0.0, 1.0), [1.0, 2.0], (rate,), solver=solver(3))
        return posterior.mean[-1]

    np.testing.assert_allclose(end(2.0), np.exp(-2.0) * np.array([1.0, 2.0]), rtol=1e-3)
    np.testing.assert_allclose(end(1.0), np.exp(-1.0) * np.array([1.0, 2.0]), rtol=1e-3)


def starts(solver, problem, rtol=1e-6):
    """A solve before its first step, as the kernels write it (``None``: not at all) and as JAX."""
    with double_precision():
        t0, t1 = (np.asarray(t, float) for t in problem.t_span)
        y0 = np.asarray(problem.y0, float)
        field = bind(problem.vector_field, t0, y0, problem.args, None, diagonal=False)
        method, control = solver.method(y0.size), PIControl(rtol, 1e-9).flat(y0.shape)
        start = solver.initialization
        wanted = np.asarray(pack(method, loop.begin(method, start, field, control, t0, t1, y0)))
        lists = lists_of(method, start, field, control, t1)
        if lists is None or lists.start is None:
            return None, wanted
        state = np.empty_like(wanted)
        lists.begin(t0, y0, state)
        return state, wanted


@pytest.mark.parametrize("diffusion", ["dynamic", "fixed", "dynamic-mv"])
@pytest.mark.parametrize("order", [1, 4, 8])
@pytest.mark.parametrize("initialization", ["taylor", "diffuse"])
@pytest.mark.parametrize("name", ["lotka-volterra", "rober", "fitzhugh-nagumo"])
def test_a_start_is_computed_as_by_jax(name, initialization, order, diffusion):
    solver = EK0(order, diffusion, initialization=initialization)
    by_kernel, by_jax = starts(solver, problems.get(name))
    np.testing.assert_allclose(by_kernel, by_jax, rtol=1e-13)


def test_a_start_with_a_loop_is_left_to_jax():
    solver = EK1(3, initialization="runge-kutta")
    assert starts(solver, problems.get("lotka-volterra"))[0] is None


def test_a_start_that_is_not_finite_says_so():
    posterior = solve(lambda t, y: jnp.sqrt(y - 1.0), (0.0, 1.0), 0.5)
    assert not posterior.success
    assert "at the initial value" in posterior.message
