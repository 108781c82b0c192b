# %% [markdown]
# # A likelihood in NumPyro
#
# The likelihood of `probode` as a factor in a NumPyro model, beside priors written in NumPyro.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

from probode import EK1, Observations, PIControl, log_likelihood

rng = np.random.default_rng(0)
times = np.linspace(0.0, 8.0, 17)
exact = 10.0 / (1.0 + 9.0 * np.exp(-times))  # rate 1, capacity 10, from 1
values = exact + 0.3 * rng.normal(size=17)


def logistic(t, y, rate, capacity):
    return rate * y * (1.0 - y / capacity)


def model():
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    capacity = numpyro.sample("capacity", dist.LogNormal(2.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    numpyro.factor(
        "data",
        log_likelihood(
            logistic,
            (0.0, 8.0),
            1.0,
            (rate, capacity),
            Observations(times, values, sigma),
            solver=EK1(3),
            control=PIControl(1e-3, 1e-3),
        ),
    )


draws, warmup = 500, 300
sampler = numpyro.infer.MCMC(
    numpyro.infer.NUTS(model), num_warmup=warmup, num_samples=draws, progress_bar=False
)
sampler.run(jax.random.key(0))
drawn = {name: np.asarray(x) for name, x in sampler.get_samples().items()}
for name, true in (("rate", 1.0), ("capacity", 10.0), ("sigma", 0.3)):
    print(f"{name}: {drawn[name].mean():.3f} ± {drawn[name].std():.3f}, true {true}")

# %%
figure, axes = plt.subplots(1, 3, figsize=(8.0, 2.6), layout="constrained")
for ax, (name, true) in zip(axes, (("rate", 1.0), ("capacity", 10.0), ("sigma", 0.3)), strict=True):
    ax.hist(drawn[name], bins=25, color="tab:gray")
    ax.axvline(true, color="black", lw=1.2)
    ax.set(xlabel=name, yticks=[])
    ax.locator_params(axis="x", nbins=4)
plt.show()
