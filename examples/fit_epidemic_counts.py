# %% [markdown]
# # An epidemic from counts
#
# Negative binomial data, of which only a share is reported. Simulated: a town of 10 000, a third
# of the cases reported, counts that scatter more than Poisson's.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.scipy.special import gammaln
from scipy.stats import nbinom

from probode import EK1, LogNormal, Normal, Parameter, PIControl, fit, solve

PEOPLE = 10_000.0
TRUE = {"infection": 0.5, "recovery": 0.2, "reported": 0.3, "first": 5.0}
DISPERSION = 15.0


def sir(t, y, p):
    s, i = y
    new = p["infection"] * s * i / PEOPLE
    return jnp.stack([-new, new - p["recovery"] * i])


def reports(t, y, p):
    """Expected reports a day."""
    return p["reported"] * p["infection"] * y[0] * y[1] / PEOPLE


def negative_binomial(u, mean, p):
    """Mean ``m``, variance ``m + m²/k``."""
    k = p["dispersion"]
    return (
        gammaln(u + k)
        - gammaln(k)
        - gammaln(u + 1.0)
        + k * jnp.log(k / (k + mean))
        + u * jnp.log(mean / (k + mean))
    )


days = np.arange(0.0, 61.0, 2.0)
begin = np.array([PEOPLE - TRUE["first"], TRUE["first"]])
truth = solve(sir, (0.0, 60.0), begin, (TRUE,))
expected = np.array([reports(t, truth(t).mean, TRUE) for t in days])
rng = np.random.default_rng(2)
counts = rng.poisson(rng.gamma(DISPERSION, expected / DISPERSION))

found = fit(
    sir,
    (days, counts),
    {
        "infection": (0.8, 0.0),
        # Counts alone hardly tell these two apart from the share: what doctors know.
        "recovery": Parameter(0.25, lower=0.0, prior=Normal(0.2, std=0.02)),
        "reported": (0.5, 0.0, 1.0),
        "first": Parameter(2.0, prior=LogNormal(1.0, 1.0)),
        "dispersion": Parameter(5.0, prior=LogNormal(2.0, 1.0)),
    },
    y0=lambda p: jnp.stack([PEOPLE - p.first, p.first]),
    observe=reports,
    log_density=negative_binomial,
    solver=EK1(3),
    control=PIControl(1e-4, 1e-4),
)
print(found)
number = found.estimates["infection"] / found.estimates["recovery"]
print(f"cases caused by the first one: {number:.2f} (true {0.5 / 0.2:.2f})")

# %%
t = np.linspace(0.0, 60.0, 201)
curve = found.predict(t, observe=found.observe)
mean, std = curve.mean.ravel(), curve.std.ravel()
k = found.estimates["dispersion"]
low, high = nbinom.ppf([[0.025], [0.975]], k, k / (k + mean))
figure, ax = plt.subplots(figsize=(8.0, 4.0), layout="constrained")
ax.fill_between(t, low, high, color="0.9", lw=0, label="counts at the estimates, 95 %")
ax.fill_between(
    t, mean - 1.96 * std, mean + 1.96 * std, color="tab:blue", alpha=0.35, lw=0, label="mean, 95 %"
)
ax.plot(t, mean, color="tab:blue")
ax.plot(days, counts, "o", color="black", ms=4, label="reported")
ax.set(xlabel="day", ylabel="cases reported a day", ylim=(0.0, None))
ax.legend(frameon=False)
plt.show()
