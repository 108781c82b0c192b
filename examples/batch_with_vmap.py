# %% [markdown]
# # Inside JAX: a batch and a gradient
#
# With `save_at`, `solve` is a function like any other of JAX: it can be compiled, batched and
# differentiated.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import probode


def lotka_volterra(t, y, a, b):
    return jnp.array([a * y[0] - b * y[0] * y[1], -3 * y[1] + y[0] * y[1]])


times = np.linspace(0.0, 5.0, 101)
# A low order compiles faster, and is all that these tolerances need.
settings = {"solver": probode.EK1(3), "control": probode.PIControl(rtol=1e-4, atol=1e-7)}


@jax.jit
@jax.vmap
def sweep(a):
    posterior = probode.solve(
        lotka_volterra, (0.0, 5.0), np.ones(2), (a, 1.0), save_at=times, **settings
    )
    return posterior.mean, posterior.std, posterior.status


rates = np.linspace(1.0, 2.0, 8)
mean, std, status = sweep(rates)
print("means", mean.shape, "standard deviations", std.shape, "statuses", status)

# %% [markdown]
# Derivatives of the solution by a parameter: forward mode goes through the adaptive loop as it
# is, reverse mode wants a bound on the number of steps. It runs after `solve` has returned, so
# JAX itself has to be in double precision.


# %%
def prey_at_the_end(a):
    posterior = probode.solve(
        lotka_volterra, (0.0, 5.0), np.ones(2), (a, 1.0), save_at=5.0, max_steps=250, **settings
    )
    return posterior.mean[0, 0]


with jax.enable_x64(True):
    print("d prey(5) / da =", jax.jit(jax.grad(prey_at_the_end))(1.5))

figure, ax = plt.subplots(figsize=(8.0, 3.4))
colors = plt.cm.viridis(np.linspace(0.1, 0.9, len(rates)))
for a, path, color in zip(rates, np.asarray(mean), colors, strict=True):
    ax.plot(times, path[:, 0], color=color, label=f"a = {a:.2f}")
ax.set(xlabel="time", ylabel="prey", ylim=(0, 9.5))
ax.legend(ncols=4, fontsize=8, loc="upper left")
plt.show()
