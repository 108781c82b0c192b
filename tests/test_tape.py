"""Vector fields as lists of operations: the kernels evaluate what JAX does."""

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax

from probode import EK0, EK1, PIControl, problems, solve, solve_ensemble
from probode.base.precision import double_precision
from probode.engines import native
from probode.engines.native import library
from probode.engines.native.code import LANE, OPERATIONS
from probode.engines.native.layout import pack
from probode.engines.native.lists import lists_of
from probode.engines.native.tape import evaluate, tape_of, why_not_listed
from probode.filter import loop
from probode.programs.field import bind

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels were not built")

Y = np.array([0.3, -0.7, 0.45])
CONSECUTIVE, SAME, LISTED = range(3)

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
    "root": lambda a, b, c: a**0.5,
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


def sections(code):
    """``(operation, count, how operands are read)``, in order; a count of 1: one alone."""
    at, found = 4, []
    for last in [False] * int(code[1]) + [True]:
        rows = code[at + 2 :][: 4 * code[at]].reshape(-1, 4)
        found += [(OPERATIONS[row[0]], 1, ()) for row in rows]
        at += 2 + rows.size
        if not last:
            count, how = int(code[at + 1]), tuple(code[at + 3 : at + 9 : 2].tolist())
            found.append((OPERATIONS[code[at]], count, how))
            at += 9 + how.count(LISTED) * (count + -count % LANE)
    assert at + code[2] == len(code)
    return found


def operations(code):
    """How many operations are done."""
    return sum(count for _, count, _ in sections(code))


def on_scalars(name):
    def field(t, y):
        return jnp.stack([OPERATION_OF[name](*y), *y[1:]])

    return field


def on_arrays(name):
    def field(t, y):
        a, b, c = y.reshape(3, -1)
        return jnp.concatenate([OPERATION_OF[name](a, b, c), b, c])

    return field


@pytest.mark.parametrize("name", OPERATION_OF)
def test_an_operation_gives_what_jax_gives(name):
    one, other = by_kernels(on_scalars(name))[0], by_jax(on_scalars(name))[0]
    np.testing.assert_allclose(one, other, rtol=4e-16)


@pytest.mark.parametrize("name", OPERATION_OF)
def test_an_operation_is_listed_under_its_name(name):
    assert name in [found for found, *_ in sections(tape(on_scalars(name)).code)]


@pytest.mark.parametrize("count", [4, 7, 16])
@pytest.mark.parametrize("name", OPERATION_OF)
def test_a_group_of_operations_gives_what_jax_gives(name, count):
    y = np.outer(Y, np.linspace(0.5, 1.3, count)).ravel()
    assert (name, count) in [found[:2] for found in sections(tape(on_arrays(name), y).code)]
    one, other = by_kernels(on_arrays(name), y)[0], by_jax(on_arrays(name), y)[0]
    np.testing.assert_allclose(one, other, rtol=4e-15)


def test_every_operation_is_tested():
    assert set(OPERATION_OF) == set(OPERATIONS)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -0.0])
@pytest.mark.parametrize("name", ["max", "min", "clamp", "sign", "abs", "select", "ge", "ne"])
@pytest.mark.parametrize("count", [1, 5])
def test_an_operation_on_an_unusual_number(name, value, count):
    y = np.repeat([0.2, value, 0.4], count)
    np.testing.assert_array_equal(by_kernels(on_arrays(name), y)[0], by_jax(on_arrays(name), y)[0])


@pytest.mark.parametrize("exponent", [0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, -3.5])
def test_the_power_of_a_half_is_that_of_jax(exponent):
    usual = np.array([0.3, 1.7, 1e-40, 1e40, 1e-80, 1e80])
    unusual = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1e300, 1e-300])
    y = np.concatenate([usual, unusual])
    one, other = (ask(lambda t, y: y**exponent, y)[0] for ask in (by_kernels, by_jax))
    np.testing.assert_allclose(one, other, rtol=1e-15)
    np.testing.assert_array_equal(np.signbit(one), np.signbit(other))
    assert "pow" not in [name for name, *_ in sections(tape(lambda t, y: y**exponent, y).code)]


SINGLE = jnp.array([0.1, -2.3, 0.7], np.float32)
"""As JAX makes arrays, unless it is told otherwise."""

FIELDS = {
    "an array of single precision": (
        lambda t, y: jnp.where(y > 0.0, -SINGLE, jnp.maximum(SINGLE, 0.1)) * y * abs(SINGLE),
        (),
    ),
    "a matrix of single precision": (lambda t, y: jnp.stack([SINGLE, -SINGLE, SINGLE]) @ y, ()),
    "whole powers that are data": (lambda t, y, n: y**n, (np.array([2, 3, 1]),)),
    "added in a place": (lambda t, y: jnp.sin(y).at[1].add(y[0]).at[-1].add(t).at[5].add(1.0), ()),
    "added to rows": (lambda t, y: jnp.outer(y, y).at[1:, 2].add(y[:2]).sum(axis=1), ()),
    "time and parameters": (lambda t, y, a, n: a * y * jnp.sin(t) + n, (np.array([1.0, 2, 3]), 2)),
    "a matrix": (lambda t, y, a: a @ y - y**3, (np.arange(9.0).reshape(3, 3),)),
    "a choice": (lambda t, y: lax.cond(y[0] > 0.1, jnp.sin, jnp.cos, y), ()),
    "a loop": (lambda t, y: lax.fori_loop(0, 3, lambda i, x: x * y + i, y), ()),
    "single precision parameter": (lambda t, y, a: a * y, (np.float32(0.1),)),
    "whole powers": (lambda t, y: y**5 + y**-2 + y**0, ()),
    "a running sum": (lambda t, y: jnp.cumsum(y) * lax.cumsum(y, reverse=True), ()),
    "running extremes": (lambda t, y: lax.cummax(y) + lax.cumprod(y) * lax.cummin(y**2), ()),
    "in order": (lambda t, y: jnp.sort(y) * jnp.arange(3.0) - jnp.sort(-y * y), ()),
    "in the order of another": (lambda t, y: jnp.sin(y)[jnp.argsort(y**2)], ()),
    "known rows": (lambda t, y: jnp.sin(y)[np.array([2, 0, -1])], ()),
    "padded": (lambda t, y: jnp.pad(y, 2)[1:-1][:3] + jnp.diag(y[:2], 1)[1], ()),
    "a linear system": (
        lambda t, y: jnp.linalg.solve(
            jnp.diag(y) + jnp.array([[0.0, 3, 1], [2, 0, 4], [1, 5, 0]]), y
        ),
        (),
    ),
}


@pytest.mark.parametrize("what", [0, 1], ids=["f", "jacobian"])
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_evaluated_as_by_jax(name, what):
    field, args = FIELDS[name]
    one, other = (ask(field, Y, args, "full")[what] for ask in (by_kernels, by_jax))
    np.testing.assert_allclose(one, other, rtol=1e-14, atol=1e-14)


def heat(t, y):
    return jnp.diff(jnp.pad(y, 1), n=2)


@pytest.mark.parametrize("d", [20, 50])
def test_a_long_jacobian_of_known_zeros_is_listed(d):
    y = np.linspace(0.0, 1.0, d)
    one, other = (ask(heat, y, (), "full") for ask in (by_kernels, by_jax))
    np.testing.assert_allclose(one[0], other[0], atol=1e-14)
    np.testing.assert_array_equal(one[1], other[1])


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda t, y: y.sum() * jnp.linalg.solve(jnp.diag(y) + 2.0, y), id="a system"),
        pytest.param(lambda t, y: jnp.sort(y) - y**2, id="a sort"),
        pytest.param(lambda t, y: jnp.abs(jnp.fft.fft(y)) - y**3, id="transforms"),
    ],
)
def test_what_is_listed_solves_as_without_kernels(function):
    """Listed start, steps and transport; steps of one length, which rounding cannot change."""
    one = solve(function, (0.0, 0.5), Y, step=0.05, calibration="defect")
    with library.disabled():
        other = solve(function, (0.0, 0.5), Y, step=0.05, calibration="defect")
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-11)
    np.testing.assert_allclose(one.std, other.std, rtol=1e-4, atol=1e-12)


def products(xp, y):
    x, z = xp.fft.fft(y), xp.fft.fft(y**2)
    return (x * xp.conj(z) / (1.0 + y**2) + x**3 / (z + 3j)).imag


TRANSFORMED = {
    "fft": lambda xp, y: xp.fft.fft(y).imag,
    "ifft": lambda xp, y: xp.fft.ifft(y + 1j * y[::-1]).real,
    "rfft": lambda xp, y: xp.concatenate([xp.fft.rfft(y).real, xp.fft.rfft(y).imag])[: len(y)],
    "irfft": lambda xp, y: xp.fft.irfft((1 + 2j) * xp.fft.rfft(y), len(y)),
    "fft2": lambda xp, y: xp.fft.fft2(y.reshape(-1, 2)).real.reshape(-1),
    "irfft2": lambda xp, y: xp.fft.irfft2(
        1j * xp.fft.rfft2(y.reshape(-1, 2)), (len(y) // 2, 2)
    ).reshape(-1),
    "sizes": lambda xp, y: abs(xp.fft.fft(y)),
    "products": products,
    "choices": lambda xp, y: xp.where(y > 0.3, xp.fft.fft(y), 1j - y).imag,
}


@pytest.mark.parametrize("n", [4, 6, 8, 12, 20])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_of_small_arrays_are_those_of_numpy(name, n):
    y, of = np.random.default_rng(n).normal(size=n), TRANSFORMED[name]
    here = by_kernels(lambda t, y: of(jnp, y), y)[0]
    np.testing.assert_allclose(here, of(np, y), rtol=1e-13, atol=1e-13 * n)


@pytest.mark.parametrize("name", TRANSFORMED)
def test_jacobians_of_transforms_are_those_of_jax(name):
    y, of = np.random.default_rng(1).normal(size=8), TRANSFORMED[name]
    both = (ask(lambda t, y: of(jnp, y), y, (), "full")[1] for ask in (by_kernels, by_jax))
    np.testing.assert_allclose(*both, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(lambda t, y: lax.lgamma(y), id="not on the list"),
        pytest.param(lambda t, y: y.astype(np.float32) * 2.0, id="single precision"),
        pytest.param(lambda t, y: jnp.exp(1j * y).real, id="complex functions"),
        pytest.param(lambda t, y: jnp.fft.fft(y.astype(np.float32)).real, id="single transforms"),
        pytest.param(lambda t, y: jnp.linalg.qr(jnp.outer(y, y))[0][0], id="not written out"),
        pytest.param(lambda t, y: y * jnp.sum(jnp.arange(5000) * y[0]), id="too long"),
        pytest.param(
            lambda t, y: lax.while_loop(lambda x: x[0] < 1.0, lambda x: x + 1.0, y), id="a loop"
        ),
    ],
)
def test_what_has_no_list_is_left_to_jax(field):
    assert tape(field, jacobian="none") is None
    assert why_not_listed("none", traced(field))


def test_an_ensemble_says_which_operation_is_not_listed():
    found = solve_ensemble(
        lambda t, y, a: -a * jnp.exp(lax.lgamma(1.0 + y)),
        (0.0, 0.1),
        [1.0],
        (np.array([1.0, 2.0]),),
        solver=EK0(1),
        rtol=1e-2,
    )
    assert found.engine == "vmapped"
    assert "'lgamma'" in found.engine_reason


def test_members_with_transforms_are_those_of_solves_alone():
    """XLA refuses such programs with an axis of members (its transforms want their own layout)."""

    def diffusing(t, u, nu):
        k = np.fft.fftfreq(6, 1.0 / 6)
        return jnp.real(jnp.fft.ifft(-nu * k**2 * jnp.fft.fft(u))) - u**3

    start, rates = np.cos(np.arange(6.0)), np.array([0.1, 0.5, 1.0])
    members = solve_ensemble(diffusing, (0.0, 1.0), start, (rates,))
    for mean, rate in zip(members.mean, rates, strict=True):
        alone = solve(diffusing, (0.0, 1.0), start, (rate,))
        np.testing.assert_allclose(np.ravel(mean), alone.mean[-1], rtol=1e-9)


def test_known_zeros_and_repeated_operations_are_not_listed():
    problem = problems.get("lotka-volterra")
    code = tape(problem.vector_field, problem.y0, problem.args, "full").code
    assert (
        operations(code) <= 14
    )  # six for f, and b y0, b y1, d y0, d y1 and two sums for its Jacobian


def test_a_product_that_others_need_is_not_repeated():
    code = tape(lambda t, y: jnp.stack([y[0] * y[1] + y[2], y[0] * y[1] - y[2], y[2]])).code
    assert operations(code) == 3


@pytest.mark.parametrize(
    ("field", "how"),
    [
        pytest.param(lambda y: y[:8] * y[8:], (CONSECUTIVE, CONSECUTIVE), id="in a row"),
        pytest.param(lambda y: y[0] * y[8:], (SAME, CONSECUTIVE), id="one for all"),
        pytest.param(lambda y: y[8:] * y[0], (CONSECUTIVE, SAME), id="all with one"),
        pytest.param(lambda y: y[::2] * y[8:], (LISTED, CONSECUTIVE), id="every other"),
        pytest.param(lambda y: y[8:] * y[7::-1], (CONSECUTIVE, LISTED), id="backwards"),
        pytest.param(lambda y: y[8:] * np.arange(8.0), (CONSECUTIVE, CONSECUTIVE), id="an array"),
    ],
)
def test_operands_are_read_as_they_lie(field, how):
    y = np.linspace(-1.0, 2.0, 16)

    def twice(t, y):
        half = field(y)
        return jnp.concatenate([half, half])

    ((name, count, found),) = sections(tape(twice, y).code)
    assert (name, count, sorted(found[: len(how)])) == ("mul", 8, sorted(how))
    np.testing.assert_array_equal(by_kernels(twice, y)[0], by_jax(twice, y)[0])


def test_entries_that_take_an_operation_more_do_not_split_a_group():
    def field(t, y):
        square = y[:, None] * y[None, :] + jnp.eye(5)
        return jnp.sum(jnp.sqrt(abs(square)), axis=1)

    y = np.linspace(0.5, 1.0, 5)
    roots = [count for name, count, _ in sections(tape(field, y).code) if name == "sqrt"]
    assert roots == [25]
    np.testing.assert_allclose(by_kernels(field, y)[0], by_jax(field, y)[0], rtol=1e-15)


STEPS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (1.0 + b**2),
    "root": lambda a, b: (a**2 + 0.1) ** 1.5,
    "sin": lambda a, b: jnp.sin(a),
    "max": jnp.maximum,
    "where": lambda a, b: jnp.where(a > b, a, b - a),
    "roll": lambda a, b: jnp.roll(a, 1),
    "reverse": lambda a, b: a[::-1],
    "first": lambda a, b: a[0] * b,
    "sum": lambda a, b: b - 0.1 * jnp.sum(a),
    "table": lambda a, b: jnp.mean(a[:, None] * b[None, :] - a[None, :], axis=1),
    "part": lambda a, b: a.at[1:].add(b[:-1]),
}


@given(
    size=st.integers(1, 11),
    program=st.lists(
        st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9)),
        min_size=1,
        max_size=6,
    ),
)
@settings(max_examples=40, deadline=None)
def test_a_program_on_arrays_is_evaluated_as_by_jax(size, program):
    def field(t, y):
        arrays = [y, t * y]
        for name, a, b in program:
            arrays.append(STEPS[name](arrays[a % len(arrays)], arrays[b % len(arrays)]))
        return sum(arrays)

    y = np.linspace(-0.8, 1.1, size)
    assume(tape(field, y) is not None)  # not too long
    one, other = by_kernels(field, y)[0], by_jax(field, y)[0]
    np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


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
@pytest.mark.parametrize("order", [1, pytest.param(4, marks=pytest.mark.slow), 8])
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
