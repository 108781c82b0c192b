# %% [markdown]
# # Error bars and samples
#
# What a loose tolerance does to a solution, as a band and as whole trajectories that could all be
# the true one.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import probode


def fitzhugh_nagumo(t, y):
    v, w = y
    return jnp.array([3 * (v - v**3 / 3 + w), -(v - 0.2 + 0.2 * w) / 3])


posterior = probode.solve(
    fitzhugh_nagumo,
    (0, 20),
    [-1.0, 1.0],
    solver=probode.EK1(order=1),
    control=probode.PIControl(rtol=1e-2, atol=1e-3),
).calibrate()
print(posterior)

# %% [markdown]
# Samples are drawn jointly: each one is a trajectory, wrong in the same direction from one time
# to the next. So any function of the solution has an error bar, too: here its amplitude.

# %%
times = np.linspace(0, 20, 801)
paths = np.asarray(posterior.sample(50, seed=1, t=times))
amplitudes = np.ptp(paths[:, :, 0], axis=1)
print(f"peak to peak {amplitudes.mean():.4f} ± {amplitudes.std():.1e}")

exact = probode.solve(
    fitzhugh_nagumo, (0, 20), [-1.0, 1.0], control=probode.PIControl(1e-10, 1e-12)
)
error = np.abs(posterior(times).mean - exact(times).mean)[:, 0]

figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(8.0, 5.0))
top.plot(times, paths[:20, :, 0].T, color="C0", lw=0.5, alpha=0.5)
top.set(ylabel="voltage", title="20 trajectories, each a possible solution")
bottom.semilogy(times, 2 * posterior(times).std[:, 0] + 1e-12, label="two standard deviations")
bottom.semilogy(times, error + 1e-12, color="0.3", lw=1.0, label="true error")
bottom.set(xlabel="time", ylim=(1e-4, 10.0))
bottom.legend(ncols=2)
plt.show()
