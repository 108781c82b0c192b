# %% [markdown]
# # A pendulum on a rod
#
# In Cartesian coordinates a pendulum is a differential-algebraic equation: the tension of the rod
# has no derivative, it follows from a constraint. A mass matrix with a zero in it says that, and
# the tension gets an error bar, too.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import probode


def pendulum(t, state):
    x, y, v, w, tension = state
    constraint = v**2 + w**2 - tension * (x**2 + y**2) - 9.8 * y
    return jnp.array([v, w, -tension * x, -tension * y - 9.8, constraint])


equation = probode.MassMatrix(pendulum, np.array([1.0, 1.0, 1.0, 1.0, 0.0]))
posterior = probode.solve(
    equation,
    (0, 5),
    np.array([1.0, 0.0, 0.0, 0.0, 0.0]),
    control=probode.PIControl(rtol=1e-6, atol=1e-6),
).calibrate()
print(posterior)
length = np.hypot(posterior.mean[:, 0], posterior.mean[:, 1])
print(f"length of the rod: within {np.abs(length - 1).max():.1e} of 1")

# %% [markdown]
# The constraint that was given is the one for the tension; the length of the rod itself is kept
# as well as the solution is accurate. Its index was reduced by hand: see *Other equations, other
# priors*.

# %%
t = np.linspace(0, 5, 800)
at = posterior(t)
figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 3.2))
left.plot(t, at.mean[:, 4], color="C1")
left.set(xlabel="time", title="tension of the rod")
right.semilogy(t[1:], at.std[1:, :2], label=["x", "y"])
right.semilogy(t[1:], at.std[1:, 4], color="C1", label="tension")
right.set(xlabel="time", title="standard deviations")
right.legend()
plt.show()
