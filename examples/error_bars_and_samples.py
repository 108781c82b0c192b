"""Error bars and samples: what a loose tolerance does to a solution."""

import jax.numpy as jnp
import numpy as np

import probode


def fitzhugh_nagumo(t, y):
    v, w = y
    return jnp.array([3 * (v - v**3 / 3 + w), -(v - 0.2 + 0.2 * w) / 3])


posterior = probode.solve(
    fitzhugh_nagumo,
    (0, 20),
    [-1.0, 1.0],
    solver=probode.EK1(order=3),
    control=probode.PIControl(rtol=1e-3, atol=1e-5),
)
print(posterior)

paths = posterior.sample(100, seed=1)
spread = paths.std(axis=0)
k = len(posterior.t) // 2
print(f"at t = {posterior.t[k]:.2f}: standard deviation {posterior.std[k]}, of samples {spread[k]}")

# Samples are whole trajectories: any function of them can be averaged.
periods = np.array([np.ptp(path[:, 0]) for path in paths])
print(f"peak-to-peak amplitude {periods.mean():.5f} +- {periods.std():.1e}")
