# %% [markdown]
# # A prior of your own
#
# Before it looks at the equation, a solver assumes something about the solution: the prior. For an
# oscillator a prior that oscillates fits better than the usual one, and needs fewer steps. It is
# a class with one method.

# %%
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import probode


@dataclass(frozen=True)
class Oscillating(probode.Prior):
    """The highest derivatives turn with a frequency: y^(q-1) swings, as does a mass on a spring."""

    frequency: float = 1.0

    def transition(self, h):
        q = self.order
        drift = jnp.diag(q - jnp.arange(q, dtype=float), 1)  # that of the integrated Wiener process
        # d y^(q) = -w² y^(q-1) dt + noise, in the coordinates of a step of length h
        return jax.scipy.linalg.expm(drift.at[q, q - 1].set(-((self.frequency * h) ** 2)))


def oscillator(t, y):
    return jnp.array([y[1], -100.0 * y[0] - 0.5 * y[0] ** 3])


control = probode.PIControl(rtol=1e-6, atol=1e-8)
priors = {
    "integrated Wiener process": probode.IWP(4),
    "oscillating, w = 10": Oscillating(4, 10.0),
}
found = {
    name: probode.solve(oscillator, (0, 5), [1.0, 0.0], solver=probode.EK1(prior), control=control)
    for name, prior in priors.items()
}
exact = probode.solve(oscillator, (0, 5), [1.0, 0.0], control=probode.PIControl(1e-11, 1e-13))
for name, posterior in found.items():
    error = np.abs(posterior.mean[-1] - exact(5.0).mean).max()
    print(f"{name}: {len(posterior.t) - 1} steps, error at the end {error:.1e}")

# %%
figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(8.0, 4.2))
t = np.linspace(0, 5, 600)
top.plot(t, exact(t).mean[:, 0], color="0.3")
top.set(ylabel="position")
for name, posterior in found.items():
    bottom.plot(posterior.t[:-1], np.diff(posterior.t), ".-", lw=0.8, ms=4, label=name)
bottom.set(xlabel="time", ylabel="length of a step", ylim=(0, None))
bottom.legend()
plt.show()
