# %% [markdown]
# # A stiff reaction from data
#
# Robertson's reaction: three rates that differ by nine powers of ten, measured with noise at
# times from a thousandth of a second to hours.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from probode import EK1, PIControl, fit, solve

RATES = {"slow": 0.04, "fast": 3e7, "back": 1e4}
SIZES = np.array([1.0, 3e-5, 1.0])  # of the three species: the second is scarce


def robertson(t, y, p):
    first = p["slow"] * y[0] - p["back"] * y[1] * y[2]
    second = p["fast"] * y[1] ** 2
    return jnp.stack([-first, first - second, second])


def measured(t, y):
    return y / SIZES


control = PIControl(rtol=1e-5, atol=1e-10)
times = np.geomspace(1e-3, 1e4, 25)
start = np.array([1.0, 0.0, 0.0])
exact = solve(robertson, (0.0, 1e4), start, (RATES,), control=control)
clean = np.asarray(exact(times).mean) / SIZES
values = clean + 0.02 * np.random.default_rng(0).normal(size=clean.shape)

# From rates that are wrong by factors of three to ten. Bounds at zero: logarithms inside.
found = fit(
    robertson,
    (times, values),
    {"slow": (0.15, 0.0), "fast": (3e6, 0.0), "back": (3e3, 0.0)},
    y0=start,
    t_span=(0.0, 1e4),
    noise=0.02,
    observe=measured,
    solver=EK1(4),
    control=control,
)
print(found)
for name, true in RATES.items():
    off = (found.estimates[name] - true) / found.standard_errors[name]
    print(f"{name}: {found.estimates[name]:.4g}, true {true:g}, off by {off:+.1f} standard errors")

# %%
t = np.geomspace(1e-3, 1e4, 300)
curve = found.predict(t, observe=measured)
figure, ax = plt.subplots(figsize=(8.0, 4.2), layout="constrained")
names = ("$y_1$", "$y_2$ / 3e-5", "$y_3$")
for i, color in enumerate(("tab:blue", "tab:orange", "tab:green")):
    mean, band = curve.mean[:, i], 1.96 * curve.std[:, i]
    ax.fill_between(t, mean - band, mean + band, color=color, alpha=0.25, lw=0)
    ax.plot(t, mean, color=color)
    ax.errorbar(times, values[:, i], 0.02, fmt="o", color=color, ms=4, lw=1, label=names[i])
ax.set(xscale="log", xlabel="seconds", ylabel="amount")
ax.legend(frameon=False)
plt.show()
