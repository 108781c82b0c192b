# %% [markdown]
# # An orbit that keeps its energy
#
# This orbit conserves its energy and its angular momentum. If you tell the solver, all results
# conserve them up to rounding, samples included.

# %%
import matplotlib.pyplot as plt
import numpy as np

from probode import solve_ivp


def kepler(t, y):
    return np.concatenate([y[2:], -y[:2] / np.linalg.norm(y[:2]) ** 3])


def energy(y):
    return y[2:] @ y[2:] / 2 - 1 / np.linalg.norm(y[:2])


def momentum(y):
    return y[0] * y[3] - y[1] * y[2]


y0 = np.array([0.5, 0.0, 0.0, np.sqrt(3.0)])  # eccentricity 1/2, a revolution takes 2 pi
conserved = [lambda y: energy(y) - energy(y0), lambda y: momentum(y) - momentum(y0)]
settings = {"rtol": 1e-4, "atol": 1e-7, "dense_output": True, "method": "EK0", "evaluations": 2}
free = solve_ivp(kepler, (0, 60), y0, **settings)
held = solve_ivp(kepler, (0, 60), y0, invariants=conserved, **settings)
for name, one in (("free", free), ("held", held)):
    drift = max(abs(energy(y) - energy(y0)) for y in one.y.T)
    x, std = one.y[0, -1], one.y_std[0, -1]
    print(f"{name}: energy off by {drift:.1e} at most; x at the end {x:.4f} ± {std:.1e}")

# %% [markdown]
# Invariants do not make an orbit exact: the body is on the right ellipse, but early or late. That
# is what the error bars say, in both cases.

# %%
exact = solve_ivp(kepler, (0, 60), y0, rtol=1e-12, atol=1e-14, dense_output=True)
t = np.linspace(0, 60, 1500)
figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 3.6), width_ratios=[1.0, 1.4])
left.plot(*held.sol(t)[:2], lw=0.8)
left.plot(0, 0, "o", color="C4")
left.set(aspect="equal", title="ten revolutions", xlabel="x", ylabel="y")
for name, one, color in (("free", free, "C1"), ("held", held, "C0")):
    error = np.linalg.norm(one.sol(t) - exact.sol(t), axis=0)
    right.semilogy(t[1:], error[1:], color=color, lw=0.9, label=f"error, {name}")
bar = np.linalg.norm(held.sol.std(t), axis=0)
right.semilogy(t[1:], bar[1:], color="0.3", ls="--", lw=1.0, label="standard deviation, held")
right.set(xlabel="time", ylim=(1e-7, 1e-2))
right.legend()
plt.show()
