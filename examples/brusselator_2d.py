# %% [markdown]
# # Two chemicals on a torus
#
# The Brusselator with diffusion has 8192 unknowns here. `SparseEK1` solves it, and its error bars
# make a picture of their own. Each row of the Jacobian has six entries, which the library finds.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import probode

N = 64
SPREAD = 0.002 * N**2
x = np.arange(N) / N
X, Y = np.meshgrid(x, x, indexing="ij")


def diffusion(u):
    around = jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1)
    return SPREAD * (around - 4 * u)


def brusselator(t, y):
    u, v = y.reshape(2, N, N)
    reaction = u * u * v
    return jnp.stack(
        [1 + reaction - 4.4 * u + diffusion(u), 3.4 * u - reaction + diffusion(v)]
    ).reshape(-1)


bump = 2 * np.sin(np.pi * X) ** 2 * np.sin(np.pi * Y) ** 4
start = np.stack([1 + bump, 3 + np.cos(2 * np.pi * X)])


def solved(rtol):
    return probode.solve(
        brusselator,
        (0, 3),
        start.reshape(-1),
        solver=probode.SparseEK1(order=4),
        control=probode.PIControl(rtol=rtol, atol=rtol),
        calibration="defect",
        save_at=[3.0],  # nothing else is kept
    )


posterior = solved(1e-4)
print(posterior)
print(posterior.diagnose())

# %% [markdown]
# What the bars say, and what is true: a solve with a far smaller tolerance tells.

# %%
u = np.asarray(posterior.mean[-1]).reshape(2, N, N)[0]
bars = np.asarray(posterior.std[-1]).reshape(2, N, N)[0]
error = np.abs(np.asarray(posterior.mean - solved(1e-7).mean)[-1]).reshape(2, N, N)[0]
print(f"error bars {np.sqrt(np.mean(bars**2)):.1e}, errors {np.sqrt(np.mean(error**2)):.1e} (rms)")
print(f"{100 * np.mean(error < 2 * bars):.0f} % of the errors are below two standard deviations")

figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
top = max(bars.max(), error.max())
for axis, values, title, limits in (
    (axes[0], u, "u at t = 3", {}),
    (axes[1], bars, "its standard deviation", {"vmin": 0, "vmax": top, "cmap": "magma"}),
    (axes[2], error, "its error", {"vmin": 0, "vmax": top, "cmap": "magma"}),
):
    image = axis.imshow(values.T, origin="lower", extent=(0, 1, 0, 1), **limits)
    axis.set_title(title)
    figure.colorbar(image, ax=axis, shrink=0.85)
plt.show()
