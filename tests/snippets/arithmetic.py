"""Traceable as they are: arithmetic only, or written for JAX."""

import jax
import jax.numpy as jnp
import numpy as np

from snippets.registry import snippet


@snippet("jax", [0.5])
def decay(t, y):
    return -0.5 * y


@snippet("jax", [10.0, 5.0], (1.5, 1.0, 3.0, 1.0))
def lotka_volterra_unpacking(t, z, a, b, c, d):
    x, y = z
    return [a * x - b * x * y, -c * y + d * x * y]


@snippet("jax", [1.0, 1.0, 1.0])
def lorenz_list(t, state, sigma=10.0, rho=28.0, beta=8 / 3):
    x, y, z = state
    return [sigma * (y - x), x * (rho - z) - y, x * y - beta * z]


@snippet("jax", [1.0, 0.0, 0.0])
def robertson_tuple(t, y):
    return (
        -0.04 * y[0] + 1e4 * y[1] * y[2],
        0.04 * y[0] - 1e4 * y[1] * y[2] - 3e7 * y[1] ** 2,
        3e7 * y[1] ** 2,
    )


@snippet("jax", [0.99, 0.0, 0.01, 0.0], ({"beta": 0.9, "sigma": 0.2, "gamma": 0.1},))
def seir_dict_argument(t, y, p):
    S, E, I, _ = y  # noqa: E741
    infection = p["beta"] * S * I
    return [-infection, infection - p["sigma"] * E, p["sigma"] * E - p["gamma"] * I, p["gamma"] * I]


@snippet("jax", [1.0, 0.5], ([0.3, 0.7],))
def list_argument_unpacked(t, y, k):
    k1, k2 = k
    return [-k1 * y[0], k1 * y[0] - k2 * y[1]]


@snippet("jax", [1.0, 2.0])
def written_for_jax(t, y):
    return jnp.array([y[1], (1 - y[0] ** 2) * y[1] - y[0] + jnp.sin(t)])


@snippet("jax", [1.0, 2.0])
@jax.jit
def compiled_by_jax(t, y):
    return -jnp.flip(y) * t


COUPLING = np.array([[-1.0, 0.3, 0.0], [0.2, -2.0, 0.1], [0.0, 0.4, -0.5]])


@snippet("jax", [1.0, 2.0, 3.0])
def global_matrix_product(t, y):
    return COUPLING @ y


snippet("jax", [1.0, 2.0], name="lambda_")(lambda t, y: [y[1], -y[0]])


@snippet("jax", [1.0, 2.0], ({"loss": 0.3, "gain": 1.5},))
def dictionary_in_given_order(t, y, p):
    loss, gain = p.values()
    return [gain * y[1] - loss * y[0], -y[1]]
