# %% [markdown]
# # A likelihood for BlackJAX
#
# The likelihood of `probode` is a JAX function: in a log density it goes to any sampler of
# BlackJAX.

# %%
import blackjax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from probode import EK1, Observations, PIControl, log_likelihood

rng = np.random.default_rng(0)
times = np.linspace(0.0, 8.0, 17)
exact = 10.0 / (1.0 + 9.0 * np.exp(-times))  # rate 1, capacity 10, from 1
data = Observations(times, exact + 0.3 * rng.normal(size=17), noise=0.3)


def logistic(t, y, rate, capacity):
    return rate * y * (1.0 - y / capacity)


def log_density(z):
    """Of the logarithms of rate and capacity, with standard normal priors around 0 and 2."""
    rate, capacity = jnp.exp(z)
    log_prior = -0.5 * (z[0] ** 2 + (z[1] - 2.0) ** 2)
    return log_prior + log_likelihood(
        logistic,
        (0.0, 8.0),
        1.0,
        (rate, capacity),
        data,
        solver=EK1(3),
        control=PIControl(1e-3, 1e-3),
    )


draws, warmup = 500, 300
first, second = jax.random.split(jax.random.key(0))
adapted = blackjax.window_adaptation(blackjax.nuts, log_density)
(state, settings), _ = adapted.run(first, jnp.array([0.2, 2.0]), warmup)
step = blackjax.nuts(log_density, **settings).step


@jax.jit
def sample(state, keys):
    def body(state, key):
        state, _ = step(key, state)
        return state, state.position

    return jax.lax.scan(body, state, keys)[1]


drawn = np.exp(np.asarray(sample(state, jax.random.split(second, draws))))
for i, (name, true) in enumerate((("rate", 1.0), ("capacity", 10.0))):
    print(f"{name}: {drawn[:, i].mean():.3f} ± {drawn[:, i].std():.3f}, true {true}")

# %%
figure, ax = plt.subplots(figsize=(4.6, 3.6), layout="constrained")
ax.plot(*drawn.T, ".", color="tab:blue", alpha=0.4, label="draws")
ax.plot(1.0, 10.0, "k+", ms=12, mew=2, label="true")
ax.set(xlabel="rate", ylabel="capacity")
ax.legend(frameon=False)
plt.show()
