"""A batch of parameters under vmap, and a gradient: inside JAX like any other function."""

import jax
import jax.numpy as jnp
import numpy as np

import probode


def lotka_volterra(t, y, a, b):
    return jnp.array([a * y[0] - b * y[0] * y[1], -3 * y[1] + y[0] * y[1]])


times = np.linspace(0.0, 5.0, 6)
# A low order compiles faster, and is all that these tolerances need.
settings = {"solver": probode.EK1(3), "control": probode.PIControl(rtol=1e-4, atol=1e-7)}


@jax.jit
@jax.vmap
def sweep(a):
    posterior = probode.solve(
        lotka_volterra, (0.0, 5.0), np.ones(2), (a, 1.0), save_at=times, **settings
    )
    return posterior.mean, posterior.std, posterior.status


mean, std, status = sweep(np.linspace(1.0, 2.0, 8))
print("means", mean.shape, "standard deviations", std.shape, "statuses", status)
print("prey at t = 5:", np.asarray(mean)[:, -1, 0])


def prey_at_the_end(a):
    posterior = probode.solve(
        lotka_volterra, (0.0, 5.0), np.ones(2), (a, 1.0), save_at=5.0, max_steps=250, **settings
    )
    return posterior.mean[0, 0]


# Reverse mode runs after solve has returned, so JAX itself has to be in double precision.
with jax.enable_x64(True):
    print("d prey(5) / da =", jax.jit(jax.grad(prey_at_the_end))(1.5))
