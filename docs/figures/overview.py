"""Draw overview.png, the picture of README.md and of the first page of the documentation."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import probode

HERE = Path(__file__).parent
plt.rcParams.update(
    {"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "font.size": 10}
)
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "0.25"


def lotka_volterra(t, y):
    return np.array([1.5 * y[0] - y[0] * y[1], y[0] * y[1] - 3 * y[1]])


def solved(**options):
    return probode.solve_ivp(lotka_volterra, (0, 10), [1.0, 1.0], dense_output=True, **options)


t = np.linspace(0, 10, 1500)
exact = solved(rtol=1e-12, atol=1e-12).sol(t)
loose = solved(rtol=0.05, atol=0.01, order=1)
paths = np.asarray(loose.posterior.sample(12, seed=3, t=t))
tight = solved(rtol=1e-6, atol=1e-9)

figure, (left, right) = plt.subplots(
    1, 2, figsize=(10.0, 3.6), layout="constrained", width_ratios=[1.5, 1.0]
)
for k, (color, name) in enumerate(((BLUE, "prey"), (ORANGE, "predators"))):
    mean, std = loose.sol(t)[k], loose.sol.std(t)[k]
    left.fill_between(t, mean - 2 * std, mean + 2 * std, color=color, alpha=0.2, lw=0)
    left.plot(t, paths[:, :, k].T, color=color, lw=0.4, alpha=0.5)
    left.plot(t, mean, color=color, label=name)
    left.plot(t, exact[k], color=GREY, lw=1.0, ls="--", label="exact" if k else None)
left.set(xlabel="time", ylim=(-0.4, 9.8), title="a very loose tolerance: mean, 95 % band, samples")
left.legend(ncols=3, loc="upper left")

for result, color, name in ((loose, BLUE, "loose"), (tight, "#009E73", "rtol=1e-6")):
    right.semilogy(t[2:], result.sol.std(t)[0, 2:], color=color, label=f"error bar, {name}")
    error = np.abs(result.sol(t) - exact)[0, 2:]
    right.semilogy(t[2:], error, color=GREY, lw=0.8, label="true error" if color == BLUE else None)
right.set(xlabel="time", ylim=(1e-15, 30), title="error bars of the size of the error")
right.legend(loc="center right", fontsize=9)
figure.savefig(HERE / "overview.png", dpi=160)
