# %% [markdown]
# # Hares and lynxes
#
# From the raw numbers of pelts to a posterior of the parameters. The Hudson's Bay Company
# collected these pelts, in thousands, each year from 1900 to 1920.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from probode import EK1, LogNormal, Normal, Parameter, PIControl, fit

HARES = [
    *(30.0, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22.0, 25.4, 27.1),
    *(40.3, 57.0, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7),
]
LYNXES = [
    *(4.0, 6.1, 9.8, 35.2, 59.4, 41.7, 19.0, 13.0, 8.3, 9.1, 7.4),
    *(8.0, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6),
]
years = np.arange(21.0)
pelts = np.stack([HARES, LYNXES], axis=1)


def lotka_volterra(t, y, p):
    hares, lynxes = y
    return jnp.stack([(p.a - p.b * lynxes) * hares, (p.d * hares - p.c) * lynxes])


def positive(mean, std, start):
    return Parameter(start, lower=0.0, prior=Normal(mean, std=std))


# Noise in per cent of the value: the logarithms of the pelts have the noise sigma.
found = fit(
    lotka_volterra,
    (years, np.log(pelts)),
    {
        "a": positive(1.0, 0.5, 0.5),
        "b": positive(0.05, 0.05, 0.03),
        "c": positive(1.0, 0.5, 0.9),
        "d": positive(0.05, 0.05, 0.03),
        "z0": Parameter([30.0, 4.0], prior=LogNormal(np.log(10.0), 1.0)),
        "sigma": Parameter([0.5, 0.5], prior=LogNormal(-1.0, 1.0)),
    },
    y0=lambda p: p.z0,
    noise="sigma",
    observe=lambda t, y: jnp.log(y),
    solver=EK1(3),
    control=PIControl(1e-3, 1e-3),
)
print(found)

drawn = found.sample(200, warmup=150, chains=2)
print()
for name in ("a", "b", "c", "d"):
    values = drawn.posterior[name].values
    print(f"{name}: mean {values.mean():.4f}, standard deviation {values.std():.4f}")

# %%
t = np.linspace(0.0, 20.0, 201)
curve = found.predict(t)
figure, axes = plt.subplot_mosaic(
    [["curve"] * 4, ["a", "b", "c", "d"]],
    figsize=(8.0, 5.6),
    height_ratios=[2.0, 1.0],
    layout="constrained",
)
for i, (name, color) in enumerate((("hares", "tab:blue"), ("lynxes", "tab:orange"))):
    mean, band = curve.mean[:, i], 1.96 * curve.std[:, i]
    axes["curve"].fill_between(1900 + t, mean - band, mean + band, color=color, alpha=0.25, lw=0)
    axes["curve"].plot(1900 + t, mean, color=color)
    axes["curve"].plot(1900 + years, pelts[:, i], "o", color=color, ms=4, label=name)
axes["curve"].set(xlabel="year", ylabel="pelts, thousands", xticks=range(1900, 1921, 5))
axes["curve"].legend(frameon=False)
for name in ("a", "b", "c", "d"):
    axes[name].hist(drawn.posterior[name].values.ravel(), bins=20, color="tab:gray")
    axes[name].axvline(found.estimates[name], color="black", lw=1.2)
    axes[name].set(xlabel=name, yticks=[])
plt.show()
