"""Derivatives of a solution: against nested forward derivatives, and what they cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probode.base.precision import double_precision
from probode.programs.taylor import derivatives

Y0 = np.array([0.7, -0.4, 1.3])
MATRIX = np.cos(np.arange(9.0)).reshape(3, 3)


def nested(field, t0, y0, order):
    """``d/dt g(t, y(t)) = ∂g/∂t + ∂g/∂y f``, applied again and again."""

    def total_derivative(g):
        return lambda t, y: jax.jvp(g, (t, y), (jnp.ones(()), field(t, y)))[1]

    rows, g = [y0], field
    for _ in range(order):
        rows.append(g(t0, y0))
        g = total_derivative(g)
    return jnp.stack(rows)


@jax.custom_jvp
def doubled(x):
    return x + x


@doubled.defjvp
def _(primals, tangents):
    (x,), (v,) = primals, tangents
    return doubled(x), 2.0 * v * jnp.cos(x)  # not its derivative: to see that the rule is used


@jax.custom_vjp
def tripled(x):
    return 3.0 * x


tripled.defvjp(lambda x: (3.0 * x, None), lambda _, g: (3.0 * g,))


def _loop(t, y):
    return jax.lax.fori_loop(0, 3, lambda i, z: -0.5 * z * y, y)


def _scan(t, y):
    def body(carry, x):
        return jnp.sin(carry) + x * y[0], carry

    return jnp.stack(jax.lax.scan(body, y[1] + t, y)[1])


def _while(t, y):
    return jax.lax.while_loop(lambda z: z[0] < 3.0, lambda z: 1.3 * jnp.abs(z) + 0.1 * y, y)


def _chain(t, y):
    for _ in range(150):  # as deep as Python's stack, were it followed from its end
        y = y + 1e-3 * y * y
    return y


FIELDS = {
    "polynomial": lambda t, y: y**3 - 2.0 * y[::-1] * y + y**2,
    "time": lambda t, y: jnp.array([t, t**2 * y[0], jnp.sin(3.0 * t)]) * y,
    "constant": lambda t, y: jnp.array([1.0, 2.0, 0.0]),
    "time alone": lambda t, y: jnp.exp(-t) * jnp.ones(3),
    "matrix": lambda t, y: jnp.tanh(MATRIX @ jnp.tanh(MATRIX @ y + t)),
    "quotient": lambda t, y: y / (1.0 + y**2) + 1.0 / (2.0 + y),
    "powers": lambda t, y: (y**2 + 1.0) ** 1.5 + (y**2 + 1.0) ** -3 + jnp.sqrt(2.0 + y),
    "power of two": lambda t, y: jnp.power(y**2 + 1.0, y) + 2.0**y,
    "exponential": lambda t, y: jnp.exp(-y) + jnp.log(2.0 + y) + jnp.expm1(y) + jnp.log1p(y**2),
    "circular": lambda t, y: jnp.sin(y) + jnp.cos(2.0 * y) + jnp.tan(y) + jnp.arctan(y),
    "hyperbolic": lambda t, y: jnp.sinh(y) - jnp.cosh(y) + jnp.arcsinh(y),
    "special": lambda t, y: jax.scipy.special.erf(y) + jax.nn.sigmoid(y) + jax.nn.softplus(y),
    "two angles": lambda t, y: jnp.arctan2(y, 2.0 + y[::-1]),
    "kinks": lambda t, y: jnp.maximum(y, 0.1) * jnp.abs(y) + jnp.clip(y, -1.0, 1.0) + jnp.sign(y),
    "choices": lambda t, y: jnp.where(y > 0.0, y**2, -y) + jax.nn.relu(y) + jnp.floor(y),
    "sums": lambda t, y: jnp.cumsum(y) * jnp.sum(y**2) + jnp.cumprod(y) + jnp.max(y) + jnp.prod(y),
    "moved": lambda t, y: jnp.roll(y, 1) * y.at[0].set(2.0) + jnp.sort(y) + y[jnp.array([2, 0, 0])],
    "branches": lambda t, y: jax.lax.cond(y[0] > 0.0, lambda y: y * y, lambda y: -y, y),
    "loop": _loop,
    "scan": _scan,
    "while": _while,
    "own rule": lambda t, y: doubled(y) * y,
    "reverse rule": lambda t, y: jnp.sin(y) * 3.0,
    "inner jit": lambda t, y: jax.jit(lambda z: jnp.cos(z) * t)(y) + jnp.linalg.norm(y),
    "linear solve": lambda t, y: jnp.linalg.solve(MATRIX + jnp.diag(y), y),
    "fourier": lambda t, y: jnp.real(jnp.fft.ifft(jnp.fft.fft(y * y) * 1j)),
    "single precision": lambda t, y: (y.astype(jnp.float32) * 2).astype(float) * y,
    "chain": _chain,
}


@pytest.mark.parametrize("name", FIELDS)
def test_derivatives_are_those_of_nested_differentiation(name):
    field, order = FIELDS[name], 2 if name == "chain" else 4
    with double_precision():
        t0, y0 = jnp.asarray(0.3), jnp.asarray(Y0)
        expected = jax.jit(lambda t, y: nested(field, t, y, order))(t0, y0)
        found = jax.jit(lambda t, y: derivatives(field, t, y, order))(t0, y0)
    scale = 1e-300 + np.abs(expected).max(axis=1, keepdims=True)
    tolerance = 1e-5 if name == "single precision" else 1e-13
    assert (np.abs(found - expected) / scale).max() < tolerance


def test_a_rule_for_reverse_mode_does_not_matter():
    with double_precision():
        y0, t0 = jnp.asarray(Y0), jnp.zeros(())
        found = derivatives(lambda t, y: tripled(jnp.sin(y)), t0, y0, 5)
        expected = derivatives(lambda t, y: 3.0 * jnp.sin(y), t0, y0, 5)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("order", [1, 2, 11])
def test_derivatives_of_the_logistic_equation_at_one_half(order):
    """``y = 1 / (1 + e^-t)``: even derivatives vanish, odd ones are known."""
    exact = [1 / 2, 1 / 4, 0, -1 / 8, 0, 1 / 4, 0, -17 / 16, 0, 31 / 4, 0, -691 / 8]
    with double_precision():
        y0 = jnp.asarray([0.5])
        found = derivatives(lambda t, y: y * (1.0 - y), jnp.zeros(()), y0, order)
    np.testing.assert_allclose(found[:, 0], exact[: order + 1], rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("order", [1, 4, 8])
def test_a_derivative_costs_one_product_with_each_matrix(order):
    """However high the order: intermediate coefficients are computed once."""

    def field(t, y):
        return MATRIX @ jnp.tanh(MATRIX @ y)

    with double_precision():
        jaxpr = jax.make_jaxpr(lambda y: derivatives(field, jnp.zeros(()), y, order))(Y0)
    assert str(jaxpr).count("dot_general[") == 2 * order


def test_derivatives_can_be_batched_and_differentiated():
    def field(t, y):
        return jnp.sin(y) * t + y[::-1] ** 2

    with double_precision():
        points = jnp.stack([Y0, 2.0 * Y0])
        every = jax.vmap(lambda y: derivatives(field, jnp.ones(()), y, 3))(points)
        single = derivatives(field, jnp.ones(()), points[1], 3)
        np.testing.assert_allclose(every[1], single, rtol=1e-13)
        slope = jax.jacrev(lambda y: derivatives(field, jnp.ones(()), y, 2))(points[0])
        forward = jax.jacfwd(lambda y: nested(field, jnp.ones(()), y, 2))(points[0])
        np.testing.assert_allclose(slope, forward, rtol=1e-12)
