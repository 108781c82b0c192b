# %% [markdown]
# # A neuron from a bad guess
#
# We guess the conductances of a Hodgkin-Huxley neuron badly. A neuron with the wrong conductances
# fires at the wrong times, or not at all, and the likelihood has a maximum for each way to miss the
# spikes. With `search="shooting"`
# the solution starts anew at every datum and needs to explain only the way to the next one. The
# links between the pieces are loose at first and then tempered, stage by stage, until all of it
# is one solution.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from probode import EK1, PIControl, fit, solve

times = np.linspace(0.0, 40.0, 161)  # milliseconds
current = 2.5  # µA/cm²


def linear(x, width):  # x / (exp(x / width) - 1)
    z = x / width
    small = jnp.abs(z) < 1e-6
    return jnp.where(small, width - 0.5 * x, x / jnp.expm1(jnp.where(small, 1.0, z)))


def gates(v):
    """Rates at which the gates m, h, n open and close (Pospischil et al. 2008)."""
    u = v + 60.0
    return (
        (0.32 * linear(13.0 - u, 4.0), 0.28 * linear(u - 40.0, 5.0)),
        (0.128 * jnp.exp((17.0 - u) / 18.0), 4.0 / (1.0 + jnp.exp((40.0 - u) / 5.0))),
        (0.032 * linear(15.0 - u, 5.0), 0.5 * jnp.exp((10.0 - u) / 40.0)),
    )


def neuron(t, y, p):
    v, m, h, n = y
    sodium, potassium = p["sodium"] * m**3 * h * (53.0 - v), p["potassium"] * n**4 * (-107.0 - v)
    slopes = [a * (1.0 - x) - b * x for x, (a, b) in zip((m, h, n), gates(v), strict=True)]
    return jnp.stack([sodium + potassium + p["leak"] * (-70.0 - v) + current, *slopes])


rest = np.array([-70.0, *(float(a / (a + b)) for a, b in gates(-70.0))])
truth = {"sodium": 25.0, "potassium": 7.0, "leak": 0.1}  # mS/cm²
exact = solve(neuron, (0.0, 40.0), rest, (truth,), solver=EK1(5), control=PIControl(1e-8, 1e-8))
noisy = np.asarray(exact(times).mean)[:, 0] + np.random.default_rng(0).normal(size=len(times))


def fitted(**options):
    return fit(
        neuron,
        (times, noisy),  # the voltage; no gate is measured
        {"sodium": (60.0, 0.5, 80.0), "potassium": (2.0, 1e-4, 15.0), "leak": (0.4, 1e-4, 0.6)},
        y0=rest,
        noise=1.0,
        observe=lambda t, y: y[:1],
        method="plain",
        solver=EK1(3),
        control=PIControl(1e-4, 1e-4),
        **options,
    )


lost, found = fitted(), fitted(search="shooting")
print(found)
print("true:", ", ".join(f"{name} {value:g}" for name, value in truth.items()))
for name, one in (("direct", lost), ("shooting", found)):
    values = ", ".join(f"{x:.3g}" for x in one.estimates.values())
    print(f"{name}: {values}; log likelihood {one.log_likelihood:.1f}")

# %%
t = np.linspace(0.0, 40.0, 801)
figure, ax = plt.subplots(figsize=(8.0, 4.0), layout="constrained")
ax.plot(times, noisy, "o", color="black", ms=3, label="measured")
for name, one, color in (("direct", lost, "tab:orange"), ("shooting", found, "tab:blue")):
    mean = one.predict(t, observe=one.observe).mean.ravel()
    ax.plot(t, mean, color=color, label=f"{name}: log likelihood {one.log_likelihood:.0f}")
ax.set(xlabel="milliseconds", ylabel="voltage, mV")
ax.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.12))
plt.show()
