# %% [markdown]
# # A pendulum of unknown length
#
# The first guess is bad. Tempering finds the length, a plain search does not. A pendulum of the
# wrong length is out of step after a few swings, so the likelihood has many wrong maxima.
# Tempering begins with a solver that is hardly certain of the equation, so that the data lead. From
# stage to stage the equation counts for more.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from probode import EK1, SecondOrder, fit, solve

times = np.linspace(0.0, 3.0, 31)


def pendulum(t, y, v, p):
    return -9.81 / p["length"] * jnp.sin(y)


truth = solve(SecondOrder(pendulum), (0.0, 3.0), (1.0, 0.0), ({"length": 1.0},))
clean = np.asarray(truth.derivative(times).mean)
values = clean + 0.1 * np.random.default_rng(0).normal(size=31)


def fitted(**options):
    return fit(
        SecondOrder(pendulum),
        (times, values),
        {"length": (3.0, 0.1, 10.0)},
        y0=(1.0, 0.0),
        noise=0.1,
        observe=lambda t, y, v: v,
        solver=EK1(3),
        **options,
    )


lost = fitted()
found = fitted(temper=10.0 ** np.arange(12, -1, -3))
print(found)
for name, one in (("from 3 m as it is", lost), ("tempered", found)):
    length, log_p = one.estimates["length"], one.log_likelihood
    print(f"{name}: length {length:.3f} m (true 1 m), log likelihood {log_p:.1f}")

# %%
t = np.linspace(0.0, 3.0, 301)
figure, ax = plt.subplots(figsize=(8.0, 4.0), layout="constrained")
ax.plot(times, values, "o", color="black", ms=4, label="measured")
for name, one, color in (
    ("from 3 m as it is", lost, "tab:orange"),
    ("tempered", found, "tab:blue"),
):
    mean = one.predict(t, observe=one.observe).mean.ravel()
    ax.plot(t, mean, color=color, label=f"{name}: {one.estimates['length']:.2f} m")
ax.set(xlabel="seconds", ylabel="angular velocity", ylim=(-3.6, 5.2))
ax.legend(frameon=False, ncols=3, loc="upper center")
plt.show()
